"""What a server means that answers a request with an error status, or with an error about its session."""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.upstream.transport.http_client import Response

# The specification requires 404; these are the messages of servers that use another status.
_FORGOTTEN: Final = (
    "session not found",
    "session terminated",
    "no valid session",
    "invalid session",
    "unknown session",
)
_TOO_MANY: Final = 429
# Of `Retry-After`: at most a day. A date is left out, since callers count in seconds.
_SECONDS: Final = re.compile(r"\d{1,5}")


def says_forgotten(message: dict[str, Any]) -> bool:
    """Return whether a message says that the server does not know the session any more."""
    error = message.get("error")
    text = error.get("message") if isinstance(error, dict) else None
    return isinstance(text, str) and any(words in text.lower() for words in _FORGOTTEN)


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
