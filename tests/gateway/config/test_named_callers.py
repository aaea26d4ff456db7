"""Callers that rules and hooks name exist, and no key is called like another kind of caller."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config.load import parse
from gateway.config.model import Config
from gateway.errors import ConfigError

KEYS = [{"name": "ann", "keyHash": f"sha256:{'1' * 64}"}, {"name": "robot-1", "keyHash": f"sha256:{'2' * 64}"}]
ISSUER = {"issuer": "https://id.example.test/realm", "audiences": ["https://gateway.example.test/mcp"]}
OAUTH = {"resource": "https://gateway.example.test", "issuers": [ISSUER]}


def config(*, keys: Any = KEYS, oauth: Any = None, principals: list[str] | None = None, **hook: Any) -> Config:
    auth = {"apiKeys": keys} | ({"oauth": oauth} if oauth else {})
    hooks = [{"name": "guard", "use": "size_guard", "conditions": {"principals": principals}, **hook}]
    settings = {"auth": auth} | ({"hooks": hooks} if principals is not None else {})
    return parse(json.dumps({"mcpServers": {"bank": {"command": "bank"}}, "gateway": settings}))


def told(loaded: Config) -> list[str]:
    return [warning.partition(": ")[2] for warning in loaded.warnings]


def test_a_slip_in_the_callers_of_a_hook_stops_the_start() -> None:
    with pytest.raises(ConfigError) as raised:
        config(principals=["robot-1", "anne"])
    words = "gateway.hooks[0].conditions.principals: anne matches no caller; did you mean ann?"
    assert words in str(raised.value)
    watching = config(principals=["anne"], mode="audit")
    assert told(watching) == [words]


def test_a_caller_that_is_like_no_other_is_told_and_patterns_are_taken() -> None:
    assert told(config(principals=["nightly"])) == ["gateway.hooks[0].conditions.principals: nightly matches no caller"]
    assert told(config(principals=["*", "robot-?", "local", "a*"])) == []


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
def test_callers_with_tokens_are_known_by_their_issuer(pattern: str, matches: bool) -> None:
    assert bool(told(config(oauth=OAUTH, principals=[pattern]))) is not matches


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("local", "is reserved (local) for callers without a key; expected another name than local and stdio"),
        ("Stdio", "is reserved (Stdio)"),
        (" local ", "is reserved"),
        ("team-*", "is no name of a caller; expected a name without *, ?, [ and ]"),
        ("  ", "is no name of a caller"),
    ],
)
def test_a_key_that_is_called_like_others_stops_the_start(name: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config(keys=[{"name": name, "keyHash": f"sha256:{'1' * 64}"}])
    assert "gateway.auth.apiKeys[0].name: " in str(raised.value)
    assert words in str(raised.value)
