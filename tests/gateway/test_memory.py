"""What stays is kept out of the collector's rounds, and what has ended is gone all the same."""

import gc
import subprocess
import sys
import tracemalloc
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import anyio
import orjson
import pytest
from support.gateways import glance_again

from gateway import memory
from gateway.access.principal import LOCAL
from gateway.access.quotas import account_of_its_own
from gateway.discovery import listing_of
from gateway.downstream.lists import ListResults
from gateway.downstream.sessions import Session
from gateway.memory import Collector, keep_settled
from gateway.upstream.session import RawListing
from registry.catalog.names import ServerName
from registry.catalog.shape import ServerShape, Shape
from registry.catalog.store import Registry
from registry.schema import packed_definition, schemas
from registry.views.profile import Profile
from registry.views.view import build_view

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


async def test_a_tool_that_callers_of_both_eras_are_shown_takes_little_more_than_two_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What is kept of some hundred tools however many there are; other tests have filled it.
    monkeypatch.setattr(schemas, "_MAX_VALIDATORS", 8)
    monkeypatch.setattr(schemas, "VALIDATORS", {})
    monkeypatch.setattr(packed_definition, "_MAX_OPEN", 8)
    monkeypatch.setattr(packed_definition, "_open", deque())

    def tool(number: int) -> dict[str, Any]:
        says = f"What tool {number} of this server is told with it, "
        properties = {f"p{one}": {"type": "string", "description": says * 3 + str(one)} for one in range(8)}
        return {
            "name": f"tool_{number}",
            "description": says,
            "inputSchema": {"type": "object", "properties": properties},
        }

    async def held(tools: list[dict[str, Any]]) -> list[object]:
        raw = RawListing(
            tools=tools, prompts_and_resources={}, capabilities={"tools": {}}, ttl_ms=None, scope="private"
        )
        registry, lists = Registry(Shape(servers={SERVER: ServerShape()})), ListResults()
        registry.put(listing_of(raw, server=SERVER, epoch=1, transport="http", before=None))
        view = build_view(registry.catalog, registry.shape, Profile())
        for modern in (True, False):
            await lists.prepared(view, "tools", modern=modern, shared=True)
        return [registry, view, lists]

    await held([tool(number) for number in range(50)])  # what is imported and cached stays out of the figure
    number = 400
    size = sum(len(orjson.dumps(tool(one))) for one in range(number)) / number
    gc.collect()
    tracemalloc.start()
    try:
        kept = await held([tool(one) for one in range(number)])
        gc.collect()
        each = tracemalloc.get_traced_memory()[0] / number
    finally:
        tracemalloc.stop()
    assert kept
    assert each < 2 * size + 1_800, f"{each:.0f} bytes for a tool of {size:.0f}"


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heaps")
def test_what_a_thread_has_freed_is_given_back() -> None:
    # In a process of its own: heaps that are there stay.
    program = """
import os, threading
from gateway.memory import give_back, use_one_heap

def held() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

def work() -> None:
    # Larger ones first, which have blocks of such a size come from the heap from then on.
    for size in (30 << 20, 10_000):
        parts = [bytes(size) for _ in range((60 << 20) // size)]
        del parts

use_one_heap()
before = held()
thread = threading.Thread(target=work)
thread.start()
thread.join()
give_back()
print(held() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20


async def test_a_change_while_others_settle_is_settled_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(memory, "give_back", lambda: given.append(len(given)))
    registry = Registry(Shape(servers={SERVER: ServerShape()}))
    tools = [{"name": "t", "inputSchema": {"type": "object"}}]
    raw = RawListing(tools=tools, prompts_and_resources={}, capabilities={"tools": {}}, ttl_ms=None, scope="private")
    with anyio.fail_after(4):  # before it would be looked anyway whether there is anything to do
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: keep_settled(registry, settle_s=0.5))
            await anyio.sleep(0.1)
            assert not given
            registry.put(listing_of(raw, server=SERVER, epoch=1, transport="http", before=None))
            while len(given) < 2:
                await glance_again()
            group.cancel_scope.cancel()
    gc.unfreeze()
