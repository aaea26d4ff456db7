"""An endpoint's response as the result of a tool call.

`data` is `structuredContent`, and its JSON the text. Errors make an error result that keeps `data` where there
is some. The error objects and `extensions` are in `_meta`, whole, so that nothing of the response is lost and
`structuredContent` is `data` and nothing else.
"""

from __future__ import annotations

import html
import re
from typing import Any, Final

from gateway import wire
from gateway.errors import HttpStatusError, UnusableAnswer
from gateway.upstream.graphql.endpoint import HttpAnswer
from registry.schema.display_text import excerpt

ERRORS_KEY: Final = "typegate/graphqlErrors"
EXTENSIONS_KEY: Final = "typegate/graphqlExtensions"
_JSON: Final = frozenset({"application/json", "application/graphql-response+json"})
# A list query can fail once for each item: the first errors say what is wrong, all of them are in `_meta`.
_MAX_SHOWN: Final = 20
# In characters: some servers put a stack trace into the message.
_MAX_MESSAGE: Final = 2_000
_MAX_PATH: Final = 300
# Of a page or a text instead of a response: its first words say what it is.
_MAX_WORDS: Final = 100
# Members that tell what went wrong where there is no list of errors, the most telling one first: of Hasura, monday.com,
# Problem Details (RFC 9457), OAuth and others.
_TELLING: Final = (
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
    """The GraphQL response in an HTTP answer, whatever its status.

    Raises:
        HttpStatusError: The endpoint refused over HTTP.
        ConnectionLost: It answered with something that is no GraphQL response.
    """
    if answer.status in (401, 403):
        # The body of such an answer may repeat the credentials.
        raise HttpStatusError(answer.status, "the credentials were refused")
    response: Any = None
    # Older servers answer with text/plain; a brace is enough to try.
    if answer.content_type in _JSON or answer.body[:1] == b"{":
        try:
            response = wire.loads(answer.body)
        except wire.MalformedJson as error:
            # Of an error page the status is the reason, not its form.
            if answer.status < 300:
                raise UnusableAnswer(f"the answer is not JSON ({excerpt(str(error), 200)})") from None
    # Whatever the status: under `application/json` request errors may come with 200 or 400.
    if isinstance(response, dict) and (response.get("data") is not None or _errors(response)):
        return response
    is_answer = isinstance(response, dict) and answer.status < _SERVER_FAILED and not 300 <= answer.status < 400
    if is_answer and (told := _told(response)):
        # As if it had been told in the usual form: the whole object is kept with it.
        return {"errors": [{**response, "message": told}], "extensions": response.get("extensions")}
    if isinstance(response, dict) and "data" in response:
        return response
    if answer.status >= 300:
        moved = "a redirect is not followed" if answer.status < 400 else _words(answer, response)
        raise HttpStatusError(answer.status, moved)
    kind = excerpt(answer.content_type, 100) or "of no type"
    words = _words(answer, response)
    raise UnusableAnswer(f"the answer is no GraphQL response ({kind}{f': {words}' if words else ''})")


def _told(value: Any) -> str:
    """Return the text of an object that tells of an error in a form of its own; empty if there is none."""
    if isinstance(value, str):
        return value.strip()
    if not isinstance(value, dict):
        return ""
    return next((text for key in _TELLING if (text := _told(value.get(key)))), "")


def _words(answer: HttpAnswer, response: Any) -> str:
    """Return the first words of an answer that is no response."""
    if isinstance(response, dict):
        return excerpt(_told(response), _MAX_WORDS)
    if not answer.content_type.startswith("text/"):
        return ""
    text = _TAG.sub(b" ", answer.body[: _MAX_WORDS * 40]).decode("utf-8", "replace")
    return excerpt(html.unescape(text), _MAX_WORDS)


def is_request_error(response: dict[str, Any]) -> bool:
    """Whether the endpoint would not run the document at all: it does not fit its schema, or the variables do not."""
    return "data" not in response and bool(_errors(response))


def result_of(response: dict[str, Any]) -> dict[str, Any]:
    """The result of a tool call.

    Raises:
        ConnectionLost: The response has neither data nor errors, or cannot be written as JSON again.
    """
    errors, data = _errors(response), response.get("data")
    content: list[dict[str, Any]] = []
    result: dict[str, Any] = {"content": content}
    meta: dict[str, Any] = {}
    if errors:
        content.append({"type": "text", "text": error_text(errors)})
        meta[ERRORS_KEY] = errors
        result["isError"] = True
    if isinstance(data, dict):
        content.append({"type": "text", "text": _text(data)})
        result["structuredContent"] = data
    elif data is not None or not errors:
        # Neither a result nor a reason: its outcome is as unknown as after a lost connection.
        raise UnusableAnswer("the answer is a GraphQL response with neither data nor errors")
    if isinstance(response.get("extensions"), dict):
        meta[EXTENSIONS_KEY] = response["extensions"]
    if meta:
        _text(meta)  # only to find out that it can be written
        result["_meta"] = meta
    return result


def _text(value: dict[str, Any]) -> str:
    """The value as JSON; `data` may be nested more deeply than a message may be."""
    try:
        return wire.dumps(value).decode()
    except wire.MalformedJson as error:
        raise UnusableAnswer(f"the answer cannot be passed on ({error})") from None


def error_text(errors: list[Any]) -> str:
    """What went wrong, one error on each line, each with the place in the answer that it belongs to."""
    lines = [_line(error) for error in errors[:_MAX_SHOWN]]
    if len(errors) > _MAX_SHOWN:
        lines.append(f"and {len(errors) - _MAX_SHOWN} more errors")
    return "\n".join(lines)


def _line(error: Any) -> str:
    text = _told(error)[:_MAX_MESSAGE] or "the endpoint gave no reason"
    path = error.get("path") if isinstance(error, dict) else None
    if isinstance(path, list) and path:
        text += f" (at {excerpt('.'.join(str(step) for step in path), _MAX_PATH)})"
    return text


def _errors(response: dict[str, Any]) -> list[Any]:
    """The errors of a response, in a list also where they are one text or one object."""
    errors = response.get("errors")
    if isinstance(errors, str) and errors.strip():
        return [errors]
    if isinstance(errors, dict) and errors:
        return [errors]
    return errors if isinstance(errors, list) else []
