"""Administrators' changes and revocations survive any order of restarts and outages of replicas and store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from support.clusters import Store, running_store

from gateway.access.credentials import ApiKeys
from gateway.cluster.redis_store import RedisStore
from gateway.cluster.shared_changes import FILE_NAME, SharedChanges
from gateway.cluster.shared_state import SharedNotes, SharedOverlay, SharedRevocations
from gateway.cluster.shared_store import StoreStatus, StoreTrouble, ValueCipher
from gateway.config.active_config import ActiveConfig
from gateway.config.cluster_config import StoreConfig
from gateway.config.file_edits import hash_of
from gateway.config.load import parse
from gateway.config.overlay import Change, Edit, Overlay
from gateway.fleet.operator_notes import OperatorNotes
from gateway.fleet.reload import Reloader
from registry.catalog.registry import Registry
from registry.catalog.shape import Shape

REPLICAS = st.integers(0, 2)
# Clocks of machines differ, and nothing may depend on them.
SKEW_S = (0.0, 90.0, -3_600.0)
KEYS = [{"name": name, "key": f"key-of-{name}"} for name in ("ada", "bob", "eve")]
CONFIG = json.dumps({"mcpServers": {"up": {"command": "up"}}, "gateway": {"auth": {"apiKeys": KEYS}}})
DAY_S = 86_400.0


class Reached(RedisStore):
    """The real store, to which the way may be cut."""

    def __init__(self, config: StoreConfig, is_away: Callable[[], bool]) -> None:
        super().__init__(config)
        self._is_away = is_away
        self.hangs = False

    async def version(self) -> str | None:
        if self.hangs:
            await anyio.sleep_forever()
        if self._is_away():
            raise StoreTrouble("down", "the way is cut")
        return await super().version()


class Replica:
    """The parts of a replica that administrators change; `changes` is None after a crash."""

    def __init__(self, folder: Path, index: int, machine: Changes) -> None:
        self.folder = folder / str(index)
        self.folder.mkdir()
        self.index = index
        self.machine = machine
        self.is_cut = False
        self.changes: SharedChanges | None = None
        # What this replica has learned since its file was last lost. It must never forget any of it.
        self.knows_revoked: set[str] = set()
        self.knows_removed: set[str] = set()

    async def start(self) -> None:
        machine = self.machine
        config = parse(CONFIG)
        overlay = Overlay(self.folder, self.folder / "typegate.json")
        self.reloader = Reloader(ActiveConfig(config), check=lambda config: None, base=config, overlay=overlay)
        self.keys = ApiKeys(config.gateway.auth.api_keys)
        self.notes = OperatorNotes(Registry(Shape(max_length=48, servers={})), self.folder)
        self.store = Reached(
            StoreConfig.model_validate({"url": machine.server.url}), lambda: self.is_cut or machine.is_away
        )
        self.changes = SharedChanges(
            self.store,
            ValueCipher(b"k" * 32),
            StoreStatus(),
            (SharedNotes(self.notes), SharedRevocations(self.keys), SharedOverlay(self.reloader)),
            state_dir=self.folder,
            ask_peers=self._ask_peers,
            on_informed=self.keys.accept,
            clock=lambda: machine.now_s + SKEW_S[self.index],
        )
        self.keys.withhold()
        await self.changes.load()

    async def crash(self) -> None:
        await self.store.close()
        self.changes = None

    async def _ask_peers(self) -> list[str]:
        others = [each.changes for each in self.machine.replicas if each is not self and each.changes is not None]
        return [document for each in others if (document := each.document()) is not None]

    async def change(self, edit: Edit) -> None:
        await self.reloader.change(edit)

    async def sync(self) -> bool:
        assert self.changes is not None
        return await self.changes.sync()

    @property
    def held(self) -> set[str]:
        return {each.id for each in self.reloader.overlay.changes}

    @property
    def noted(self) -> set[str]:
        return {str(each["id"]) for each in self.notes.entries()}

    def opens(self, name: str) -> bool:
        return self.keys.find_by_text(f"key-of-{name}") is not None


class Changes(RuleBasedStateMachine):
    """Three replicas with separate disks, one store, and administrators who remember every confirmed change."""

    server: Store
    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_900_000_000.0
        self.is_away = False
        self._exits = ExitStack()
        self._portal = self._exits.enter_context(anyio.from_thread.start_blocking_portal())
        self.folder = Path(self._portal.call(anyio.mkdtemp, None, "replicas-", str(type(self).folder)))
        self._wait(self.server.ask("FLUSHALL"))
        self.replicas = [Replica(self.folder, index, self) for index in range(3)]
        # Changes and notes that apply, those that were removed, and those that no administrator saw confirmed.
        self.live: set[str] = set()
        self.gone: set[str] = set()
        self.unsure: set[str] = set()
        self.revoked: set[str] = set()
        self.count = 0
        for each in self.replicas:
            self._wait(each.start())

    def _wait(self, awaitable: Coroutine[Any, Any, Any]) -> Any:
        async def wait() -> Any:
            return await awaitable

        return self._portal.call(wait)

    def begin(self, change: Callable[[], None], then: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
        """Begin a change that takes its time."""

        async def begin() -> None:
            change()
            await then()

        return self._portal.start_task_soon(begin)

    def _is_up(self, at: int) -> bool:
        return self.replicas[at].changes is not None

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            for each in self.replicas:
                if each.changes is not None:
                    self._wait(each.crash())
            self._exits.close()

    # administrators

    @rule(at=REPLICAS, is_answered=st.booleans())
    def disable(self, at: int, is_answered: bool) -> None:
        if not self._is_up(at):
            return
        self.count += 1
        change = Change(kind="tool_disabled", target=f"up__{self.count}", server="up", tool=str(self.count))
        self._wait(self.replicas[at].change(Edit(add=(change,))))
        self._answer(at, is_answered, added={change.id})

    @rule(at=REPLICAS, pick=st.integers(0, 9), is_answered=st.booleans())
    def take_back(self, at: int, pick: int, is_answered: bool) -> None:
        if not self._is_up(at) or not (held := sorted(self.replicas[at].held)):
            return
        wanted = held[pick % len(held)]
        self._wait(self.replicas[at].change(Edit(remove=frozenset({wanted}))))
        self._answer(at, is_answered, removed={wanted})

    @rule(at=REPLICAS)
    def add_note(self, at: int) -> None:
        if not self._is_up(at):
            return
        self.count += 1
        notes = self.replicas[at].notes
        note = {"server": "up", "tool": "t", "id": f"note-{self.count}", "text": "slow", "digest": "d",
                "of_failure": False, "until_s": None}  # fmt: skip
        self._portal.call(notes.replace_all, [*notes.entries(), note])
        self._answer(at, True, added={str(note["id"])})

    @rule(at=REPLICAS, pick=st.integers(0, 9))
    def remove_note(self, at: int, pick: int) -> None:
        if not self._is_up(at) or not (held := sorted(self.replicas[at].noted)):
            return
        wanted = held[pick % len(held)]
        self._portal.call(self.replicas[at].notes.remove, wanted)
        self._answer(at, True, removed={wanted})

    @rule(at=REPLICAS, name=st.sampled_from(["ada", "bob", "eve"]))
    def revoke(self, at: int, name: str) -> None:
        if not self._is_up(at):
            return
        one = self.replicas[at]
        digests = [hash_of(key) for key in parse(CONFIG).gateway.auth.api_keys if key.name == name]
        self._portal.call(one.keys.revoke, digests)
        self.revoked.add(name)
        self._answer(at, True)

    def _answer(
        self, at: int, is_answered: bool, *, added: set[str] | frozenset[str] = frozenset(),
        removed: set[str] | frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        if is_answered:
            self._wait(self.replicas[at].sync())
            self.live |= added
            self.live -= removed
            self.gone |= removed
            self.unsure -= removed
        else:
            # The replica crashes before it has answered.
            self._wait(self.replicas[at].crash())
            self.unsure |= added | (removed - self.gone)
            self.live -= removed

    # machines

    @rule(at=REPLICAS)
    def sync(self, at: int) -> None:
        if self._is_up(at):
            self._wait(self.replicas[at].sync())

    @rule(at=REPLICAS, is_restarted=st.booleans())
    def crash_or_start(self, at: int, is_restarted: bool) -> None:
        if self._is_up(at):
            self._wait(self.replicas[at].crash())
            if is_restarted:
                self._start(at)
        else:
            self._start(at)

    def _start(self, at: int) -> None:
        one = self.replicas[at]
        others = [each for each in self.replicas if each.changes is not None and each.changes.informed]
        for each in others:
            self._wait(each.sync())  # as each does twice a second
        # Where it reaches the store it does not ask replicas that do not.
        told_by = others if one.is_cut or self.is_away else [each for each in others if not each.is_cut]
        revoked = {name for name in self.revoked for each in told_by if not each.opens(name)}
        self._wait(one.start())
        # Checked before its first caller: what every running replica knows, even if the store is unavailable.
        assert not {name for name in revoked if one.opens(name)}
        if not self.is_away and not one.is_cut:
            assert one.changes is not None
            assert one.changes.informed

    @rule(at=REPLICAS)
    def cut(self, at: int) -> None:
        self.replicas[at].is_cut = not self.replicas[at].is_cut

    @rule(is_empty=st.booleans())
    def lose_or_bring_back_the_store(self, is_empty: bool) -> None:
        self.is_away = not self.is_away
        if is_empty and not self.is_away:
            self._wait(self.server.ask("FLUSHALL"))

    @rule(at=REPLICAS, text=st.sampled_from(["", "{", '{"sealed": "x"}', "[]"]))
    def damage_record(self, at: int, text: str) -> None:
        one = self.replicas[at]
        # Changes that only this replica knows are lost with it.
        if one.changes is not None or self.is_away or one.is_cut or not self._is_shared(one):
            return
        (one.folder / FILE_NAME).write_text(text)
        one.knows_revoked.clear()
        one.knows_removed.clear()

    def _is_shared(self, one: Replica) -> bool:
        self._wait(one.start())
        self._wait(one.sync())
        self._wait(one.crash())
        return True

    @rule(days=st.sampled_from([0.01, 2, 40]))
    def let_time_pass(self, days: float) -> None:
        self.now_s += days * DAY_S

    @rule()
    def settle(self) -> None:
        self.is_away = False
        for each in self.replicas:
            each.is_cut = False
            if each.changes is None:
                self._wait(each.start())
        for _ in range(2):
            for each in self.replicas:
                assert self._wait(each.sync())
        found = [each.held | each.noted for each in self.replicas]
        assert found[0] == found[1] == found[2]
        assert self.live <= found[0] <= self.live | self.unsure
        self.live, self.unsure = set(found[0]), set()
        for each in self.replicas:
            assert {name for name in self.revoked if each.opens(name)} == set()
            assert {name for name in ("ada", "bob", "eve") if each.opens(name)} == {"ada", "bob", "eve"} - self.revoked
            assert each.changes is not None
            assert each.changes.pending == 0

    @invariant()
    def nothing_comes_back(self) -> None:
        for one in self.replicas:
            if one.changes is None:
                continue
            assert not {name for name in one.knows_revoked if one.opens(name)}
            assert not one.knows_removed & (one.held | one.noted)
            one.knows_revoked |= {name for name in self.revoked if one.changes.informed and not one.opens(name)}
            one.knows_removed |= self.gone - (one.held | one.noted)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for all runs, each of which begins with an empty one."""
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(running_store(tmp_path_factory.mktemp("changes"))) as store,
    ):
        yield store


@pytest.mark.heavy
def test_changes_and_revocations_survive_any_order_of_restarts_and_outages(server: Store, tmp_path: Path) -> None:
    machine = type("ChangesAt", (Changes,), {"server": server, "folder": tmp_path})
    run_state_machine_as_test(
        machine, settings=settings(stateful_step_count=30, phases=(Phase.explicit, Phase.generate))
    )


@pytest.fixture
def machine(server: Store, tmp_path: Path) -> Iterator[Changes]:
    """The same for one order, which every run tries."""
    made: Changes = type("ChangesAt", (Changes,), {"server": server, "folder": tmp_path})()
    yield made
    made.teardown()


def test_key_revoked_while_a_replica_was_down_is_refused_without_the_store(machine: Changes) -> None:
    machine.disable(0, True)
    machine.sync(1)
    machine.crash_or_start(1, False)
    machine.revoke(0, "ada")
    machine.take_back(0, 0, True)
    machine.lose_or_bring_back_the_store(False)
    machine.crash_or_start(1, False)
    assert not machine.replicas[1].opens("ada")
    assert machine.replicas[1].opens("bob")
    assert machine.replicas[1].held == set()


def test_replica_restarted_alone_knows_what_it_learned_before(
    machine: Changes,
) -> None:
    # After a restart, changes that the replica learns from others are written to its file, too.
    machine.crash_or_start(1, True)
    machine.revoke(0, "ada")
    machine.disable(0, True)
    machine.sync(1)
    for at in (0, 1, 2):
        machine.crash_or_start(at, False)
    machine.lose_or_bring_back_the_store(False)
    machine.crash_or_start(1, False)
    assert not machine.replicas[1].opens("ada")
    assert machine.replicas[1].opens("bob")
    assert machine.replicas[1].held == machine.live


def test_change_undone_while_a_replica_was_down_stays_undone(
    machine: Changes,
) -> None:
    machine.disable(0, True)
    machine.add_note(0)
    for at in (1, 2):
        machine.sync(at)
    machine.crash_or_start(1, False)
    machine.take_back(0, 0, True)
    machine.remove_note(2, 0)
    (machine.replicas[1].folder / FILE_NAME).unlink()
    machine.crash_or_start(1, False)
    machine.sync(0)
    assert machine.replicas[0].held == machine.replicas[1].held == set()
    assert machine.replicas[0].noted == machine.replicas[1].noted == set()


def test_replica_without_state_accepts_no_key_before_reaching_the_store(machine: Changes) -> None:
    machine.revoke(0, "ada")
    for at in (0, 1, 2):
        machine.crash_or_start(at, False)
    machine.lose_or_bring_back_the_store(False)
    (machine.replicas[1].folder / FILE_NAME).unlink()
    machine.crash_or_start(1, False)
    one = machine.replicas[1]
    assert [one.opens(name) for name in ("ada", "bob", "eve")] == [False] * 3
    machine.lose_or_bring_back_the_store(False)
    machine.sync(1)
    assert [one.opens(name) for name in ("ada", "bob", "eve")] == [False, True, True]


def test_replica_returning_after_months_does_not_restore_undone_changes(machine: Changes) -> None:
    machine.disable(0, True)
    machine.sync(1)
    machine.crash_or_start(1, False)
    machine.take_back(0, 0, True)
    for _ in range(3):
        machine.let_time_pass(40)
        machine.add_note(0)
    machine.crash_or_start(1, False)
    assert machine.replicas[1].held == set()
    machine.sync(0)
    assert machine.replicas[0].held == set()


def test_change_is_written_to_the_file_before_a_hanging_store_is_used(machine: Changes) -> None:
    one = machine.replicas[0]
    record = one.folder / FILE_NAME
    before = record.read_bytes()
    one.store.hangs = True
    revoking = machine.begin(lambda: one.keys.revoke([hash_of(parse(CONFIG).gateway.auth.api_keys[0])]), one.sync)
    deadline_s = time.monotonic() + 10
    try:
        while record.read_bytes() == before:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
    finally:
        revoking.cancel()
        one.store.hangs = False
    machine.revoked.add("ada")
    machine.lose_or_bring_back_the_store(False)
    for at in (0, 1, 2):
        machine.crash_or_start(at, False)
    machine.crash_or_start(0, False)
    assert not one.opens("ada")
