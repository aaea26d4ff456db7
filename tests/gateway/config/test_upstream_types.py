"""Every registered upstream type declares its identity and its connector."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.config import upstream_types
from gateway.config.operation_config import SandboxConfig
from gateway.config.section import refusal
from gateway.config.server import ServerConfig
from gateway.config.upstream_types.registration import UPSTREAM_TYPES, read_server
from gateway.config.upstream_types.stdio_config import StdioConfig
from gateway.config.variables import expand
from gateway.fleet.snapshot import fingerprint
from gateway.protocol.gateway_errors import ConfigError

every_type = pytest.mark.parametrize("model", UPSTREAM_TYPES, ids=lambda model: model.__name__)
SECRETS = {"env", "headers"}


@every_type
def test_every_field_of_a_type_declares_the_effect_of_a_change(model: type[ServerConfig]) -> None:
    assert model.identity, "a type without an identity would take every saved listing for its own"
    declared = ["type", *model.identity, *model.connection, *model.in_place]
    assert sorted(declared) == sorted(model.model_fields), "each field once: identity, connection or in_place"
    assert not SECRETS & set(model.identity), "what is kept on disk says nothing of secrets"


@every_type
def test_every_type_names_a_constructible_connector(model: type[ServerConfig]) -> None:
    module, _, name = model.connector.partition(":")
    connector = getattr(import_module(module), name)
    parameters = list(inspect.signature(connector).parameters.values())
    assert [each.name for each in parameters[:5]] == ["server", "config", "client", "host", "credentials"]
    assert all(each.default is not inspect.Parameter.empty for each in parameters[5:])
    assert inspect.isfunction(connector.open)


def test_every_config_module_is_registered() -> None:
    files = {path.stem for path in Path(upstream_types.__path__[0]).glob("*_config.py")} - {"sign_in_config"}
    assert {model.__module__.rpartition(".")[2] for model in UPSTREAM_TYPES} == files


def test_types_share_no_name_and_no_inferring_key() -> None:
    names = [name for model in UPSTREAM_TYPES for name in (model.model_fields["type"].default, *model.spellings)]
    assert len(set(names)) == len(names)
    keys = [model.inferred_from for model in UPSTREAM_TYPES if model.inferred_from]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("entry", "change", "same_server", "same_connection"),
    [
        ({"command": "a"}, {"args": ["x"]}, False, False),
        ({"command": "a"}, {"env": {"T": "1"}}, True, False),
        ({"command": "a"}, {"callTimeout": 1}, True, True),
        ({"url": "http://h/mcp"}, {"url": "http://h/other"}, False, False),
        ({"url": "http://h/mcp"}, {"type": "sse"}, True, False),
        ({"url": "http://h/mcp"}, {"headers": {"X": "1"}}, True, False),
        ({"endpoint": "http://h/q", "operations": "o"}, {"excludeMutations": True}, False, False),
        ({"endpoint": "http://h/q", "operations": "o"}, {"schema": "s.graphql"}, True, False),
        ({"endpoint": "http://h/q", "operations": "o"}, {"nullable": "union"}, True, True),
    ],
)
def test_another_server_is_never_reached_over_the_same_connection(
    entry: dict[str, object], change: dict[str, object], same_server: bool, same_connection: bool
) -> None:
    before, after = read_server(entry), read_server({**entry, **change})
    assert (fingerprint(before) == fingerprint(after)) is same_server
    assert (before.connection_key() == after.connection_key()) is same_connection


ROOT = "${roots.0}"
IN_ROOT = {"command": "a", "cwd": ROOT, "instances": "session", "allowedRoots": ["projects", "~"]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cwd": ROOT + "/src"}, "cwd: has a path with ${roots.0}"),
        ({"sandbox": {"write": [ROOT + "/src"]}}, "sandbox: has a path with ${roots.0}"),
        ({"instances": "shared"}, "instances: has one process for all callers"),
        ({"allowedRoots": []}, "allowedRoots: is missing"),
        ({"cwd": None}, "allowedRoots: has no effect"),
        ({"command": None, "container": {"image": "i"}}, "container: does not know"),
        ({"instances": "each"}, "instances"),
    ],
)
def test_entry_for_roots_of_hosts_is_checked(change: dict[str, object], reason: str) -> None:
    entry = {name: value for name, value in {**IN_ROOT, **change}.items() if value is not None}
    with pytest.raises(ValidationError) as raised:
        read_server(entry)
    assert reason in str(refusal(raised.value, "f"))


def test_placeholder_for_roots_is_replaced_only_at_a_start(tmp_path: Path) -> None:
    entry = {**IN_ROOT, "args": ["--in=" + ROOT], "sandbox": {"read": ["other"], "write": [ROOT]}}
    config = read_server(entry).with_absolute_paths(tmp_path)
    assert isinstance(config, StdioConfig)
    assert config.allowed_roots == [str(tmp_path / "projects"), str(Path.home())]
    assert (config.cwd, config.args) == (ROOT, ["--in=" + ROOT])
    for root, folder in (("/work/x", "/work/x"), ("", str(tmp_path / "projects"))):
        started = config.in_root(root)
        assert (started.cwd, started.args) == (folder, ["--in=" + folder])
        assert isinstance(started.sandbox, SandboxConfig)
        assert (started.sandbox.read, started.sandbox.write) == ([str(tmp_path / "other")], [folder])


@pytest.mark.parametrize(("place", "allowed"), [("cwd", True), ("env", False)])
def test_placeholder_for_roots_is_kept_where_it_is_known(tmp_path: Path, place: str, allowed: bool) -> None:
    entry = {"command": "a", place: ROOT if place == "cwd" else {"X": ROOT}}

    def expanded() -> object:
        return expand({"mcpServers": {"s": entry}}, environ={}, file="f", folder=tmp_path, secrets=set())["mcpServers"][
            "s"
        ]

    if allowed:
        assert expanded() == entry
    else:
        with pytest.raises(ConfigError, match="is not a valid placeholder"):
            expanded()
