"""Propose a configuration entry for an npm or PyPI package, and download documents and bundles."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from gateway.config.server_entries import valid_alias
from gateway.http.http_client import tls_context
from gateway.http.proxies import proxy_for
from gateway.protocol.gateway_errors import GatewayError
from registry.schema.display_text import excerpt

# The package names that the registries allow. npx and uvx cannot misread them as an option, a path or a URL.
NPM_NAME: Final = re.compile(r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*", re.IGNORECASE)
PYPI_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
EXACT_VERSION: Final = re.compile(r"\d+[0-9A-Za-z.+!_-]*")
"""A single version, not a range, a tag or a URL."""
IMAGE: Final = re.compile(
    r"[a-z0-9][a-z0-9._-]*(?::\d+)?(?:/[a-z0-9][a-z0-9._-]*)*(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?"
    r"(?:@sha256:[0-9a-f]{64})?"
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# npm's limit for package names, in characters.
_MAX_NAME: Final = 214


class SourceRefused(GatewayError):
    """The source of a server cannot be used. The text gives the reason, and the command exits with code 1."""


class SeveralFound(SourceRefused):
    """A search word matches several servers.

    Attributes:
        choices: The publisher's description of each server, by name.
    """

    def __init__(self, message: str, choices: dict[str, str]) -> None:
        super().__init__(message)
        self.choices = choices


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A value that the user has to provide for a server.

    Attributes:
        name: The name of the variable.
        about: The publisher's description of the value.
        secret: True if the value must not be written to a file that other users can read.
    """

    name: str
    about: str = ""
    secret: bool = False
    required: bool = False
    default: str | None = None


@dataclass(slots=True, kw_only=True)
class Proposal:
    """A proposed entry for a server.

    Attributes:
        alias: The name of the server in the configuration.
        origin: The source of the server, with its version.
        entry: The configuration entry, in which `${NAME}` stands for the value of an input.
        warnings: Texts that are shown to the user before the entry is written.
        details: Texts about what the server offers, as far as known before the server starts.
    """

    alias: str
    origin: str
    entry: dict[str, Any]
    inputs: list[Input] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)


def npm_entry(name: str, version: str, arguments: list[str]) -> dict[str, Any]:
    """Return the configuration entry that starts exactly this version of an npm package.

    Raises:
        SourceRefused: The name or the version is invalid.
    """
    if not NPM_NAME.fullmatch(name) or len(name) > _MAX_NAME:
        raise SourceRefused(f"{name[:_MAX_NAME]!r} is not the name of an npm package")
    return {"command": "npx", "args": ["-y", f"{name}@{exact(version)}", *arguments]}


def pypi_entry(name: str, version: str, arguments: list[str]) -> dict[str, Any]:
    """Return the configuration entry that starts exactly this version of a PyPI package.

    Raises:
        SourceRefused: The name or the version is invalid.
    """
    if not PYPI_NAME.fullmatch(name) or len(name) > _MAX_NAME:
        raise SourceRefused(f"{name[:_MAX_NAME]!r} is not the name of a PyPI package")
    return {"command": "uvx", "args": [f"{name}@{exact(version)}", *arguments]}


def exact(version: object) -> str:
    """Return a version after checking that it is exact.

    Raises:
        SourceRefused: The version is a range, a tag, or malformed.
    """
    if not isinstance(version, str) or not EXACT_VERSION.fullmatch(version) or version.endswith((".x", ".X")):
        raise SourceRefused(f"{str(version)[:_MAX_NAME]!r} is not an exact version")
    return version


def variable(name: object) -> str:
    """Return a variable name after checking that it is valid.

    Raises:
        SourceRefused: The name is not valid.
    """
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name) or len(name) > _MAX_NAME:
        raise SourceRefused(f"{str(name)[:_MAX_NAME]!r} is not a valid variable name")
    return name


MAX_DOCUMENT_BYTES: Final = 8 * 1024 * 1024
"""Size limit of a JSON document. npm's document about all versions of a package can have several megabytes."""
MAX_BUNDLE_BYTES: Final = 256 * 1024 * 1024
"""Size limit of a bundle. Node programs with all their modules have tens of megabytes."""
# Timeouts of a single read and of the whole download, in seconds. Registries answer within two seconds; large bundles
# take longer.
_PAUSE_S: Final = 20.0
_DOWNLOAD_S: Final = 300.0
# Maximum number of redirects. Downloads from GitHub releases need two.
_MAX_REDIRECTS: Final = 4
_CHUNK_BYTES: Final = 64 * 1024
# Limits for the header lines of a response, the same as for upstreams. Common servers accept 8 to 64 KiB of headers.
_MAX_LINES: Final = 256
_MAX_LINES_BYTES: Final = 64 * 1024
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


def fetch_json(url: str) -> Any:
    """Return the JSON document at a URL.

    Raises:
        SourceRefused: The document cannot be fetched, or the URL is not allowed.
    """
    content = fetch(url, most_bytes=MAX_DOCUMENT_BYTES, accept="application/json")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise SourceRefused(f"{_url_for_message(url)} answered with something that is not JSON") from None


def fetch(url: str, *, most_bytes: int, accept: str = "*/*") -> bytes:
    """Return the content at a URL, following redirects.

    Raises:
        SourceRefused: The content cannot be fetched or is too large, or the URL is not allowed.
    """
    end_s = time.monotonic() + _DOWNLOAD_S
    for _ in range(_MAX_REDIRECTS + 1):
        target = urlsplit(url)
        _check_address(url)
        path = (target.path or "/") + (f"?{target.query}" if target.query else "")
        with closing(_connection(target)) as connection:
            connection.response_class = _Response
            try:
                connection.request("GET", path, headers={"Accept": accept, "User-Agent": "typegate"})
                answer = connection.getresponse()
                if answer.status in (301, 302, 303, 307, 308):
                    moved = urljoin(url, answer.getheader("Location", ""))
                    if urlsplit(moved).hostname in _LOOPBACK and target.hostname not in _LOOPBACK:
                        raise SourceRefused(f"{_url_for_message(url)} redirects to this machine")
                    url = moved
                    continue
                content = _read_body(answer, most_bytes, end_s, url)
            except (OSError, http.client.HTTPException) as error:
                raise SourceRefused(
                    f"{_url_for_message(url)} cannot be reached ({str(error) or type(error).__name__})"
                ) from None
        if answer.status == 404:
            raise SourceRefused(f"{_url_for_message(url)} does not exist (HTTP 404)")
        if answer.status != 200:
            raise SourceRefused(f"{_url_for_message(url)} answered HTTP {answer.status}")
        return content
    raise SourceRefused(f"{_url_for_message(url)} redirects too often")


def _connection(target: SplitResult) -> http.client.HTTPConnection:
    host, port = target.hostname or "", target.port
    if target.scheme == "http":  # `_check_address` permits this only for the local machine
        return http.client.HTTPConnection(host, port, timeout=_PAUSE_S)
    proxy = proxy_for(host, port or http.client.HTTPS_PORT, secure=True)
    if proxy is None:
        return http.client.HTTPSConnection(host, port, timeout=_PAUSE_S, context=tls_context())
    # Connect to the proxy without TLS, because http.client does not support TLS within TLS.
    connection = http.client.HTTPSConnection(proxy.host, proxy.port, timeout=_PAUSE_S, context=tls_context())
    credentials = {} if proxy.authorization is None else {"Proxy-Authorization": proxy.authorization}
    connection.set_tunnel(host, port or http.client.HTTPS_PORT, headers=credentials)
    return connection


class _BoundedLines:
    """A file wrapper that limits the number and the size of consecutive lines.

    `http.client` limits the headers of a response, but not the number of 1xx responses or the trailers.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._lines = self._line_bytes = 0

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self._file.readline(limit)
        self._lines += 1
        self._line_bytes += len(line)
        if self._lines > _MAX_LINES or self._line_bytes > _MAX_LINES_BYTES:
            raise http.client.HTTPException("its headers are too large")
        return line

    def __getattr__(self, name: str) -> Any:
        # Other methods read the body, which `_read_body` limits.
        self._lines = self._line_bytes = 0
        return getattr(self._file, name)


class _Response(http.client.HTTPResponse):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fp = cast(Any, _BoundedLines(self.fp))


def _read_body(answer: http.client.HTTPResponse, most_bytes: int, end_s: float, url: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := answer.read(_CHUNK_BYTES):
        size += len(part)
        parts.append(part)
        if size > most_bytes:
            raise SourceRefused(f"{_url_for_message(url)} sends more than {most_bytes // 2**20} MiB")
        if time.monotonic() > end_s:
            raise SourceRefused(f"{_url_for_message(url)} takes too long")
    return b"".join(parts)


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_valid = bool(parts.hostname) and parts.port != 0 and url.isascii() and not any(map(str.isspace, url))
    except ValueError:
        is_valid = False
    if not is_valid or parts.username is not None:
        raise SourceRefused(f"{_url_for_message(url)!r} is not a valid address")
    # The downloaded content decides which code runs on this machine, so it has to be authentic.
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise SourceRefused(f"{_url_for_message(url)} is not protected against changes on the way; expected https")


def _url_for_message(url: str) -> str:
    return url.partition("?")[0][:200]


# Timeout of an npm or pip command: enough to start, read its settings, and query a slow mirror.
_CLIENT_S: Final = 60.0
# Maximum length of the line that an error message quotes from npm or pip.
_REASON_CHARS: Final = 300


def npm_proposal(spec: str, arguments: list[str]) -> Proposal:
    """Return the proposed entry for an npm package.

    Args:
        spec: The name, optionally with @VERSION.
        arguments: The arguments of the server.

    Raises:
        SourceRefused: The package or version does not exist.
    """
    at = spec.find("@", 1)
    name, requested_version = (spec[:at], spec[at + 1 :]) if at > 0 else (spec, "")
    if not NPM_NAME.fullmatch(name):
        raise SourceRefused(f"{name!r} is not the name of an npm package")
    base = _npm_registry()
    package = fetch_json(f"{base}/{quote(name, safe='@')}/{quote(requested_version or 'latest', safe='')}")
    version = package.get("version") if isinstance(package, dict) else None
    if not isinstance(version, str) or package.get("name") != name:
        raise SourceRefused(f"{base} has no version {requested_version or 'latest'} of {name}")
    proposal = Proposal(alias=alias_of(name), origin=f"npm {name} {version}", entry=npm_entry(name, version, arguments))
    if package.get("deprecated"):
        proposal.warnings.append("its publisher has marked this version as deprecated")
    scripts = package.get("scripts")
    if isinstance(scripts, dict) and {"preinstall", "install", "postinstall"} & scripts.keys():
        proposal.warnings.append("it runs its own scripts when it is installed")
    return proposal


def pypi_proposal(spec: str, arguments: list[str]) -> Proposal:
    """Return the proposed entry for a PyPI package.

    Args:
        spec: The name, optionally with ==VERSION or @VERSION.
        arguments: The arguments of the server.

    Raises:
        SourceRefused: The package or version does not exist, or the version was yanked.
    """
    parts = re.split(r"==|@", spec, maxsplit=1)
    name, requested_version = parts[0], parts[1] if len(parts) == 2 else ""
    if not PYPI_NAME.fullmatch(name) or (requested_version and not EXACT_VERSION.fullmatch(requested_version)):
        raise SourceRefused(f"{spec!r} is not the name of a PyPI package; expected NAME or NAME==VERSION")
    base = os.environ.get("TYPEGATE_PYPI_URL", "").rstrip("/")
    if base:
        package = fetch_json(
            f"{base}/pypi/{quote(name)}/{f'{quote(requested_version)}/' if requested_version else ''}json"
        )
        info = package.get("info") if isinstance(package, dict) else None
    else:
        base, info = "pip's index", _metadata_from_pip(name, requested_version)
    version = info.get("version") if isinstance(info, dict) else None
    if not isinstance(version, str) or not isinstance(info, dict) or _plain(str(info.get("name"))) != _plain(name):
        raise SourceRefused(f"{base} has no version {requested_version or 'latest'} of {name}")
    proposal = Proposal(
        alias=alias_of(name), origin=f"PyPI {name} {version}", entry=pypi_entry(name, version, arguments)
    )
    if info.get("yanked"):
        raise SourceRefused(f"{name} {version} was withdrawn by its publisher (yanked)")
    return proposal


def _npm_registry() -> str:
    """Return the URL of the registry that npm is configured to use; npx uses the same registry."""
    configured = os.environ.get("NPM_CONFIG_REGISTRY") or os.environ.get("npm_config_registry")  # noqa: SIM112 - npm's own name
    return (configured or _output_of("npm", ["npm", "config", "get", "registry"])).strip().rstrip("/")


def _metadata_from_pip(name: str, requested_version: str) -> dict[str, Any]:
    """Return the metadata of the version that pip would install from its configured index; nothing is installed."""
    # Accept only wheels, because pip would run code from a source distribution to read its metadata.
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--quiet",
        "--no-deps",
        "--ignore-installed",
        "--only-binary",
        ":all:",
        "--disable-pip-version-check",
        "--report",
        "-",
        f"{name}=={requested_version}" if requested_version else name,
    ]
    try:
        [planned] = json.loads(_output_of("pip", command))["install"]
        return {**planned["metadata"], "yanked": planned.get("is_yanked") is True}
    except (ValueError, KeyError, TypeError):
        raise SourceRefused(f"pip reported nothing about {name}") from None


def _output_of(client: str, command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CLIENT_S, check=True)
    except FileNotFoundError:
        raise SourceRefused(f"{client} is not installed, but is needed to find packages") from None
    except subprocess.TimeoutExpired:
        raise SourceRefused(f"{client} did not answer within {_CLIENT_S:g} s") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no reason given"]
        raise SourceRefused(f"{client}: {excerpt(lines[-1], _REASON_CHARS)}") from None
    return done.stdout


def alias_of(name: str) -> str:
    """Return a short alias for a server, derived from the last part of its name."""
    words = re.split(r"[/.]", name.lower())
    last = words[-1] if words[-1] not in ("mcp", "server", "mcp-server") or len(words) == 1 else words[-2]
    short = re.sub(r"^(?:mcp-server-|server-|mcp-)|(?:-mcp-server|-mcp|-server)$", "", last.lstrip("@"))
    return valid_alias(short or last or name)


def _plain(name: str) -> str:
    # Normalize the name as in PEP 503, "Normalized Names".
    return re.sub(r"[-_.]+", "-", name).lower()
