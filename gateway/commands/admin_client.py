"""Find the state directory and the running gateway, and call its admin API or MCP endpoint.

The module uses `http.client`, whose import takes only milliseconds, so that commands start quickly.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import shutil
import socket
import stat
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import SplitResult, urlencode, urlsplit

from gateway import __version__
from gateway.access.administrators import FILE_NAME, UntrustedFile, stored_token
from gateway.process.files import expand_home
from gateway.protocol.gateway_errors import GatewayError
from gateway.protocol.versions import MODERN_VERSIONS, envelope, header_value

if TYPE_CHECKING:
    from gateway.config.unmatched_names import AddedNames


DEFAULT_CONFIGS: Final = ("mcp.yaml", "mcp.json", ".mcp.json")
"""The default configuration: the first of these files that exists in the working directory."""


class UsageError(GatewayError):
    """The arguments of the command are invalid. Exit code 2."""


class NotReached(GatewayError):
    """A running gateway did not answer, or refused the request. Exit code 1."""


def default_config(args: Namespace) -> Path | None:
    """Return the path of the configuration in the working directory; None if the command does not need a configuration.

    Raises:
        UsageError: The command needs a configuration, and there is none.
    """
    if (
        not getattr(args, "uses_default_config", False)
        or getattr(args, "url", None)
        or any(getattr(args, name, False) for name in ("schema", "reference"))
    ):
        return None
    config = next((path for name in DEFAULT_CONFIGS if (path := Path(name)).is_file()), None)
    if config is None:
        names = f"{', '.join(DEFAULT_CONFIGS[:-1])} and {DEFAULT_CONFIGS[-1]}"
        raise UsageError(f"no configuration: there is none of {names} in {Path.cwd()}; expected --config FILE")
    return config


def default_state_dir() -> Path:
    """Return TYPEGATE_STATE_DIR, or the folder `typegate` in the user's state directory."""
    if chosen := os.environ.get("TYPEGATE_STATE_DIR"):
        return expand_home(chosen)
    # The XDG Base Directory Specification requires ignoring a relative path.
    base = os.environ.get("XDG_STATE_HOME", "")
    if Path(base).is_absolute():
        return Path(base) / "typegate"
    usual = expand_home("~/.local/state")
    return usual / "typegate" if usual.is_absolute() else _temporary_state_dir()


def _temporary_state_dir() -> Path:
    """Return the state directory of a user without a home directory, in the directory for temporary files.

    Raises:
        UsageError: The directory belongs to another user.
    """
    # Windows has no numeric user ids, but each user has a separate temporary directory.
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    path = Path(tempfile.gettempdir()) / f"typegate-{user}"
    with suppress(FileNotFoundError):
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != user:
            raise UsageError(
                f"{path} is not a directory of this user, who has no home; expected --state-dir or TYPEGATE_STATE_DIR"
            )
    return path


def state_dir(args: Namespace) -> Path:
    """Return the directory that `--state-dir` names, or the default state directory."""
    chosen: Path | None = args.state_dir
    return expand_home(chosen) if chosen is not None else default_state_dir()


def load_added_names(path: Path, folder: Path | None = None) -> AddedNames:
    """Return the names of keys and servers that administrators have added through the admin API of the gateway.

    Args:
        path: The configuration.
        folder: The state directory; None for the default.
    """
    from gateway.config.overlay import Overlay, added_names  # imported lazily: many commands need no configuration

    return added_names(Overlay(folder if folder is not None else default_state_dir(), path, writes=False).changes)


def admin_token(args: Namespace) -> str:
    """Return the admin token from the environment or the state directory.

    Raises:
        UsageError: No token was found, or other users can change its file.
    """
    if token := os.environ.get("TYPEGATE_ADMIN_TOKEN"):
        return token
    path = state_dir(args) / FILE_NAME
    try:
        if token := stored_token(path):
            return token
    except UntrustedFile as error:
        raise UsageError(str(error)) from None
    raise UsageError(
        f"no admin token in TYPEGATE_ADMIN_TOKEN or {path}; expected one of them, "
        "the --state-dir of the running gateway, or --config FILE to work without a gateway"
    )


def program_command() -> str:
    """Return the command that starts this program in another terminal."""
    running = Path(sys.argv[0])
    if running.name.removesuffix(".exe") == "typegate" and running.exists():
        on_path = shutil.which("typegate")
        # The short name is correct only if the first `typegate` on the PATH is this installation.
        if on_path and Path(on_path).resolve() == running.resolve():
            return "typegate"
        return shlex.quote(str(running.absolute()))
    return f"{shlex.quote(sys.executable)} -m gateway"


# The default of `gateway.listen`.
DEFAULT_URL: Final = "http://127.0.0.1:8765/mcp"
# Far larger than any response of the gateway. It limits memory use if another program listens on that port.
MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
# No admin request waits for an upstream, so the usual timeout of reverse proxies is long enough.
REQUEST_S: Final = 30.0
# The prefix of socket paths, as in `gateway.admin.listen`.
_UNIX: Final = "unix:"
_META: Final = envelope({"name": "typegate-cli", "version": __version__})

Notice = Callable[[dict[str, Any]], None]


class Refused(NotReached):
    """The gateway refused the request and gave a reason."""


def get_admin_rows(url: str, path: str, token: str, query: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the rows in the response to `GET path` of the admin API.

    Raises:
        NotReached: The gateway does not answer, or refuses.
    """
    response = request_admin(url, path, token, query)
    # The response is an object with the rows in one of its members. The name of this member depends on the route.
    if isinstance(response, dict):
        response = next((rows for rows in response.values() if isinstance(rows, list)), None)
    if not isinstance(response, list):
        raise NotReached(f"{_origin(_target(url))}{path} did not return a list; is that a typegate gateway?")
    return response


def request_admin(
    url: str,
    path: str,
    token: str,
    query: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    *,
    method: str = "GET",
) -> Any:
    """Send a request without a body to the admin API and return the response.

    Raises:
        Refused: The object does not exist, or its state does not permit the request (404 or 409 with a reason).
        NotReached: The gateway does not answer, or refuses.
        UsageError: The gateway rejects a change with any other client error (4xx) and a reason as JSON.
    """
    target = _target(url)
    full_path = path + (f"?{urlencode(query)}" if query else "")
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
    with closing(_connection(target, timeout_s=REQUEST_S)) as connection:
        answer = _send(connection, target, method, full_path, None, headers)
        body = _read_answer(answer, target)
    reason = _reason(body) if answer.status in (404, 409) else None
    # A port without the admin API answers 404 with another text, such as "There is nothing here".
    if reason is not None and (answer.status == 409 or reason.startswith("there is no ")):
        raise Refused(reason)
    if answer.status == 401:
        raise NotReached(f"{_origin(target)} rejects the admin token; expected the token of this gateway")
    if answer.status == 429:
        raise NotReached(f"{_origin(target)} temporarily rejects log-ins: too many have failed from this address")
    if method != "GET" and 400 <= answer.status < 500 and body[:1] == b"{":
        raise UsageError(str(_json(body, target).get("error")))
    if answer.status == 404:
        raise NotReached(
            f"{_origin(target)}{path} does not exist; if gateway.admin.listen is set, give that address with --url "
            "(unix:/path for a socket)"
        )
    if answer.status != 200:
        raise NotReached(f"{_origin(target)}{path} answered HTTP {answer.status}; is that a typegate gateway?")
    return _json(body, target)


def post_admin(url: str, path: str, token: str, body: Mapping[str, Any]) -> Any:
    """Send `POST path` to the admin API and return the response.

    Raises:
        NotReached: The gateway does not answer, or refuses with the text of the error.
    """
    target = _target(url)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with closing(_connection(target, timeout_s=REQUEST_S)) as connection:
        answer = _send(connection, target, "POST", path, json.dumps(body).encode(), headers)
        content = _read_answer(answer, target)
    answered = _json(content, target) if content else {}
    if answer.status == 401:
        raise NotReached(f"{_origin(target)} rejects the admin token; expected the token of this gateway")
    if answer.status >= 300:
        error_text = answered.get("error") if isinstance(answered, dict) else None
        raise NotReached(str(error_text) if error_text else f"{_origin(target)}{path} answered HTTP {answer.status}")
    return answered


@dataclass(frozen=True, slots=True, kw_only=True)
class McpAddress:
    """The MCP endpoint of a running gateway.

    Attributes:
        timeout_s: Seconds to wait for the connection, and for each part of a response.
    """

    url: str
    api_key: str | None
    timeout_s: float


def request(
    endpoint: McpAddress,
    method: str,
    params: Mapping[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    notice: Notice | None = None,
) -> dict[str, Any]:
    """Send one stateless MCP request and return its JSON-RPC response, result or error.

    Args:
        params: The parameters, without `_meta`.
        headers: Additional headers, such as `Mcp-Param-…`.
        notice: Called with each notification that precedes the response.

    Raises:
        NotReached: The gateway does not respond.
    """
    url, api_key = endpoint.url, endpoint.api_key
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
    with closing(_connection(target, endpoint.timeout_s)) as connection:
        answer = _send(connection, target, "POST", path, json.dumps(message).encode(), sent)
        response: dict[str, Any] | None = None
        if answer.getheader("Content-Type", "").startswith("text/event-stream"):
            for frame in _events(answer, target):
                if frame.get("id") == 1 and ("result" in frame or "error" in frame):
                    response = frame
                elif notice is not None and "method" in frame and "id" not in frame:
                    notice(frame)
        else:
            body = _read_answer(answer, target)
            answered = _json(body, target) if body else None
            # The id is not compared: errors that do not refer to a request have the id null.
            if isinstance(answered, dict) and ("result" in answered or "error" in answered):
                response = answered
    if response is None:
        if answer.status in {401, 403}:
            raise NotReached(f"{url} rejects the API key; expected --api-key or TYPEGATE_API_KEY")
        raise NotReached(f"{url} answered HTTP {answer.status} without an MCP response; is that a gateway?")
    return response


def get_page(url: str, path: str) -> tuple[int, str, str]:
    """Request a page as a browser does, and return the status, the redirect location and the text.

    Raises:
        NotReached: The gateway does not respond.
    """
    target = _target(url)
    with closing(_connection(target, timeout_s=REQUEST_S)) as connection:
        answer = _send(connection, target, "GET", path, None, {"Accept": "text/html"})
        text = _read_answer(answer, target).decode("utf-8", "replace")
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
        is_valid = target.scheme in {"http", "https"} and bool(target.hostname) and target.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or not url.isascii() or any(c.isspace() for c in url):
        raise UsageError(f"--url {url!r} is not a valid address; expected an address such as {DEFAULT_URL}")
    return target


def _origin(target: SplitResult) -> str:
    # Omit the user name and password, because the origin is printed.
    if target.scheme == "unix":
        return f"{_UNIX}{target.path}"
    return f"{target.scheme}://{target.netloc.rpartition('@')[2]}"


def _connection(target: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    if target.scheme == "unix":
        return _UnixConnection(target.path, timeout_s)
    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    return kind(target.hostname or "", target.port, timeout=timeout_s)


class _UnixConnection(http.client.HTTPConnection):
    """A connection to the admin API on a Unix domain socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket path instead of the host."""
        if not hasattr(socket, "AF_UNIX"):
            raise OSError("Unix domain sockets are not available on this platform")
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
    # Connect separately: a refused connection means that no gateway is running, which needs different advice.
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
        raise UsageError(
            "a key or token contains characters that are not allowed in a header; expected ASCII text"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise _connection_error(target, error) from None


def _connection_error(target: SplitResult, error: Exception) -> NotReached:
    if isinstance(error, TimeoutError):
        return NotReached(f"{_origin(target)} did not answer in time; use --timeout SECONDS to wait longer")
    return NotReached(f"{_origin(target)} closed the connection ({str(error) or type(error).__name__})")


def _read_answer(answer: http.client.HTTPResponse, target: SplitResult) -> bytes:
    try:
        return answer.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _connection_error(target, error) from None


def _json(body: bytes, target: SplitResult) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise NotReached(f"{_origin(target)} answered with something that is not JSON") from None


def _events(answer: http.client.HTTPResponse, target: SplitResult) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in the `data` of a server-sent event stream."""
    data: list[bytes] = []
    while True:
        try:
            line = answer.readline(MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _connection_error(target, error) from None
        stripped = line.rstrip(b"\r\n")
        if stripped.startswith(b"data:"):
            data.append(stripped[5:].removeprefix(b" "))
        elif not stripped and data:
            event = _json(b"\n".join(data), target) if any(data) else None
            data = []
            if isinstance(event, dict):
                yield event
        if not line:
            # The stream has ended. An event without a terminating blank line is incomplete and is discarded.
            return


# The file in which a running demo publishes its address, next to the file with its admin token.
_ADDRESS: Final = "address"
_DEMO: Final = "demo"

Answer = TypeVar("Answer")


def demo_dir(args: Namespace) -> Path:
    """Return the demo's state directory: a subfolder, so that the state of a real gateway is not overwritten."""
    return state_dir(args) / _DEMO


@contextmanager
def publish_address(folder: Path, url: str) -> Iterator[None]:
    """Write the demo's address to a file in which other commands look for it, and delete the file at the end."""
    path = folder / _ADDRESS
    # Ignore errors, because the demo also works without the file.
    with suppress(OSError):
        path.write_text(url, encoding="utf-8")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def ask_running_gateway(args: Namespace, send: Callable[[str, str], Answer]) -> Answer:
    """Call `send` with the address and token of each likely gateway, and return the first answer.

    Raises:
        UsageError: No token was found.
        NotReached: No gateway answers. The error describes the first candidate, which is the most likely.
    """
    refused: NotReached | None = None
    for url, token in _candidates(args):
        try:
            return send(url, token)
        except NotReached as error:
            refused = refused or error
    # At least one candidate was tried, because `_candidates` raises if it finds no token.
    raise refused or NotReached("no gateway answers")


def _candidates(args: Namespace) -> Iterator[tuple[str, str]]:
    """Yield the address and admin token of each gateway that the command may mean, the most likely first."""
    url: str = args.url or DEFAULT_URL
    demo = _demo(args)
    # At the demo's address, try the demo's token first and then the user's: a killed demo leaves its address file
    # behind, so the user's own gateway may listen there now.
    is_demo = demo is not None and urlsplit(demo[0]).netloc == urlsplit(url if "://" in url else f"http://{url}").netloc
    if demo is not None and is_demo:
        yield demo
    try:
        yield url, admin_token(args)
    except UsageError:
        if demo is None:
            raise
    if demo is not None and not is_demo and args.url is None:
        yield demo


def _demo(args: Namespace) -> tuple[str, str] | None:
    folder = demo_dir(args)
    try:
        url = (folder / _ADDRESS).read_text(encoding="utf-8")
        token = stored_token(folder / FILE_NAME)
    except (OSError, ValueError, UntrustedFile):
        return None
    return (url, token) if token else None


def read_pairs(option: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names and values of an option that is given as NAME=VALUE, possibly several times.

    Raises:
        UsageError: One of the texts has another form.
    """
    parts = [text.partition("=") for text in texts]
    if not all(name and separator for name, separator, _ in parts):
        raise UsageError(f"{option}: expected NAME=VALUE")
    return [(name, value) for name, _, value in parts]


def read_object(option: str, text: str) -> dict[str, Any]:
    """Return the value of an option that is a JSON object.

    Raises:
        UsageError: The text is not a JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{option}: expected a JSON object")
    return value
