"""All unknown keys are reported in one run, each with a suggestion."""

from __future__ import annotations

import json

import pytest

from gateway.config.load import parse
from gateway.protocol.gateway_errors import ConfigError


def test_all_unknown_keys_of_a_section_are_reported_together() -> None:
    gateway = {"names": {"maxLenght": 40, "prefx": "none", "colour": 1}}
    with pytest.raises(ConfigError) as raised:
        parse(json.dumps({"mcpServers": {"bank": {"command": "bank"}}, "gateway": gateway}))
    message = str(raised.value)
    assert "gateway.names.maxLenght: unknown key; expected maxLength (did you mean it?)" in message
    assert "; prefx is unknown too (did you mean prefix?); colour is unknown too" in message


def test_all_unknown_keys_that_may_hide_tools_are_reported_together() -> None:
    entry = {"command": "bank", "denny": ["*"], "hideAll": ["a"], "excludeMutation": True, "callTimeout": "long"}
    loaded = parse(json.dumps({"mcpServers": {"bank": entry, "other": {"command": "x"}}}))
    reason = loaded.left_out["bank"].reason
    for key in ("denny", "hideAll", "excludeMutation"):
        assert f"mcpServers.bank.{key}: unknown key that may be meant to hide something" in reason
    assert "mcpServers.bank.callTimeout: has a wrong value; expected a number" in reason


def test_errors_beside_and_below_an_unknown_key_are_reported_together() -> None:
    gateway = {
        "drainDelai": 3,
        "names": {"maxLength": "long"},
        "cluster": {"peer": {}},
        "profiles": {"sec": {"server": ["a"], "disclosure": "lasy"}},
        "auth": {"apiKeys": [{"nme": "ci", "scopes": ["tool"]}]},
    }
    with pytest.raises(ConfigError) as raised:
        parse(json.dumps({"mcpServers": {"bank": {"command": "bank"}}, "gateway": gateway}))
    lines = str(raised.value).splitlines()
    assert {line.removeprefix("configuration: ").partition(": ")[0] for line in lines} == {
        "gateway.drainDelai",
        "gateway.names.maxLength",
        "gateway.auth.apiKeys[0].nme",
        "gateway.auth.apiKeys[0].scopes[0]",
        "gateway.profiles.sec.server",
        "gateway.profiles.sec.disclosure",
        "gateway.cluster.peer",
    }
    assert "is empty" not in str(raised.value)  # it is not, where the key is meant as another
