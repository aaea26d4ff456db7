"""The meaning of error statuses, and of errors about the session."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

from gateway.errors import INVALID_PARAMS, METHOD_NOT_FOUND
from gateway.upstream.transport.http_client import Response
from registry.schema.display_text import excerpt

Subject = Literal["session", "request", "unclear"]
"""The subject of a refusal: the session (the request was not processed), the request itself, or either of them."""

# MCP requires 404 for an unknown session, and many servers answer with another status and one of these phrases: the
# SDKs for TypeScript, Python, Go, C#, Java and Rust, FastMCP, and proxies in front of them.
_FORGOTTEN: Final = re.compile(
    r"""
    mcp-session-id
    | (?: not | never ) [ ] (?: yet [ ] )? (?: been [ ] )? initiali[sz]ed
    | before [ ] initiali[sz] | re-?initiali[sz] | initiali[sz]e [ ] first
    | (?: must | expected | expecting ) [^.]{0,20} initiali[sz]e
    | (?: no | unknown | invalid | missing | expired | stale | unrecogni[sz]ed )
      [^.]{0,20} \b (?: session | transport ) \b
    | find [^.]{0,20} \b session \b
    | \b (?: session | transport ) s? \b [^.]{0,60} \b (?:
        not [ ] (?: be [ ] )? (?: found | valid | exist | known | active | recogni[sz]ed | available )
        | (?: does | do ) (?: [ ] not | n't ) [ ] exist
        | unknown | invalid | missing | expired | terminated | closed | gone | lost | required | timed [ ] out | timeout
        | no [ ] longer | has [ ] ended | was [ ] deleted | was [ ] removed | stale )
    """,
    re.IGNORECASE | re.VERBOSE,
)
# The first phrase of a page or of an error says what is wrong; the rest may be anything.
_READ_CHARS: Final = 2_000
_QUOTED_CHARS: Final = 160
# Statuses that name a defect of the request or a limit: payment, method, media type, proxy, time, length, size,
# upgrade, rate and law. 401 and 403 are about credentials unless the text says otherwise.
_NAMES_THE_CAUSE: Final = frozenset(
    {401, 402, 403, 405, 406, 407, 408, 411, 413, 414, 415, 416, 417, 426, 429, 431, 451}
)
# A server that has read a request that far knows its session.
_OF_THE_REQUEST: Final = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS})
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
# Of `Retry-After`: at most a day. A date is left out, since callers count in seconds.
_SECONDS: Final = re.compile(r"\d{1,5}")


def says_forgotten(message: dict[str, Any]) -> bool:
    """Return whether the text of a JSON-RPC error says that the server does not know the session."""
    error = message.get("error")
    text = error.get("message") if isinstance(error, dict) else None
    return isinstance(text, str) and _FORGOTTEN.search(text[:_READ_CHARS]) is not None


def mentions_session(body: bytes) -> bool:
    """Return whether a text says that the server does not know the session."""
    return _FORGOTTEN.search(body[:_READ_CHARS].decode("utf-8", "replace")) is not None


def subject_of(status: int, body: bytes, message: dict[str, Any] | None, request_id: int | None) -> Subject:
    """Return what the refusal of a request within a session is about.

    Source: MCP 2025-11-25, "Transports", "Session Management": an unknown session is answered with 404.

    Args:
        status: Of the answer, at least 400.
        body: Of the answer.
        message: The JSON-RPC error that the body holds; None where it holds none.
        request_id: Of the request; None for a notification.
    """
    if status >= 500:
        return "request"  # the server failed while it processed the request
    says_so = mentions_session(body)
    is_own = message is not None and message.get("id") == request_id
    if message is not None and is_own and message["error"].get("code") in _OF_THE_REQUEST:
        # The tool may manage sessions of its own, and the argument may name an unknown session.
        return "unclear" if says_so else "request"
    if says_so:
        return "session"
    if status in _NAMES_THE_CAUSE:
        return "request"
    return "session" if status == _NOT_FOUND and not is_own else "unclear"


def forgotten_text(status: int, body: bytes, message: dict[str, Any] | None) -> str:
    """Return the reason that is reported when a server has forgotten a session."""
    said = ""
    if message is not None:
        said = str(message["error"].get("message", ""))
    elif status not in (401, 403) and b"<" not in body:
        # The text of 401 and 403 may repeat the credentials, and a page says nothing in its first line.
        said = body[:_READ_CHARS].decode("utf-8", "replace")
    said = excerpt(said, _QUOTED_CHARS)
    return f"the upstream has forgotten the session (HTTP {status}{': ' + said if said else ''})"


def reason_phrase(response: Response) -> str:
    """Return what the status of a response means for a call, or nothing."""
    status = response.status
    if status in (401, 403):
        return "the credentials were refused"
    if status == _TOO_MANY:
        found = _SECONDS.fullmatch(response.headers.get("retry-after", ""))
        return "too many requests" + (f", it takes more in {found[0]} s" if found else "")
    if 300 <= status < 400:
        return "a redirect is not followed"
    return ""
