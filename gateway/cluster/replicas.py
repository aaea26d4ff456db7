"""The other replicas: discovery, mutual TLS derived from a shared secret, and forwarding.

The key of the certificate authority is derived from the shared secret, so all replicas have the same authority without
sharing a file. Replicas connect by TLS 1.3, and both sides present a certificate of this authority. A replica's
certificate contains the replica's name, so that a connection to a wrong address fails.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import ssl
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gateway.cluster.session_forwarding import (
    ForwardingOptions,
    NotForwarded,
    forward_request,
    respond_session_not_found,
)
from gateway.config.cluster_config import DiscoveryConfig, PeersConfig, host_and_port
from gateway.http.client_connection import HttpConnection
from gateway.http.http_client import HttpClient
from gateway.http.http_request import RequestHead, RequestRefused
from gateway.http.responder import PING_S, Responder
from gateway.http.server_connections import Handler
from gateway.protocol.gateway_errors import GatewayError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

log = logging.getLogger(__name__)

PROTOCOL: Final = b"1"
"""The version of the protocol between replicas. During an upgrade, replicas may use different versions."""
# The order of P-256 (SEC 2, section 2.4.2), the exclusive upper bound of private keys.
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
# This is 128 bits longer than the order, so that the bias of the reduction is negligible (FIPS 186-5, A.2.1).
_KEY_MATERIAL_BYTES: Final = 48
_KEY_BYTES: Final = 32
# The validity of certificates is long, to tolerate clock differences and long-running processes. This is safe, because
# the private key of a replica exists only as long as its process.
_SINCE: Final = datetime(2020, 1, 1, tzinfo=UTC)
_LIFE: Final = timedelta(days=36_500)
_RANDOM_CHARS: Final = 32
# Length of the authentication code in a session id, in hexadecimal digits. 64 bits suffice: a forged id only causes a
# DNS lookup in the cluster's domain and a 404 response.
_MARK_CHARS: Final = 16
_HEX: Final = frozenset("0123456789abcdef")
# The name of a replica is one DNS label of at most 63 characters.
_MAX_ID_CHARS: Final = 63 + 1 + _RANDOM_CHARS + _MARK_CHARS


class PeerCredentials:
    """Keys, certificates and session ids of one replica, derived from the secret that all replicas share."""

    def __init__(self, secret: str, name: str) -> None:
        self._secret = secret.encode()
        self.name = name
        self._id_key = self.key("ids of sessions")

    def key(self, use: str) -> bytes:
        """Derive a key for one use. The keys for other uses do not reveal this key."""
        return self._derive_key(use, _KEY_BYTES)

    def new_session_id(self) -> str:
        """Return a session id that names this replica and cannot be forged by a caller."""
        random = secrets.token_hex(_RANDOM_CHARS // 2)
        return f"{self.name}.{random}{self._mark(self.name, random)}"

    def owner_of(self, session_id: str) -> str | None:
        """Return the name of the replica that issued a session id; None if the id is not authentic."""
        if len(session_id) > _MAX_ID_CHARS or not session_id.isascii():
            return None
        name, dot, authenticated_part = session_id.partition(".")
        if not dot or len(authenticated_part) != _RANDOM_CHARS + _MARK_CHARS or not _HEX.issuperset(authenticated_part):
            return None
        random, mark = authenticated_part[:_RANDOM_CHARS], authenticated_part[_RANDOM_CHARS:]
        return name if hmac.compare_digest(mark, self._mark(name, random)) else None

    @cached_property
    def listener_context(self) -> ssl.SSLContext:
        """Return the TLS context for incoming connections."""
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    @cached_property
    def caller_context(self) -> ssl.SSLContext:
        """Return the TLS context for connections to a named replica."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    @cached_property
    def any_replica_context(self) -> ssl.SSLContext:
        """Return the TLS context for connections to any replica."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        authority, chain = self._certificates
        context.load_verify_locations(cadata=authority)
        _load_chain(context, chain)
        return context

    @cached_property
    def _certificates(self) -> tuple[str, bytes]:
        """Return the authority's certificate, and this replica's certificate with the replica's private key."""
        number = int.from_bytes(self._derive_key("the authority of certificates", _KEY_MATERIAL_BYTES), "big")
        authority_key = ec.derive_private_key(number % (_ORDER - 1) + 1, ec.SECP256R1())
        issuer = _common_name("typegate peers")
        authority = (
            _new_certificate(issuer, issuer, authority_key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        key = ec.generate_private_key(ec.SECP256R1())
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        own = (
            _new_certificate(_common_name(self.name), issuer, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(self.name)]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
            .sign(authority_key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return authority.public_bytes(pem).decode(), own.public_bytes(pem) + private

    def _mark(self, name: str, random: str) -> str:
        return hmac.digest(self._id_key, f"{name}.{random}".encode(), "sha256").hex()[:_MARK_CHARS]

    def _derive_key(self, use: str, length: int) -> bytes:
        info = f"typegate cluster: {use}".encode()
        return HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=info).derive(self._secret)


def _load_chain(context: ssl.SSLContext, chain: bytes) -> None:
    """Load a certificate with its key. `ssl` accepts only files, so a file in memory is used if possible."""
    if hasattr(os, "memfd_create"):
        # The root file system of a container may be read-only, and the key should not be written to disk.
        with os.fdopen(os.memfd_create("typegate"), "wb") as file:
            file.write(chain)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return
    with tempfile.TemporaryDirectory(prefix="typegate-") as folder:
        path = Path(folder) / "chain.pem"
        path.touch(mode=0o600)
        path.write_bytes(chain)
        context.load_cert_chain(path)


def _new_certificate(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_SINCE)
        .not_valid_after(_SINCE + _LIFE)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


Resolve = Callable[[str, int], Awaitable[Sequence[tuple[str, int]]]]
"""Returns the addresses and ports of a host; raises `OSError` if it has none."""

# Time limit for a connection. Within a cluster, connecting takes a millisecond; the rest is for a DNS lookup and a busy
# machine.
_CONNECT_S: Final = 2.0
# The replica that has a session sends a ping every `PING_S`, and is considered lost after three missed pings.
_SILENCE_S: Final = 3 * PING_S
# Seconds for which an unreachable replica is not tried again, because many callers may request its sessions at once.
_GONE_S: Final = 1.0
_MAX_CLIENTS: Final = 1_000
"""Maximum number of replicas to which connections are kept: more than a cluster has. Only replicas whose names are in
authentic session ids are counted."""
# The HTTP status for a request in another version of the protocol between replicas.
_ANOTHER_VERSION: Final = 505
# Time for which a starting replica waits for the state of others. Running replicas answer within milliseconds.
_ASK_ALL_S: Final = 1.0
_CHANGES: Final = b"/changes"
_RESULTS: Final = b"/results/"
# Time limit for fetching a large result from another replica.
_FETCH_S: Final = 10.0


class Replicas:
    """The other replicas of the cluster (implements `SessionForwarder`).

    Attributes:
        outcomes: The number of requests for sessions of other replicas, by outcome: `answered`; `lost`, if the
            connection failed after the request was sent; or `gone`, if the other replica could not be reached or did
            not accept the request.
    """

    def __init__(self, config: PeersConfig, credentials: PeerCredentials, *, resolve: Resolve | None = None) -> None:
        """Create the clients of the other replicas.

        Args:
            config: The section `gateway.cluster.peers`.
            credentials: The credentials of this replica.
            resolve: Resolves host names; by default the system's resolver.
        """
        self._name = credentials.name
        self._credentials = credentials
        self._discovery: DiscoveryConfig = config.discovery
        self._port = config.discovery.port or host_and_port(config.listen)[1]
        self._resolve = resolve if resolve is not None else _resolve
        self._clients: dict[str, HttpClient] = {}
        self._gone_until_s: dict[str, float] = {}
        self._lines = b"typegate-peer: %b\r\n" % PROTOCOL
        self.outcomes: Counter[str] = Counter()

    def close(self) -> None:
        """Close all idle connections."""
        for client in self._clients.values():
            client.close()

    def owner(self, session_id: str | None) -> str | None:
        """Return the name of the other replica that has a session; None if this replica has it or the id is invalid."""
        if session_id is None or session_id.startswith(f"{self._name}."):
            return None
        return self._credentials.owner_of(session_id)

    async def forward(self, owner: str, head: RequestHead, body: bytes, responder: Responder) -> None:
        """Forward a request to another replica, and stream its response to the caller."""
        if self._gone_until_s.get(owner, 0.0) > time.monotonic():
            self.outcomes["gone"] += 1
            respond_session_not_found(responder)
            return
        failure = await forward_request(
            self._client(owner),
            f"http://{owner}",
            head,
            body,
            responder,
            ForwardingOptions(lines=self._lines, silence_s=_SILENCE_S, refused_status=_ANOTHER_VERSION),
        )
        if failure is None:
            self.outcomes["answered"] += 1
        elif failure.sent:
            self.outcomes["lost"] += 1
            log.warning("request forwarded to %s lost", owner, extra={"reason": str(failure)})
        else:
            self.outcomes["gone"] += 1
            self._gone_until_s[owner] = time.monotonic() + _GONE_S
            level = logging.WARNING if isinstance(failure, NotForwarded) else logging.INFO
            log.log(level, "request not forwarded to %s", owner, extra={"reason": str(failure)})

    async def ask_all(self) -> list[str]:
        """Return the `SharedChanges.document` of each replica that answers within a second."""
        documents: list[str] = []

        async def ask(host: str, port: int) -> None:
            async def dial(make: Callable[[], HttpConnection]) -> HttpConnection:
                # Any replica may answer, so the name in the certificate is not checked.
                context = self._credentials.any_replica_context
                _, connection = await asyncio.get_running_loop().create_connection(make, host, port, ssl=context)
                return connection

            client = HttpClient(connect_timeout_s=_ASK_ALL_S, dial=dial)
            try:
                response = await client.exchange("GET", f"http://{host}{_CHANGES.decode()}", self._lines, b"")
                if response.status == 200:
                    documents.append((await response.read()).decode("ascii"))
            except (GatewayError, OSError, ValueError) as error:
                log.debug("replica %s:%d did not return its state: %s", host, port, error)
            finally:
                client.close()

        with anyio.move_on_after(_ASK_ALL_S):
            async with anyio.create_task_group() as group:
                for host, port in await self._all_addresses():
                    group.start_soon(ask, host, port)
        return documents

    async def fetch_result(self, name: str, result_id: str) -> bytes | None:
        """Fetch a result from another replica, in the form of `ResultStore.packed`; None if it does not answer."""
        target = f"http://{name}{_RESULTS.decode()}{result_id}"
        try:
            with anyio.fail_after(_FETCH_S):
                response = await self._client(name).exchange("GET", target, self._lines, b"")
                try:
                    return await response.read() if response.status == 200 else None
                finally:
                    self._client(name).end_exchange(response.connection)
        except (GatewayError, OSError, ValueError, TimeoutError) as error:
            log.info("result not fetched from %s", name, extra={"reason": str(error)})
            return None

    async def _all_addresses(self) -> Sequence[tuple[str, int]]:
        discovery = self._discovery
        if discovery.dns is None:
            return [host_and_port(each) for name, each in discovery.addresses.items() if name != self._name]
        try:
            # A headless Kubernetes Service resolves to the addresses of all its pods.
            return sorted(set(await self._resolve(discovery.dns, self._port)))
        except OSError:
            return []

    def _client(self, name: str) -> HttpClient:
        client = self._clients.get(name)
        if client is None:
            if len(self._clients) >= _MAX_CLIENTS:
                oldest = next(iter(self._clients))
                self._clients.pop(oldest).close()
                self._gone_until_s.pop(oldest, None)

            async def dial(make: Callable[[], HttpConnection]) -> HttpConnection:
                return await self._dial(name, make)

            client = self._clients[name] = HttpClient(connect_timeout_s=_CONNECT_S, dial=dial)
        return client

    async def _dial(self, name: str, make: Callable[[], HttpConnection]) -> HttpConnection:
        loop = asyncio.get_running_loop()
        failed: OSError = OSError("the replica has no address")
        for host, port in await self._addresses(name):
            try:
                _, connection = await loop.create_connection(
                    make, host, port, ssl=self._credentials.caller_context, server_hostname=name
                )
                return connection
            except OSError as error:
                failed = error
        raise failed

    async def _addresses(self, name: str) -> Sequence[tuple[str, int]]:
        discovery = self._discovery
        if discovery.dns is not None:
            return await self._resolve(f"{name}.{discovery.dns}", self._port)
        address = discovery.addresses.get(name)
        return [] if address is None else [host_and_port(address)]


class PeerRouter:
    """Routes requests of other replicas, which arrive on a separate port with mutual TLS.

    Args:
        endpoint: Handles requests for sessions of this process.
        draining: Returns whether this replica is shutting down.
        changes: Returns the shared state for a starting replica, or None if this replica does not know the state.
            `changes` itself is None without a store.
        results: Returns a stored result, given its id; empty if the result is not stored.
    """

    def __init__(
        self,
        endpoint: Handler,
        draining: Callable[[], bool],
        changes: Callable[[], str | None] | None = None,
        results: Callable[[str], bytes] = lambda result_id: b"",
    ) -> None:
        self._endpoint = endpoint
        self._draining = draining
        self._results = _Documents(lambda head: results(head.path[len(_RESULTS) :].decode("latin-1")))
        self._changes = _Documents(lambda head: _encode_ascii(changes())) if changes is not None else None

    def route(self, head: RequestHead) -> Handler:
        """Return the handler for a request of another replica.

        Raises:
            RequestRefused: The other replica uses another version of the protocol, the path is unknown, or this replica
                is shutting down.
        """
        if head.raw(b"typegate-peer") != PROTOCOL:
            raise RequestRefused(_ANOTHER_VERSION, "another version of the protocol between replicas")
        if head.path == _CHANGES and self._changes is not None:
            return self._changes
        if head.path.startswith(_RESULTS):
            return self._results
        if not (head.path == b"/mcp" or head.path.startswith(b"/mcp/")):
            raise RequestRefused(404, "there is nothing at this path")
        if self._draining():
            # The status is not 503, because a retry would not find the session either. After a 404, the client opens a
            # new session at another replica.
            raise RequestRefused(404, "Session not found")
        return self._endpoint


class _Documents:
    """Answers a request of another replica with the shared state or a stored result (implements `Handler`)."""

    max_body_bytes: Final = 0

    def __init__(self, document: Callable[[RequestHead], bytes | None]) -> None:
        self._document = document

    def admit(self, head: RequestHead, peer: str) -> None:
        """Accept every request, because only replicas can connect."""

    def answer(self, head: RequestHead, admitted: Any, body: bytes, responder: Responder, peer: str) -> None:
        """Respond with the document."""
        document = self._document(head)
        responder.respond(503 if document is None else 200, (document or b"",))


def _encode_ascii(text: str | None) -> bytes | None:
    return None if text is None else text.encode("ascii")


async def _resolve(host: str, port: int) -> Sequence[tuple[str, int]]:
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=1)
    return [(str(address[0]), port) for *_, address in addresses]
