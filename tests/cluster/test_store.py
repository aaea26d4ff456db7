"""Two replicas and a real store: concurrent changes, locks and claims."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.clusters import Held, Store, running_store

from gateway.cluster.parent_store import ParentStore, serving_store
from gateway.cluster.redis_store import RedisStore
from gateway.cluster.replica import SharedTokenStore
from gateway.cluster.roles import WorkerConfig
from gateway.cluster.shared_changes import SharedChanges
from gateway.cluster.shared_store import DecryptionFailed, SharedStore, StoreStatus, StoreTrouble, ValueCipher
from gateway.config.cluster_config import StoreConfig
from gateway.upstream.oauth.token_store import Conflict, LockTimeout, StoreFailed

KEY = b"k" * 32


def changes_of(
    store: SharedStore, *, folder: Path | None = None, clock_s: float | None = None
) -> tuple[SharedChanges, Held]:
    held = Held()
    more: dict[str, Any] = {} if clock_s is None else {"clock": lambda: clock_s}
    return SharedChanges(store, ValueCipher(KEY), StoreStatus(), (held,), state_dir=folder, **more), held


@asynccontextmanager
async def stores(tmp_path: Path) -> AsyncIterator[tuple[Store, RedisStore, RedisStore]]:
    async with running_store(tmp_path) as server:
        config = StoreConfig.model_validate({"url": server.url})
        first, second = RedisStore(config), RedisStore(config)
        yield server, first, second
        await first.close()
        await second.close()


@asynccontextmanager
async def two_connections(kind: str, tmp_path: Path) -> AsyncIterator[tuple[SharedStore, SharedStore]]:
    """Two connections to the store of replicas or of workers."""
    if kind == "parent":
        words = dict.fromkeys(("public_url", "host", "signing_key", "token", "text", "state_dir"), "")
        worker_config = WorkerConfig(
            index=0, count=2, listener=-1, sockets=str(tmp_path), secret="of-the-workers", path=None, insecure=False,
            verbose=False, **words,
        )  # fmt: skip
        async with serving_store(worker_config):
            first, second = ParentStore(worker_config), ParentStore(worker_config)
            yield first, second
            await first.close()
            await second.close()
    else:
        async with stores(tmp_path) as (_, one, two):
            yield one, two


@pytest.mark.parametrize("kind", ["redis", "parent"])
async def test_latest_change_counts_including_removals(tmp_path: Path, kind: str) -> None:
    async with two_connections(kind, tmp_path) as (one, two):
        (first, held), (second, other) = changes_of(one), changes_of(two)
        held.values = {"a": 1, "b": 1}
        assert await first.sync()
        await second.sync()
        assert other.values == {"a": 1, "b": 1}
        other.values = {"b": 2, "c": 3}
        await second.sync()
        held.values["b"] = 4  # later
        await first.sync()
        await second.sync()
        assert held.values == other.values == {"b": 4, "c": 3}
        assert first.pending == second.pending == 0


@pytest.mark.parametrize("kind", ["redis", "parent"])
async def test_replica_with_a_slow_clock_keeps_its_own_changes(tmp_path: Path, kind: str) -> None:
    async with two_connections(kind, tmp_path) as (one, two):
        (first, held), (second, other) = changes_of(one), changes_of(two, clock_s=1_000.0)
        held.values = {"a": 1}
        await first.sync()
        await second.sync()
        other.values = {"a": 2}
        await second.sync()
        await first.sync()
        assert held.values == {"a": 2}


async def test_emptied_store_is_refilled_without_removed_entries(tmp_path: Path) -> None:
    async with stores(tmp_path) as (server, one, two):
        (first, held), (second, other) = changes_of(one, folder=tmp_path / "first"), changes_of(two)
        held.values = {"a": 1, "b": 2}
        await first.sync()
        await second.sync()
        other.values = {"a": 1}
        await second.sync()
        await server.ask("FLUSHALL")
        # The replica that knows of the removal comes last, and another is a new process with an old disk.
        await first.sync()
        await second.sync()
        again, fresh = changes_of(one, folder=tmp_path / "first")
        await again.load()
        await first.sync()
        assert held.values == other.values == fresh.values == {"a": 1}


async def test_foreign_entry_in_the_store_is_not_trusted(tmp_path: Path) -> None:
    async with stores(tmp_path) as (server, one, _):
        changes, held = changes_of(one)
        held.values = {"a": 1}
        await changes.sync()
        sealed = ValueCipher(KEY).encrypt({"b": 1}, "held:a\n5")
        for value in ("9999999999999999:junk", f"9999999999999999:{sealed}", "x"):
            await server.ask("HSET", "typegate:changes", "held:a", value)
            await server.ask("SET", "typegate:version", value)
            await changes.sync()
            assert held.values == {"a": 1}
        with pytest.raises(DecryptionFailed):
            ValueCipher(b"o" * 32).decrypt(sealed, "held:a\n5")


async def test_sign_in_is_saved_once_taken_once_and_locked_by_one(tmp_path: Path) -> None:
    async with stores(tmp_path) as (server, one, two):
        status = StoreStatus()
        first, second = SharedTokenStore(one, ValueCipher(KEY), status), SharedTokenStore(two, ValueCipher(KEY), status)
        key = "sign-in:up\nhttps://up.example.test/\n"
        assert await first.load(key) is None
        assert await first.save(key, {"token": "secret"}, expected=0) == 1
        before = await second.stamp(key)
        kept = await second.load(key)
        assert kept is not None
        assert (kept.version, kept.document) == (1, {"token": "secret"})
        with pytest.raises(Conflict):
            await second.save(key, {"token": "other"}, expected=0)
        assert await second.save(key, {"token": "next"}, expected=1) == 2
        assert await first.stamp(key) != before
        inside = 0

        async def renew(mine: SharedTokenStore) -> None:
            nonlocal inside
            async with mine.lock(key):
                inside += 1
                assert inside == 1
                await anyio.sleep(0.02)
                inside -= 1

        async with anyio.create_task_group() as group:
            for mine in (first, second, first, second):
                group.start_soon(renew, mine)
        await first.save("pending:x", {"n": 1}, expected=0)
        taken = [await second.pop("pending:x"), await first.pop("pending:x")]
        assert taken == [{"n": 1}, None]
        # Away: nothing new is begun, and what is known stays known.
        await first.load(key)
        await server.stop()
        assert (await first.load(key)).document == {"token": "next"}  # type: ignore[union-attr] # it was stored
        assert await first.stamp(key) == "2"
        with pytest.raises(LockTimeout):
            async with first.lock(key):
                raise AssertionError("it was locked")
        for operation in (
            first.save(key, {}, expected=2),
            first.remove("client:x"),
            # It is unknown whether they exist, so no replica reports that they do not.
            first.pop("pending:x"),
            first.load("pending:x"),
        ):
            with pytest.raises(StoreFailed, match="the shared store is down"):
                await operation
        assert status.state == "down"


async def test_used_or_removed_entry_is_not_restored_by_another_replica(tmp_path: Path) -> None:
    async with stores(tmp_path) as (server, one, two):
        first, second = (SharedTokenStore(store, ValueCipher(KEY), StoreStatus()) for store in (one, two))
        # The link of a caller is looked at, then used.
        await first.save("pending:ticket", {"user": "ann"}, expected=0)
        for mine in (first, second):
            assert await mine.load("pending:ticket") is not None
        assert await second.pop("pending:ticket") == {"user": "ann"}
        for mine in (first, second):
            assert await mine.load("pending:ticket") is None
            assert await mine.pop("pending:ticket") is None
        # A registration that the issuer no longer knows, and the next one.
        client = "client:shop\nhttps://up.example.test/\nhttps://issuer.example.test"
        assert await first.save(client, {"id": "a"}, expected=0) == 1
        assert await first.save(client, {"id": "b"}, expected=1) == 2
        assert (await second.load(client)).document == {"id": "b"}  # type: ignore[union-attr] # it was stored
        await first.remove(client)
        for mine in (second, first):
            assert await mine.load(client) is None
        later = await first.save(client, {"id": "c"}, expected=0)
        for mine in (second, first):
            kept = await mine.load(client)
            assert kept is not None
            assert (kept.version, kept.document) == (later, {"id": "c"})
        # Lasting values are written again to a store that has lost them.
        await server.stop()
        await server.start()
        assert (await second.load(client)).document == {"id": "c"}  # type: ignore[union-attr] # it was stored
        assert await second.load("pending:ticket") is None


async def test_store_restart_loses_no_command_on_idle_connections(tmp_path: Path) -> None:
    async with stores(tmp_path) as (server, one, _):

        async def claim_many(kind: str) -> None:
            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(one.claim, f"{kind}-{number}", 10)

        await claim_many("before")
        for again in range(2):
            await server.stop()
            await server.start()
            assert await one.claim(f"first-{again}", 10)
            await claim_many(f"all-{again}")


async def test_only_one_claimant_succeeds(tmp_path: Path) -> None:
    async with stores(tmp_path) as (server, one, two):
        assert [await store.claim("x", 10) for store in (one, two, one)] == [True, False, False]
        await server.stop()
        with pytest.raises(StoreTrouble):
            await two.claim("y", 10)
