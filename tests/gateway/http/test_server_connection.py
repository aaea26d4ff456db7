"""One server connection without a socket: its exact limits and deadlines, and what it charges, counts and closes."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.wires import Line, connect

from gateway.access.quotas import MIB, Account, Quotas
from gateway.config.auth_config import QuotaLimits, QuotasConfig
from gateway.http.http_request import DISCARDED_BYTES, RequestHead, RequestRefused
from gateway.http.responder import Responder
from gateway.http.server_connection import BODY_S, HEAD_S, KEEP_ALIVE_S
from gateway.http.server_connections import SILENT_S, Connections, Handler

GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
SLOW = GET.replace(b"/a", b"/slow")
KIB = 1024
CHUNKED = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


def post(body: bytes = b"", *lines: bytes, path: bytes = b"/a", length: int | None = None) -> bytes:
    size_bytes = len(body) if length is None else length
    head = [b"POST %b HTTP/1.1" % path, b"host: x", b"content-length: %d" % size_bytes, *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def account(mebibytes: int = 32) -> Account:
    return Account("ann", QuotaLimits(held_mebibytes=mebibytes), Quotas(QuotasConfig()))


@dataclass
class Admission:
    """The result of admitting a request."""

    account: Account | None


@dataclass
class Site:
    """Answers every request with its path and the size of its body; `/slow` waits for `finish`."""

    max_body_bytes: int = 1 << 20
    account: Account | None = None
    seen: list[tuple[bytes, bytes]] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    slow: list[Responder] = field(default_factory=list)

    def route(self, head: RequestHead) -> Handler:
        return self

    def admit(self, head: RequestHead, peer: str) -> Admission | None:
        self.peers.append(peer)
        if head.path in (b"/known", b"/refused"):
            head.judged = self
        if head.path == b"/refused":
            raise RequestRefused(403, "no")
        if head.path == b"/closed":
            raise RequestRefused(403, "no", close=True)
        return Admission(self.account)

    def answer(self, head: RequestHead, admission: object, body: bytes, responder: Responder, peer: str) -> None:
        self.seen.append((head.path, body))
        if head.path == b"/slow":
            self.slow.append(responder)
        elif head.path == b"/late":
            raise RequestRefused(409, "no")
        else:
            responder.respond(200, (b"%b %d" % (head.path, len(body)),))

    def finish(self) -> None:
        self.slow.pop().respond(200, (b"slow",))


@pytest.fixture
def site() -> Site:
    return Site()


def answers(line: Line) -> list[Any]:
    """Return the status of each response since the last call, or the body of a successful one."""
    found: list[Any] = []
    for response in line.take().split(b"HTTP/1.1 ")[1:]:
        head, _, body = response.partition(b"\r\n\r\n")
        found.append(body.decode() if head.startswith(b"200") else int(head[:3]))
    return found


async def turns(count: int = 10) -> None:
    """Let the pipelined requests be answered, one in each iteration of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("peer", "address", "text"),
    [(("10.0.0.1", 9), "10.0.0.1", "10.0.0.1:9"), (("::1", 9, 0, 0), "::1", "::1:9"), ("", "", ""), (None, "", "")],
)
async def test_client_is_known_by_its_address(peer: Any, address: str, text: str, site: Site) -> None:
    protocol, line = connect(site, line=Line(peer))
    protocol.data_received(GET)
    assert (protocol.address, site.peers, answers(line)) == (address, [text], ["/a 0"])


async def test_connection_is_registered_until_it_is_lost(site: Site) -> None:
    connections, ending = Connections(most=1), set[Any]()
    protocol, line = connect(site, connections, ending=ending)
    protocol.data_received(SLOW)
    rejected, full = connect(site, connections, ending=ending)
    assert (connections.open, ending) == (2, {protocol, rejected})
    assert (answers(full), full.closed) == ([503], True)
    full.closed = False
    rejected.data_received(GET)
    for each in (protocol, rejected):
        each.connection_lost(None)
    assert (connections.open, ending) == (0, set())
    protocol.data_received(GET)
    assert (answers(line), answers(full), site.seen) == ([], [], [(b"/slow", b"")])


async def test_request_on_one_of_the_last_connections_is_refused(site: Site) -> None:
    connections = Connections(most=20)
    for _ in range(20):
        connect(site, connections)[0].data_received(SLOW)
    protocol, line = connect(site, connections)
    protocol.data_received(GET + GET)
    assert b"retry-after: 1\r\nconnection: close\r\n" in bytes(line.written)
    assert (answers(line), line.closed) == ([503], True)
    assert len(site.seen) == 20


async def test_leaving_server_closes_each_connection_after_its_next_response(site: Site) -> None:
    connections = Connections(most=9)
    known = post(b"", path=b"/known")
    parsed, cached = connect(site, connections), connect(site, connections)
    for protocol, line in (parsed, cached):
        protocol.data_received(known)
        protocol.data_received(known)
        assert (answers(line), line.closed) == (["/known 0"] * 2, False)
    connections.leave()
    for (protocol, line), request in ((parsed, GET), (cached, known)):
        protocol.data_received(request + GET * (request == GET))
        assert b"connection: close" in bytes(line.written)
        assert (len(answers(line)), line.closed) == (1, True)
    assert len(site.seen) == 6


async def test_connection_waits_only_without_a_request(site: Site) -> None:
    protocol, line = connect(site)
    known = post(b"1", path=b"/known")
    for data, is_waiting in (
        (b"", True),
        (b"GET /a HTTP/1.1\r\n", True),
        (b"host: x\r\n\r\n", True),
        (post(b"12")[:-1], False),
        (b"2", True),
        (SLOW, False),
    ):
        protocol.data_received(data)
        assert protocol.is_waiting is is_waiting, data
    protocol.data_received(GET)
    site.finish()
    assert not protocol.is_waiting, "the second request is about to be answered"
    await turns()
    assert protocol.is_waiting
    protocol.data_received(known + known)
    assert protocol.is_waiting
    protocol.data_received(known[:-1])
    assert (bool(protocol._heads.ahead), protocol.is_waiting) == (True, False)
    protocol.data_received(b"1")
    line.unread_bytes = 1
    assert not protocol.is_waiting


async def test_large_write_counts_until_its_last_byte_is_read(site: Site) -> None:
    connections = Connections(most=9)
    protocol, line = connect(site, connections)
    protocol.record_write(100)
    assert (protocol.unread_bytes, protocol.held_bytes, connections._paused) == (0, 0, set())
    line.unread_bytes = 5
    assert protocol.held_bytes == 5, "the earlier write has been read"
    line.unread_bytes = 90
    protocol.record_write(100)
    assert connections._paused == {protocol}
    for unread_bytes, held_bytes in ((90, 100), (200, 200), (1, 100)):
        line.unread_bytes = unread_bytes
        assert protocol.held_bytes == held_bytes
    protocol.record_write(50)
    # The last write is the only one that is partly read.
    for unread_bytes, held_bytes in ((60, 150), (20, 120), (0, 0), (7, 7)):
        line.unread_bytes = unread_bytes
        assert protocol.held_bytes == held_bytes


async def test_writing_pauses_until_the_client_has_read(site: Site) -> None:
    connections = Connections(most=9)
    protocol, line = connect(site, connections)
    assert protocol.is_drained
    for left_bytes in (7, 0):
        line.unread_bytes = 9
        protocol.pause_writing()
        assert (protocol.is_drained, connections._paused) == (False, {protocol})
        line.unread_bytes = left_bytes
        protocol.resume_writing()
        assert (protocol.is_drained, bool(connections._paused)) == (True, left_bytes > 0)
    connections.paused(protocol)
    line.unread_bytes = 1
    protocol.check_deadlines(0.0)
    assert connections._paused == {protocol}
    line.unread_bytes = 0
    protocol.check_deadlines(0.0)
    assert connections._paused == set()
    protocol.pause_writing()
    waiting = asyncio.get_running_loop().create_task(protocol.drain())
    await turns()
    assert not waiting.done()
    protocol.connection_lost(None)
    await waiting


async def test_reading_of_the_client_is_noted_at_each_check(site: Site) -> None:
    protocol, line = connect(site)
    for now_s, unread_bytes, taken_s in (
        (1.0, 0, 1.0),
        (2.0, 9, 1.0),
        (3.0, 9, 1.0),
        (4.0, 8, 4.0),
        (5.0, 10, 4.0),
        (6.0, 9, 6.0),
        (7.0, 0, 7.0),
        (8.0, 1, 7.0),
    ):
        line.unread_bytes = unread_bytes
        protocol.check_deadlines(now_s)
        assert protocol.taken_s == taken_s


async def test_deadline_depends_on_what_is_expected(site: Site) -> None:
    protocol, line = connect(site)
    known = post(b"1", path=b"/known")
    for data, within_s in (
        (b"", SILENT_S),
        (b"GET", HEAD_S),
        (b" /a HTTP/1.1\r\nhost: x\r\n\r\n", KEEP_ALIVE_S),
        (post(b"12")[:-1], BODY_S),
        (b"2", KEEP_ALIVE_S),
        (known, KEEP_ALIVE_S),
        (known[:-1], BODY_S),
        (b"1", KEEP_ALIVE_S),
        (post(b"12", path=b"/refused")[:-1], BODY_S),
        (b"2", KEEP_ALIVE_S),
        (SLOW, math.inf),
        (b"GET", HEAD_S),
    ):
        started_s = asyncio.get_running_loop().time()
        protocol.data_received(data)
        now_s = asyncio.get_running_loop().time()
        assert started_s + within_s <= protocol.deadline_s <= now_s + within_s or data == b"", data
        assert not line.closed


async def test_deadline_aborts_the_connection_exactly_then(site: Site) -> None:
    for data in (b"", b"GET", GET, post(b"12", path=b"/refused")[:-1]):
        protocol, line = connect(site)
        protocol.data_received(data)
        protocol.deadline_s = 1_000.0
        protocol.check_deadlines(999.9)
        assert not line.closed
        protocol.check_deadlines(1_000.0)
        assert line.is_aborted
        assert protocol.deadline_s == math.inf


async def test_idle_client_that_still_reads_is_not_aborted(site: Site) -> None:
    for data, is_aborted in ((GET, False), (GET + b"GET", True), (GET + post(b"1", path=b"/refused")[:-1], True)):
        protocol, line = connect(site)
        protocol.data_received(data)
        line.unread_bytes = 1
        protocol.deadline_s = 1_000.0
        protocol.check_deadlines(1_000.0)
        assert line.is_aborted is is_aborted, data
        if not is_aborted:
            assert protocol.deadline_s == 1_000.0 + KEEP_ALIVE_S


async def test_late_body_is_refused(site: Site) -> None:
    for begun in (post(b"12")[:-1], GET + post(b"12")[:-1]):
        protocol, line = connect(site)
        protocol.data_received(begun)
        line.unread_bytes = 1
        answers(line)
        protocol.check_deadlines(asyncio.get_running_loop().time() + BODY_S + 1)
        assert b"connection: close" in bytes(line.written)
        assert (answers(line), line.closed, line.is_aborted) == ([408], True, False)
        protocol.data_received(b"2")
        assert answers(line) == []
    protocol, line = connect(site)
    known = post(b"1", path=b"/known")
    protocol.data_received(known)
    protocol.data_received(known[:-1])
    line.unread_bytes = 1
    protocol.check_deadlines(asyncio.get_running_loop().time() + BODY_S + 1)
    assert answers(line) == ["/known 1", 408]


async def test_cut_connection_reads_nothing_more(site: Site) -> None:
    connections = Connections(most=9)
    protocol, line = connect(site, connections)
    protocol.cut()
    assert (protocol.is_cut, line.is_aborted, connections._cut_since_sweep) == (True, True, True)
    protocol.data_received(GET)
    assert site.seen == []


async def test_shutdown_answers_the_current_requests_first(site: Site) -> None:
    idle, line = connect(site)
    idle.shutdown()
    assert line.closed
    running, line = connect(site)
    running.data_received(SLOW)
    running.shutdown()
    assert not line.closed
    site.finish()
    assert b"connection: close" in bytes(line.written)
    assert line.closed
    # Between two pipelined requests.
    between, line = connect(site)
    between.data_received(SLOW + GET)
    site.finish()
    between.shutdown()
    between.data_received(GET)
    assert not line.closed
    await turns()
    assert (answers(line), line.closed) == (["slow", "/a 0"], True)


async def test_unfinished_requests_are_charged(site: Site) -> None:
    anonymous, site.account = account(), account()
    connections = Connections(most=9, anonymous=anonymous)
    for own in (site.account, None):
        protocol, _ = connect(site, connections)
        for data, anonymous_bytes, own_bytes in (
            (b"POST /", 1, 0),
            (b"a HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n", 40, 0),
            (b"\r\n12", 0, 2),
            (b"34", 0, 4),
            (b"5", 0, 0),
            (GET, 0, 0),
            (b"POST /", 1, 0),
        ):
            site.account = own
            protocol.data_received(data)
            assert anonymous.held_bytes == anonymous_bytes, data
            assert own is None or own.held_bytes == own_bytes, data
        protocol.connection_lost(None)
        assert anonymous.held_bytes == 0


async def test_pipelined_requests_are_charged_until_they_are_answered(site: Site) -> None:
    anonymous = account()
    protocol, line = connect(site, Connections(most=9, anonymous=anonymous))
    protocol.data_received(SLOW)
    assert anonymous.held_bytes == 0
    protocol.data_received(post(b"x" * 1000) + post(b"y" * 500))
    assert anonymous.held_bytes == 1500
    protocol.data_received(post(b"12")[:-1])
    assert anonymous.held_bytes == 1501
    site.finish()
    await turns()
    assert answers(line) == ["slow", "/a 1000", "/a 500"]
    protocol.data_received(b"2")
    assert (answers(line), anonymous.held_bytes) == (["/a 2"], 0)


async def test_invalid_request_is_charged_no_longer(site: Site) -> None:
    anonymous = account()
    protocol, _ = connect(site, Connections(most=9, anonymous=anonymous))
    protocol.data_received(SLOW + CHUNKED + b"2\r\nok\r\n")
    assert anonymous.held_bytes == 2
    protocol.data_received(b"garbage\r\n")
    assert anonymous.held_bytes == 0


async def test_sender_without_quota_is_refused(site: Site) -> None:
    anonymous, own = account(1), account(1)
    site.account = own
    connections = Connections(most=9, anonymous=anonymous)
    anonymous.hold(MIB)
    protocol, line = connect(site, connections)
    protocol.data_received(b"POST /")
    assert b"connection: close" in bytes(line.written)
    assert (answers(line), line.closed) == ([429], True)
    anonymous.release(MIB)
    # A sender that is known can continue after the rest of its body.
    own.hold(MIB)
    protocol, line = connect(site, connections)
    protocol.data_received(post(b"12345")[:-4])
    assert b"connection: close" not in bytes(line.written)
    assert (answers(line), line.closed) == ([429], False)
    protocol.data_received(b"234")
    own.release(MIB)
    protocol.data_received(b"5" + GET)
    assert (answers(line), line.closed, site.seen) == (["/a 0"], False, [(b"/a", b"")])
    # While another request is being answered, the connection can only be closed.
    protocol, line = connect(site, connections)
    protocol.data_received(SLOW)
    anonymous.hold(MIB)
    protocol.data_received(post(b"12345")[:-4])
    site.finish()
    await turns()
    assert (answers(line), line.closed) == (["slow", 429], True)
    assert (own.held_bytes, anonymous.held_bytes) == (0, MIB)


@pytest.mark.parametrize("more_bytes", [0, 1])
async def test_body_is_accepted_up_to_the_limit_of_its_handler(more_bytes: int, site: Site) -> None:
    site.max_body_bytes = 10
    body = b"x" * (10 + more_bytes)
    protocol, line = connect(site)
    protocol.data_received(post(body) + GET)
    await turns()
    assert answers(line) == (["/a 10", "/a 0"] if not more_bytes else [413, "/a 0"])
    protocol.data_received(CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) + GET)
    await turns()
    assert answers(line) == (["/a 10", "/a 0"] if not more_bytes else [413])
    assert line.closed is bool(more_bytes)


@pytest.mark.parametrize("more_bytes", [0, 1])
async def test_huge_body_is_not_discarded(more_bytes: int, site: Site) -> None:
    protocol, line = connect(site)
    protocol.data_received(post(length=DISCARDED_BYTES + more_bytes))
    assert (b"connection: close" in bytes(line.written)) is bool(more_bytes)
    assert (answers(line), line.closed) == ([413], bool(more_bytes))
    protocol.data_received(b"x" * 100)
    assert protocol.held_bytes == 0


async def test_pipelined_requests_are_limited(site: Site) -> None:
    protocol, line = connect(site)
    protocol.data_received(SLOW + GET * 64)
    assert not protocol.is_cut
    site.finish()
    await turns(100)
    assert answers(line) == ["slow", *["/a 0"] * 64]
    protocol.data_received(SLOW + GET * 65)
    assert line.is_aborted
    for sizes, is_cut in (
        ([MIB], False),
        ([MIB + 1], True),
        ([MIB // 2, MIB // 2], False),
        ([MIB // 2, MIB // 2 + 1], True),
        ([MIB - 1, 2], True),
    ):
        protocol, line = connect(site)
        protocol.data_received(SLOW)
        for size_bytes in sizes:
            protocol.data_received(post(b"x" * size_bytes))
        assert line.is_aborted is is_cut, sizes
        if not is_cut:
            site.finish()
            await turns()
            # The limit applies anew once the requests are answered.
            protocol.data_received(SLOW)
            protocol.data_received(post(b"x" * MIB))
            assert not line.is_aborted


async def test_lost_connection_runs_no_pipelined_request(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    for lose in ("lost", "closed"):
        protocol, line = connect(site)
        protocol.data_received(SLOW + GET)
        site.seen.clear()
        site.finish()
        if lose == "lost":
            protocol.connection_lost(None)
        else:
            line.close()
        await turns()
        assert site.seen == []
    assert caplog.records == []


async def test_caller_that_disconnects_is_reported(site: Site) -> None:
    protocol, _ = connect(site)
    protocol.data_received(SLOW)
    assert not site.slow[0].disconnected
    protocol.connection_lost(None)
    assert site.slow[0].disconnected


async def test_handler_may_refuse_a_complete_request(site: Site) -> None:
    protocol, line = connect(site)
    protocol.data_received(post(path=b"/late") + GET)
    await turns()
    assert answers(line) == [409, "/a 0"]


@pytest.mark.parametrize("path", [b"/refused", b"/closed"])
async def test_refused_request_with_a_whole_body_leaves_no_trace(path: bytes, site: Site) -> None:
    protocol, line = connect(site)
    protocol.data_received(SLOW + post(b"12", path=path) + GET)
    site.finish()
    await turns()
    assert answers(line) == (["slow", 403, "/a 0"] if path == b"/refused" else ["slow", 403])
    assert line.closed is (path == b"/closed")


async def test_refusal_that_closes_reads_nothing_more(site: Site) -> None:
    protocol, line = connect(site)
    protocol.data_received(post(b"1234", path=b"/closed")[:-2])
    assert (answers(line), line.closed) == ([403], True)
    protocol.data_received(b"34" + GET)
    assert (answers(line), site.seen, protocol._held_bytes) == ([], [], 0)


async def test_rest_of_a_refused_body_arrives_before_the_connection_closes(site: Site) -> None:
    protocol, line = connect(site)
    protocol.data_received(post(b"1234", b"connection: close", path=b"/refused")[:-2])
    assert (answers(line), line.closed, line.has_ended) == ([403], False, True)
    protocol.data_received(b"34")
    assert line.closed
    protocol, line = connect(site)
    protocol.data_received(GET.replace(b"host: x", b"host: x\r\nconnection: close") + GET)
    assert (answers(line), line.closed, line.has_ended) == (["/a 0"], True, False)


@pytest.mark.parametrize(
    ("request_bytes", "is_awaited"),
    [
        (post(b"12", b"expect: 100-continue")[:-2], True),
        (post(b"12", b"Expect: 100-Continue")[:-2], True),
        (post(b"12", b"expect: 100-continue")[:-1], True),
        (post(b"12", b"expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0")[:-2], False),
        (post(b"12")[:-2], False),
    ],
    ids=["header block", "other case", "a part of the body", "HTTP/1.0", "not expected"],
)
async def test_client_that_waits_is_told_to_continue(request_bytes: bytes, is_awaited: bool, site: Site) -> None:
    protocol, line = connect(site)
    protocol.data_received(request_bytes)
    assert line.take() == b"HTTP/1.1 100 Continue\r\n\r\n" * is_awaited
    protocol.data_received(b"12" if request_bytes.endswith(b"\r\n") else b"2")
    assert answers(line) == ["/a 2"]


async def test_client_that_sends_without_waiting_is_not_told_to_continue(site: Site) -> None:
    expecting = post(b"12", b"expect: 100-continue")
    protocol, line = connect(site)
    protocol.data_received(SLOW + expecting)
    site.finish()
    await turns()
    assert answers(line) == ["slow", "/a 2"]
    protocol.data_received(SLOW + expecting[:-1])
    site.finish()
    assert answers(line) == ["slow"]
    protocol.data_received(b"2" + expecting.replace(b"100-continue", b"tea")[:-1])
    await turns()
    assert answers(line) == ["/a 2", 417]
    protocol.data_received(b"2" + GET)
    assert (answers(line), len(site.seen)) == (["/a 0"], 5)


async def test_invalid_request_is_answered_in_its_turn(site: Site) -> None:
    protocol, line = connect(site)
    protocol.data_received(SLOW + b"garbage\r\n\r\n")
    assert answers(line) == []
    protocol.data_received(GET)
    site.finish()
    await turns()
    assert (answers(line), line.closed, len(site.seen)) == (["slow", 400], True, 1)
    protocol, line = connect(site)
    protocol.data_received(b"garbage\r\n\r\n")
    assert (answers(line), line.closed) == ([400], True)


async def test_only_accepted_requests_become_known(site: Site) -> None:
    connections = Connections(most=9)
    protocol, line = connect(site, connections)
    known = post(b"1", path=b"/known")
    for request_bytes in (post(b"1", path=b"/refused"), known):
        protocol.data_received(request_bytes)
        await turns()
    assert [block.head.path for block in connections.heads._heads.values()] == [b"/known"]
    site.max_body_bytes = 0
    protocol.data_received(known)
    assert answers(line) == [403, "/known 1", 413]
    site.max_body_bytes = 1
    protocol.data_received(known)
    assert answers(line) == ["/known 1"]
