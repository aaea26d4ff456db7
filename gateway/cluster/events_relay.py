"""What happens in each worker, for administrators who watch at another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import anyio

from gateway import wire
from gateway.admin.event_feed import EventFeed
from gateway.cluster.peers import PeerLost, Peers, Reply

TARGET: Final = "/shared/events"
# It is asked twice a second while somebody watches: one that is slow is left out this time.
_ASK_S: Final = 2.0


async def events_of_others(peers: Peers, known: Mapping[int, int]) -> dict[int, list[dict[str, Any]]]:
    """The events of every other worker that answers, after those that are known of it."""
    found: dict[int, list[dict[str, Any]]] = {}

    async def ask(index: int) -> None:
        try:
            body = wire.dumps({"since": known.get(index, -1)})
            reply = await peers.ask(index, "POST", TARGET, body=body, within_s=_ASK_S)
        except PeerLost:
            return
        if reply.status == 200:
            found[index] = wire.loads(reply.body)

    async with anyio.create_task_group() as group:
        for index in peers.others:
            group.start_soon(ask, index)
    return found


def take(document: dict[str, Any], feed: EventFeed) -> Reply:
    """Answer another worker."""
    return Reply(status=200, headers={}, body=wire.dumps(feed.since(int(document["since"]))))
