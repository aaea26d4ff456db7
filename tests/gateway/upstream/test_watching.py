"""Streams that announce changes: opened again where they end, and polling where none is to be had."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from gateway.errors import ConnectionLost, GatewayError, HttpStatusError, RpcError
from gateway.upstream import watching
from gateway.upstream.inbound_messages import InboundMessages
from gateway.upstream.session import ALL_KINDS, SessionPorts
from gateway.upstream.watching import Watcher

TOOLS = {"tools": {"listChanged": True}}


@dataclass
class Lists:
    """An upstream that ends each subscription to its lists with what stands next in `ends`; then it holds one open."""

    ends: list[GatewayError | None]
    opened: int = 0
    failed: str | None = None
    changes: list[Collection[str]] = field(default_factory=list)
    held: anyio.Event = field(default_factory=anyio.Event)

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        return await self.listen(lambda: None)

    async def listen(self, on_open: Callable[[], None]) -> None:
        on_open()
        self.opened += 1
        if not self.ends:
            self.held.set()
            await anyio.sleep_forever()
        if (end := self.ends.pop(0)) is not None:
            raise end

    def fail(self, reason: str) -> None:
        self.failed = reason


async def watched(lists: Lists, monkeypatch: pytest.MonkeyPatch, *, modern: bool) -> Watcher:
    """Watch until there is nothing more to watch, or a stream is held open."""
    monkeypatch.setattr(watching, "_REOPEN_S", 0)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            ports = SessionPorts(on_list_changed=lists.changes.append, on_update=lambda *_: None)
            inbound = InboundMessages(group, ports, None)
            transport: Any = lists
            watcher = Watcher("up", transport, inbound, lists.request, TOOLS, modern=modern)

            async def stop_when_held() -> None:
                await lists.held.wait()
                group.cancel_scope.cancel()

            group.start_soon(stop_when_held)
            await watcher.run(None)
            group.cancel_scope.cancel()
    return watcher


@pytest.mark.parametrize("modern", [True, False])
async def test_a_stream_that_ends_is_opened_again_and_what_changed_meanwhile_is_listed(
    monkeypatch: pytest.MonkeyPatch, modern: bool
) -> None:
    lists = Lists([None, ConnectionLost("cut", sent=True)])
    watcher = await watched(lists, monkeypatch, modern=modern)
    assert (lists.opened, lists.changes, lists.failed) == (3, [ALL_KINDS] * 2, None)
    assert watcher.announces_changes


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize(
    "ends",
    [
        [RpcError(-32601, "no such method")],
        [HttpStatusError(405, "")],
        [None, RpcError(-1, "not again")],
        [None] * 10,
    ],
)
async def test_a_server_that_offers_no_lasting_stream_is_polled_and_who_waits_is_told(
    monkeypatch: pytest.MonkeyPatch, ends: list[GatewayError | None], modern: bool
) -> None:
    lists = Lists([*ends])
    watcher = await watched(lists, monkeypatch, modern=modern)
    assert not watcher.announces_changes
    # The last one is no change: it is the news that there will be no announcements.
    assert lists.changes[-1] == ()
    assert lists.opened <= 3
    assert lists.failed is None


async def test_streams_that_last_are_opened_again_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_LASTING_S", 0)
    lists = Lists([None] * 10)
    watcher = await watched(lists, monkeypatch, modern=True)
    assert lists.opened == 11
    assert watcher.announces_changes


async def test_a_stream_that_keeps_being_cut_is_the_end_of_the_connection_where_it_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lists = Lists([ConnectionLost("cut", sent=True)] * 10)
    watcher = await watched(lists, monkeypatch, modern=True)
    assert lists.failed == "the stream of notifications keeps ending"
    assert (lists.opened, watcher.announces_changes) == (3, False)
