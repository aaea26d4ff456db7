"""Every key that is not known is told in one run, each with what may be meant."""

from __future__ import annotations

import json

import pytest

from gateway.config.load import parse
from gateway.errors import ConfigError


def test_all_unknown_keys_of_a_section_are_told_at_once() -> None:
    gateway = {"names": {"maxLenght": 40, "prefx": "none", "colour": 1}}
    with pytest.raises(ConfigError) as raised:
        parse(json.dumps({"mcpServers": {"bank": {"command": "bank"}}, "gateway": gateway}))
    said = str(raised.value)
    assert "gateway.names.maxLenght: unknown key; expected maxLength (did you mean it?)" in said
    assert "; prefx is unknown too (did you mean prefix?); colour is unknown too" in said


def test_all_keys_that_may_hide_something_are_told_at_once() -> None:
    entry = {"command": "bank", "denny": ["*"], "hideAll": ["a"], "excludeMutation": True, "callTimeout": "long"}
    loaded = parse(json.dumps({"mcpServers": {"bank": entry, "other": {"command": "x"}}}))
    reason = loaded.left_out["bank"].reason
    for key in ("denny", "hideAll", "excludeMutation"):
        assert f"mcpServers.bank.{key}: unknown key, by which something may be meant to be hidden" in reason
    assert "mcpServers.bank.callTimeout: has a wrong value; expected a number" in reason


def test_what_is_wrong_beside_and_below_an_unknown_key_is_told_in_the_same_run() -> None:
    gateway = {
        "drainDelai": 3,
        "names": {"maxLength": "long"},
        "cluster": {"peer": {}},
        "profiles": {"sec": {"server": ["a"], "disclosure": "lasy"}},
        "auth": {"apiKeys": [{"nme": "ci", "scopes": ["tool"]}]},
    }
    with pytest.raises(ConfigError) as raised:
        parse(json.dumps({"mcpServers": {"bank": {"command": "bank"}}, "gateway": gateway}))
    said = str(raised.value).splitlines()
    assert {line.removeprefix("configuration: ").partition(": ")[0] for line in said} == {
        "gateway.drainDelai",
        "gateway.names.maxLength",
        "gateway.auth.apiKeys[0].nme",
        "gateway.auth.apiKeys[0].scopes[0]",
        "gateway.profiles.sec.server",
        "gateway.profiles.sec.disclosure",
        "gateway.cluster.peer",
    }
    assert "is empty" not in str(raised.value)  # it is not, where the key is meant as another
