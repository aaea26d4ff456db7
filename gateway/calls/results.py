"""Adapt an upstream result to the caller's protocol version without losing information."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, Final

import anyio.to_thread
from cachetools import LRUCache

from gateway.calls.caller import Caller
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import UpstreamProtocolError, error_result
from gateway.protocol.versions import LEFT_OUT_KEY, MODERN_VERSIONS, SERVER_INFO_KEY, with_meta
from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.listed_items import ItemCatalog
from registry.catalog.names import ServerName
from registry.catalog.uris import UI_PREFIX, qualified_uri, with_renamed
from registry.errors import NotChecked, SchemaRejected
from registry.intake.content import (
    repair_completion,
    repair_content,
    repair_contents,
    repair_item,
    repair_messages,
)
from registry.intake.issues import RepairNotes
from registry.intake.item_intake import MAX_KEY_LENGTH, is_own_uri
from registry.schema import schemas
from registry.schema.json_paths import format_path
from registry.schema.json_values import edited, map_items, without_keys

# Maximum number of unlisted URIs to remember: those of several hundred results, at several hundred bytes per URI.
_MAX_NAMED: Final = 4_096

Rename = Callable[[Any], Any]


class ResourceUris:
    """Renames URIs that several servers use, and remembers which server mentioned an unlisted URI in a result."""

    def __init__(self) -> None:
        # The server that last mentioned a URI. A key consists of a principal's name or a session's id, and the URI.
        self._mentioned_by: LRUCache[tuple[str, str], ServerName] = LRUCache(_MAX_NAMED)
        # Needed because large results are adapted in threads, and even a lookup changes the order of the cache.
        self._lock = Lock()

    def owners(self, catalog: Catalog, uri: str, *who: str | None) -> tuple[tuple[ServerName, str], ...]:
        """Return the result of `ItemCatalog.owners`, but with the server that last mentioned the URI in front.

        Args:
            catalog: The caller's catalog.
            uri: The URI as sent by the caller.
            who: Keys of the caller in order of precedence: the session, if there is one, and the principal.
        """
        items = catalog.prompts_and_resources
        owners = items.owners(uri)
        if items.is_settled(uri):
            return owners
        with self._lock:
            mentioned = next(
                (server for key in who if key and (server := self._mentioned_by.get((key, uri))) is not None), None
            )
        return owners if mentioned is None else tuple(sorted(owners, key=lambda owner: owner != (mentioned, uri)))

    def exposing(self, server: str, caller: Caller) -> Callable[[str], str]:
        """Return a function that replaces a server's own URI by the URI under which the caller can read it."""
        return partial(self._expose_uri, caller.view.catalog.prompts_and_resources, ServerName(server), caller)

    def renaming(self, server: str, caller: Caller) -> Rename:
        """Return a function that renames the URIs in one content item of a server's result, including its `_meta`."""
        items, own = caller.view.catalog.prompts_and_resources, ServerName(server)
        keys = items.keys_of.get(own, {})
        exposed = partial(self._expose_uri, items, own, caller)

        def rename_in_meta(text: str) -> str:
            return exposed(text) if text.startswith(UI_PREFIX) else keys.get(text, text)

        return partial(_rename_in_item, rename=exposed, rename_in_meta=rename_in_meta)

    def _expose_uri(self, items: ItemCatalog, server: ServerName, caller: Caller, uri: str) -> str:
        exposed = items.exposed_uri(server, uri)
        if exposed == uri and len(uri) <= MAX_KEY_LENGTH and not items.is_settled(uri):
            principal = caller.principal.name
            with self._lock:
                if uri.startswith(UI_PREFIX) and self._mentioned_by.get((principal, uri), server) != server:
                    # Another server has mentioned an unlisted app with this URI, so the URI alone is ambiguous.
                    return qualified_uri(server, uri)
                self._mentioned_by[principal, uri] = server
                if caller.session_id is not None:
                    self._mentioned_by[caller.session_id, uri] = server
        return exposed


def may_complain(result: dict[str, Any]) -> bool:
    """Return whether a result is an error, or may contain an error object in a text.

    This function is called for every result, so it does not parse texts.
    """
    if result.get("isError") is True:
        return True
    content = result.get("content")
    if type(content) is list:
        for item in content:
            if type(item) is dict and type(text := item.get("text")) is str and '"error"' in text:
                return True
    return False


def rename_uri_members(value: Any, rename: Callable[[str], str]) -> Any:
    """Return a JSON value with all of its `uri` members renamed; the same object if nothing changes.

    `frontmatter` (of a skill) and `_meta` are not searched: a `uri` member in them belongs to the server, and the
    gateway must not change it.
    """
    if isinstance(value, list):
        return map_items(value, lambda item: rename_uri_members(item, rename))
    if not isinstance(value, dict):
        return value
    changes: dict[str, Any] = {}
    for name, member in value.items():
        if name in ("frontmatter", "_meta"):
            continue
        changed = rename(member) if name == "uri" and isinstance(member, str) else rename_uri_members(member, rename)
        if changed is not member:
            changes[name] = changed
    return edited(value, changes=changes)


def rename_in_result(result: dict[str, Any], rename: Rename) -> dict[str, Any]:
    """Return a result of any method with its URIs renamed, or the same object if nothing changes."""
    changes: dict[str, Any] = {}
    for member in ("content", "contents"):
        if isinstance(items := result.get(member), list):
            changes[member] = map_items(items, rename)
    if isinstance(messages := result.get("messages"), list):
        changes["messages"] = map_items(messages, lambda message: _rename_in_message(message, rename))
    if isinstance(meta := result.get("_meta"), dict):
        changes["_meta"] = rename({"_meta": meta})["_meta"]
    return edited(result, {name: value for name, value in changes.items() if value is not result[name]})


def may_name_uris(content: json_bytes.UnparsedJson) -> bool:
    """Return whether a content list may mention a resource, in which case the list has to be parsed completely."""
    text = bytes(content.text)
    return b"resource" in text or UI_PREFIX.encode() in text


def _rename_in_message(message: Any, rename: Rename) -> Any:
    if not isinstance(message, dict) or "content" not in message:
        return message
    content = message["content"]
    renamed = map_items(content, rename) if isinstance(content, list) else rename(content)
    return message if renamed is content else {**message, "content": renamed}


def _rename_in_item(item: Any, rename: Callable[[str], str], rename_in_meta: Callable[[str], str]) -> Any:
    """Return a content item with renamed URIs: in the item, in an embedded resource, and in `_meta`."""
    if not isinstance(item, dict):
        return item
    changes: dict[str, Any] = {}
    uri, resource, meta = item.get("uri"), item.get("resource"), item.get("_meta")
    if isinstance(uri, str) and (renamed := rename(uri)) != uri:
        changes["uri"] = renamed
    if isinstance(resource, dict) and (inner := _rename_in_item(resource, rename, rename_in_meta)) is not resource:
        changes["resource"] = inner
    if isinstance(meta, dict) and (renamed_meta := with_renamed(meta, rename_in_meta)) is not meta:
        changes["_meta"] = renamed_meta
    return edited(item, changes)


# The versions that introduced a feature, from the changelogs of the protocol. Versions are compared as strings.
_STRUCTURED_SINCE = "2025-06-18"
_LINKS_SINCE = "2025-06-18"
_AUDIO_SINCE = "2025-03-26"
# Members of results that only 2026-07-28 and later versions define.
_MODERN_ONLY = ("resultType", "ttlMs", "cacheScope")

REPAIRED_KEY: Final = "typegate/repaired"
"""The member of a result's `_meta` that lists the gateway's repairs to invalid parts of the result."""
_REPAIRED_METHODS: Final = frozenset({"prompts/get", "resources/read", "completion/complete"})
# A result may need thousands of similar repairs, and an operator only needs to see the first of them.
_MAX_LISTED_REPAIRS: Final = 8
# Maximum size of structured content to check against an output schema. Hosts show models far less than this, and
# checking more takes longer than a caller should wait.
_MAX_CHECKED_BYTES: Final = 1 << 20

# Maximum size of a result to adapt on the event loop. This takes up to 20 ms: a list of small links takes 100 ns per
# byte.
_MAX_INLINE_BYTES: Final = 200_000

# The members of most results.
_PLAIN_MEMBERS: Final = frozenset({"content", "isError", "resultType", "structuredContent"})

_LEFT_OUT = {
    "type": "text",
    "text": "[left out by the gateway: servers cannot return resources of the gateway's own URI scheme]",
}


async def adapt_off_loop(answer: Any, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call `work`, which adapts `answer`: in a thread if the answer is large, so that other callers do not wait."""
    if type(answer) is dict and json_bytes.unparsed_bytes(answer) > _MAX_INLINE_BYTES:
        return await run_in_thread(work)
    return work()


def adapt(answer: Any, *, server: str, version: str, renaming: Callable[[], Rename]) -> dict[str, Any]:
    """Adapt a result of `tools/call` to the caller's protocol version.

    Features that the version does not support are replaced:

    - `structuredContent` is removed before 2025-06-18. Before 2026-07-28, it is removed if it is not an object. The
      text form in `content` remains.
    - `resource_link` becomes text before 2025-06-18.
    - `audio` becomes an embedded resource before 2025-03-26.

    Unknown members and items remain.

    Args:
        answer: The upstream's result, which may be modified.
        version: The caller's protocol version.
        renaming: Returns the function that renames URIs that other servers use as well.

    Sources: MCP 2026-07-28, "Tools", "Tool Result" and "Base protocol", "Result types"; the changelogs of
    2025-03-26 and 2025-06-18.

    Raises:
        UpstreamProtocolError: The answer is not a result of a tool call.
    """
    modern = version in MODERN_VERSIONS
    result = _as_object(answer, server)
    if _is_plain(result, version, modern=modern):
        if modern:
            result["resultType"] = "complete"
        else:
            result.pop("resultType", None)
        return result
    kind = result.get("resultType", "complete")
    if not modern and kind != "complete":
        return error_result(
            f"Server '{server}' answered with a result of the kind {kind!r}, which this connection's protocol "
            "version does not support. The tool has no result here."
        )
    if kind != "complete" or result.get("isError") is True or not can_stay_unparsed(version):
        result = parse_result(result, server)
    if kind != "complete":
        return result
    notes: RepairNotes = []
    _repair_tool_result(result, server, notes)
    _fill_content(result, server)
    if type(result.get("content")) is json_bytes.UnparsedJson and may_name_uris(result["content"]):
        result = parse_result(result, server)
    result = rename_in_result(with_notes(result, notes), renaming())
    if modern:
        result["resultType"] = "complete"
        return result
    for member in _MODERN_ONLY:
        result.pop(member, None)
    if "structuredContent" in result and (version < _STRUCTURED_SINCE or not _is_object(result["structuredContent"])):
        # Before 2026-07-28 only objects were allowed; the text form in `content` remains.
        del result["structuredContent"]
    if version < _LINKS_SINCE:
        result["content"] = [_older_item(item, version) for item in result["content"]]
    return result


async def without_invalid_structure(result: dict[str, Any], wrapper: ToolWrapper) -> dict[str, Any]:
    """Remove `structuredContent` from a result if it violates the tool's `outputSchema`, and say so in `_meta`.

    This is for callers that validate results themselves and would show an error instead of an invalid result. The text
    form in `content` remains.

    Raises:
        UpstreamProtocolError: The content is nested too deeply.
    """
    schema = wrapper.definition.get("outputSchema")
    if "structuredContent" not in result or result.get("isError") is True or not isinstance(schema, dict):
        return result
    if _size(result["structuredContent"]) > _MAX_CHECKED_BYTES:
        return result
    # Run in a thread, because the schema and the content are untrusted, and checking them may take long.
    reason = await anyio.to_thread.run_sync(_schema_violation, result["structuredContent"], schema, wrapper)
    if reason is None:
        return result
    remaining = {
        name: value for name, value in parse_result(result, wrapper.server).items() if name != "structuredContent"
    }
    return with_meta(remaining, LEFT_OUT_KEY, {"structuredContent": f"it breaks the tool's outputSchema: {reason}"})


def _schema_violation(content: Any, schema: dict[str, Any], wrapper: ToolWrapper) -> str | None:
    """Return where content violates a schema; None if the content is valid, or if the check exceeds its limits."""
    value = parse_result({"value": content}, wrapper.server)["value"]
    try:
        # The key identifies the output schema, because the schema is part of the digested definition.
        validator = schemas.validator(schema, f"{wrapper.digest}/output")
        if validator.is_valid(value):
            return None
        errors = validator.errors(value, 1)
    except (SchemaRejected, NotChecked):
        return None
    where = [format_path((*error.instance_path,)) if error.instance_path else "the whole" for error in errors]
    return f"{where[0]} ({errors[0].kind.name})" if errors else "somewhere"


def _size(value: Any) -> int:
    return len(value.text) if type(value) is json_bytes.UnparsedJson else 0


def adapt_other(
    answer: Any, *, server: str, version: str, method: str, params: dict[str, Any], rename: Rename
) -> dict[str, Any]:
    """Adapt the result of a request other than `tools/call` to the caller's protocol version.

    Args:
        answer: The upstream's result, which may be modified.
        version: The caller's protocol version.
        params: The params of the request, with the upstream's names.
        rename: Renames URIs that other servers use as well.

    Raises:
        UpstreamProtocolError: The answer is not a result, or its type does not exist in the caller's version.
    """
    result = _repair_result(parse_result(_as_object(answer, server), server), method, params)
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
            "protocol version does not support.",
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
    """Return the result with a list of the repairs in `_meta`."""
    if not notes:
        return result
    return with_meta(result, REPAIRED_KEY, list(dict.fromkeys(detail for _, detail in notes))[:_MAX_LISTED_REPAIRS])


def _repair_result(result: dict[str, Any], method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Repair parts of a prompt, resource, completion or task result for which clients would reject the result."""
    notes: RepairNotes = []
    member, changed = "", None
    if method == "prompts/get":
        member, changed = "messages", repair_messages(result.get("messages"), notes)
    elif method == "resources/read":
        member, changed = "contents", repair_contents(result.get("contents"), str(params.get("uri")), notes)
    elif method == "completion/complete":
        member, changed = "completion", repair_completion(result.get("completion"), notes)
    elif method == "tasks/get" and isinstance(result.get("result"), dict):
        _repair_tool_result(result["result"], "", notes)
    if changed is not result.get(member):
        result = {**result, member: changed}
    wrong = [
        name
        for name, kind in (("description", str), ("_meta", dict))
        if name in result and not isinstance(result[name], kind) and method in _REPAIRED_METHODS
    ]
    if wrong:
        notes.append(("wrong_type", f"of the wrong type: {', '.join(wrong)}"))
        result = without_keys(result, wrong)
    return with_notes(result, notes)


def _is_plain(result: dict[str, Any], version: str, *, modern: bool) -> bool:
    """Return whether a result, like most, consists of texts and of a structured form that this version supports."""
    content = result.get("content")
    if type(content) is not list or not _PLAIN_MEMBERS.issuperset(result) or not (modern or version >= _LINKS_SINCE):
        return False
    for item in content:
        if not (type(item) is dict and len(item) == 2 and item.get("type") == "text" and type(item.get("text")) is str):
            return False
    if type(result.get("isError", False)) is not bool or result.get("resultType", "complete") != "complete":
        return False
    if "structuredContent" not in result:
        return True
    # Texts must accompany the structured form. Errors are parsed completely, because hints are derived from them.
    structured = result["structuredContent"]
    return bool(content) and result.get("isError") is not True and (modern or _is_object(structured))


def _repair_tool_result(result: dict[str, Any], server: str, notes: RepairNotes) -> None:
    """Repair, in place, invalid parts of a tool result for which clients would reject the result."""
    content = result.get("content")
    if isinstance(content, str | dict):
        notes.append(("content", "the content was not a list"))
        content = [content]
    if type(content) is json_bytes.UnparsedJson and content.text[:1] == b"[" and not _is_sound(content, server):
        content = parse_result({"content": content}, server)["content"]
    if isinstance(content, list):
        result["content"] = repair_content(content, notes)
    if "isError" in result and type(result["isError"]) is not bool:
        notes.append(("wrong_type", "isError was not a boolean"))
        result["isError"] = result["isError"] in (1, "true", "True")
    if not isinstance(result.get("_meta", {}), dict):
        notes.append(("wrong_type", "_meta was not an object"))
        del result["_meta"]


def _is_sound(content: json_bytes.UnparsedJson, server: str) -> bool:
    """Return whether no content item needs repair. Large texts are not parsed if the outline of an item is enough."""
    try:
        items = json_bytes.outlined_items(content)
    except json_bytes.MalformedJson as error:
        raise UpstreamProtocolError.unreadable(server, error) from None
    return all(item is not None and repair_item(item, []) is item for item in items)


def _fill_content(result: dict[str, Any], server: str) -> None:
    content = result.get("content")
    if "structuredContent" in result:
        # Some hosts show only `content`, so it must not be empty.
        if not _has_text(content, server):
            text = json_bytes.dumps(result["structuredContent"]).decode()
            result["content"] = with_item(parse_result(result, server).get("content"), {"type": "text", "text": text})
    elif not _is_list(content):
        raise UpstreamProtocolError(server, f"Server '{server}' answered without content; the call has no result.")


def _without_own_uris(result: dict[str, Any]) -> dict[str, Any]:
    """Remove resources with the gateway's own URI scheme from a prompt result; the same object if there are none.

    URIs of this scheme contain the alias of a server. By embedding such a resource, a server could impersonate the
    server whose alias the URI contains.
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
    """Return the content of a result with one more item."""
    return [*(content if isinstance(content, list) else []), item]


def parse_result(result: dict[str, Any], server: str) -> dict[str, Any]:
    """Return a result with all members parsed.

    Raises:
        UpstreamProtocolError: The result is nested too deeply.
    """
    try:
        return json_bytes.parse_members(result)
    except json_bytes.MalformedJson as error:
        raise UpstreamProtocolError.unreadable(server, error) from None


def can_stay_unparsed(version: str) -> bool:
    """Return whether this version supports every kind of content item, so that items can be forwarded unparsed."""
    return version >= _LINKS_SINCE


def _has_text(content: Any, server: str) -> bool:
    try:
        return json_bytes.has_item(content, "text")
    except json_bytes.MalformedJson as error:
        raise UpstreamProtocolError.unreadable(server, error) from None


def _is_list(value: Any) -> bool:
    return value.text[:1] == b"[" if type(value) is json_bytes.UnparsedJson else isinstance(value, list)


def _is_object(value: Any) -> bool:
    return value.text[:1] == b"{" if type(value) is json_bytes.UnparsedJson else isinstance(value, dict)


def _older_item(item: Any, version: str) -> Any:
    """Return a content item in a form that versions before 2025-06-18 support."""
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
    """Check that an answer is a result object, and remove the upstream's `serverInfo` from it.

    Raises:
        UpstreamProtocolError: The answer is not an object.
    """
    if not isinstance(answer, dict):
        raise UpstreamProtocolError(server, f"Server '{server}' answered with something that is not a result.")
    meta = answer.get("_meta")
    if isinstance(meta, dict) and SERVER_INFO_KEY in meta:
        del meta[SERVER_INFO_KEY]  # to the caller, the server is this gateway, which adds its own `serverInfo`
        if not meta:
            del answer["_meta"]
    return answer
