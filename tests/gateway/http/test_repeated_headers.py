"""Requests on one connection with similar header blocks are not confused."""

from __future__ import annotations

import pytest

from gateway.http.http_request import RequestHead
from gateway.http.server_header_cache import ConnectionHeaderCache, RequestHeaderCache


def written(path: bytes, caller: bytes, length: bytes, method: bytes) -> bytes:
    lines = (b"POST %b HTTP/1.1" % path, b"authorization: %b" % caller, b"content-length: %b" % length)
    return b"\r\n".join((*lines, b"mcp-method: %b" % method, b"", b""))


HEADS = [
    (path, caller, method) for path in (b"/mcp/a", b"/mcp/b") for caller in (b"ann", b"bob") for method in (b"x", b"y")
]


@pytest.fixture
def heads() -> ConnectionHeaderCache:
    """Return the cache of a connection whose server knows all of these blocks, which differ only in one letter."""
    known = RequestHeaderCache()
    for path, caller, method in HEADS:
        fields = [(b"authorization", caller), (b"content-length", b"2"), (b"mcp-method", method)]
        head = RequestHead(b"POST", path, fields, version="1.1", keep_alive=True)
        head.judged = "by whoever answers"
        known.learn(written(path, caller, b"2", method), head)
    return ConnectionHeaderCache(known)


def test_request_gets_its_own_headers_whatever_preceded_it(heads: ConnectionHeaderCache) -> None:
    for before in HEADS:
        for path, caller, method in HEADS:
            assert heads.find(written(before[0], before[1], b"2", before[2]) + b"{}") is not None
            found = heads.find(written(path, caller, b"3", method) + b"[1]")
            assert found is not None
            head, body = found
            assert (head.path, head.raw(b"authorization"), head.raw(b"mcp-method"), body) == (
                path, caller, method, b"[1]",
            )  # fmt: skip


@pytest.mark.parametrize("first", HEADS)
def test_header_block_waits_for_its_body(heads: ConnectionHeaderCache, first: tuple[bytes, bytes, bytes]) -> None:
    assert heads.find(written(first[0], first[1], b"2", first[2]) + b"{}") is not None
    for path, caller, method in HEADS:
        alone = written(path, caller, b"12", method)
        assert heads.store_ahead(alone)
        assert heads.ahead == alone
        heads.ahead = b""
        for other in (
            # There is nothing to wait for.
            written(path, caller, b"0", method),
            alone + b"{",
            alone[:-1],
            # The parser decides about these.
            written(path, caller, b"", method),
            written(path, caller, b"-1", method),
            written(path, caller, b"1, 1", method),
            written(path, caller, b"00000012", method),
            written(path, b"eve", b"12", method),
            written(b"/mcp/c", caller, b"12", method),
            written(path, caller, b"12\r\ncontent-length: 12", method),
            written(path, caller, b"12", method) * 2,
        ):
            assert not heads.store_ahead(other), other
            assert heads.ahead == b""


def test_longest_length_that_is_awaited_has_seven_digits(heads: ConnectionHeaderCache) -> None:
    assert not heads.store_ahead(written(*HEADS[0][:2], b"12345678", HEADS[0][2]))
    for length in (b"1234567", b"1"):
        assert heads.store_ahead(written(*HEADS[0][:2], length, HEADS[0][2]))


def test_header_block_is_cached_for_later_connections_once_its_request_is_accepted() -> None:
    path, caller, method = HEADS[0]
    data = written(path, caller, b"2", method)
    fields = [(b"authorization", caller), (b"content-length", b"2"), (b"mcp-method", method)]
    first, second = (RequestHead(b"POST", path, fields, version="1.1", keep_alive=True) for _ in range(2))
    first.judged = second.judged = "by a handler"
    known = RequestHeaderCache()
    connection = ConnectionHeaderCache(known)
    for accepted in (False, True):
        # The second request came with the first one, and the first bytes are not its own.
        connection.start_request(data + b"{}" + data)
        connection.head_arrived(first)
        connection.arrived(first, accepted=accepted)
        connection.head_arrived(second)
        connection.arrived(second, accepted=True)
        assert (ConnectionHeaderCache(known).find(data + b"{}") is not None) is accepted
    found = connection.find(data + b"[]")
    assert found == (first, b"[]")
    # A request that is rejected does not make the next one known.
    connection = ConnectionHeaderCache(RequestHeaderCache())
    connection.start_request(data)
    connection.head_arrived(first)
    connection.head_arrived(second)
    connection.arrived(second, accepted=True)
    assert connection.find(data + b"{}") is None
