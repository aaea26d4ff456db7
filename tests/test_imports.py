"""Imports run one way: registry knows nothing of gateway, and gateway's rooms only look inwards."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REGISTRY_MAY_IMPORT = {
    "registry",
    "jsonschema",
    "jsonschema_rs",
    "referencing",
    "cachetools",
    "mcp_types",
    "orjson",
    "pydantic_core",
    "snowballstemmer",
}
REGISTRY_MAY_NOT_DO = {"asyncio", "time", "socket", "subprocess", "http", "os", "pathlib"}
# Ten packages with more arrows between them could not be drawn any more.
MAX_REGISTRY_ARROWS = 26
# From the outside to the inside: a room imports only rooms that stand after it, and itself.
ROOMS = (
    "__main__", "cli", "commands", "serving", "app", "cluster", "admin", "host_files", "server_sources", "telemetry",
    "fleet", "shared_listings", "own_listings", "catalog_updates", "reload", "downstream", "calls", "hooks",
    "discovery", "snapshot", "lock", "upstream", "operator_notes", "access", "audit", "instruments", "config",
    "embeddings",
)  # fmt: skip
# Open to all, and importing no room.
LEAVES = {
    "gateway",
    "gateway.errors",
    "gateway.extras",
    "gateway.wire",
    "gateway.lines",
    "gateway.files",
    "gateway.memory",
    "gateway.jsonrpc",
    "gateway.protocol",
    "gateway.secrets",
    "gateway.signals",
    "gateway.owned_tasks",
    "gateway.worker_thread",
    "gateway.config.admin",
    "gateway.config.approvals",
    "gateway.config.audit",
    "gateway.config.auth",
    "gateway.config.cluster",
    "gateway.config.model",
    "gateway.config.hooks",
    "gateway.config.issuers",
    "gateway.config.launch_identity",
    "gateway.config.lock",
    "gateway.config.quotas",
    "gateway.config.section",
    "gateway.config.server",
    "gateway.config.telemetry",
    *(f"gateway.config.upstream_types.{path.stem}" for path in (ROOT / "gateway/config/upstream_types").glob("*.py")),
    "gateway.access.principal",
    "gateway.access.signing",
}
HEAVY = ("mcp", "starlette", "uvicorn", "rich", "jsonschema", "jsonschema_rs", "ruamel.yaml", "graphql")


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Every module that the file imports, wherever in the file; an import for types alone is an arrow too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                inside = ROOT.joinpath(*whole.split("."))
                yield whole if inside.with_suffix(".py").exists() or inside.is_dir() else str(node.module)


def depth(module: str) -> int:
    room = module.split(".")[1]
    assert room in ROOMS, f"{module} is in no room; give it its place in ROOMS"
    return ROOMS.index(room)


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
def test_the_registry_imports_the_standard_library_and_its_validators_only(path: Path) -> None:
    for name in imports(path):
        root = name.split(".")[0]
        assert root in REGISTRY_MAY_IMPORT or root in sys.stdlib_module_names, name
        assert root not in REGISTRY_MAY_NOT_DO, f"{name}: the registry does no I/O"


@pytest.mark.parametrize("path", sources("registry"), ids=module_name)
def test_the_registry_has_no_coroutine(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree))


def test_the_packages_of_the_registry_form_no_circle() -> None:
    def package(module: str) -> str:
        return ".".join(module.split(".")[:2])

    arrows: dict[str, set[str]] = {}
    for path in sources("registry"):
        here = package(module_name(path))
        targets = {package(name) for name in imports(path) if name.startswith("registry.")}
        arrows.setdefault(here, set()).update(targets - {here})
    assert circles(arrows) == []
    assert sum(map(len, arrows.values())) <= MAX_REGISTRY_ARROWS


@pytest.mark.parametrize("path", sources("gateway"), ids=module_name)
def test_the_rooms_of_the_gateway_import_inwards_only(path: Path) -> None:
    here = module_name(path)
    if here.startswith("gateway.demo"):
        outside = [n for n in imports(path) if n.startswith(("gateway", "registry")) and "gateway.demo" not in n]
        assert outside == [], "the demo's servers know nothing of the gateway"
        return
    room = here.partition(".")[2].partition(".")[0]
    for name in imports(path):
        if not name.startswith("gateway") or name in LEAVES or name.split(".")[1] == room:
            continue
        assert here not in LEAVES, f"the leaf {here} imports {name}"
        assert depth(here) < depth(name), f"{here} imports {name}, which is further out"


@pytest.mark.parametrize("package", ["gateway", "registry"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    arrows = {
        module_name(path): {name for name in imports(path) if name.startswith(package)} for path in sources(package)
    }
    assert circles(arrows) == []


@pytest.mark.parametrize(
    "module", ["gateway.serving.over_stdio", "gateway.downstream.stdio_server", "gateway.cli", "gateway.commands.serve"]
)
def test_the_start_of_typegate_stdio_waits_for_nothing_heavy(module: str) -> None:
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
