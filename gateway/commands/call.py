"""`typegate call`: call one tool of a running gateway and print its result."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from gateway.commands import output
from gateway.commands.admin_client import DEFAULT_URL, request
from gateway.commands.locations import UsageError
from gateway.protocol import header_value

# JSON-RPC code of 2026-07-28 for a request whose headers differ from its body, or are missing.
_HEADER_MISMATCH: Final = -32020


def call(args: Namespace) -> int:
    """Call `args.name`; 0 for a result, 1 for an error result.

    Raises:
        UsageError: The arguments are no JSON object.
    """
    url = args.url or DEFAULT_URL
    api_key = args.api_key or os.environ.get("TYPEGATE_API_KEY")

    def schema() -> dict[str, Any]:
        listed = request(url, "tools/list", {}, api_key=api_key, timeout_s=args.timeout)
        return _schema_of(listed, args.name)

    arguments = _arguments(args.json_arguments, args.argument, schema)
    params = {"name": args.name, "arguments": arguments}
    response = request(url, "tools/call", params, api_key=api_key, timeout_s=args.timeout, notice=_show_notice)
    if response.get("error", {}).get("code") == _HEADER_MISMATCH:
        # The tool wants some arguments in headers too, which only its schema tells. Nothing has run yet.
        listed = request(url, "tools/list", {}, api_key=api_key, timeout_s=args.timeout)
        if headers := _parameter_headers(listed, args.name, arguments):
            response = request(
                url,
                "tools/call",
                params,
                api_key=api_key,
                timeout_s=args.timeout,
                headers=headers,
                notice=_show_notice,
            )
    if "error" in response:
        error = response["error"]
        if args.json:
            output.as_json({"error": error})
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
            expected = 'expected a JSON object, as \'{"to": ["a@example.test"]}\', or -a key=value'
            raise UsageError(f"the arguments are not JSON ({error}); {expected}") from None
    if not isinstance(arguments, dict):
        raise UsageError("the arguments are JSON, but no object; expected one, as '{\"key\": 1}'")
    given: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"-a {pair!r} has no key; expected key=value")
        if key in given:
            expected = f'one value, which may be a list: {key}=\'["a", "b"]\''
            raise UsageError(f"-a {key} is there twice; expected {expected}")
        given[key] = value
    read = {key: _json_of(value) for key, value in given.items()}
    # Only then it matters what the schema wants: a text that is no JSON is a text, and quoted JSON is one too.
    doubtful = [key for key in read if not isinstance(read[key], str)]
    properties = schema() if doubtful else {}
    for key, value in given.items():
        arguments[key] = value if key in doubtful and _wants_text(properties.get(key)) else read[key]
    return arguments


def _distinct(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        twice = next(name for name, count in Counter(name for name, _ in members).items() if count > 1)
        raise ValueError(f"{json.dumps(twice)} is there twice in one object")
    return found


def _json_of(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except (ValueError, RecursionError):
        # Text need not be quoted twice, once for the shell and once for JSON.
        return text


def _wants_text(declared: Any) -> bool:
    """Whether a parameter takes text and nothing that JSON could stand for beside it, but null."""
    types = _types(declared)
    return "string" in types and types <= {"string", "null"}


def _types(declared: Any) -> set[str]:
    if not isinstance(declared, dict):
        return set()
    stated = declared.get("type", [])
    found = {stated} if isinstance(stated, str) else {one for one in stated if isinstance(one, str)}
    for one in (*(declared.get("anyOf") or ()), *(declared.get("oneOf") or ())):
        found |= _types(one) or {"any"}
    return found


def _schema_of(listed: dict[str, Any], name: str) -> dict[str, Any]:
    """The properties of a listed tool; empty where a profile leaves it to search."""
    tools = listed.get("result", {}).get("tools", [])
    schema = next((tool.get("inputSchema") for tool in tools if tool.get("name") == name), None)
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def _parameter_headers(listed: dict[str, Any], name: str, arguments: dict[str, Any]) -> dict[str, str]:
    """The `Mcp-Param-…` headers of this call, from the annotations in the tool's schema."""
    tools = listed.get("result", {}).get("tools", [])
    schema = next((tool.get("inputSchema") for tool in tools if tool.get("name") == name), None)
    found: dict[str, str] = {}

    def walk(node: Any, values: Any) -> None:
        properties = node.get("properties") if isinstance(node, dict) else None
        if not isinstance(properties, dict) or not isinstance(values, dict):
            return
        for key, member in properties.items():
            value = values.get(key)
            header = member.get("x-mcp-header") if isinstance(member, dict) else None
            if isinstance(header, str) and isinstance(value, str | int | float):
                found[f"Mcp-Param-{header}"] = header_value(_as_text(value))
            walk(member, value)

    walk(schema, arguments)
    return found


def _as_text(value: str | float) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)


def _show(result: dict[str, Any], *, as_json: bool) -> int:
    failed = result.get("isError") is True
    if as_json:
        output.as_json(result)
        return int(failed)
    if result.get("resultType") == "input_required":
        output.say("the tool asks for input, which this command cannot give; --json shows its question")
        return 1
    content = [item for item in result.get("content") or [] if isinstance(item, dict)]
    for item in content:
        output.text(_content_text(item))
    if not content and "structuredContent" in result:
        output.as_json(result["structuredContent"])
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
            # Base64: four characters for three bytes.
            size = len(str(item.get("data", ""))) * 3 // 4
            return f"[{kind} {item.get('mimeType', '')}, about {size} bytes; --json shows it]"


def _show_notice(message: dict[str, Any]) -> None:
    params = message.get("params")
    if message.get("method") != "notifications/progress" or not isinstance(params, dict):
        return
    total = f"/{params['total']}" if params.get("total") is not None else ""
    text = f" {params['message']}" if params.get("message") else ""
    output.say(f"progress {params.get('progress')}{total}{text}")
