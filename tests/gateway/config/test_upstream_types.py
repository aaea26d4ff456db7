"""Every registered type of upstream declares what makes it another server, and how it is reached."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest

from gateway.config import upstream_types
from gateway.config.server import ServerConfig
from gateway.config.upstream_types.registration import UPSTREAM_TYPES, read_server
from gateway.snapshot import fingerprint

every_type = pytest.mark.parametrize("model", UPSTREAM_TYPES, ids=lambda model: model.__name__)
SECRETS = {"env", "headers"}


@every_type
def test_every_field_of_a_type_says_what_a_change_of_it_means(model: type[ServerConfig]) -> None:
    assert model.identity, "a type without an identity would take every saved listing for its own"
    declared = ["type", *model.identity, *model.connection, *model.in_place]
    assert sorted(declared) == sorted(model.model_fields), "each field once: identity, connection or in_place"
    assert not SECRETS & set(model.identity), "what is kept on disk says nothing of secrets"


@every_type
def test_every_type_names_a_connector_that_can_be_constructed(model: type[ServerConfig]) -> None:
    module, _, name = model.connector.partition(":")
    connector = getattr(import_module(module), name)
    assert list(inspect.signature(connector).parameters) == ["server", "config", "client", "host", "credentials"]
    assert inspect.isfunction(connector.open)


def test_every_file_of_the_room_is_registered() -> None:
    files = {path.stem for path in Path(upstream_types.__path__[0]).glob("*_config.py")} - {"headers_config"}
    assert {model.__module__.rpartition(".")[2] for model in UPSTREAM_TYPES} == files


def test_no_two_types_share_a_name_or_are_told_by_the_same_key() -> None:
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
    assert (before.reach_key() == after.reach_key()) is same_connection
