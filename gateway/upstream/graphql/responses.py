"""Send requests to a GraphQL endpoint, and convert responses to tool results.

Source: the specification "GraphQL over HTTP", "Request" and "Response".

The `data` of a response becomes `structuredContent`, and the JSON text of `data` becomes the text content. If there are
errors, the result has `isError` and any partial `data`. The error objects (up to the size limit for error data) and
`extensions` become members of `_meta`, so that `structuredContent` contains exactly `data`.
"""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.http.event_stream import MAX_MESSAGE_BYTES
from gateway.http.http_client import HttpClient
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import HttpStatusError, UnusableAnswer
from gateway.upstream.transport.client_headers import has_no_credentials
from gateway.upstream.transport.jsonrpc_transport import bounded_data, bounded_text
from gateway.upstream.upstream_credentials import refusal_text
from registry.schema.display_text import clean, excerpt

_HEADERS: Final = {
    "accept": "application/graphql-response+json, application/json;q=0.9",
    "content-type": "application/json",
}
# Headers that cannot be configured, because the gateway sets them, such as the headers for connection and framing.
_NOT_CONFIGURABLE: Final = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
    | {"accept-encoding", "content-length", "content-type", "expect", "host"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """A complete HTTP response of the endpoint.

    Attributes:
        is_anonymous: Whether the request was sent without credentials.
    """

    status: int
    content_type: str
    body: bytes
    is_anonymous: bool = False


class Endpoint:
    """The client of one GraphQL endpoint."""

    def __init__(self, client: HttpClient, url: str, headers: Mapping[str, str]) -> None:
        self._client = client
        self._url = url
        own = {name.lower(): value for name, value in headers.items() if name.lower() not in _NOT_CONFIGURABLE}
        self._is_anonymous = has_no_credentials(url, headers)
        self._headers: dict[str, str] = {**_HEADERS, **own}

    async def post(
        self,
        payload: Mapping[str, Any],
        *,
        trace: Mapping[str, str] | None = None,
        limit_bytes: int = MAX_MESSAGE_BYTES,
    ) -> HttpAnswer:
        """Send one request and read the complete response.

        Raises:
            ConnectionLost: The endpoint did not respond, or the response exceeds `limit_bytes`.
            HttpStatusError: The endpoint redirects to a URL that must not be followed.
        """
        headers = {**self._headers, **(trace or {})}
        async with self._client.send("POST", self._url, headers, json_bytes.dumps(payload)) as response:
            body = await response.read(limit_bytes)
            return HttpAnswer(
                status=response.status,
                content_type=response.content_type,
                body=body,
                is_anonymous=self._is_anonymous,
            )


ERRORS_KEY: Final = "typegate/graphqlErrors"
EXTENSIONS_KEY: Final = "typegate/graphqlExtensions"
_JSON: Final = frozenset({"application/json", "application/graphql-response+json"})
# The maximum number of errors in the text. A query for a list can cause an error for each item. The first errors
# explain the failure, and `_meta` contains the full list.
_MAX_SHOWN: Final = 20
# The longest message, in characters. The limit is needed because some servers include a stack trace in the message.
_MAX_MESSAGE: Final = 2_000
_MAX_PATH: Final = 300
# How many characters to quote from a page or text that is not a GraphQL response.
_MAX_WORDS: Final = 100
# The members that contain the error message in responses without a list of errors, the most specific member first.
# Hasura, monday.com, Problem Details (RFC 9457), OAuth and others use these members.
_MESSAGE_MEMBERS: Final = (
    "errors",
    "error",
    "error_message",
    "errorMessage",
    "message",
    "detail",
    "error_description",
    "title",
)
_SERVER_FAILED: Final = 500
_TAG: Final = re.compile(
    rb"<(?:script|style)\b.{0,2000}?</(?:script|style)\s*>|<[^<>]{0,500}>", re.DOTALL | re.IGNORECASE
)


def response_of(answer: HttpAnswer) -> dict[str, Any]:
    """Return the GraphQL response in an HTTP response of any status.

    Raises:
        HttpStatusError: The endpoint rejected the request with an HTTP status.
        UnusableAnswer: The body is not a GraphQL response.
    """
    if answer.status in (401, 403):
        raise HttpStatusError(answer.status, refusal_text(is_anonymous=answer.is_anonymous, keys="`headers`"))
    response: Any = None
    # Older servers send text/plain, so try any body that starts with a brace.
    if answer.content_type in _JSON or answer.body[:1] == b"{":
        try:
            response = json_bytes.loads(answer.body.removeprefix(codecs.BOM_UTF8))
        except json_bytes.MalformedJson as error:
            # Ignore malformed JSON in an error page, so that the status is reported instead.
            if answer.status < 300:
                raise UnusableAnswer(f"the answer is not JSON ({excerpt(str(error), 200)})") from None
    # Ignore the status: with `application/json`, request errors may have status 200 or 400.
    if isinstance(response, dict) and (response.get("data") is not None or _errors(response)):
        return response
    is_answer = isinstance(response, dict) and answer.status < _SERVER_FAILED and not 300 <= answer.status < 400
    if is_answer and (message := _message_of(response)):
        # Convert a custom error format to the standard one, and keep the other members of the object.
        return {"errors": [{**response, "message": message}], "extensions": response.get("extensions")}
    if isinstance(response, dict) and "data" in response:
        return response
    if answer.status >= 300:
        moved = "a redirect is not followed" if answer.status < 400 else _words(answer, response)
        raise HttpStatusError(answer.status, moved)
    kind = excerpt(answer.content_type, 100) or "without a content type"
    words = _words(answer, response)
    raise UnusableAnswer(f"the answer is not a GraphQL response ({kind}{f': {words}' if words else ''})")


def _message_of(value: Any) -> str:
    """Return the error message in a text or in an object of a known format; an empty string if there is no message."""
    if isinstance(value, str):
        return value.strip()
    if not isinstance(value, dict):
        return ""
    return next((text for key in _MESSAGE_MEMBERS if (text := _message_of(value.get(key)))), "")


def _words(answer: HttpAnswer, response: Any) -> str:
    """Return the first words of a body that is not a GraphQL response."""
    if isinstance(response, dict):
        return excerpt(_message_of(response), _MAX_WORDS)
    if not answer.content_type.startswith("text/"):
        return ""
    text = _TAG.sub(b" ", answer.body[: _MAX_WORDS * 40]).decode("utf-8", "replace")
    return excerpt(html.unescape(text), _MAX_WORDS)


def is_request_error(response: dict[str, Any]) -> bool:
    """Return whether the endpoint rejected the document or its variables without executing anything."""
    return "data" not in response and bool(_errors(response))


def result_of(response: dict[str, Any]) -> dict[str, Any]:
    """Convert a GraphQL response to the result of a tool call.

    Raises:
        UnusableAnswer: The response has no data and no errors, or cannot be encoded as JSON.
    """
    errors, data = _errors(response), response.get("data")
    content: list[dict[str, Any]] = []
    result: dict[str, Any] = {"content": content}
    meta: dict[str, Any] = {}
    if errors:
        content.append({"type": "text", "text": error_text(errors)})
        meta[ERRORS_KEY] = bounded_data(errors)
        result["isError"] = True
    if isinstance(data, dict):
        content.append({"type": "text", "text": _encode(data)})
        result["structuredContent"] = data
    elif data is not None or not errors:
        # A response without data and errors does not show whether the operation ran, so treat it as a lost connection.
        raise UnusableAnswer("the answer is a GraphQL response with neither data nor errors")
    if isinstance(response.get("extensions"), dict):
        meta[EXTENSIONS_KEY] = response["extensions"]
    if meta:
        _encode(meta)  # raises if `meta` cannot be encoded
        result["_meta"] = meta
    return result


def _encode(value: dict[str, Any]) -> str:
    """Encode a value as JSON; raise `UnusableAnswer` if the value is nested too deeply for a message."""
    try:
        return json_bytes.dumps(value).decode()
    except json_bytes.MalformedJson as error:
        raise UnusableAnswer(f"the response cannot be forwarded ({error})") from None


def error_text(errors: list[Any]) -> str:
    """Return one line for each error, with the path of the response field that caused the error."""
    lines = [_line(error) for error in errors[:_MAX_SHOWN]]
    if len(errors) > _MAX_SHOWN:
        lines.append(f"and {len(errors) - _MAX_SHOWN} more errors")
    return bounded_text("\n".join(lines))


def _line(error: Any) -> str:
    text = clean(_message_of(error)[:_MAX_MESSAGE]) or "the endpoint gave no reason"
    path = error.get("path") if isinstance(error, dict) else None
    if isinstance(path, list) and path:
        text += f" (at {excerpt('.'.join(str(step) for step in path), _MAX_PATH)})"
    return text


def _errors(response: dict[str, Any]) -> list[Any]:
    """Return the errors of a response; a single text or object becomes a list with one item."""
    errors = response.get("errors")
    if isinstance(errors, str) and errors.strip():
        return [errors]
    if isinstance(errors, dict) and errors:
        return [errors]
    return errors if isinstance(errors, list) else []
