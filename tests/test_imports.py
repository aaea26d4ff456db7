"""Imports run one way: from gateway to registry, and inwards in the folders of the gateway."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REGISTRY_MAY_IMPORT = {
    "registry",
    "jsonschema_rs",
    "cachetools",
    "mcp_types",
    "orjson",
    "pydantic_core",
    "snowballstemmer",
}
REGISTRY_MAY_NOT_DO = {"asyncio", "time", "socket", "subprocess", "http", "os", "pathlib"}
# A diagram of ten packages with more arrows would be unreadable.
MAX_REGISTRY_ARROWS = 26
# From the outside to the inside: a folder may import itself and the folders after it.
FOLDERS = (
    "__main__",
    "cli",
    "commands",
    "serving",
    "cluster",
    "admin",
    "fleet",
    "onboarding",
    "downstream",
    "calls",
    "hooks",
    "upstream",
    "audit",
    "http",
    "access",
    "telemetry",
    "config",
    "embeddings",
    "process",
    "protocol",
)
# Attributes that code outside the module of their class assigns after construction, by the expression in front of the
# attribute, and why. Everything else is passed to a constructor, or changed by a method of the object itself.
ASSIGNED_BY_OTHERS = {
    "call": "the one object of a call, to which the steps of the pipeline add what they find out",
    "edit": "the result of rewriting one schema node, to which each rule adds its part",
    "head": "results of the router and the endpoint, cached with the header block",
    "header_block": "results of the endpoint, cached with the header block",
    "heads": "bytes that a connection has read ahead, moved for every request",
    "self._heads": "bytes that a connection has read ahead, moved for every request",
    "responder": "the header lines for another origin, copied for every request",
    "error": "a raised error, from which secrets are removed on its way out",
    "record": "logging: filters add attributes to a record",
    "args": "argparse: the namespace of the command line",
    "added": "argparse: a parser has no other place for its epilog",
    "sys": "the standard streams of this process",
    "context": "ssl: a context is configured by its attributes",
    "connection": "http.client: a connection is configured by its attributes",
    "self.server": "uvicorn: a server is stopped by `should_exit`",
}
# Functions with more parameters than the bounds below, and why they stay.
MAX_CONSTRUCTOR_PARAMETERS, MAX_PARAMETERS = 8, 6
MANY_PARAMETERS = {
    "gateway.admin.routes.route": "a declaration: each keyword is one property of a route",
    "gateway.audit.recording.Audit.call": "called for every call, where an object would cost more than the entry",
    "gateway.calls.forwarding.Forwarder.send": "called for every call, like the line above",
    "gateway.config.variables.expand": "recursive, with the state of one walk in its parameters",
    "gateway.upstream.link.UpstreamLink.__init__": "the kinds of links differ in one flag each",
    "gateway.upstream.oauth.authorization.authorization_url": "each keyword is one parameter of the request (RFC 6749)",
    "gateway.upstream.transport.stdio_transport.open_stdio": "each keyword is one key of a stdio entry",
    "registry.arguments.prepare.prepare": "called for every call with the settings of its server",
    "registry.arguments.problems.explain": "the parts of one text, most of which are often missing",
    "registry.views.view.build_view": "each keyword is one input of a view, by which its cache is keyed",
}
# anyio: the deadline of a cancel scope is meant to be assigned.
ASSIGNABLE = {"deadline"}
HEAVY = ("mcp", "starlette", "uvicorn", "rich", "jsonschema", "jsonschema_rs", "ruamel.yaml", "graphql")


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    return tuple(imports(path))


def imports(path: Path) -> Iterator[str]:
    """Every module that the file imports, wherever in the file; an import for types alone is an arrow too."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                inside = ROOT.joinpath(*whole.split("."))
                yield whole if inside.with_suffix(".py").exists() or inside.is_dir() else str(node.module)


def depth(module: str) -> int:
    folder = module.split(".")[1]
    assert folder in FOLDERS, f"{module} has no place in FOLDERS"
    return FOLDERS.index(folder)


def circles(arrows: Mapping[str, set[str]]) -> list[set[str]]:
    """The sets of nodes that reach each other."""
    reached: dict[str, set[str]] = {}
    for start in arrows:
        found: set[str] = set()
        pending = [start]
        while pending:
            for target in arrows.get(pending.pop(), ()):
                if target not in found:
                    found.add(target)
                    pending.append(target)
        reached[start] = found
    return [
        {node, *(other for other in found if node in reached.get(other, ()))}
        for node, found in reached.items()
        if node in found
    ]


@pytest.mark.parametrize("path", sources("registry"), ids=module_name)
def test_registry_imports_only_the_standard_library_and_its_validators(path: Path) -> None:
    for name in imports_of(path):
        root = name.split(".")[0]
        assert root in REGISTRY_MAY_IMPORT or root in sys.stdlib_module_names, name
        assert root not in REGISTRY_MAY_NOT_DO, f"{name}: the registry does no I/O"


@pytest.mark.parametrize("path", sources("registry"), ids=module_name)
def test_registry_has_no_coroutine(path: Path) -> None:
    tree = tree_of(path)
    assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree))


def test_registry_packages_have_no_import_cycle() -> None:
    def package(module: str) -> str:
        return ".".join(module.split(".")[:2])

    arrows: dict[str, set[str]] = {}
    for path in sources("registry"):
        here = package(module_name(path))
        targets = {package(name) for name in imports_of(path) if name.startswith("registry.")}
        arrows.setdefault(here, set()).update(targets - {here})
    assert circles(arrows) == []
    assert sum(map(len, arrows.values())) <= MAX_REGISTRY_ARROWS


@pytest.mark.parametrize("path", sources("gateway"), ids=module_name)
def test_gateway_folders_import_inwards_only(path: Path) -> None:
    here = module_name(path)
    if here.startswith("gateway.demo"):
        outside = [n for n in imports_of(path) if n.startswith(("gateway", "registry")) and "gateway.demo" not in n]
        assert outside == [], "the demo's servers know nothing of the gateway"
        return
    folder = here.partition(".")[2].partition(".")[0]
    for name in imports_of(path):
        if not name.startswith("gateway.") or name.split(".")[1] == folder:
            continue
        assert folder, f"gateway itself imports {name}"
        assert depth(here) < depth(name), f"{here} imports {name}, which is further out"


@pytest.mark.parametrize("package", ["gateway", "registry"])
def test_modules_have_no_import_cycle(package: str) -> None:
    arrows = {
        module_name(path): {name for name in imports_of(path) if name.startswith(package)} for path in sources(package)
    }
    assert circles(arrows) == []


@pytest.mark.parametrize(
    "module", ["gateway.serving.over_stdio", "gateway.downstream.stdio_server", "gateway.cli", "gateway.commands.serve"]
)
def test_stdio_start_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_file_names_are_unique_across_both_packages() -> None:
    named = [path.stem for package in ("gateway", "registry") for path in sources(package)]
    twice = {stem for stem in named if named.count(stem) > 1}
    assert twice <= {"__init__", "__main__"}


def test_folders_and_files_stay_within_their_bounds() -> None:
    """Bounds on folders and files; a change that needs more first looks for what belongs together."""
    paths = [path for package in ("gateway", "registry") for path in sources(package)]
    folders = [path.parent for path in paths]
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    small = [path for path, size in sizes.items() if size < 50 and not path.stem.startswith("__")]
    direct = [child for package in ("gateway", "registry") for child in (ROOT / package).glob("*/__init__.py")]
    assert len(paths) <= 330
    assert len(set(folders)) <= 40
    assert len(direct) <= 28
    assert sum(folders.count(folder) > 16 for folder in set(folders)) <= 3
    assert [str(path) for path, size in sizes.items() if size > 600] == []
    assert len(small) <= 10
    assert 150 <= sorted(sizes.values())[len(sizes) // 2] <= 260


def assigned_attributes(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that a statement assigns."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        targets = [node.target]
    elif isinstance(node, ast.With | ast.AsyncWith):
        targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
    for target in targets:
        yield from (
            each for each in ast.walk(target) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
        )


def constructed(function: ast.AST) -> set[str]:
    """The variables that a function assigns a new object: the call of a class, or a copy."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = node.value.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            name = name.lstrip("_")
            if name[:1].isupper() or name == "copy":
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def assigned_from_outside(path: Path) -> Iterator[str]:
    """Assignments to attributes of an object that the function has not made, and whose class is in another module."""
    tree = tree_of(path)
    own = {
        name
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
        for node in ast.walk(each)
        for name in (
            [node.target.id]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            else [target.attr for target in assigned_attributes(node) if ast.unparse(target.value) == "self"]
        )
    }

    allowed = own | ASSIGNABLE
    waiting: list[tuple[ast.AST, set[str]]] = [(tree, {"self", "cls"})]
    while waiting:
        node, new = waiting.pop()
        # Expressions assign no attribute.
        for child in (each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr)):
            for target in assigned_attributes(child):
                owner = ast.unparse(target.value)
                if owner not in new and target.attr not in allowed:
                    yield f"{owner}.{target.attr}"
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            waiting.append((child, new | constructed(child) if is_function else new))


def test_attributes_are_not_assigned_from_outside_their_object() -> None:
    found = {
        (module_name(path), assigned)
        for package in ("gateway", "registry")
        for path in sources(package)
        for assigned in assigned_from_outside(path)
    }
    assert {pair for pair in found if pair[1].rpartition(".")[0] not in ASSIGNED_BY_OTHERS} == set()
    assert {assigned.rpartition(".")[0] for _, assigned in found} == set(ASSIGNED_BY_OTHERS), "an exception is unused"


def test_formatter_is_disabled_for_few_tables() -> None:
    texts = (path.read_text(encoding="utf-8") for package in ("gateway", "registry") for path in sources(package))
    assert sum(text.count("# fmt: skip") + text.count("# fmt: off") for text in texts) < 20


def parameters(path: Path) -> Iterator[tuple[str, int]]:
    """Each function with the number of its parameters, without `self` and `cls`."""

    waiting: list[tuple[ast.AST, str]] = [(tree_of(path), module_name(path))]
    while waiting:
        node, name = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                # Functions are not defined within expressions.
                waiting += [(child, name)] if not isinstance(child, ast.expr) else []
                continue
            if not isinstance(child, ast.ClassDef):
                given = [*child.args.posonlyargs, *child.args.args]
                bound = isinstance(node, ast.ClassDef) and given and given[0].arg in ("self", "cls")
                extra = [*child.args.kwonlyargs, *filter(None, [child.args.vararg, child.args.kwarg])]
                yield f"{name}.{child.name}", len(given) - bool(bound) + len(extra)
            waiting.append((child, f"{name}.{child.name}"))


def test_functions_have_few_parameters() -> None:
    found = {
        name
        for package in ("gateway", "registry")
        for path in sources(package)
        for name, count in parameters(path)
        if count > (MAX_CONSTRUCTOR_PARAMETERS if name.endswith("__init__") else MAX_PARAMETERS)
    }
    assert found - set(MANY_PARAMETERS) == set()
    assert set(MANY_PARAMETERS) - found == set(), "an exception is unused"
    assert len(MANY_PARAMETERS) <= 10
