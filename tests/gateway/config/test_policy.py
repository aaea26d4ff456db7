"""Policy rules in the file: accepted forms, errors and warnings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.access.principal import Principal
from gateway.config.conversion import policy_of
from gateway.config.load import parse
from gateway.protocol.gateway_errors import ConfigError
from registry.policy.rules import ArgumentCondition

KEYS = [{"name": "ann", "keyHash": "sha256:" + "0" * 64, "groups": ["interns"]}]
BANK = {"bank": {"command": "bank", "tags": ["money"]}}


def config(*rules: dict[str, Any], default: str = "allow") -> Any:
    policy = {"default": default, "rules": list(rules)}
    return parse(json.dumps({"mcpServers": BANK, "gateway": {"auth": {"apiKeys": KEYS}, "policy": policy}}))


def refused(*rules: dict[str, Any], default: str = "allow") -> str:
    with pytest.raises(ConfigError) as error:
        config(*rules, default=default)
    return str(error.value)


def test_short_form_of_a_rule_equals_the_long_form() -> None:
    short = {"name": "r", "ask": ["bank__wire"], "when": {"arguments": {"to": "x", "kind": ["a", "b"]}}}
    long = {
        "name": "r", "ask": {"tools": ["bank__wire"]},
        "when": {"arguments": {"to": {"equals": "x"}, "kind": {"oneOf": ["a", "b"]}}},
    }  # fmt: skip
    first, second = (policy_of(config(rule)).rules for rule in (short, long))
    assert first == second
    assert first[0].conditions.arguments == (
        ArgumentCondition(path="to", equals=("x",)),
        ArgumentCondition(path="kind", equals=("a", "b")),
    )
    assert first[0].what.kinds == {"tools"}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"name": "r"}, "does nothing; expected one of allow, deny and ask"),
        ({"name": "r", "allow": ["*"], "deny": ["*"]}, "has allow and deny"),
        ({"name": "r", "deny": False}, "rules[0].deny: is neither true nor a list of patterns"),
        ({"name": "r", "deny": []}, "rules[0].deny: is empty, so that the rule can never apply"),
        ({"name": "r", "deny": True, "groups": []}, "rules[0].groups: is empty"),
        ({"name": "", "deny": True}, "rules[0].name"),
        ({"deny": True}, "rules[0].name: is missing"),
        ({"name": "r", "deny": True, "principal": ["x"]}, "expected principals (did you mean it?)"),
        ({"name": "r", "deny": True, "kinds": ["tool"]}, "rules[0].kinds[0]"),
        ({"name": "r", "ask": True, "kinds": ["prompts"]}, "have no arguments"),
        ({"name": "r", "deny": True, "wrappers": ["a"], "kinds": ["prompts"]}, "cannot be combined with wrappers"),
        ({"name": "r", "deny": True, "when": {}}, "rules[0].when: says nothing"),
        ({"name": "r", "deny": True, "when": {"arguments": {"a": {}}}}, "tests nothing"),
        ({"name": "r", "deny": True, "when": {"arguments": {"a": {"pattern": "(?=x)"}}}}, "not a supported pattern"),
        ({"name": "r", "deny": True, "when": {"arguments": {"a": {"above": True}}}}, "is a boolean"),
        ({"name": "r", "deny": True, "when": {"readonly": True}}, "expected readOnly (did you mean it?)"),
    ],
)  # fmt: skip
def test_invalid_rule_stops_the_start(rule: dict[str, Any], words: str) -> None:
    assert words in refused(rule)


def test_duplicate_rule_name_stops_the_start() -> None:
    rule = {"name": "r", "deny": ["bank__*"]}
    assert "rules[1].name: gives one name to two rules (r)" in refused(rule, rule)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"groups": ["intern"]}, "groups: intern matches no group; did you mean interns?"),
        ({"principals": ["anne"]}, "principals: anne matches no caller; did you mean ann?"),
        ({"servers": ["banc"]}, "servers: banc matches no server; did you mean bank?"),
        ({"wrappers": ["banc__*"]}, "wrappers: banc matches no server; did you mean bank?"),
        ({"tags": ["monee"]}, "tags: monee matches no tag; did you mean money?"),
        ({"scopes": ["tool"]}, "scopes: tool matches no scope; did you mean tools?"),
    ],
)
def test_misspelling_that_would_leave_access_open_stops_the_start(members: Any, words: str) -> None:
    assert words in refused({"name": "r", "deny": True, **members})
    assert words in refused({"name": "r", "allow": True, **members})
    closed = config({"name": "r", "allow": True, **members}, default="deny")
    assert any(words in warning for warning in closed.warnings)


def test_unknown_dissimilar_name_in_a_rule_is_a_warning() -> None:
    loaded = config({"name": "r", "deny": True, "groups": ["contractors"], "servers": ["payroll"]})
    assert [warning.partition(": ")[2] for warning in loaded.warnings] == [
        "gateway.policy.rules[0].servers: payroll matches no server",
        "gateway.policy.rules[0].groups: contractors matches no group",
    ]


def test_rules_about_token_callers_are_not_checked_for_misspellings() -> None:
    oauth = {
        "resource": "https://gateway.example.test",
        "issuers": [{"issuer": "https://id.example.test", "audiences": ["https://gateway.example.test/mcp"]}],
    }
    rules = [{"name": "r", "deny": True, "groups": ["intern"], "claims": {"dept": "x"}, "scopes": ["tool"]}]
    settings = {"auth": {"apiKeys": KEYS, "oauth": oauth}, "policy": {"rules": rules}}
    loaded = parse(json.dumps({"mcpServers": BANK, "gateway": settings}))
    assert not any("policy" in warning for warning in loaded.warnings)
    person = Principal(name="x@id.example.test", groups=frozenset({"intern"}), claims=frozenset({("dept", "x")}))
    assert policy_of(loaded).grant(person).is_open
    scoped = Principal(name="x@id.example.test", groups=person.groups, claims=person.claims | {("scope", "tool")})
    assert not policy_of(loaded).grant(scoped).is_open
