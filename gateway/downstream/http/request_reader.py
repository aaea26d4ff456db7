"""Reads requests out of what arrives on a connection, each within its bounds.

Written on httptools.

Sources: RFC 9112 "HTTP/1.1"; RFC 9110, section 7.8 "Upgrade".
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, Protocol, cast

import httptools

from gateway.downstream.http.request import RequestHead, RequestRefused
from gateway.downstream.http.upgrade import head_without_upgrade

MAX_HEAD_BYTES: Final = 64 * 1024
"""Request line, header fields and trailers. Servers in wide use accept 8 to 64 KiB; tokens and cookies fit."""
MAX_FIELDS: Final = 256
"""Header fields and trailers of one request; a browser sends about 20."""
# A request line without a version is one of HTTP/0.9 to the parser, and what stands in its place part of the target.
_VERSIONS: Final = frozenset({"1.0", "1.1"})


class Receiving(Protocol):
    """Who takes what is read.

    Attributes:
        closing: Nothing more is read, also of what is being fed.
    """

    closing: bool

    def head_begins(self) -> None:
        """The first byte of a request has arrived."""

    def head_arrived(self, head: RequestHead) -> None:
        """A head is there as a whole; its body follows."""

    def body_grew(self, size_bytes: int) -> None:
        """So much of the body is held by now."""

    def arrived(self, head: RequestHead, body: bytes | None) -> None:
        """A request is there as a whole; None for a body that was thrown away."""

    def refuse(self, refused: RequestRefused) -> None:
        """Nothing can be read of this request, nor after it."""


# What is fed at this moment is asked only whether anybody reads it.
_NOBODY: Final = cast(Receiving, SimpleNamespace(closing=True))


class RequestReader:
    """Reads one request after the other.

    Attributes:
        in_head: A head has begun and is not complete.
        head: That of the request whose body is arriving.
        discarding: That body is thrown away.
    """

    def __init__(self, receiver: Receiving) -> None:
        """Read for a receiver."""
        self._receiver = receiver
        self._parser: Any = httptools.HttpRequestParser(self)
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        # Bytes fed to the parser in which neither the head nor the body went on are counted apart: it keeps an
        # unfinished field or trailer to itself.
        self._head_bytes = self._fed_bytes = self._field_count = 0
        self._body_went_on = False
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._upgrading = False
        self.in_head = False
        self.head: RequestHead | None = None
        self.discarding = False

    @property
    def held_bytes(self) -> int:
        """What is held of a request that is not there as a whole."""
        head_bytes = max(self._head_bytes, self._fed_bytes) if self.in_head else 0
        return head_bytes + self._body_bytes

    @property
    def has_body(self) -> bool:
        """Whether some of the body has arrived."""
        return bool(self._body)

    def feed(self, data: bytes) -> None:
        """Read what has arrived."""
        goes_on, head = self.in_head, self.head
        self._body_went_on = False
        rest = self._parse(data)
        # One request after the other may ask for another protocol: a loop, since a call within the call would nest.
        while rest:
            rest = self._parse(rest)
        if (goes_on and self.in_head) or (head is not None and self.head is head and not self._body_went_on):
            self._fed_bytes += len(data)
            if self._fed_bytes > MAX_HEAD_BYTES:
                self._refuse_head()

    def _parse(self, data: bytes) -> bytes:
        """Feed the parser; returns what is to be parsed next."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            # What follows a request with `Connection: close` is an error to the parser, and nothing to us.
            if not self._receiver.closing:
                self._receiver.refuse(RequestRefused(400, "Invalid HTTP request received.", close=True))
        return b""

    def discard(self) -> None:
        """Throw away the body that is arriving."""
        self._body, self._body_bytes, self.discarding = [], 0, True

    def stop(self) -> None:
        """Hold nothing more of what was arriving."""
        self.in_head = False
        self._body, self._body_bytes = [], 0

    def close(self) -> None:
        """Be fed no more; parser, reader and receiver refer to each other, and would wait for the collector."""
        self._parser, self._receiver = None, _NOBODY

    # httptools callbacks

    def on_message_begin(self) -> None:
        if self._receiver.closing:
            return
        self.in_head = True
        self._head_bytes = self._fed_bytes = self._field_count = 0
        self._target = b""
        self._fields = []
        self._receiver.head_begins()

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._head_bytes += len(url)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer is counted and left out: nothing that comes after the body may change what the head said.
        if self.in_head:
            self._fields.append((name.lower(), value))
        self._field_count += 1
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES or self._field_count > MAX_FIELDS:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        self.in_head = False
        self._fed_bytes = 0
        receiver, parser = self._receiver, self._parser
        if receiver.closing:
            return
        method, version = parser.get_method(), parser.get_http_version()
        if version not in _VERSIONS:
            receiver.refuse(RequestRefused(505, "only HTTP 1.0 and 1.1 are served", close=True))
            return
        if parser.should_upgrade():
            if method == b"CONNECT":
                receiver.refuse(RequestRefused(501, "CONNECT is not served", close=True))
            self._upgrading = True
            return
        keep_alive = parser.should_keep_alive()
        head = self.head = RequestHead(method, self._target, self._fields, version=version, keep_alive=keep_alive)
        # The parser takes lists that end in `chunked`, which a proxy before us may read in another way.
        if head.text(b"transfer-encoding", "chunked").lower() != "chunked":
            receiver.refuse(RequestRefused(501, "the only transfer coding that is taken is chunked", close=True))
            return
        self._body, self._body_bytes = [], 0
        receiver.head_arrived(head)

    def on_body(self, body: bytes) -> None:
        self._body_went_on, self._fed_bytes = True, 0
        if self._receiver.closing or self.discarding:
            return
        self._body.append(body)
        self._body_bytes += len(body)
        self._receiver.body_grew(self._body_bytes)

    def on_message_complete(self) -> None:
        if self._receiver.closing or self._upgrading:
            return
        head, self.head = self.head, None
        assert head is not None
        body: bytes | None = None
        if not self.discarding:
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body, self._body_bytes, self.discarding = [], 0, False
        self._receiver.arrived(head, body)

    def _refuse_head(self) -> None:
        if not self._receiver.closing:
            self._receiver.refuse(RequestRefused(431, "the head of the request is too large", close=True))

    def _ignore_upgrade(self, rest: bytes) -> bytes:
        """Return what is to be parsed in place of a request that asks for another protocol, and of the rest.

        To ignore that wish is every server's right. The parser takes what follows such a head for the other protocol,
        so that the head is parsed again without the wish, and the body stays the body of this request.
        """
        self._upgrading = False
        if self._receiver.closing:
            return b""
        parser = self._parser
        head = head_without_upgrade(parser.get_method(), self._target, self._fields, parser.get_http_version())
        self._parser = httptools.HttpRequestParser(self)
        return head + rest
