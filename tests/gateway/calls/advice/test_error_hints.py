"""Complaints of an upstream are recognized, and the hint from the schema follows the upstream's own text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pace import limited_work
from support.wrappers import wrapper_of

from gateway.calls.advice.error_hints import MAX_BODY_CHARS, MAX_HINT_CHARS, find_complaint, with_hint
from gateway.protocol.gateway_errors import RpcError, relay
from registry.catalog.catalog import ToolWrapper

NAMES = ("to", "subject", "body", "startDate", "accountId", "path", "input")


def wrapper(*names: str) -> ToolWrapper:
    properties = {name: {"type": "string"} for name in names or NAMES}
    return wrapper_of("send_email", {"type": "object", "properties": properties})


TOOL = wrapper()


def result(text: str, *, error: bool = True, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": error, **more}


def added(before: dict[str, Any], arguments: dict[str, Any] | None = None, **options: Any) -> str | None:
    """The text that was added, after everything that was there, which is unchanged."""
    arguments = arguments if arguments is not None else {}
    copy = json.dumps(before)
    after = with_hint(before, TOOL, arguments, **options)
    assert json.dumps(before) == copy
    if after is before:
        return None
    *kept, last = after["content"]
    assert kept == before["content"]
    assert {key: value for key, value in after.items() if key != "content"} == {
        key: value for key, value in before.items() if key != "content"
    }
    assert last["type"] == "text"
    assert len(last["text"]) <= MAX_HINT_CHARS
    return str(last["text"])


ZOD3 = [{"code": "invalid_type", "expected": "string", "received": "undefined", "path": ["to"], "message": "Required"}]
ZOD4 = [
    {
        "expected": "string",
        "code": "invalid_type",
        "path": ["to"],
        "message": "Invalid input: expected string, received undefined",
    }
]
COMPLAINTS = {
    "the one it began with": "'to' was not provided",
    "jsonschema": "'to' is a required property\n\nFailed validating 'required' in schema:\n    {'type': 'object'}",
    "jsonschema in an SDK": "Input validation error: 'to' is a required property",
    "pydantic": "1 validation error for emailArguments\nto\n  Field required [type=missing, input_value={}]",
    "pydantic, as JSON": '[{"type":"missing","loc":["body","to"],"msg":"Field required","input":{}}]',
    "FastMCP": "1 validation error for call[send_email]\nto\n  Missing required argument [type=missing_argument]",
    "FastMCP, around it": "Error executing tool mail: 1 validation error for mailArguments\nto\n  Field required",
    "zod 3": f"MCP error -32602: Invalid arguments for tool send_email: {json.dumps(ZOD3, indent=2)}",
    "zod 4": f"MCP error -32602: Input validation error: Invalid arguments for tool send_email: {json.dumps(ZOD4)}",
    "zod, in words": 'Validation error: Required at "to"',
    "zod 4, in words": "✖ Invalid input: expected string, received undefined\n  → at to",
    "C#, null": "Value cannot be null. (Parameter 'to')",
    "C#, its SDK": "The arguments dictionary is missing a value for the required parameter 'to'. (Parameter 'input')",
    "C#, older": "Value cannot be null.\nParameter name: to",
    "ajv": "data must have required property 'to'",
    "Go": 'validating /properties: required: missing properties: ["to"]',
    "serde": "invalid params: missing field `to` at line 1 column 2",
    "a Python signature": "send_email() missing 1 required positional argument: 'to'",
    "two of them": "send_email() missing 2 required positional arguments: 'subject' and 'to'",
    "a Python key": "'to'",
    "a Python key, told": "Error executing tool send_email: 'to'",
    "plain": "Missing required parameter: to",
    "plain, a list": "Missing required fields: subject, to.",
    "plain, with a name before": "Error: to is required",
    "plain, with a noun": "The to parameter must be provided",
    "Java": "Required request parameter 'to' for method parameter type String is not present",
    "joi": '"to" is required',
    "a colon": "to: Required",
    "a form": '{"to": ["This field is required."]}',
    "a web service": '{"message": "Validation Failed", "errors": [{"field": "to", "code": "missing_field"}]}',
    "properties": "missing required properties including: 'to'",
    "ASP.NET": '{"errors": {"To": ["The To field is required."]}}',
    "ASP.NET, in words": "The To field is required.",
    "Laravel": "The to field is required. (and 1 more error)",
    "a list after a colon": "The following parameters are required: subject, to",
    "a list in quotes": "Required parameters are missing: `subject`, `to` and `cc`.",
    "a demand": "You must specify to",
    "a request": "Please provide a value for 'to'.",
    "no value": "no value given for required parameter to",
    "a Python key, with its class": "KeyError: 'to'",
    "a body of text": '{"error": "\'to\' is required", "input": {}}',
}


@pytest.mark.parametrize("name", COMPLAINTS)
def test_missing_field_is_found_in_messages_of_common_libraries(name: str) -> None:
    for case in (result(COMPLAINTS[name]), result(COMPLAINTS[name], structuredContent={"any": 1})):
        text = added(case, {"body": "b"})
        assert text is not None
        assert "to" in text.partition("Missing: ")[2].partition(".")[0].split(", "), text
        assert "Keys sent: body." in text
        assert "Call it like: {" in text
        assert " Schema: {" in text


@pytest.mark.parametrize(
    "error_text",
    [
        "SMTP down",
        "to is required to log in",
        "path is missing the scope repo",
        "The user to be is required to log in",
        "Authentication is required",
        "Authentication is required to continue",
        "authentication required for path /x",
        "Missing permission to read path",
        "'to' was provided twice",
        "the required 'Content-Type' header is missing",
        "cannot send to nobody",
        "input/output error: disk is missing",
        "subject-to is required",
        "into is required",
        "Required.",
        "Please provide to somebody else what he asks for",
        "You must specify where to",
        "Not all services are up: to, body",
        '{"input": "Authentication is required"}',
        '{"errors": [{"field": "scope", "code": "missing", "input": "to"}]}',
        '{"path": "/x", "status": "not found"}',
        "missing",
        "",
    ],
)
def test_error_naming_no_declared_parameter_is_unchanged(error_text: str) -> None:
    assert added(result(error_text), {"to": ["a"]}) is None
    assert added(result(error_text), {}) is None


def test_hint_tells_that_the_named_argument_was_sent() -> None:
    text = added(result("'to' was not provided"), {"to": ["a@b"], "body": "hunter2"})
    assert text is not None
    assert "to was sent, as an array." in text
    assert "Keys sent: to, body." in text
    assert "Missing" not in text
    assert "hunter2" not in text
    assert "a@b" not in text


@pytest.mark.parametrize(
    "error_text",
    [
        "Additional properties are not allowed ('start_dat' was unexpected)",
        "1 validation error for call[x]\nstart_dat\n  Unexpected keyword argument [type=unexpected_keyword_argument]",
        "Unrecognized key(s) in object: 'start_dat'",
        'Unrecognized key: "start_dat"',
        "x() got an unexpected keyword argument 'start_dat'",
        "unknown field `start_dat`, expected one of `to`, `body`",
    ],
)
def test_unknown_key_gets_a_suggestion(error_text: str) -> None:
    text = added(result(error_text), {"start_dat": "x"})
    assert text is not None
    assert "start_dat is not a parameter; did you mean startDate?" in text


def test_misspelled_key_is_reported_with_any_error() -> None:
    text = added(result("internal error"), {"start_date": "x"})
    assert text is not None
    assert "start_date is not a parameter; did you mean startDate?" in text
    assert added(result("internal error"), {"something": "x"}) is None
    assert added(result("internal error"), {"start_date": "x", "startDate": "y"}) is None


def test_invalid_params_error_gets_the_shape_of_a_valid_call() -> None:
    def relayed(code: int, message: str, data: Any = None) -> dict[str, Any]:
        return relay(RpcError(code, message, data), server="calendar-mcp", verbatim=False)

    for error_text in ("'to' was not provided", "KeyError: 'to'"):
        assert "Missing: to." in str(added(relayed(-32602, error_text), {"body": "b"}))
    text = added(relayed(-32602, "'to' was not provided"), {"body": "b"})
    assert text is not None
    assert "Missing: to." in text
    text = added(relayed(-32602, "Invalid params"), {"body": "b"})
    assert text is not None
    assert "Call it like: " in text
    text = added(relayed(-32000, "no", {"issues": ZOD3}), {"body": "b"})
    assert text is not None
    assert "Missing: to." in text
    assert added(relayed(-32602, "Unknown tool: send_email"), {"body": "b"}) is None
    assert added(relayed(-32602, "Tool send_email not found"), {"body": "b"}) is None
    assert added(relayed(-32000, "SMTP down"), {"body": "b"}) is None


def test_error_body_without_is_error_gets_a_hint_and_other_bodies_do_not() -> None:
    text = added(result('{"error":"startDate is required"}', error=False), {"to": "x"})
    assert text is not None
    assert "Missing: startDate." in text
    assert added(result('{"error": {"message": "startDate is required", "code": 1}}', error=False)) is not None
    long = json.dumps({"error": "startDate is required", "more": "x" * MAX_BODY_CHARS})
    for body in (
        long,
        '{"error":"SMTP down"}',
        '{"error":null}',
        '{"message":"startDate is required"}',
        '["error", "startDate is required"]',
        "startDate is required",
        '{"error":"startDate is required"',
        "{" * 4_000,
    ):
        assert added(result(body, error=False), {"start_date": "x"}) is None, body


def test_hint_via_invoke_tool_shows_both_forms() -> None:
    text = added(result("'to' was not provided"), {}, via="invoke_tool")
    assert text is not None
    assert "calendar-mcp__send_email {" in text
    assert 'invoke_tool {"server":"calendar-mcp","tool":"send_email","arguments":{' in text
    assert "Keys sent: (none)." in text


@pytest.mark.parametrize(
    "odd", [{}, {"content": None}, {"content": "x", "isError": True}, {"content": [5, {"text": 5}], "isError": True}]
)
def test_results_of_any_shape_are_passed_through(odd: dict[str, Any]) -> None:
    assert with_hint(odd, TOOL, {}) is odd


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
WORDS = st.lists(
    st.sampled_from(
        ["to", "'to'", "is", "required", "missing", ":", "\n", "path", "{", "}", '"path"', "[", "]", "Error", "a"]
    ),
    max_size=12,
).map(" ".join)


@given(
    WORDS | st.text(max_size=40), st.booleans(), st.dictionaries(st.sampled_from([*NAMES, "x", "To"]), JSON, max_size=3)
)
def test_hint_keeps_any_error_text_and_names_only_declared_parameters(
    error_text: str, error: bool, sent: dict[str, Any]
) -> None:
    added(result(error_text, error=error), sent)
    complaint = find_complaint(error_text, TOOL, sent)
    assert set(complaint.missing) <= set(NAMES) - set(sent)
    assert set(complaint.disputed) <= set(NAMES) & set(sent)
    assert set(complaint.unknown) <= set(sent) - set(NAMES)


@pytest.mark.parametrize(
    "error_text",
    [
        "a is required " * 400_000,
        "'a' " * 1_000_000,
        "{" * 4_000_000,
        '{"path": [' * 400_000,
        "missing " * 600_000 + "a",
        "(" * 2_000_000 + "Parameter 'a')",
        "tool " * 800_000,
        " " * 4_000_000,
        "a" * 4_000_000,
        "x: " * 1_000_000 + "'a'",
    ],
)
def test_reading_any_error_text_takes_bounded_time(error_text: str) -> None:
    tool = wrapper(*(chr(97 + n % 26) * (1 + n // 26) for n in range(2_000)))
    for error in (True, False):
        for text in (error_text, json.dumps({"error": error_text[: MAX_BODY_CHARS - 20]})):
            with limited_work(0.25):
                with_hint(result(text, error=error), tool, {"a b": 1, "B": 2})


def test_suggested_call_adds_the_missing_field_and_differs_from_the_failed_one() -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in NAMES}, "required": ["body"]}
    tool = wrapper_of("send_email", schema)
    for error_text, missing in (("'to' was not provided", "to"), ("The Start Date field is required.", "startDate")):
        after = with_hint(result(error_text), tool, {"body": "hunter2"})
        text = after["content"][-1]["text"]
        assert f"Missing: {missing}." in text
        call = json.loads(text.partition("Call it like: ")[2].partition(" Schema: ")[0])
        assert call == {"body": "<as sent>", missing: "<string>"}


@pytest.mark.parametrize(
    ("error_text", "expects_listing"),
    [
        ("'cc' was not provided", True),
        ("missing required parameter: 'cc'", True),
        ("1 validation error\nreply_to\n  Field required", True),
        (f"MCP error -32602: {json.dumps([{**ZOD3[0], 'path': ['cc']}])}", True),
        ("'to' was not provided", False),
        ("Authentication is required", False),
        ("user is required to log in", False),
        ("SMTP down", False),
    ],
)
def test_error_about_an_undeclared_parameter_requests_a_new_listing(error_text: str, expects_listing: bool) -> None:
    servers: list[str] = []
    with_hint(result(error_text), TOOL, {}, on_undeclared=servers.append)
    assert servers == (["calendar-mcp"] if expects_listing else [])
