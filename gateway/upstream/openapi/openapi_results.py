"""Convert the HTTP response of an API to the result of the tool call.

Sources: MCP 2026-07-28, "Tools"; RFC 9457 for the bodies of error responses; RFC 8288 for links.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.http.event_stream import media_type
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import HttpStatusError, UnusableAnswer, error_result
from gateway.upstream.openapi.openapi_messages import BODY, Operation
from registry.schema.display_text import clean, excerpt

META_KEY: Final = "typegate/http"
"""The member of a result's `_meta` with the HTTP status, and the response headers that matter for further requests,
such as links to the next page and rate limits."""
_PASSED_HEADERS: Final = frozenset(
    {"link", "location", "retry-after", "etag", "last-modified", "content-range", "deprecation", "sunset"}
    | {"x-total", "x-total-count", "x-total-pages", "x-page", "x-per-page", "x-next-page", "x-prev-page"}
    | {"x-next-cursor", "x-request-id"}
)
_PASSED_PREFIXES: Final = ("x-ratelimit-", "ratelimit", "x-pagination")
_LINK: Final = re.compile(r"<([^<>]{1,2000})>([^<]{0,500})")
_RELATION: Final = re.compile(r';\s*rel="?([\w -]{1,60})"?', re.IGNORECASE)
_MAX_HEADER: Final = 2_000
_MAX_ERROR: Final = 4_000
_MAX_FINDINGS: Final = 10
# Bytes of an error page that are searched for a message.
_MAX_PAGE: Final = 8_000
_TAG: Final = re.compile(r"<(?:script|style)\b.{0,2000}?</(?:script|style)\s*>|<[^<>]{0,500}>", re.DOTALL | re.I)
# Members of an error body that may contain its message, most specific first: Problem Details (RFC 9457), Google,
# Stripe, OAuth, others.
_MESSAGES: Final = ("detail", "message", "msg", "error_description", "description", "reason", "title", "error", "code")
# Members of an error body that may name the part of the request to which the error refers.
_SUBJECTS: Final = ("pointer", "parameter", "param", "field", "loc", "path", "name", "property", "attribute", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAnswer:
    """A complete HTTP response of the API."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str

    @property
    def kind(self) -> str:
        """The media type of the body, without parameters; empty if the response states none."""
        return media_type(self.headers.get("content-type", ""))


def result_of(answer: ApiAnswer, operation: Operation) -> dict[str, Any]:
    """Convert a response to the result of a tool call.

    Raises:
        HttpStatusError: The status is 5xx, so that the outcome of the request may be unknown, or the response is a
            redirect without a target.
        UnusableAnswer: The body is declared as JSON, but is not JSON.
    """
    meta = {META_KEY: _meta(answer)}
    if answer.status >= 500:
        raise HttpStatusError(answer.status, _words(answer))
    if answer.status >= 400:
        return error_result(_error_text(answer, operation), meta=meta)
    if answer.status >= 300 and answer.status != 304:
        target = answer.headers.get("location", "")
        if not target:
            raise HttpStatusError(answer.status, "a redirect without a target")
        link = {"type": "resource_link", "uri": target, "name": excerpt(target.rpartition("/")[2] or target, 100)}
        text = {"type": "text", "text": f"HTTP {answer.status}: the API refers to {excerpt(target, 1_000)}"}
        return {"content": [text, link], "_meta": meta}
    result: dict[str, Any] = {"content": [], "_meta": meta}
    if not answer.body:
        result["content"] = [{"type": "text", "text": f"HTTP {answer.status}, without content."}]
    elif _looks_like_json(answer):
        try:
            value = json_bytes.loads(answer.body.removeprefix(b"\xef\xbb\xbf"))
        except json_bytes.MalformedJson as error:
            if _is_json(answer.kind):
                raise UnusableAnswer(f"the answer is not JSON ({excerpt(str(error), 200)})") from None
            result["content"] = [_content(answer)]
        else:
            result["content"] = [{"type": "text", "text": json_bytes.dumps(value).decode()}]
            if value is not None:
                result["structuredContent"] = value
    else:
        result["content"] = [_content(answer)]
    return result


def _is_json(kind: str) -> bool:
    return kind in ("application/json", "text/json") or kind.endswith("+json")


def _looks_like_json(answer: ApiAnswer) -> bool:
    return _is_json(answer.kind) or (not answer.kind and answer.body.lstrip()[:1] in (b"{", b"["))


def _content(answer: ApiAnswer) -> dict[str, Any]:
    """Return a body that is not JSON as a content item: text, an image, audio, or an embedded resource."""
    kind = answer.kind
    if kind.startswith("text/") or kind.endswith(("xml", "yaml", "javascript", "x-ndjson", "csv")) or not kind:
        charset = re.search(r'charset="?([\w-]{1,40})', answer.headers.get("content-type", ""), re.IGNORECASE)
        try:
            return {"type": "text", "text": answer.body.decode(charset[1] if charset else "utf-8")}
        except (UnicodeDecodeError, LookupError):
            if kind:
                return {"type": "text", "text": answer.body.decode("utf-8", "replace")}
    data = base64.b64encode(answer.body).decode("ascii")
    for family in ("image", "audio"):
        if kind.startswith(f"{family}/"):
            return {"type": family, "data": data, "mimeType": kind}
    uri = answer.url.partition("?")[0]  # a query may contain a key
    return {
        "type": "resource",
        "resource": {"uri": uri, "mimeType": kind or "application/octet-stream", "blob": data},
    }


def _meta(answer: ApiAnswer) -> dict[str, Any]:
    meta: dict[str, Any] = {"status": answer.status}
    headers = {
        name: value[:_MAX_HEADER]
        for name, value in answer.headers.items()
        if name in _PASSED_HEADERS or name.startswith(_PASSED_PREFIXES)
    }
    if headers:
        meta["headers"] = headers
    links: dict[str, str] = {}
    for target, attributes in _LINK.findall(headers.get("link", "")):
        if (relation := _RELATION.search(attributes)) is not None:
            links.setdefault(relation[1].strip(), target)
    if links:
        meta["links"] = links
    return meta


def _error_text(answer: ApiAnswer, operation: Operation) -> str:
    """Return the text of an error result: the status, the message, errors of single arguments, and the JSON body."""
    words = _words(answer)
    lines = [f"HTTP {answer.status}{f': {words}' if words else ''}"]
    if (delay := answer.headers.get("retry-after")) is not None:
        unit = " s" if delay.isdigit() else ""
        lines.append(f"Try again after {excerpt(delay, 60)}{unit}.")
    value = _parse_body(answer)
    for subject, message in list(_findings(value, 0))[:_MAX_FINDINGS]:
        if (argument := _argument_of(subject, operation)) is not None:
            lines.append(f"{argument}: {message}")
    if isinstance(value, dict | list):
        body = json_bytes.dumps(value).decode()
        lines.append(body if len(body) <= _MAX_ERROR else f"{body[:_MAX_ERROR]}…")
    return clean("\n".join(lines))


def _parse_body(answer: ApiAnswer) -> Any:
    if not _looks_like_json(answer):
        return None
    try:
        return json_bytes.loads(answer.body)
    except json_bytes.MalformedJson:
        return None


def _words(answer: ApiAnswer) -> str:
    """Return the message in an error response, as one line; empty if the body has no message."""
    value = _parse_body(answer)
    if value is not None:
        return excerpt(_message(value, 0), 500)
    if answer.kind.startswith("text/") or not answer.kind:
        page = answer.body[:_MAX_PAGE].decode("utf-8", "replace")
        return excerpt(html.unescape(_TAG.sub(" ", page)) if "html" in answer.kind else page, 300)
    return ""


def _message(value: Any, depth: int) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list) and depth < 4:
        return next((text for item in value[:5] if (text := _message(item, depth + 1))), "")
    if not isinstance(value, dict) or depth > 4:
        return ""
    members = ("errors", *_MESSAGES) if not any(key in value for key in _MESSAGES) else _MESSAGES
    return next((text for key in members if (text := _message(value.get(key), depth + 1))), "")


def _findings(value: Any, depth: int) -> Iterator[tuple[Any, str]]:
    """Yield each error in a body that names a part of the request; the formats of common frameworks are recognized.

    Each error is a pair of the name that the body gives to this part of the request, and the message.
    """
    if depth > 6:
        return
    if isinstance(value, list):
        for item in value[:50]:
            yield from _findings(item, depth + 1)
    elif isinstance(value, dict):
        subject = next((value[key] for key in _SUBJECTS if isinstance(value.get(key), str | list) and value[key]), None)
        message = _message({key: member for key, member in value.items() if key in _MESSAGES}, 0)
        if subject is not None and message:
            yield subject, excerpt(message, 300)
        for key, member in value.items():
            if key in ("errors", "error", "detail", "details", "fieldViolations", "invalid-params", "violations"):
                if isinstance(member, dict) and member and all(map(_are_messages, member.values())):
                    # Laravel, Rails and ASP.NET return lists of messages by field.
                    yield from ((name, excerpt(_message(entry, 0), 300)) for name, entry in member.items())
                else:
                    yield from _findings(member, depth + 1)


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def _argument_of(subject: Any, operation: Operation) -> str | None:
    """Return the tool argument that `subject`, a part of the request named by an error, belongs to; None if unknown."""
    steps = subject if isinstance(subject, list) else re.split(r"[./]", str(subject).lstrip("#/$."))
    names = [str(step) for step in steps if str(step)]
    while len(names) > 1 and names[0].lower() in ("body", "query", "path", "header", "cookie", "params"):
        place, *names = names
        if place.lower() == "body":
            return excerpt(".".join((BODY, *names)), 100) if operation.body is not None else None
    if not names:
        return None
    for parameter in operation.parameters:
        if parameter.name == ".".join(names) or parameter.name == names[0] or parameter.argument == names[0]:
            return parameter.argument
    if operation.body is None:
        return None
    return excerpt(".".join(names if names[0] == BODY else (BODY, *names)), 100)
