"""`typegate call`: call a tool of a running gateway and print the result."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from gateway.commands import output
from gateway.commands.admin_client import DEFAULT_URL, McpAddress, UsageError, request
from gateway.protocol.versions import header_value

# JSON-RPC error of protocol 2026-07-28: headers of the request are missing or do not match its body.
_HEADER_MISMATCH: Final = -32020


def call(args: Namespace) -> int:
    """Call the tool `args.name` and print its result; exit code 0 for success, 1 for an error.

    Raises:
        UsageError: The arguments are not a JSON object.
    """
    api_key = args.api_key or os.environ.get("TYPEGATE_API_KEY")
    endpoint = McpAddress(url=args.url or DEFAULT_URL, api_key=api_key, timeout_s=args.timeout)

    def schema() -> dict[str, Any]:
        listed = request(endpoint, "tools/list", {})
        return _schema_of(listed, args.name)

    arguments = _arguments(args.json_arguments, args.argument, schema)
    params = {"name": args.name, "arguments": arguments}
    response = request(endpoint, "tools/call", params, notice=_show_notice)
    if response.get("error", {}).get("code") == _HEADER_MISMATCH:
        # The call was not executed: the tool requires some arguments as headers, and only its schema names them.
        listed = request(endpoint, "tools/list", {})
        if headers := _parameter_headers(listed, args.name, arguments):
            response = request(endpoint, "tools/call", params, headers=headers, notice=_show_notice)
    if "error" in response:
        error = response["error"]
        if args.json:
            output.print_json({"error": error})
        else:
            output.say(f"error {error.get('code')}: {error.get('message')}")
        return 1
    return _show(response["result"], as_json=args.json)


def _arguments(text: str | None, pairs: list[str], schema: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    arguments: Any = {}
    if text is not None:
        try:
            arguments = json.loads(sys.stdin.read() if text == "-" else text, object_pairs_hook=_distinct)
        except (ValueError, RecursionError) as error:
            expected = 'expected a JSON object, such as \'{"to": ["a@example.test"]}\', or -a key=value'
            raise UsageError(f"the arguments are not JSON ({error}); {expected}") from None
    if not isinstance(arguments, dict):
        raise UsageError("the arguments are not a JSON object; expected an object, such as '{\"key\": 1}'")
    texts: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"-a {pair!r} has no key; expected key=value")
        if key in texts:
            expected = f'one value, which may be a list: {key}=\'["a", "b"]\''
            raise UsageError(f"-a {key} is given twice; expected {expected}")
        texts[key] = value
    read = {key: _json_of(value) for key, value in texts.items()}
    # The schema is needed only for values that are valid JSON, but not a JSON string: 1 may be text or a number.
    ambiguous = [key for key in read if not isinstance(read[key], str)]
    properties = schema() if ambiguous else {}
    for key, value in texts.items():
        arguments[key] = value if key in ambiguous and _wants_text(properties.get(key)) else read[key]
    return arguments


def _distinct(members: list[tuple[str, Any]]) -> dict[str, Any]:
    distinct = dict(members)
    if len(distinct) < len(members):
        twice = next(name for name, count in Counter(name for name, _ in members).items() if count > 1)
        raise ValueError(f"{json.dumps(twice)} occurs twice in one object")
    return distinct


def _json_of(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except (ValueError, RecursionError):
        # Accept plain text, so that people do not have to quote strings for JSON as well as for the shell.
        return text


def _wants_text(declared: Any) -> bool:
    """Return whether a parameter accepts only strings or null."""
    types = _types(declared)
    return "string" in types and types <= {"string", "null"}


def _types(declared: Any) -> set[str]:
    if not isinstance(declared, dict):
        return set()
    stated = declared.get("type", [])
    kinds = {stated} if isinstance(stated, str) else {kind for kind in stated if isinstance(kind, str)}
    for alternative in (*(declared.get("anyOf") or ()), *(declared.get("oneOf") or ())):
        kinds |= _types(alternative) or {"any"}
    return kinds


def _schema_of(listed: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the properties of a listed tool; empty if the profile does not list the tool."""
    tools = listed.get("result", {}).get("tools", [])
    schema = next((tool.get("inputSchema") for tool in tools if tool.get("name") == name), None)
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def _parameter_headers(listed: dict[str, Any], name: str, arguments: dict[str, Any]) -> dict[str, str]:
    """Return the `Mcp-Param-…` headers of a call, as annotated in the tool's schema."""
    tools = listed.get("result", {}).get("tools", [])
    schema = next((tool.get("inputSchema") for tool in tools if tool.get("name") == name), None)
    headers: dict[str, str] = {}

    def walk(node: Any, values: Any) -> None:
        properties = node.get("properties") if isinstance(node, dict) else None
        if not isinstance(properties, dict) or not isinstance(values, dict):
            return
        for key, member in properties.items():
            value = values.get(key)
            header = member.get("x-mcp-header") if isinstance(member, dict) else None
            if isinstance(header, str) and isinstance(value, str | int | float):
                headers[f"Mcp-Param-{header}"] = header_value(_as_text(value))
            walk(member, value)

    walk(schema, arguments)
    return headers


def _as_text(value: str | float) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)


def _show(result: dict[str, Any], *, as_json: bool) -> int:
    failed = result.get("isError") is True
    if as_json:
        output.print_json(result)
        return int(failed)
    if result.get("resultType") == "input_required":
        output.say("the tool asks for input, which this command does not support; --json shows the question")
        return 1
    content = [item for item in result.get("content") or [] if isinstance(item, dict)]
    for item in content:
        output.print_text(_content_text(item))
    if not content and "structuredContent" in result:
        output.print_json(result["structuredContent"])
    return int(failed)


def _content_text(item: dict[str, Any]) -> str:
    match item.get("type"):
        case "text":
            return str(item.get("text", ""))
        case "resource":
            resource = item.get("resource")
            resource = resource if isinstance(resource, dict) else {}
            return str(resource.get("text", f"[resource {resource.get('uri')}]"))
        case "resource_link":
            return f"[resource {item.get('uri')}]"
        case kind:
            # Base64 encodes three bytes as four characters.
            size = len(str(item.get("data", ""))) * 3 // 4
            return f"[{kind} {item.get('mimeType', '')}, about {size} bytes; --json shows it]"


def _show_notice(message: dict[str, Any]) -> None:
    params = message.get("params")
    if message.get("method") != "notifications/progress" or not isinstance(params, dict):
        return
    text = params.get("message")
    if text and params.get("total") is None:
        # Without a total, the number is not informative: the gateway's own notices only count up.
        output.say(f"progress: {text}")
        return
    total = f"/{params['total']}" if params.get("total") is not None else ""
    output.say(f"progress {params.get('progress')}{total}{f' {text}' if text else ''}")
