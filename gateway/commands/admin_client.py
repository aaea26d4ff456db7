"""A client of a running gateway: its admin API, and single requests of protocol version 2026-07-28.

On `http.client`, which is imported in milliseconds: a command line is to answer at once.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final
from urllib.parse import SplitResult, urlencode, urlsplit

from gateway import __version__
from gateway.commands.locations import NotReached, UsageError
from gateway.protocol import MODERN_VERSIONS, envelope, header_value

# The default of `gateway.listen`.
DEFAULT_URL: Final = "http://127.0.0.1:8765/mcp"
# Far above any list or result that the gateway sends: it only keeps another program at that port from filling memory.
MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
# Nothing that is asked for here waits for an upstream; as long as proxies on the way usually wait.
REQUEST_S: Final = 30.0
# As in `gateway.admin.listen`.
_UNIX: Final = "unix:"
_META: Final = envelope({"name": "typegate-cli", "version": __version__})

Notice = Callable[[dict[str, Any]], None]


class Refused(NotReached):
    """The gateway has said why it does not do what was asked."""


def admin_rows(url: str, path: str, token: str, query: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The rows that `GET path` of the admin API answers with.

    Raises:
        NotReached: The gateway does not answer, or refuses.
    """
    found = admin_document(url, path, token, query)
    # Each list is one member of its document; its name differs from route to route.
    if isinstance(found, dict):
        found = next((rows for rows in found.values() if isinstance(rows, list)), None)
    if not isinstance(found, list):
        raise NotReached(f"{_origin(_target(url))}{path} answered with no list; is that a typegate gateway?")
    return found


def admin_document(
    url: str,
    path: str,
    token: str,
    query: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    *,
    method: str = "GET",
) -> Any:
    """What the admin API answers a request without a body with.

    Raises:
        Refused: The gateway says why it does not do that.
        NotReached: The gateway does not answer, or refuses.
        UsageError: What is to be changed is not there, or cannot be changed.
    """
    target = _target(url)
    wanted = path + (f"?{urlencode(query)}" if query else "")
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
    with closing(_connection(target, timeout_s=REQUEST_S)) as connection:
        answer = _send(connection, target, method, wanted, None, headers)
        body = _read(answer, target)
    reason = _reason(body) if answer.status in (404, 409) else None
    # "There is nothing here" is of a port without an admin API.
    if reason is not None and (answer.status == 409 or reason.startswith("there is no ")):
        raise Refused(reason)
    if answer.status == 401:
        raise NotReached(f"{_origin(target)} refuses the admin token; expected the one it was started with")
    if answer.status == 429:
        raise NotReached(f"{_origin(target)} refuses log-ins for a while: too many have failed from this address")
    if method != "GET" and 400 <= answer.status < 500 and body[:1] == b"{":
        raise UsageError(str(_json(body, target).get("error")))
    if answer.status == 404:
        raise NotReached(
            f"{_origin(target)}{path} is not there; where gateway.admin.listen is set, give that address with --url "
            "(unix:/path for a socket)"
        )
    if answer.status != 200:
        raise NotReached(f"{_origin(target)}{path} answered HTTP {answer.status}; is that a typegate gateway?")
    return _json(body, target)


def admin_change(url: str, path: str, token: str, body: Mapping[str, Any]) -> Any:
    """What `POST path` of the admin API answers with.

    Raises:
        NotReached: The gateway does not answer, or refuses; the text is its own.
    """
    target = _target(url)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with closing(_connection(target, timeout_s=REQUEST_S)) as connection:
        answer = _send(connection, target, "POST", path, json.dumps(body).encode(), headers)
        content = _read(answer, target)
    found = _json(content, target) if content else {}
    if answer.status == 401:
        raise NotReached(f"{_origin(target)} refuses the admin token; expected the one it was started with")
    if answer.status >= 300:
        said = found.get("error") if isinstance(found, dict) else None
        raise NotReached(str(said) if said else f"{_origin(target)}{path} answered HTTP {answer.status}")
    return found


def request(
    url: str,
    method: str,
    params: Mapping[str, Any],
    *,
    api_key: str | None,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    notice: Notice | None = None,
) -> dict[str, Any]:
    """Send one stateless request and return its JSON-RPC response, result or error.

    Args:
        url: The address of the MCP endpoint.
        method: The JSON-RPC method.
        params: Its parameters, without `_meta`.
        api_key: Sent as a bearer token.
        timeout_s: The longest pause between two bytes of the response.
        headers: More headers, as `Mcp-Param-…`.
        notice: Called with each notification that comes before the answer.

    Raises:
        NotReached: There was no answer.
    """
    target = _target(url)
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": method,
        "params": {**params, "_meta": {**_META, "progressToken": 1}},
    }
    sent = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN_VERSIONS[-1],
        "Mcp-Method": method,
        **(headers or {}),
    }
    if isinstance(name := params.get("name"), str):
        sent["Mcp-Name"] = header_value(name)
    if api_key:
        sent["Authorization"] = f"Bearer {api_key}"
    path = (target.path or "/mcp") + (f"?{target.query}" if target.query else "")
    with closing(_connection(target, timeout_s)) as connection:
        answer = _send(connection, target, "POST", path, json.dumps(message).encode(), sent)
        response: dict[str, Any] | None = None
        if answer.getheader("Content-Type", "").startswith("text/event-stream"):
            for found in _events(answer, target):
                if found.get("id") == 1 and ("result" in found or "error" in found):
                    response = found
                elif notice is not None and "method" in found and "id" not in found:
                    notice(found)
        else:
            body = _read(answer, target)
            answered = _json(body, target) if body else None
            # An error that belongs to no request has the id null.
            if isinstance(answered, dict) and ("result" in answered or "error" in answered):
                response = answered
    if response is None:
        if answer.status in {401, 403}:
            raise NotReached(f"{url} refuses the key; expected --api-key or TYPEGATE_API_KEY")
        raise NotReached(f"{url} answered HTTP {answer.status} without an MCP response; is that a gateway?")
    return response


def page_at(url: str, path: str) -> tuple[int, str, str]:
    """Request a page of the gateway, as a browser would; returns its status, where it redirects to, and its text.

    Raises:
        NotReached: There is no answer.
    """
    target = _target(url)
    with closing(_connection(target, timeout_s=REQUEST_S)) as connection:
        answer = _send(connection, target, "GET", path, None, {"Accept": "text/html"})
        text = _read(answer, target).decode("utf-8", "replace")
        return answer.status, answer.getheader("Location", ""), text


def _reason(body: bytes) -> str | None:
    try:
        reason = json.loads(body).get("error")
    except (ValueError, AttributeError):
        return None
    return reason if isinstance(reason, str) else None


def _target(url: str) -> SplitResult:
    if url.startswith(_UNIX) and url.isascii() and url.isprintable():
        return SplitResult(scheme="unix", netloc="localhost", path=url.removeprefix(_UNIX), query="", fragment="")
    try:
        target = urlsplit(url if "://" in url else f"http://{url}")
        sound = target.scheme in {"http", "https"} and bool(target.hostname) and target.port != 0
    except ValueError:
        sound = False
    if not sound or not url.isascii() or any(c.isspace() for c in url):
        raise UsageError(f"--url {url!r} is no address; expected one as {DEFAULT_URL}")
    return target


def _origin(target: SplitResult) -> str:
    # Without user and password: it is printed.
    if target.scheme == "unix":
        return f"{_UNIX}{target.path}"
    return f"{target.scheme}://{target.netloc.rpartition('@')[2]}"


def _connection(target: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    if target.scheme == "unix":
        return _UnixConnection(target.path, timeout_s)
    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    return kind(target.hostname or "", target.port, timeout=timeout_s)


class _UnixConnection(http.client.HTTPConnection):
    """A connection to the admin API on a socket in the file system."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the path, whatever the host."""
        if not hasattr(socket, "AF_UNIX"):
            raise OSError("there are no such sockets on this platform")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _send(
    connection: http.client.HTTPConnection,
    target: SplitResult,
    method: str,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str],
) -> http.client.HTTPResponse:
    # Apart from the request: a refused connection means that no gateway runs, which needs other advice.
    try:
        connection.connect()
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise NotReached(
            f"no gateway answers at {_origin(target)} ({reason}); "
            "start one with `typegate serve --config FILE` or `typegate demo`, or give --url"
        ) from None
    try:
        connection.request(method, path, body, dict(headers))
        return connection.getresponse()
    except (UnicodeEncodeError, ValueError):
        raise UsageError("a key or token holds what no header can carry; expected ASCII text") from None
    except (OSError, http.client.HTTPException) as error:
        raise _lost(target, error) from None


def _lost(target: SplitResult, error: Exception) -> NotReached:
    if isinstance(error, TimeoutError):
        return NotReached(f"{_origin(target)} did not answer in time; --timeout SECONDS waits longer")
    return NotReached(f"{_origin(target)} broke off ({str(error) or type(error).__name__})")


def _read(answer: http.client.HTTPResponse, target: SplitResult) -> bytes:
    try:
        return answer.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _lost(target, error) from None


def _json(body: bytes, target: SplitResult) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise NotReached(f"{_origin(target)} answered with something that is not JSON") from None


def _events(answer: http.client.HTTPResponse, target: SplitResult) -> Iterator[dict[str, Any]]:
    """The JSON objects in the `data` of a server-sent event stream."""
    data: list[bytes] = []
    while True:
        try:
            line = answer.readline(MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _lost(target, error) from None
        stripped = line.rstrip(b"\r\n")
        if stripped.startswith(b"data:"):
            data.append(stripped[5:].removeprefix(b" "))
        elif not stripped and data:
            found = _json(b"\n".join(data), target) if any(data) else None
            data = []
            if isinstance(found, dict):
                yield found
        if not line:
            # The stream has ended. An event without its blank line is incomplete, and not delivered.
            return
