"""Streams that announce changes are reopened; polling replaces them where there are none."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import announcements, eventually
from support.gateways import running_gateway
from support.upstreams.running import Recording, scripted_http_server, scripted_stdio_server, tool

from gateway.protocol.gateway_errors import ConnectionLost, GatewayError, HttpStatusError, RpcError
from gateway.upstream.inbound_messages import InboundMessages
from gateway.upstream.session import SessionPorts
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
    inbound: InboundMessages | None = None
    independent_requests: bool = True

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        assert self.inbound is not None
        params = {"notifications": params["notifications"]}
        acknowledged = {"method": "notifications/subscriptions/acknowledged", "params": params}
        return await self.listen(lambda: self.inbound.receive(acknowledged, lambda answer: None))

    async def listen(self, on_open: Callable[[], None]) -> None:
        on_open()
        self.opened += 1
        await anyio.wait_all_tasks_blocked()
        if not self.ends:
            self.held.set()
            await anyio.sleep_forever()
        if (end := self.ends.pop(0)) is not None:
            raise end

    def fail(self, reason: str) -> None:
        self.failed = reason


async def watched(lists: Lists, *, modern: bool, lasting_s: float = 1.0) -> Watcher:
    """Watch until there is nothing more to watch, or a stream is held open."""
    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            ports = SessionPorts(on_list_changed=lists.changes.append, on_update=lambda *_: None)
            inbound = lists.inbound = InboundMessages(group, ports, None)
            inbound.start(modern=modern)
            transport: Any = lists
            watcher = Watcher(
                "up", transport, inbound, lists.request, TOOLS, modern=modern, reopen_s=0, lasting_s=lasting_s
            )

            async def stop_when_held() -> None:
                await lists.held.wait()
                group.cancel_scope.cancel()

            group.start_soon(stop_when_held)
            await watcher.run(None)
            group.cancel_scope.cancel()
    return watcher


@pytest.mark.parametrize("modern", [True, False])
async def test_ended_stream_is_reopened_and_each_opening_lists_once(modern: bool) -> None:
    lists = Lists([None, ConnectionLost("cut", sent=True)])
    watcher = await watched(lists, modern=modern)
    assert (lists.opened, lists.changes, lists.failed) == (3, [["tools"]] * 3, None)
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
async def test_server_without_a_lasting_stream_is_polled(ends: list[GatewayError | None], modern: bool) -> None:
    lists = Lists([*ends])
    watcher = await watched(lists, modern=modern)
    assert not watcher.announces_changes
    # The last entry is not a change, but reports that there will be no announcements.
    assert lists.changes[-1] == ()
    assert lists.opened <= 3
    assert lists.failed is None


async def test_lasting_streams_are_reopened_indefinitely() -> None:
    lists = Lists([None] * 10)
    watcher = await watched(lists, modern=True, lasting_s=0)
    assert lists.opened == 11
    assert watcher.announces_changes


async def test_stream_that_keeps_breaking_ends_the_connection() -> None:
    lists = Lists([ConnectionLost("cut", sent=True)] * 10)
    watcher = await watched(lists, modern=True)
    assert lists.failed == "the stream of notifications keeps ending"
    assert (lists.opened, watcher.announces_changes) == (3, False)


async def test_announcements_since_the_handshake_need_no_extra_listing() -> None:
    lists = Lists([], independent_requests=False)
    watcher = await watched(lists, modern=False)
    assert (lists.opened, lists.changes, watcher.announces_changes) == (1, [], True)


def lists_asked_for(record: Recording) -> int:
    return len(record.requests("tools/list"))


@pytest.mark.heavy
@pytest.mark.parametrize("script", [{"modern": True}, {"modern": False}, {"modern": True, "unacknowledged": True}])
async def test_change_between_first_list_and_stream_is_listed(tmp_path: Path, script: dict[str, Any]) -> None:
    script |= {"tools": [tool("one")], "unannounced": [[tool("two")]], "list_changed": True}
    async with (
        scripted_http_server(tmp_path, "s", **script) as server,
        running_gateway(tmp_path, {"s": server.config}) as gateway,
    ):
        assert list(await gateway.until_listed("s__two")) == ["s__two"]
        await anyio.sleep(1)
        assert lists_asked_for(server.recording) == 2


@pytest.mark.heavy
async def test_change_between_first_list_and_stdio_subscription_is_listed(tmp_path: Path) -> None:
    script = {"modern": True, "tools": [tool("one")], "unannounced": [[tool("two")]], "list_changed": True}
    server, record = scripted_stdio_server(tmp_path, "s", **script)
    async with running_gateway(tmp_path, {"s": server}) as gateway:
        assert list(await gateway.until_listed("s__two")) == ["s__two"]
        assert lists_asked_for(record) == 2


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.heavy
async def test_change_while_the_stream_was_closed_is_listed_on_reopening(tmp_path: Path, modern: bool) -> None:
    changes = [[tool(name)] for name in ("one", "two", "three")]
    script = {"tools": [tool("one")], "unannounced": changes, "list_changed": True, "modern": modern, "stream_s": 1.2}
    async with (
        scripted_http_server(tmp_path, "s", **script) as server,
        running_gateway(tmp_path, {"s": server.config}) as gateway,
    ):
        for name in ("one", "two", "three"):
            await gateway.until_listed(f"s__{name}", within_s=5)
        opened = len(server.recording.events("stream"))
        assert lists_asked_for(server.recording) <= opened + 1


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.heavy
async def test_unchanged_lists_are_not_announced_when_a_stream_opens(tmp_path: Path, modern: bool) -> None:
    script = {"tools": [tool("one")], "list_changed": True, "modern": modern, "stream_s": 1.1}
    async with (
        scripted_http_server(tmp_path, "s", **script) as server,
        running_gateway(tmp_path, {"s": server.config}) as gateway,
    ):
        await gateway.until_listed("s__one")
        async with announcements(gateway) as announced:
            await server.recording.until(lambda seen: len(seen.events("stream")) >= 3, within_s=10)
            count_before = lists_asked_for(server.recording)
            await server.recording.until(lambda seen: lists_asked_for(seen) >= max(count_before, 3), within_s=10)
            assert announced.changes == 0


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.heavy
async def test_watched_resource_is_reported_when_its_update_stream_reopens(tmp_path: Path, modern: bool) -> None:
    resource = {"uri": "notes://today", "name": "today"}
    caching = {"ttlMs": 0, "cacheScope": "public", "resultType": "complete"} if modern else {}
    script: dict[str, Any] = {
        "tools": [tool("one")],
        # Only the GET stream of a server that announces tools is opened for ever.
        "list_changed": True,
        "modern": modern,
        "stream_s": 1.2,
        "capabilities": {"tools": {"listChanged": not modern}, "resources": {"subscribe": True}},
        "answers": {
            "resources/list": {"resources": [resource], **caching},
            "resources/templates/list": {"resourceTemplates": [], **caching},
            "resources/subscribe": {},
            "resources/unsubscribe": {},
        },
    }
    async with (
        scripted_http_server(tmp_path, "s", **script) as server,
        running_gateway(tmp_path, {"s": server.config}) as gateway,
    ):
        await gateway.until_listed("s__one")
        await eventually(lambda: server.recording.requests("resources/list"))
        async with announcements(gateway, resourceSubscriptions=["notes://today"]) as announced:
            updated = "notifications/resources/updated"
            # The stream is opened again more often than a server that keeps ending it at once would be asked.
            await eventually(lambda: announced.methods.count(updated) >= 4, within_s=15)
