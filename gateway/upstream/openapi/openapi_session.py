"""Load OpenAPI documents, open sessions with the API, and send calls."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urljoin, urlsplit
from weakref import WeakValueDictionary

import anyio

from gateway import __version__
from gateway.config.upstream_types.openapi_config import OpenapiConfig, Selection
from gateway.http.event_stream import MAX_MESSAGE_BYTES
from gateway.http.http_client import HttpClient, Origin, split_url
from gateway.process.tasks import run_in_thread
from gateway.protocol.gateway_errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ConnectionLost,
    CredentialsUnavailable,
    HttpStatusError,
    RpcError,
    error_result,
)
from gateway.upstream.breaker import accepts_connections, is_behind_proxy
from gateway.upstream.graphql.folder import watch_paths
from gateway.upstream.oauth.guarded_requests import AddressRefused, create_guard
from gateway.upstream.openapi.openapi_messages import ArgumentRefused, Operation, RequestParts, request_of
from gateway.upstream.openapi.openapi_operations import ApiTools, tools_of
from gateway.upstream.openapi.openapi_results import ApiAnswer, result_of
from gateway.upstream.openapi.openapi_schemas import (
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENTS,
    DocumentRefused,
    Documents,
    Node,
    external_documents,
    parse_document,
)
from gateway.upstream.session import (
    ALL_KINDS,
    HostSession,
    OnListChanged,
    RawListing,
    SessionPorts,
    UpstreamCall,
    UpstreamSession,
    WatchList,
)
from gateway.upstream.transport.client_headers import has_no_credentials, standing_headers
from gateway.upstream.upstream_credentials import Credentials, refusal_text
from registry.catalog.catalog import ListKind
from registry.intake.issues import ItemIssue
from registry.schema.display_text import excerpt

TOOLS: Final[tuple[ListKind, ...]] = ("tools",)
# Polls reuse a fetched document up to this age. Polls are a minute apart, so only every fourth poll asks the server.
_DOCUMENT_AGE_S: Final = 240.0
_MAX_REDIRECTS: Final = 3
# How many documents are reported that were not loaded because they are in another folder or at another origin. More
# reports would repeat the cause.
_MAX_REPORTED: Final = 5
# Some APIs refuse requests without a User-Agent.
_USER_AGENT: Final = {"user-agent": f"typegate/{__version__}"}
_ACCEPT_DOCUMENT: Final = {**_USER_AGENT, "accept": "application/json, application/yaml, */*;q=0.5"}

# Tools by the digests of their documents. Connections of several callers to one API share the tools, which need
# megabytes of memory for a large document.
_BUILT: Final[WeakValueDictionary[tuple[str, Selection], ApiTools]] = WeakValueDictionary()


class DocumentLoader:
    """Loads the document of one upstream, and the documents to which it refers.

    References are followed only to files in the document's folder, or to URLs with the document's origin.

    Attributes:
        tools: The tools of the most recently loaded document; None before the first load.
        credential: The header that the API requires, and its value with `{}` in place of the credential; None if the
            document names no such header.
    """

    def __init__(self, config: OpenapiConfig, client: HttpClient) -> None:
        self._config = config
        self._client = client
        self._file = config.spec_file.resolve() if config.spec_file is not None else None
        self._uri = self._file.as_uri() if self._file is not None else config.spec
        self._name = self._file.name if self._file is not None else config.spec
        self._selection = config.selection
        self._loaded_s = 0.0
        self._digests: dict[str, str] = {}
        self.tools: ApiTools | None = None
        self.credential: tuple[str, str] | None = None

    async def load(self, *, polled: bool, limit_s: float) -> ApiTools:
        """Load the documents and return the tools; return the same object if no document has changed.

        Args:
            polled: Whether this is a regular poll, for which a recently fetched document is good enough.
            limit_s: Timeout.

        Raises:
            DocumentRefused: The document cannot be read or used.
            ConnectionLost, HttpStatusError: The document's server cannot be reached or does not return the document.
        """
        recent = anyio.current_time() - self._loaded_s < _DOCUMENT_AGE_S
        if self.tools is not None and polled and recent and self._file is None:
            return self.tools
        with anyio.move_on_after(limit_s) as scope:
            tools = await self._load_all()
        if scope.cancelled_caught:
            raise ConnectionLost(f"the document was not loaded within {limit_s:g} s", sent=True)
        self._loaded_s = anyio.current_time()
        self.tools = tools
        return tools

    async def _load_all(self) -> ApiTools:
        if self.tools is not None and await self._is_unchanged():
            return self.tools
        contents: dict[str, bytes] = {}
        parsed: dict[str, dict[str, Any]] = {}
        elsewhere: list[str] = []
        pending = [self._uri]
        room = MAX_DOCUMENT_BYTES
        while pending:
            uri = pending.pop(0)
            contents[uri] = await self._read(uri)
            if len(contents[uri]) > MAX_DOCUMENT_BYTES:
                raise DocumentRefused(f"{self._name}: has more than {MAX_DOCUMENT_BYTES} bytes")
            room -= len(contents[uri])
            if room < 0 or len(contents) + len(pending) > MAX_DOCUMENTS:
                raise DocumentRefused(f"{self._name}: refers to too many or too large documents")
            name = self._name if uri == self._uri else uri
            parsed[uri], other_uris = await run_in_thread(partial(_parse, contents[uri], name, uri))
            for other_uri in other_uris:
                if other_uri not in contents and other_uri not in pending and other_uri not in elsewhere:
                    (pending if self._allows(other_uri) else elsewhere).append(other_uri)
        self._digests = {uri: hashlib.sha256(data).hexdigest() for uri, data in contents.items()}
        self.credential = _credential_of(parsed[self._uri])
        key = (repr(sorted(self._digests.items())), self._selection)
        tools = _BUILT.get(key)
        if tools is None:
            documents = Documents(self._uri, parsed, name=self._name)
            tools = await run_in_thread(partial(_build, documents, self._selection, elsewhere))
            _BUILT[key] = tools
        return tools

    async def _is_unchanged(self) -> bool:
        for uri, digest in self._digests.items():
            if hashlib.sha256(await self._read(uri)).hexdigest() != digest:
                return False
        return True

    def _allows(self, uri: str) -> bool:
        """Return whether a reference may lead to this document."""
        try:
            if self._file is not None:
                path = _path_of(uri)
                return path is not None and path.resolve().is_relative_to(self._file.parent)
            return split_url(uri)[0] == split_url(self._uri)[0]
        except (ValueError, OSError):
            return False

    async def _read(self, uri: str) -> bytes:
        if self._file is not None:
            path = _path_of(uri) or self._file
            return await run_in_thread(partial(_read_file, path))
        url = uri
        for _ in range(_MAX_REDIRECTS + 1):
            async with self._client.send("GET", url, self._headers(url)) as response:
                if response.status in (301, 302, 303):
                    url = urljoin(url, response.headers.get("location", ""))
                    if not self._allows(url):
                        raise HttpStatusError(
                            response.status, f"the document has moved to {excerpt(url, 200)}; set spec to it"
                        )
                    continue
                if response.status != 200:
                    raise HttpStatusError(response.status, f"the document {excerpt(url, 200)} cannot be loaded")
                return await response.read(MAX_DOCUMENT_BYTES)
        raise HttpStatusError(response.status, "too many redirects")

    def _headers(self, url: str) -> dict[str, str]:
        """Return the headers for fetching a document; only the origin of `baseUrl` receives the configured headers."""
        base = self._config.base_url
        if base is not None and split_url(base)[0] == split_url(url)[0]:
            return standing_headers(self._config.headers, _ACCEPT_DOCUMENT)
        return _ACCEPT_DOCUMENT


def _path_of(uri: str) -> Path | None:
    """Return the path of a file URI; None for any other URI."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None


def _read_file(path: Path) -> bytes:
    try:
        # Reading a pipe or a device could block, or never end.
        if not path.is_file():
            raise DocumentRefused(f"spec: {path}: {'is not a file' if path.exists() else 'no such file'}")
        with path.open("rb") as stream:
            return stream.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise DocumentRefused(f"spec: {path}: {error.strerror or error}") from None


def _parse(data: bytes, name: str, uri: str) -> tuple[dict[str, Any], list[str]]:
    root = parse_document(data, name)
    return root, list(dict.fromkeys(external_documents(data, root, uri)))


def _build(documents: Documents, selection: Selection, elsewhere: list[str]) -> ApiTools:
    tools = tools_of(documents, selection)
    notes = [
        ItemIssue(
            tool="(document)",
            code="external_ref",
            detail=excerpt(
                f"the reference to {uri} leads out of the folder or origin of the document and is not followed", 300
            ),
        )
        for uri in elsewhere[:_MAX_REPORTED]
    ]
    return replace(tools, noted=(*tools.noted, *notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a document says about an API, before the API is configured.

    Attributes:
        host: The host of the API, or else of the document's URL; empty for a file that names no server.
        needs_base_url: Whether the configuration has to name the API's server, as `baseUrl`.
        credential: The header that the API requires, as in `DocumentLoader.credential`.
    """

    tools: ApiTools
    host: str
    needs_base_url: bool
    credential: tuple[str, str] | None


async def preview_document(config: OpenapiConfig) -> Preview:
    """Load a document and describe its API, without connecting to the API.

    Raises:
        DocumentRefused: The document cannot be read or used.
        ConnectionLost, HttpStatusError: The document's server cannot be reached or does not return the document.
    """
    client = HttpClient(connect_timeout_s=config.connect_timeout)
    try:
        loader = DocumentLoader(config, client)
        tools = await loader.load(polled=False, limit_s=config.call_timeout)
        needs_base_url = False
        server = ApiServer(config, client, None)
        try:
            server.check(tools)
        except DocumentRefused:
            needs_base_url = True
        finally:
            server.close()
    finally:
        client.close()
    host = urlsplit(tools.server or (config.spec if config.spec_file is None else "")).hostname or ""
    return Preview(tools=tools, host=host, needs_base_url=needs_base_url, credential=loader.credential)


def _credential_of(root: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first header in a document's security requirements, and its value with `{}` for the credential."""
    main = Node(root, "", "")
    for requirement in main.child("security").elements():
        for name, _ in requirement.items():
            scheme = main.child("components", "securitySchemes", name)
            scheme = scheme if scheme.value is not None else main.child("securityDefinitions", name)
            kind, form = scheme.text("type"), scheme.text("scheme").lower()
            if kind == "apiKey" and scheme.text("in") == "header" and scheme.text("name"):
                return scheme.text("name"), "{}"
            if kind == "basic" or (kind == "http" and form == "basic"):
                return "Authorization", "Basic {}"
            if kind in ("oauth2", "openIdConnect") or (kind == "http" and form == "bearer"):
                return "Authorization", "Bearer {}"
    return None


class ApiServer:
    """Sends requests to the servers of an API.

    Only the main server and the origins in `trustedOrigins` receive credentials. The main server is `baseUrl`, or else
    the first server that the document names.
    """

    def __init__(self, config: OpenapiConfig, client: HttpClient, credentials: Credentials | None) -> None:
        self._config = config
        self._client = client
        self._credentials = credentials
        self._spec_origin = split_url(config.spec)[0] if config.spec_file is None else None
        guard = create_guard("", config.private_hosts)
        self._guard = replace(guard, setting="privateHosts", origin_of_urls="the document")
        # Names in a document may resolve to private addresses, so this client checks every address that it connects to.
        self._guarded = HttpClient(
            connect_timeout_s=config.connect_timeout, resolve=self._guard.resolve, proxy=config.proxy_choice
        )
        headers = standing_headers(config.headers, _USER_AGENT)
        self._cookie = headers.pop("cookie", "")
        self._headers = headers

    def close(self) -> None:
        """Close all idle connections to servers that the document names."""
        self._guarded.close()

    def check(self, tools: ApiTools) -> None:
        """Check that requests can be sent to the main server.

        Raises:
            DocumentRefused: The document names no usable server, so the configuration has to set `baseUrl`.
        """
        if self._config.base_url is not None:
            return
        if tools.server is None:
            raise DocumentRefused("the document names no server; expected baseUrl")
        origin = self._origin(tools.server)
        if self._spec_origin not in (None, origin) and self._config.authenticated:
            raise DocumentRefused(
                f"the document names the server {origin}, which is not the origin of the document; "
                "expected baseUrl, which decides where the credentials are sent"
            )
        if origin != self._spec_origin:
            try:
                self._guard.check_url(tools.server)
            except AddressRefused as refused:
                raise DocumentRefused(
                    f"the document names a server that is not allowed: {refused}; expected baseUrl"
                ) from None

    def _origin(self, url: str) -> Origin:
        try:
            return split_url(url)[0]
        except ValueError as error:
            raise DocumentRefused(f"the document names an invalid server: {error}; expected baseUrl") from None

    def _url(self, operation: Operation, parts: RequestParts, tools: ApiTools) -> tuple[str, bool]:
        """Return the URL of a request, and whether its origin receives the credentials."""
        main = self._config.base_url or tools.server or ""
        base = operation.server or main
        moved = operation.server is not None and self._config.base_url is not None and tools.server is not None
        if moved and self._origin(base) == self._origin(tools.server or ""):
            # The operation names the document's main server with another path. `baseUrl` replaces this server's origin.
            base = f"{self._origin(main)}{urlsplit(base).path}"
        prefix, _, fixed = base.partition("?")
        target, mark, query = parts.target.partition("?")
        query = "&".join(part for part in (fixed, query) if part) if mark or fixed else ""
        url = f"{prefix.rstrip('/')}{target}{f'?{query}' if query else ''}"
        origin = self._origin(url)
        return url, origin == self._origin(main) or str(origin) in self._config.trusted_origins

    def other_origin(self, operation: Operation, tools: ApiTools) -> Origin | None:
        """Return the origin of the operation's own server; None if the operation uses the main server."""
        if operation.server is None:
            return None
        own = self._origin(operation.server)
        # Operations on the server that `baseUrl` replaces are sent to `baseUrl`.
        return own if own not in [self._origin(url) for url in (self._config.base_url, tools.server) if url] else None

    async def send(
        self, operation: Operation, parts: RequestParts, tools: ApiTools, trace: Mapping[str, str]
    ) -> ApiAnswer:
        """Send a request and read the complete response; after a 401 or 403, send it again if credentials were renewed.

        Raises:
            AddressRefused: The document names a server whose address is not allowed.
            GatewayError: The server does not answer or answers 401, the response is too large, or the credentials are
                unavailable.
        """
        url, trusted = self._url(operation, parts, tools)
        origin = self._origin(url)
        is_configured = self._config.base_url is not None and origin == self._origin(self._config.base_url)
        client = self._client
        if not is_configured and origin != self._spec_origin and str(origin) not in self._config.trusted_origins:
            self._guard.check_url(url)
            client = self._guarded
        credentials = self._credentials if trusted else None
        for attempt in (1, 2):
            if credentials is not None and not credentials.ready:
                await credentials.prepare()
            version = credentials.version if credentials is not None else 0
            headers = self._fields(parts, url, credentials, trace, trusted=trusted)
            async with client.send(parts.method, url, headers, parts.body) as response:
                # A response to HEAD has no content, whatever its Content-Length says.
                body = b"" if parts.method == "HEAD" else await response.read(MAX_MESSAGE_BYTES)
                answer = ApiAnswer(status=response.status, headers=dict(response.headers), body=body, url=url)
            if answer.status not in (401, 403):
                if credentials is not None:
                    credentials.note_accepted(version)
                return answer
            challenge = answer.headers.get("www-authenticate", "")
            if credentials is None or attempt == 2 or (answer.status == 403 and not challenge):
                break
            if not await credentials.handle_refusal(
                answer.status, challenge, version, answer.headers.get("dpop-nonce", "")
            ):
                break
        if answer.status == 401:
            anonymous = not (
                trusted and (self._config.authenticated or not has_no_credentials(url, self._config.headers))
            )
            raise HttpStatusError(401, refusal_text(is_anonymous=anonymous))
        return answer

    def _fields(
        self,
        parts: RequestParts,
        url: str,
        credentials: Credentials | None,
        trace: Mapping[str, str],
        *,
        trusted: bool,
    ) -> dict[str, str]:
        own = self._headers if trusted else _USER_AGENT
        fields = {**parts.headers, **own}
        # The media types of an operation are more precise than a configured Accept header.
        fields |= {name: parts.headers[name] for name in ("accept", "content-type") if name in parts.headers}
        cookies = [text for text in (self._cookie if trusted else "", parts.cookie) if text]
        if cookies:
            fields["cookie"] = "; ".join(cookies)
        if credentials is not None:
            fields |= credentials.headers
            fields |= credentials.proof(parts.method, url) or {}
        fields |= trace
        # The HTTP client adds a Host header for the URL, except if `host` is the first of these headers.
        return {"host": fields.pop("host"), **fields} if "host" in fields else fields


class OpenapiSession:
    """A session with an HTTP API. The session exists only in the gateway, because HTTP APIs have no handshake.

    Attributes:
        abandoned: True once the gateway has given up the session because the API is unreachable.
    """

    protocol_version = "openapi"
    capabilities: Final[dict[str, Any]] = {"tools": {}}
    independent_requests = True
    # The gateway notices changes of a file at once, but changes of a document on a server only by polling.
    announces_changes = False

    def __init__(self, loader: DocumentLoader, server: ApiServer, on_list_changed: OnListChanged) -> None:
        self._loader = loader
        self._server = server
        self._on_list_changed = on_list_changed
        self._listed: ApiTools | None = None
        self._ended = anyio.Event()
        self.abandoned = False

    @property
    def server_info(self) -> Mapping[str, Any]:
        """The title and the version of the document."""
        tools = self._loader.tools
        return {"name": "OpenAPI"} if tools is None else {"name": tools.title, "version": tools.version}

    @property
    def instructions(self) -> str | None:
        """The API's summary, or else the beginning of its description; None if the document has neither."""
        return (self._loader.tools.about or None) if self._loader.tools is not None else None

    async def fetch_listing(
        self, kinds: Collection[ListKind] = ALL_KINDS, *, limit_s: float, polled: bool = False
    ) -> RawListing:
        """Return the listing; `tools` is None if the tools have not changed since this session's previous listing."""
        tools = await self._loader.load(polled=polled, limit_s=limit_s)
        self._server.check(tools)
        unchanged = tools is self._listed
        self._listed = tools
        return RawListing(
            tools=None if unchanged else [operation.definition for operation in tools.operations.values()],
            prompts_and_resources={},
            capabilities=self.capabilities,
            ttl_ms=None,
            scope="public",
            refused=tools.refused,
            noted=tools.noted,
            instructions=self.instructions,
        )

    async def send(self, call: UpstreamCall) -> Any:
        """Send a call; `tools/call` is the only supported method."""
        if call.method != "tools/call":
            raise RpcError(METHOD_NOT_FOUND, f"an HTTP API has no {excerpt(call.method, 100)}")
        tools, name = self._loader.tools, call.params.get("name")
        operation = tools.operations.get(name) if tools is not None and isinstance(name, str) else None
        if tools is None or operation is None:
            raise RpcError(INVALID_PARAMS, f"there is no tool {excerpt(str(name), 128)}")
        arguments = call.params.get("arguments") or {}
        try:
            parts = request_of(operation, arguments)
            answer = await self._server.send(operation, parts, tools, call.trace)
            return result_of(answer, operation)
        except (ArgumentRefused, AddressRefused) as refused:
            return error_result(f"Not sent: {refused}.")
        except ValueError as error:
            # A header or the URL would contain invalid characters.
            return error_result(f"Not sent: {excerpt(str(error), 300)}.")
        except (ConnectionLost, HttpStatusError) as error:
            origin = self._server.other_origin(operation, tools)
            if origin is None or isinstance(error, CredentialsUnavailable):
                raise
            # Return a result: an exception would let the circuit breaker refuse calls to the main server too.
            what = "Not sent" if isinstance(error, ConnectionLost) and not error.sent else "Failed"
            return error_result(f"{what}: {origin}, which the document names for this operation: {error}.")

    async def notify(self, method: str) -> None:
        """Do nothing: an HTTP API accepts no notifications."""

    async def watch(self, watch_list: WatchList | None) -> None:
        """Do nothing: `OpenapiConnector` watches the file, and an API announces no changes."""

    async def wait_closed(self) -> str:
        """Wait until the credentials are no longer valid. The session has no connection whose loss would end it."""
        await self._ended.wait()
        return "the credentials have expired or were revoked"

    async def keep_credentials(self, credentials: Credentials) -> None:
        """Renew the credentials, and end the session when they have been revoked."""
        if credentials.headers:
            await credentials.renew_while_connected()
            self._ended.set()

    @property
    def calls_need_listing(self) -> bool:
        """True if the document has not been loaded yet."""
        return self._loader.tools is None

    def abandon(self) -> None:
        self.abandoned = True


class OpenapiConnector:
    """Opens sessions with one API, which all use the same loaded document."""

    def __init__(
        self,
        server: str,
        config: OpenapiConfig,
        client: HttpClient,
        *,
        host: HostSession | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        # `server` and `host` are unused: errors name the document, and an API sends no requests to hosts.
        self._config = config
        self._credentials = credentials
        self._loader = DocumentLoader(config, client)
        self._api = ApiServer(config, client, credentials)
        self._unreachable = False

    @asynccontextmanager
    async def open(self, ports: SessionPorts) -> AsyncIterator[UpstreamSession]:
        """Open a session; if the previous session was abandoned, require that `baseUrl` accepts connections.

        The first session does not require a reachable API, because the document defines the tools.

        Raises:
            ConnectionLost: The API does not accept connections.
        """
        config = self._config
        base = config.base_url if self._unreachable else None
        direct = base is not None and not is_behind_proxy(base, config.proxy)
        if direct and not await accepts_connections(base or ""):
            raise ConnectionLost("the API cannot be reached", sent=False)
        if self._credentials is not None and not self._credentials.ready:
            # Prepare the credentials before the first call, so that a required sign-in is reported at once.
            await self._credentials.prepare()
        if self._credentials is not None and config.sign_in is not None and not self._credentials.headers:
            # Request a token before any call: without one, an API may return less data instead of 401.
            await self._credentials.handle_refusal(401, "Bearer", self._credentials.version)
        session = OpenapiSession(self._loader, self._api, ports.on_list_changed)
        async with anyio.create_task_group() as group:
            if config.spec_file is not None:
                group.start_soon(watch_paths, None, config.spec_file, partial(ports.on_list_changed, TOOLS))
            if self._credentials is not None:
                group.start_soon(session.keep_credentials, self._credentials)
            try:
                yield session
            finally:
                self._unreachable = session.abandoned
                self._api.close()
                group.cancel_scope.cancel()
