"""Adapts a raw upstream result to the caller's protocol version, losing nothing that the version can express."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio.to_thread

from gateway import wire
from gateway.calls.resource_uris import Rename, may_name_uris, rename_in_result
from gateway.errors import UpstreamProtocolError, error_result
from gateway.protocol import MODERN_VERSIONS, SERVER_INFO_KEY, with_meta
from registry.catalog.catalog import ToolWrapper
from registry.errors import NotChecked, SchemaRejected
from registry.intake.content import (
    is_sound_text,
    repair_completion,
    repair_content,
    repair_contents,
    repair_item,
    repair_messages,
)
from registry.intake.issues import RepairNotes
from registry.intake.prompts_and_resources import is_own_uri
from registry.schema import schemas
from registry.schema.json_paths import format_path
from registry.schema.json_values import map_items, without_keys

# From the changelogs of the protocol versions; they compare as text.
_STRUCTURED_SINCE = "2025-06-18"
_LINKS_SINCE = "2025-06-18"
_AUDIO_SINCE = "2025-03-26"
# Members of results that versions with a handshake do not know.
_MODERN_ONLY = ("resultType", "ttlMs", "cacheScope")

REPAIRED_KEY: Final = "typegate/repaired"
"""The member of a result's `_meta` that says what clients would have refused all of it for, and was repaired."""
_MENDED_METHODS: Final = frozenset({"prompts/get", "resources/read", "completion/complete"})
# An operator looks at the first of thousands that are alike.
_MAX_MENDED: Final = 8
LEFT_OUT_KEY: Final = "typegate/leftOut"
"""The member of a result's `_meta` that says what of it was left out, and why."""
# What a host shows to a model is far smaller; reading more than this takes longer than a caller should wait for it.
_MAX_CHECKED_BYTES: Final = 1 << 20

# A result of these members alone, with a list of content, is one of every version.
_PLAIN_MEMBERS: Final = frozenset({"content", "isError", "resultType"})

_LEFT_OUT = {"type": "text", "text": "[left out by the gateway: a resource in the gateway's own scheme is no server's]"}


def adapt(answer: Any, *, server: str, version: str, renaming: Callable[[], Rename]) -> dict[str, Any]:
    """Adapt a result of `tools/call`; `answer` is the caller's alone and may be changed.

    `renaming` returns what renames URIs that the server shares with others.

    What a version cannot express is replaced: `structuredContent` is removed before 2025-06-18, and before 2026-07-28
    if it is no object, and its text form stays; a `resource_link` becomes text before 2025-06-18, and `audio` an
    embedded resource before 2025-03-26. Unknown members and items stay.

    Sources: MCP 2026-07-28, "Tools", "Tool Result" and "Base protocol", "Result types"; the changelogs of
    2025-03-26 and 2025-06-18.

    Raises:
        UpstreamProtocolError: It is no result of a tool call.
    """
    modern = version in MODERN_VERSIONS
    if (
        # Most results.
        type(answer) is dict
        and _PLAIN_MEMBERS.issuperset(answer)
        and type(answer.get("content")) is list
        and all(map(is_sound_text, answer["content"]))
        and type(answer.get("isError", False)) is bool
        and answer.get("resultType", "complete") == "complete"
        and (modern or version >= _LINKS_SINCE)
    ):
        if modern:
            answer["resultType"] = "complete"
        else:
            answer.pop("resultType", None)
        return answer
    result = _as_object(answer, server)
    kind = result.get("resultType", "complete")
    if not modern and kind != "complete":
        return error_result(
            f"Server '{server}' answered with a result of the kind {kind!r}, which this connection's protocol "
            "version cannot carry. The tool has no result here."
        )
    if kind != "complete" or result.get("isError") is True or not passes_unread(version):
        result = whole(result, server)
    if kind != "complete":
        return result
    notes: RepairNotes = []
    _mend(result, server, notes)
    _fill_content(result, server)
    if type(result.get("content")) is wire.Unparsed and may_name_uris(result["content"]):
        result = whole(result, server)
    result = rename_in_result(with_notes(result, notes), renaming())
    if modern:
        result["resultType"] = "complete"
        return result
    for member in _MODERN_ONLY:
        result.pop(member, None)
    if "structuredContent" in result and (version < _STRUCTURED_SINCE or not _is_object(result["structuredContent"])):
        # Before 2026-07-28 only objects were allowed; the text form says the same.
        del result["structuredContent"]
    if version < _LINKS_SINCE:
        result["content"] = [_older_item(item, version) for item in result["content"]]
    return result


async def without_unfit_structure(result: dict[str, Any], wrapper: ToolWrapper) -> dict[str, Any]:
    """Return a result without `structuredContent` that breaks the tool's `outputSchema`; `_meta` says so.

    Its text says the same. For callers that check results themselves: they would show an error in place of all of it.

    Raises:
        UpstreamProtocolError: It is nested too deeply.
    """
    schema = wrapper.definition.get("outputSchema")
    if "structuredContent" not in result or result.get("isError") is True or not isinstance(schema, dict):
        return result
    if _size(result["structuredContent"]) > _MAX_CHECKED_BYTES:
        return result
    # In a thread: the first time the schema is compiled, and neither it nor the result is of our making.
    reason = await anyio.to_thread.run_sync(_misfit, result["structuredContent"], schema, wrapper)
    if reason is None:
        return result
    kept = {name: value for name, value in whole(result, wrapper.server).items() if name != "structuredContent"}
    return with_meta(kept, LEFT_OUT_KEY, {"structuredContent": f"it breaks the tool's outputSchema: {reason}"})


def _misfit(content: Any, schema: dict[str, Any], wrapper: ToolWrapper) -> str | None:
    """Return where content breaks a schema; None if it does not, or if that cannot be told within bounds."""
    value = whole({"value": content}, wrapper.server)["value"]
    try:
        # The digest of a definition is one of its output schema too.
        validator = schemas.validator(schema, f"{wrapper.digest}/output")
        if validator.is_valid(value):
            return None
        errors = validator.errors(value, 1)
    except (SchemaRejected, NotChecked):
        return None
    where = [format_path((*error.instance_path,)) if error.instance_path else "the whole" for error in errors]
    return f"{where[0]} ({errors[0].kind.name})" if errors else "somewhere"


def _size(value: Any) -> int:
    return len(value.text) if type(value) is wire.Unparsed else 0


def adapt_other(
    answer: Any, *, server: str, version: str, method: str, params: dict[str, Any], rename: Rename
) -> dict[str, Any]:
    """Adapt the result of any other request; `answer` is the caller's alone and may be changed.

    Args:
        answer: What the upstream answered.
        server: Its alias.
        version: The protocol version of the caller.
        method: What was asked.
        params: What it was asked with, in the names of the upstream.
        rename: Renames URIs that the server shares with others.

    Raises:
        UpstreamProtocolError: It is no result.
    """
    result = _mend_other(whole(_as_object(answer, server), server), method, params)
    if method == "prompts/get":
        result = _without_own_uris(result)
    result = rename_in_result(result, rename)
    if method == "tasks/get" and isinstance(result.get("result"), dict):
        result = {**result, "result": rename_in_result(result["result"], rename)}
    if version in MODERN_VERSIONS:
        result.setdefault("resultType", "complete")
        return result
    if result.get("resultType", "complete") != "complete":
        raise UpstreamProtocolError(
            server,
            f"Server '{server}' answered with a result of the kind {result['resultType']!r}, which this connection's "
            "protocol version cannot carry.",
        )
    for member in _MODERN_ONLY:
        result.pop(member, None)
    messages = result.get("messages")
    if version < _LINKS_SINCE and isinstance(messages, list):
        result["messages"] = [
            {**message, "content": _older_item(message["content"], version)}
            if isinstance(message, dict) and "content" in message
            else message
            for message in messages
        ]
    return result


def with_notes(result: dict[str, Any], notes: RepairNotes) -> dict[str, Any]:
    """Return a result that says in `_meta` what of it was repaired."""
    if not notes:
        return result
    return with_meta(result, REPAIRED_KEY, list(dict.fromkeys(detail for _, detail in notes))[:_MAX_MENDED])


def _mend_other(result: dict[str, Any], method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a prompt, a reading, a completion or a task without what clients would refuse it for."""
    notes: RepairNotes = []
    member, changed = "", None
    if method == "prompts/get":
        member, changed = "messages", repair_messages(result.get("messages"), notes)
    elif method == "resources/read":
        member, changed = "contents", repair_contents(result.get("contents"), str(params.get("uri")), notes)
    elif method == "completion/complete":
        member, changed = "completion", repair_completion(result.get("completion"), notes)
    elif method == "tasks/get" and isinstance(result.get("result"), dict):
        _mend(result["result"], "", notes)
    if changed is not result.get(member):
        result = {**result, member: changed}
    wrong = [
        name
        for name, kind in (("description", str), ("_meta", dict))
        if name in result and not isinstance(result[name], kind) and method in _MENDED_METHODS
    ]
    if wrong:
        notes.append(("wrong_type", f"of the wrong type: {', '.join(wrong)}"))
        result = without_keys(result, wrong)
    return with_notes(result, notes)


def _mend(result: dict[str, Any], server: str, notes: RepairNotes) -> None:
    """Repair in place what clients would refuse the whole result of a tool for."""
    content = result.get("content")
    if isinstance(content, str | dict):
        notes.append(("content", "the content was not a list"))
        content = [content]
    if type(content) is wire.Unparsed and content.text[:1] == b"[" and not _is_sound(content, server):
        content = whole({"content": content}, server)["content"]
    if isinstance(content, list):
        result["content"] = repair_content(content, notes)
    if "isError" in result and type(result["isError"]) is not bool:
        notes.append(("wrong_type", "isError was neither true nor false"))
        result["isError"] = result["isError"] in (1, "true", "True")
    if not isinstance(result.get("_meta", {}), dict):
        notes.append(("wrong_type", "_meta was not an object"))
        del result["_meta"]


def _is_sound(content: wire.Unparsed, server: str) -> bool:
    """Return whether no item of a content needs repair, as far as its large texts need not be read for that."""
    try:
        items = wire.outlined_items(content)
    except wire.MalformedJson as error:
        raise UpstreamProtocolError.unreadable(server, error) from None
    return all(item is not None and repair_item(item, []) is item for item in items)


def _fill_content(result: dict[str, Any], server: str) -> None:
    content = result.get("content")
    if "structuredContent" in result:
        # Hosts that show only content would show nothing.
        if not _has_text(content, server):
            text = wire.dumps(result["structuredContent"]).decode()
            result["content"] = with_item(whole(result, server).get("content"), {"type": "text", "text": text})
    elif not _is_list(content):
        raise UpstreamProtocolError(server, f"Server '{server}' answered without content; the call has no result.")


def _without_own_uris(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a prompt without resources in our own scheme; the same object if there are none.

    A server that embeds one would speak for whichever server its URI names.
    """
    messages = result.get("messages")
    if not isinstance(messages, list):
        return result
    checked = map_items(messages, _without_own_uri)
    return result if checked is messages else {**result, "messages": checked}


def _without_own_uri(message: Any) -> Any:
    item = message.get("content") if isinstance(message, dict) else None
    if isinstance(item, list):
        blocks = map_items(item, lambda block: _LEFT_OUT if _is_ours(block) else block)
        return message if blocks is item else {**message, "content": blocks}
    return {**message, "content": _LEFT_OUT} if _is_ours(item) else message


def _is_ours(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    holders = (item, item.get("resource"))
    uris = (holder.get("uri") for holder in holders if isinstance(holder, dict))
    return any(isinstance(uri, str) and is_own_uri(uri) for uri in uris)


def with_item(content: Any, item: dict[str, Any]) -> Any:
    """The content of a result with another item, where it is parsed or has left already."""
    if type(content) is wire.PassedOn:
        content.add(item)
        return content
    return [*(content if isinstance(content, list) else []), item]


def whole(result: dict[str, Any], server: str) -> dict[str, Any]:
    """Return a result with everything in it parsed.

    Raises:
        UpstreamProtocolError: It is nested too deeply.
    """
    try:
        return wire.whole(result)
    except wire.MalformedJson as error:
        raise UpstreamProtocolError.unreadable(server, error) from None


def passes_unread(version: str) -> bool:
    """Whether results pass to callers of this version without a look at each item: none has to be replaced."""
    return version >= _LINKS_SINCE


def _has_text(content: Any, server: str) -> bool:
    try:
        return wire.has_item(content, "text")
    except wire.MalformedJson as error:
        raise UpstreamProtocolError.unreadable(server, error) from None


def _is_list(value: Any) -> bool:
    if type(value) is wire.PassedOn:
        return True
    return value.text[:1] == b"[" if type(value) is wire.Unparsed else isinstance(value, list)


def _is_object(value: Any) -> bool:
    return value.text[:1] == b"{" if type(value) is wire.Unparsed else isinstance(value, dict)


def _older_item(item: Any, version: str) -> Any:
    """Return a content item as a version before 2025-06-18 can express it."""
    if not isinstance(item, dict):
        return item
    kind = item.get("type")
    if kind == "resource_link":
        name, uri = item.get("name") or item.get("uri"), item.get("uri")
        older: dict[str, Any] = {"type": "text", "text": f"[{name}]({uri})"}
    elif kind == "audio" and version < _AUDIO_SINCE:
        resource = {"uri": "audio:content", "mimeType": item.get("mimeType"), "blob": item.get("data")}
        older = {"type": "resource", "resource": resource}
    else:
        return item
    return {**older, **{name: item[name] for name in ("annotations", "_meta") if name in item}}


def _as_object(answer: Any, server: str) -> dict[str, Any]:
    """Return an answer as the result object that it has to be, without the upstream's `serverInfo`.

    Raises:
        UpstreamProtocolError: It is no object.
    """
    if not isinstance(answer, dict):
        raise UpstreamProtocolError(server, f"Server '{server}' answered with something that is no result.")
    meta = answer.get("_meta")
    if isinstance(meta, dict) and SERVER_INFO_KEY in meta:
        del meta[SERVER_INFO_KEY]  # the caller's server is this gateway, which adds its own
        if not meta:
            del answer["_meta"]
    return answer
