"""Callers named in rules and hooks exist, and key names do not collide with other kinds of callers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config.load import parse
from gateway.config.model import Config
from gateway.protocol.gateway_errors import ConfigError

KEYS = [{"name": "ann", "keyHash": f"sha256:{'1' * 64}"}, {"name": "robot-1", "keyHash": f"sha256:{'2' * 64}"}]
ISSUER = {"issuer": "https://id.example.test/realm", "audiences": ["https://gateway.example.test/mcp"]}
OAUTH = {"resource": "https://gateway.example.test", "issuers": [ISSUER]}


def config(*, keys: Any = KEYS, oauth: Any = None, principals: list[str] | None = None, **hook: Any) -> Config:
    auth = {"apiKeys": keys} | ({"oauth": oauth} if oauth else {})
    hooks = [{"name": "guard", "use": "size_guard", "conditions": {"principals": principals}, **hook}]
    settings = {"auth": auth} | ({"hooks": hooks} if principals is not None else {})
    return parse(json.dumps({"mcpServers": {"bank": {"command": "bank"}}, "gateway": settings}))


def warnings_of(loaded: Config) -> list[str]:
    return [warning.partition(": ")[2] for warning in loaded.warnings]


def test_misspelled_caller_in_hook_conditions_stops_the_start() -> None:
    with pytest.raises(ConfigError) as raised:
        config(principals=["robot-1", "anne"])
    words = "gateway.hooks[0].conditions.principals: anne matches no caller; did you mean ann?"
    assert words in str(raised.value)
    watching = config(principals=["anne"], mode="audit")
    assert warnings_of(watching) == [words]


def test_unknown_caller_is_warned_about_and_patterns_are_accepted() -> None:
    assert warnings_of(config(principals=["nightly"])) == [
        "gateway.hooks[0].conditions.principals: nightly matches no caller"
    ]
    assert warnings_of(config(principals=["*", "robot-?", "local", "a*"])) == []


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("*@id.example.test/realm", True),
        ("kim@id.example.test/realm", True),
        ("kim*", True),
        ("*", True),
        ("*@*", True),
        ("k?m@*/realm", True),
        ("*realm", True),
        ("kim", False),
        ("kim@id.example.test", False),
        ("*@other.example.test", False),
        ("@id.example.test/realm", False),
    ],
)
def test_token_callers_are_known_by_their_issuer(pattern: str, matches: bool) -> None:
    assert bool(warnings_of(config(oauth=OAUTH, principals=[pattern]))) is not matches


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("local", "is reserved (local) for callers without a key; expected a name other than local and stdio"),
        ("Stdio", "is reserved (Stdio)"),
        (" local ", "is reserved"),
        ("team-*", "is not a valid caller name; expected a name without *, ?, [ and ]"),
        ("  ", "is not a valid caller name"),
    ],
)
def test_key_name_reserved_for_other_callers_stops_the_start(name: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config(keys=[{"name": name, "keyHash": f"sha256:{'1' * 64}"}])
    assert "gateway.auth.apiKeys[0].name: " in str(raised.value)
    assert words in str(raised.value)
