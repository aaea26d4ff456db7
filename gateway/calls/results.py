"""The way back: a raw upstream result becomes what this caller's version can read, and nothing less."""

from __future__ import annotations

from typing import Any

from gateway import wire
from gateway.eras import MODERN_VERSIONS, SERVER_INFO_KEY
from gateway.errors import UpstreamProtocolError, error_result

_STRUCTURED_SINCE = "2025-06-18"
_LINKS_SINCE = "2025-06-18"
_AUDIO_SINCE = "2025-03-26"
_MODERN_ONLY = ("resultType", "ttlMs", "cacheScope")


def adapt(result: Any, *, server: str, version: str) -> dict[str, Any]:
    """Adapt a result of `tools/call`; `result` is the caller's alone and may be changed.

    What a version cannot express is said in its own words: `structuredContent` that is no object goes before
    2026-07-28, any of it before 2025-06-18, and its text form stays; a `resource_link` becomes text before
    2025-06-18, and `audio` an embedded resource before 2025-03-26. Unknown members and items stay.

    Sources: MCP 2026-07-28, "Tools", "Tool Result" and "Base protocol", "Result types"; the changelogs of
    2025-03-26 and 2025-06-18.

    Raises:
        UpstreamProtocolError: It is no result of a tool call.
    """
    if not isinstance(result, dict):
        raise UpstreamProtocolError(server, f"Server '{server}' answered with something that is no result.")
    modern = version in MODERN_VERSIONS
    kind = result.get("resultType", "complete")
    _unstamp(result)
    if not modern and kind != "complete":
        return error_result(
            f"Server '{server}' answered with a result of the kind {kind!r}, which this connection's protocol "
            "version cannot carry. The tool has no result here."
        )
    if kind != "complete":
        return result
    _fill_content(result, server)
    if modern:
        result["resultType"] = "complete"
        return result
    for member in _MODERN_ONLY:
        result.pop(member, None)
    if "structuredContent" in result and (
        version < _STRUCTURED_SINCE or not isinstance(result["structuredContent"], dict)
    ):
        # Before 2026-07-28 only objects were allowed; the text form says the same.
        del result["structuredContent"]
    if version < _LINKS_SINCE:
        result["content"] = [_older_item(item, version) for item in result["content"]]
    return result


def adapt_other(result: Any, *, server: str, version: str) -> dict[str, Any]:
    """Adapt the result of any other request; `result` is the caller's alone and may be changed.

    Raises:
        UpstreamProtocolError: It is no result.
    """
    if not isinstance(result, dict):
        raise UpstreamProtocolError(server, f"Server '{server}' answered with something that is no result.")
    _unstamp(result)
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
            {**one, "content": _older_item(one["content"], version)}
            if isinstance(one, dict) and "content" in one
            else one
            for one in messages
        ]
    return result


def _fill_content(result: dict[str, Any], server: str) -> None:
    content = result.get("content")
    if "structuredContent" in result:
        kept = content if isinstance(content, list) else []
        if not any(isinstance(item, dict) and item.get("type") == "text" for item in kept):
            text = wire.dumps(result["structuredContent"]).decode()
            result["content"] = [*kept, {"type": "text", "text": text}]
    elif not isinstance(content, list):
        raise UpstreamProtocolError(server, f"Server '{server}' answered without content; the call has no result.")


def _older_item(item: Any, version: str) -> Any:
    """A content item in the words of a version before 2025-06-18."""
    if not isinstance(item, dict):
        return item
    kind = item.get("type")
    if kind == "resource_link":
        name, uri = item.get("name") or item.get("uri"), item.get("uri")
        said: dict[str, Any] = {"type": "text", "text": f"[{name}]({uri})"}
    elif kind == "audio" and version < _AUDIO_SINCE:
        resource = {"uri": "audio:content", "mimeType": item.get("mimeType"), "blob": item.get("data")}
        said = {"type": "resource", "resource": resource}
    else:
        return item
    return {**said, **{name: item[name] for name in ("annotations", "_meta") if name in item}}


def _unstamp(result: dict[str, Any]) -> None:
    meta = result.get("_meta")
    if isinstance(meta, dict) and SERVER_INFO_KEY in meta:
        del meta[SERVER_INFO_KEY]
        if not meta:
            del result["_meta"]
