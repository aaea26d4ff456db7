"""A call of `invoke_tool` resolves to the one tool it means, or to none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.arguments.invoke_tool import ResolvedCall, UnresolvedCall, resolve_invoke_tool
from registry.arguments.problems import explain_unresolved
from registry.catalog.catalog import Catalog
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import build_catalog
from registry.catalog.shape import ServerShape, Shape

SERVERS = ("calendar-mcp", "bank", "plain", "starting")


def tool(name: str, *properties: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": {one: {} for one in properties}}}


def catalog() -> Catalog:
    tools = {
        "calendar-mcp": [tool("send_email", "to", "subject"), tool("list_accounts")],
        "bank": [tool("get_balance", "account"), tool("run", "input", "server_name"), tool("Get-Rate"), tool("a__b")],
        "plain": [tool("lookup", "word")],
    }
    listings = {
        ServerName(server): ServerListing(server=ServerName(server), epoch=1, tools=tuple(listed))
        for server, listed in tools.items()
    }
    return build_catalog(listings, Shape(servers={ServerName("plain"): ServerShape(prefixed=False)}), version=1)


CATALOG = catalog()
MAIL = {"to": ["a"], "subject": "s"}
CALL = {"server": "calendar-mcp", "tool": "send_email", "arguments": MAIL}


def reached(sent: Any) -> tuple[str, Any, list[str]]:
    found = resolve_invoke_tool(sent, CATALOG, SERVERS)
    assert isinstance(found, ResolvedCall), found
    return f"{found.wrapper.server}/{found.wrapper.tool}", found.arguments, [one.name for one in found.repairs]


def test_documented_form_of_a_call_is_used_unchanged() -> None:
    assert reached(CALL) == ("calendar-mcp/send_email", MAIL, [])
    assert reached({"server": "calendar-mcp", "tool": "list_accounts"}) == ("calendar-mcp/list_accounts", {}, [])
    assert reached({"server": "bank", "tool": "a__b", "arguments": None})[1:] == (None, [])


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ({**CALL, "tool": "calendar-mcp__send_email"}, ["typed_name"]),
        ({"tool": "calendar-mcp__send_email", "arguments": MAIL}, ["typed_name"]),
        ({**CALL, "server": "", "tool": "calendar-mcp__send_email"}, ["typed_name"]),
        ({**CALL, "server": "Calendar_MCP"}, ["server_case"]),
        ({**CALL, "tool": "Send-Email"}, ["tool_case"]),
        ({"server": "calendar-mcp", "tool": "send_email", "params": MAIL}, ["arguments_key"]),
        ({"server": "calendar-mcp", "tool": "send_email", **MAIL}, ["flat_arguments"]),
        ({"server": "calendar-mcp", "tool": "send_email", "arguments": {}, **MAIL}, ["flat_arguments"]),
        ({"serverName": "calendar-mcp", "name": "send_email", "arguments": MAIL}, ["address_key", "address_key"]),
        ({"arguments": CALL}, ["unwrapped"]),
        ({"input": json.dumps(CALL)}, ["unwrapped", "json_text"]),
        (json.dumps(CALL), ["json_text"]),
    ],
)
def test_each_deviation_from_the_form_is_read_and_named(sent: Any, named: list[str]) -> None:
    assert reached(sent) == ("calendar-mcp/send_email", MAIL, named)


def test_unprefixed_tool_is_found_by_its_own_name() -> None:
    assert reached({"tool": "lookup", "arguments": {"word": "w"}}) == ("plain/lookup", {"word": "w"}, ["typed_name"])


def test_declared_parameter_is_not_treated_as_wrapping() -> None:
    flat = {"server": "bank", "tool": "run", "input": {"a": 1}, "server_name": "x"}
    assert reached(flat) == ("bank/run", {"input": {"a": 1}, "server_name": "x"}, ["flat_arguments"])


@pytest.mark.parametrize(
    ("sent", "faults"),
    [
        ({**CALL, "subject": "other"}, ("mixture",)),
        ({**CALL, "params": MAIL}, ("mixture",)),
        ({"server": "calendar-mcp", "tool": "send_email", "params": MAIL, "args": MAIL}, ("mixture",)),
        ({**CALL, "server": "calendar"}, ("server",)),
        ({**CALL, "tool": "send"}, ("tool",)),
        ({**CALL, "server": "bank", "tool": "calendar-mcp__send_email"}, ("tool",)),
        ({"tool": "send_email"}, ("server",)),
        ({"server": "bank"}, ("tool",)),
        ({"server": 5, "tool": "calendar-mcp__send_email"}, ("server",)),
        ({"server": 5, "tool": ""}, ("server", "tool")),
        ({}, ("server", "tool")),
        ([], ("arguments",)),
        ("calendar-mcp", ("arguments",)),
    ],
)
def test_missing_unknown_or_ambiguous_target_is_named_and_not_called(sent: Any, faults: tuple[str, ...]) -> None:
    found = resolve_invoke_tool(sent, CATALOG, SERVERS)
    assert isinstance(found, UnresolvedCall)
    assert found.faults == faults


def test_server_without_tools_is_still_known() -> None:
    found = resolve_invoke_tool({"server": "Starting", "tool": "x"}, CATALOG, SERVERS)
    assert found == UnresolvedCall(faults=("tool",), server="starting", tool="x", known_server=True)


def test_server_can_turn_repairs_off_and_typed_names_still_work() -> None:
    def allowed(server: str) -> bool:
        return server != "calendar-mcp"

    off = resolve_invoke_tool({**CALL, "tool": "calendar-mcp__send_email"}, CATALOG, SERVERS, repairs_for=allowed)
    assert isinstance(off, ResolvedCall)
    assert isinstance(resolve_invoke_tool(CALL, CATALOG, SERVERS, repairs_for=allowed), ResolvedCall)
    for sent in (
        json.dumps(CALL),
        {**CALL, "server": "CALENDAR-MCP"},
        {"server": "calendar-mcp", "tool": "send_email", **MAIL},
    ):
        assert isinstance(resolve_invoke_tool(sent, CATALOG, SERVERS, repairs_for=allowed), UnresolvedCall), sent
    assert isinstance(
        resolve_invoke_tool({"server": "bank", "tool": "run", "x": 1}, CATALOG, SERVERS, repairs_for=allowed),
        ResolvedCall,
    )


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({}, "invoke_tool needs `server` and `tool` as text. Keys sent: (none)."),
        ({"server": "bank", "arguments": {}}, "invoke_tool needs `tool` as text. Keys sent: server, arguments."),
        ({"tool": "send_email"}, "invoke_tool needs `server` as text."),
        ([], "invoke_tool takes an object, you sent an array."),
        ({**CALL, "subject": "hunter2"}, "parameters in two places"),
        ({**CALL, "server": "calendar"}, "there is no server 'calendar'."),
    ],
)
def test_unresolved_call_is_answered_with_a_correct_form(sent: Any, words: str) -> None:
    found = resolve_invoke_tool(sent, CATALOG, SERVERS)
    assert isinstance(found, UnresolvedCall)
    text = explain_unresolved(found, sent)
    assert text.startswith("Not called. Nothing was sent to any server. ")
    assert words in text
    assert "hunter2" not in text
    assert 'invoke_tool {"server":' in text
    assert ('calendar-mcp__send_email {"to":' in text) == ("two places" in text)


KEYS = st.sampled_from(["server", "tool", "arguments", "params", "name", "Server", "toolName", "input", "to", "\ud800"])
WORDS = st.sampled_from(
    ["calendar-mcp", "BANK", "send_email", "calendar-mcp__send_email", "run", "", "null", "[]", "{}"]
)
SENT = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=10,
)


@given(SENT | SENT.map(json.dumps))
def test_every_call_is_answered_and_resolving_is_idempotent(sent: Any) -> None:
    found = resolve_invoke_tool(sent, CATALOG, SERVERS)
    if isinstance(found, UnresolvedCall):
        assert found.faults
        assert len(explain_unresolved(found, sent)) <= 4_000
        return
    plain = {"server": found.wrapper.server, "tool": found.wrapper.tool, "arguments": found.arguments}
    again = resolve_invoke_tool(plain, CATALOG, SERVERS)
    assert again == ResolvedCall(wrapper=found.wrapper, arguments=found.arguments)
