"""Parse the requests of a connection and enforce size limits, with httptools.

Sources: RFC 9112 "HTTP/1.1"; RFC 9110, section 7.8 "Upgrade".
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, Protocol, cast

import httptools

from gateway.http.http_request import RequestHead, RequestRefused, head_without_upgrade

MAX_HEAD_BYTES: Final = 64 * 1024
"""The maximum size of the request line, headers and trailers together. Common servers accept 8 to 64 KiB, which is
enough for tokens and cookies."""
MAX_FIELDS: Final = 256
"""The maximum number of headers and trailers of one request; a browser sends about 20."""
# The parser reads a request line without a version as HTTP/0.9, and an invalid version as part of the target.
_VERSIONS: Final = frozenset({"1.0", "1.1"})


class RequestReceiver(Protocol):
    """Receives the events of a `RequestReader`.

    Attributes:
        closing: True if all further input has to be ignored, including the rest of the data being parsed.
    """

    closing: bool

    def head_begins(self) -> None:
        """Handle the first byte of a request."""

    def head_arrived(self, head: RequestHead) -> None:
        """Handle a complete header block. The body of the request follows."""

    def body_grew(self, size_bytes: int) -> None:
        """Check the size of the part of the body that has arrived so far."""

    def arrived(self, head: RequestHead, body: bytes | None) -> None:
        """Handle a complete request; `body` is None if the body was discarded."""

    def refuse(self, refused: RequestRefused) -> None:
        """Reject a request that cannot be parsed. No further request can be read from the connection."""


# Replaces the receiver after `close`, because data may still be in the parser.
_CLOSED: Final = cast(RequestReceiver, SimpleNamespace(closing=True))


class RequestReader:
    """Incremental parser of the requests of one connection.

    Attributes:
        in_head: True if a header block has begun to arrive and is not complete.
        head: The header block of the request whose body is arriving; None if no body is arriving.
        discarding: True if the arriving body is discarded.
    """

    def __init__(self, receiver: RequestReceiver) -> None:
        self._receiver = receiver
        self._parser: Any = httptools.HttpRequestParser(self)
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        # `_fed_bytes` counts parser input that has produced neither headers nor body. The parser buffers such input,
        # for example an unfinished header or trailer.
        self._head_bytes = self._fed_bytes = self._field_count = 0
        self._body_advanced = False
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._upgrading = False
        self.in_head = False
        self.head: RequestHead | None = None
        self.discarding = False

    @property
    def held_bytes(self) -> int:
        """Return the size of the unfinished request in memory."""
        head_bytes = max(self._head_bytes, self._fed_bytes) if self.in_head else 0
        return head_bytes + self._body_bytes

    @property
    def has_body(self) -> bool:
        """Return whether a part of the body has arrived."""
        return bool(self._body)

    def feed(self, data: bytes) -> None:
        """Parse data, and report the requests in it to the receiver."""
        # Each header block has its own list of fields.
        fields, head = self._fields if self.in_head else None, self.head
        self._body_advanced = False
        unparsed = self._parse(data)
        # This is a loop, not a recursion, because each of several pipelined requests may ask for an upgrade.
        while unparsed:
            unparsed = self._parse(unparsed)
        in_same_head = self.in_head and self._fields is fields
        if in_same_head or (head is not None and self.head is head and not self._body_advanced):
            self._fed_bytes += len(data)
            if self._fed_bytes > MAX_HEAD_BYTES:
                self._refuse_head()

    def _parse(self, data: bytes) -> bytes:
        """Feed the parser; return the data to be parsed again after an ignored upgrade."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            # The parser reports data after a request with `Connection: close` as an error. It is ignored here.
            if not self._receiver.closing:
                self._receiver.refuse(RequestRefused(400, "Invalid HTTP request received.", close=True))
        return b""

    def discard(self) -> None:
        """Discard the body that is arriving."""
        self._body, self._body_bytes, self.discarding = [], 0, True

    def stop(self) -> None:
        """Drop the unfinished request."""
        self.in_head = False
        self._body, self._body_bytes = [], 0

    def close(self) -> None:
        """Release the parser and the receiver, so that their reference cycle does not wait for garbage collection."""
        self._parser, self._receiver = None, _CLOSED

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
        # Trailers count towards the limits but are ignored: they must not change what the headers said.
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
            receiver.refuse(RequestRefused(505, "only HTTP 1.0 and 1.1 are supported", close=True))
            return
        if parser.should_upgrade():
            if method == b"CONNECT":
                receiver.refuse(RequestRefused(501, "CONNECT is not supported", close=True))
            self._upgrading = True
            return
        keep_alive = parser.should_keep_alive()
        head = self.head = RequestHead(method, self._target, self._fields, version=version, keep_alive=keep_alive)
        # The parser accepts every list of codings that ends in `chunked`, but a proxy may interpret it differently.
        if head.text(b"transfer-encoding", "chunked").lower() != "chunked":
            receiver.refuse(RequestRefused(501, "the only supported transfer coding is chunked", close=True))
            return
        self._body, self._body_bytes = [], 0
        receiver.head_arrived(head)

    def on_body(self, body: bytes) -> None:
        self._body_advanced, self._fed_bytes = True, 0
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
            self._receiver.refuse(RequestRefused(431, "the header block is too large", close=True))

    def _ignore_upgrade(self, following: bytes) -> bytes:
        """Remove the upgrade from the header block, and return the input for a new parser.

        A server may ignore an upgrade. The old parser would not treat the bytes after the header block as the body,
        but as data of the other protocol.

        Args:
            following: The input after the header block.
        """
        self._upgrading = False
        if self._receiver.closing:
            return b""
        parser = self._parser
        head = head_without_upgrade(parser.get_method(), self._target, self._fields, parser.get_http_version())
        self._parser = httptools.HttpRequestParser(self)
        return head + following
