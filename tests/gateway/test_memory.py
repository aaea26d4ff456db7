"""What stays is kept out of the collector's rounds, and what has ended is gone all the same."""

import gc
import weakref
from collections.abc import Iterator

import anyio
import pytest
from support.gateways import glance_again

from gateway.access.principal import LOCAL
from gateway.access.quotas import account_of_its_own
from gateway.discovery import listing_of
from gateway.downstream.sessions import Session
from gateway.memory import Collector, keep_settled
from gateway.upstream.session import RawListing
from registry.catalog.names import ServerName
from registry.catalog.shape import ServerShape, Shape
from registry.catalog.store import Registry

SERVER = ServerName("s")


@pytest.fixture(autouse=True)
def frozen_as_before() -> Iterator[None]:
    """Freeze again, for other tests, what these let go (`conftest`)."""
    yield
    gc.collect()
    gc.freeze()


async def test_sessions_that_were_there_at_a_change_are_gone_after_a_later_one() -> None:
    registry = Registry(Shape(servers={SERVER: ServerShape()}))

    def change(number: int) -> None:
        tools = [{"name": f"t{number}", "inputSchema": {"type": "object"}}]
        raw = RawListing(
            tools=tools, prompts_and_resources={}, capabilities={"tools": {}}, ttl_ms=None, scope="private"
        )
        before = registry.catalog.servers.get(SERVER)
        registry.put(listing_of(raw, server=SERVER, epoch=number, transport="http", before=before))

    session = Session(LOCAL, version="2025-11-25", params={}, account=account_of_its_own())
    seen = weakref.ref(session)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: keep_settled(registry, settle_s=0.01, thorough_s=0.0))
            before = gc.get_freeze_count()
            while gc.get_freeze_count() <= before:
                await glance_again()
            del session
            number = 0
            while seen() is not None:
                number += 1
                change(number)
                await glance_again()
            group.cancel_scope.cancel()
    gc.unfreeze()


class Cycle:
    """Refers to itself, so that only the collector can free it; of one block of memory in any version of Python."""

    __slots__ = ("__weakref__", "itself")

    def __init__(self) -> None:
        self.itself = self


def test_cycles_that_were_frozen_unseen_are_collected_before_they_are_too_many() -> None:
    collector = Collector(most_unseen=350_000)
    found = []
    try:
        for _ in range(6):
            cycles = [Cycle() for _ in range(100_000)]
            found.append(weakref.ref(cycles[0]))
            # The collector sees them while they are in use, and not again.
            collector.look()
            del cycles
            if len(found) == 2:
                assert found[0]() is not None, "it is frozen, and nobody looks for it yet"
        assert found[0]() is None
    finally:
        gc.unfreeze()
