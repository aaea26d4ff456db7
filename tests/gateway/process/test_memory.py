"""Long-lived objects are frozen for the garbage collector, and ended ones are still freed."""

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
from support.gateways import brief_pause

from gateway.access.principal import LOCAL
from gateway.access.quotas import independent_account
from gateway.downstream.messages import ListResults
from gateway.downstream.sessions import Session
from gateway.fleet.discovery import ListingSource, listing_of
from gateway.process.memory import Collector, freeze_settled
from gateway.upstream.session import RawListing
from registry.catalog.names import ServerName
from registry.catalog.registry import Registry
from registry.catalog.shape import ServerShape, Shape
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


@pytest.mark.heavy
async def test_sessions_frozen_at_a_change_are_freed_after_a_later_one() -> None:
    registry = Registry(Shape(servers={SERVER: ServerShape()}))

    def change(number: int) -> None:
        tools = [{"name": f"t{number}", "inputSchema": {"type": "object"}}]
        raw = RawListing(
            tools=tools, prompts_and_resources={}, capabilities={"tools": {}}, ttl_ms=None, scope="private"
        )
        before = registry.catalog.servers.get(SERVER)
        registry.put(listing_of(raw, ListingSource(server=SERVER, epoch=number, transport="http"), before=before))

    session = Session(LOCAL, version="2025-11-25", params={}, account=independent_account())
    seen = weakref.ref(session)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: freeze_settled(registry, settle_s=0.01, thorough_s=0.0))
            before = gc.get_freeze_count()
            while gc.get_freeze_count() <= before:
                await brief_pause()
            del session
            number = 0
            while seen() is not None:
                number += 1
                change(number)
                await brief_pause()
            group.cancel_scope.cancel()
    gc.unfreeze()


class Cycle:
    """Refers to itself, so that only the collector can free it; of one block of memory in any version of Python."""

    __slots__ = ("__weakref__", "itself")

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.heavy
def test_frozen_cycles_are_collected_before_there_are_too_many() -> None:
    collector = Collector(most_unseen=350_000)
    found = []
    try:
        for _ in range(6):
            cycles = [Cycle() for _ in range(100_000)]
            found.append(weakref.ref(cycles[0]))
            # The collector sees them while they are in use, and not again.
            collector.collect_if_due()
            del cycles
            if len(found) == 2:
                assert found[0]() is not None, "it is frozen, and nobody looks for it yet"
        assert found[0]() is None
    finally:
        gc.unfreeze()


@pytest.mark.heavy
async def test_tool_shown_in_both_eras_costs_little_more_than_two_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Caches hold about a hundred tools, however many exist; other tests have filled them.
    monkeypatch.setattr(schemas, "_MAX_VALIDATORS", 8)
    monkeypatch.setattr(schemas, "VALIDATORS", {})
    monkeypatch.setattr(packed_definition, "_MAX_PARSED", 8)
    monkeypatch.setattr(packed_definition, "_parsed", deque())

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
        registry.put(listing_of(raw, ListingSource(server=SERVER, epoch=1, transport="http"), before=None))
        view = build_view(registry.catalog, registry.shape, Profile())
        for modern in (True, False):
            await lists.render_result(view, "tools", modern=modern, shared=True)
        return [registry, view, lists]

    await held([tool(number) for number in range(50)])  # exclude imports and caches from the measurement
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
def test_memory_freed_in_a_thread_is_returned_to_the_system() -> None:
    # In a separate process, because existing heaps are not merged.
    program = """
import os, threading
from gateway.process.memory import return_memory, use_one_heap

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
return_memory()
print(held() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20


async def test_change_during_settling_is_settled_too() -> None:
    given: list[int] = []
    registry = Registry(Shape(servers={SERVER: ServerShape()}))
    tools = [{"name": "t", "inputSchema": {"type": "object"}}]
    raw = RawListing(tools=tools, prompts_and_resources={}, capabilities={"tools": {}}, ttl_ms=None, scope="private")
    with anyio.fail_after(4):  # before it would be looked anyway whether there is anything to do
        async with anyio.create_task_group() as group:
            group.start_soon(
                lambda: freeze_settled(registry, settle_s=0.5, return_free=lambda: given.append(len(given)))
            )
            await anyio.wait_all_tasks_blocked()
            assert not given
            registry.put(listing_of(raw, ListingSource(server=SERVER, epoch=1, transport="http"), before=None))
            while len(given) < 2:
                await brief_pause()
            group.cancel_scope.cancel()
    gc.unfreeze()
