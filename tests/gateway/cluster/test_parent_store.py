"""Workers share state through the store in their parent process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from support.clusters import Held

from gateway.access.administrators import EndedSessions
from gateway.access.credentials import ApiKeys
from gateway.audit.recording import Audit
from gateway.calls.approval_store import ApprovalBackend, ApprovalStore, Decision, Question
from gateway.cluster.parent_store import ParentState, ParentStore, serving_store
from gateway.cluster.roles import WorkerConfig
from gateway.cluster.shared_changes import MAX_TRANSIENT_REMOVALS, SharedChanges
from gateway.cluster.shared_state import SharedFiles, SharedOverlay, SharedParts, SharedState
from gateway.cluster.shared_store import StampedValue, StoreStatus, StoreTrouble, ValueCipher
from gateway.config.active_config import ActiveConfig
from gateway.config.load import parse
from gateway.config.model import Config
from gateway.config.operation_config import ApprovalsConfig, Approver, AuditConfig
from gateway.config.overlay import Change, Edit, Overlay
from gateway.fleet.listing_lock import ListingLock
from gateway.fleet.lock_file import LockDecisions
from gateway.fleet.operator_notes import OperatorNotes
from gateway.fleet.reload import Reloader
from gateway.protocol.gateway_errors import ConfigError
from registry.catalog.registry import Registry
from registry.catalog.shape import Shape
from registry.lock.lockfile import Lockfile, Surface


def worker_config_in(sockets: Path) -> WorkerConfig:
    words = dict.fromkeys(("public_url", "host", "signing_key", "token", "text", "state_dir"), "")
    return WorkerConfig(
        index=0, count=2, listener=-1, sockets=str(sockets), secret="of-the-workers", path=None, insecure=False,
        verbose=False, **words,
    )  # fmt: skip


@asynccontextmanager
async def stores(folder: Path, count: int = 1, state: ParentState | None = None) -> AsyncIterator[list[ParentStore]]:
    worker_config = worker_config_in(folder)
    async with serving_store(worker_config, state):
        found = [ParentStore(worker_config) for _ in range(count)]
        try:
            yield found
        finally:
            for one in found:
                await one.close()


# The store


async def test_latest_value_of_a_field_is_stored_and_only_writes_change_the_version(tmp_path: Path) -> None:
    async with stores(tmp_path, 2) as (one, two):
        assert await one.version() is None
        assert await one.read() == {}
        await one.merge({"a": StampedValue(5, "five"), "b": StampedValue(1, "one")})
        written = await two.version()
        assert written is not None
        await two.merge({"a": StampedValue(5, "equal"), "b": StampedValue(0, "zero")})
        assert await one.version() == written
        await two.merge({"a": StampedValue(4, "four"), "b": StampedValue(2, "two")})
        assert await one.version() != written
        assert await one.read() == {"a": StampedValue(5, "five"), "b": StampedValue(2, "two")}
        await one.forget(["a", "unknown"])
        assert await two.read() == {"b": StampedValue(2, "two")}


async def test_name_can_be_claimed_again_only_after_its_time(tmp_path: Path) -> None:
    now_s = [0.0]
    async with stores(tmp_path, 2, ParentState(clock=lambda: now_s[0])) as (one, two):
        assert [await store.claim("x", 10) for store in (one, two, one)] == [True, False, False]
        assert await two.claim("y", 10)
        now_s[0] = 10.0
        assert [await store.claim("x", 10) for store in (two, one)] == [True, False]


async def test_event_follows_the_subscription_and_each_change(tmp_path: Path) -> None:
    async with stores(tmp_path, 2) as (one, two):
        events = one.events()
        with anyio.fail_after(25):
            await anext(events)
            for stamp in (1, 2):
                await two.merge({"a": StampedValue(stamp, "x")})
                await anext(events)
            await two.merge({"a": StampedValue(1, "old")})
            await two.merge({"a": StampedValue(3, "x")})
            await anext(events)
            with anyio.move_on_after(0.05) as scope:
                await anext(events)
        assert scope.cancelled_caught, "a merge without a later value is not a change"


async def test_concurrent_requests_over_one_connection_get_their_own_answers(tmp_path: Path) -> None:
    async with stores(tmp_path) as [store]:
        answers: dict[str, bool] = {}

        async def claim(number: int) -> None:
            answers[f"{number}"] = await store.claim(str(number % 10), 10)
            assert await store.version() is None

        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(claim, number)
            group.start_soon(store.merge, {})
        assert sum(answers.values()) == 10


async def test_cancelled_request_does_not_confuse_the_next_one(tmp_path: Path) -> None:
    async with stores(tmp_path) as [store]:
        for _ in range(5):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await store.claim("x", 10)
        assert await store.version() is None
        assert await store.read() == {}


async def test_parent_that_does_not_respond_or_has_ended_is_reported(tmp_path: Path) -> None:
    worker_config = worker_config_in(tmp_path)
    store = ParentStore(worker_config)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            pass
        writer.close()

    with pytest.raises(StoreTrouble) as ended:
        await store.version()
    with pytest.raises(StoreTrouble):
        await anext(store.events())
    server = await asyncio.start_unix_server(hang, str(worker_config.parent_socket))
    with anyio.fail_after(10), pytest.raises(StoreTrouble) as suspended:
        await store.version()
    server.close()
    assert (ended.value.kind, suspended.value.kind) == ("down", "slow")
    worker_config.parent_socket.unlink(missing_ok=True)
    async with serving_store(worker_config):
        assert await store.claim("x", 10)
    await store.close()


# Workers


class Locked:
    """The lock file of a fleet without upstreams."""

    def __init__(self, reloader: Reloader, lockfile: Lockfile | None) -> None:
        self.lock = ListingLock(reloader.config, lockfile, decisions=LockDecisions(None))

    async def relock(self, lockfile: Lockfile | None) -> None:
        self.lock.use_lockfile(lockfile)


def text_with(*servers: str) -> str:
    return json.dumps({"mcpServers": {name: {"url": f"http://{name}.example.test/mcp"} for name in servers}})


def lockfile_with(*servers: str) -> Lockfile:
    return Lockfile({name: Surface(identity=name, items={}) for name in servers})


class Worker:
    """The shared parts of a worker; the first worker writes the files in its folder."""

    def __init__(
        self,
        store: ParentStore,
        folder: Path,
        *,
        first: bool = False,
        text: str = text_with("a"),
        lockfile: Lockfile | None = None,
        check: Callable[[Config], None] = lambda config: None,
        others: Callable[[], list[Worker]] = list,
    ) -> None:
        config, status = parse(text), StoreStatus()
        overlay = Overlay(folder, folder / "typegate.json", writes=first)
        self.reloader = Reloader(ActiveConfig(config), check=check, base=config, overlay=overlay)
        self.notes = OperatorNotes(Registry(Shape(max_length=48, servers={})), folder, writes=first)
        self.fleet = Locked(self.reloader, lockfile)
        self._others = others
        self.shared = SharedState(store, ValueCipher(b"k" * 32), status, sync_others=self._sync_others)
        self.approvals = ApprovalStore(
            ApprovalsConfig(timeout=20), Audit(AuditConfig(), None), on_change=self.shared.approvals_changed
        )
        fleet = cast("Any", self.fleet)
        parts = SharedParts(
            reloader=self.reloader,
            fleet=fleet,
            notes=self.notes,
            keys=ApiKeys(()),
            approvals=self.approvals,
            ended=EndedSessions(),
        )
        self.shared.join(parts, (SharedOverlay(self.reloader), SharedFiles(self.reloader, fleet, reads=first)))

    @property
    def backend(self) -> ApprovalBackend:
        return self.shared.share_approvals(self.approvals)

    @property
    def servers(self) -> set[str]:
        return set(self.reloader.config.servers)

    async def load(self) -> Worker:
        assert self.shared.changes is not None
        await self.shared.changes.load()
        return self

    async def sync(self) -> None:
        assert self.shared.changes is not None
        await self.shared.changes.sync()

    async def _sync_others(self) -> None:
        for other in self._others():
            await other.sync()


@asynccontextmanager
async def workers(folder: Path, **options: Any) -> AsyncIterator[tuple[Worker, Worker, Callable[..., Worker]]]:
    """A first worker, another worker, and a function that starts a worker again."""
    running: list[Worker] = []
    async with stores(folder, 6) as opened:
        spare = iter(opened)

        def start(**changed: Any) -> Worker:
            worker = Worker(
                next(spare), folder, others=lambda: [each for each in running if each is not worker], **changed
            )
            running.append(worker)
            return worker

        first = await start(first=True, **options).load()
        other = await start(**options).load()
        yield first, other, start


async def test_changes_of_any_worker_are_applied_when_they_are_published(tmp_path: Path) -> None:
    async with workers(tmp_path) as (first, other, _):
        added = Change(kind="server_added", target="b", entry={"url": "http://b.example.test/mcp"})
        await first.reloader.change(Edit(add=(added,)))
        await first.shared.publish()
        assert other.servers == {"a", "b"}
        await first.reloader.change(Edit(remove=frozenset({added.id})))
        await first.shared.publish()
        assert other.servers == {"a"}


async def test_configuration_text_reaches_running_and_restarted_workers(tmp_path: Path) -> None:
    async with workers(tmp_path) as (first, other, start):
        await first.reloader.apply_text(text_with("a", "b"), None)
        await first.shared.publish()
        assert other.servers == {"a", "b"}
        # A restarted worker begins with the text that the parent has read at its start.
        again = await start().load()
        assert again.servers == {"a", "b"}
        first_again = await start(first=True).load()
        assert first_again.servers == {"a", "b"}
        await first_again.reloader.apply_text(text_with("c"), None)
        await first_again.shared.publish()
        assert other.servers == again.servers == {"c"}


async def test_only_the_first_worker_shares_files(tmp_path: Path) -> None:
    async with workers(tmp_path) as (first, other, start):
        await other.reloader.apply_text(text_with("z"), None)
        await other.fleet.relock(lockfile_with("z"))
        await other.shared.publish()
        again = await start().load()
        assert (first.servers, again.servers) == ({"a"}, {"a"})
        assert first.fleet.lock.lockfile is again.fleet.lock.lockfile is None


async def test_unusable_text_leaves_the_worker_as_it_is_and_is_not_shared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with workers(tmp_path) as (first, other, start):
        await first.reloader.apply_text(text_with("a", "b"), None)
        await first.shared.publish()

        def refuse(config: Config) -> None:
            raise ConfigError("it cannot be used", file="x")

        again = start(first=True, check=refuse)
        await again.load()
        await again.shared.publish()
        assert "configuration of the other workers rejected" in caplog.text
        assert (again.servers, other.servers) == ({"a"}, {"a", "b"})


async def test_lock_file_is_shared_and_a_restarted_first_worker_prefers_its_own(tmp_path: Path) -> None:
    async with workers(tmp_path, lockfile=lockfile_with("a")) as (first, other, start):
        await first.fleet.relock(lockfile_with("a", "b"))
        await first.shared.publish()
        shared = first.fleet.lock.text
        assert other.fleet.lock.text == shared
        assert (await start(lockfile=lockfile_with("a")).load()).fleet.lock.text == shared
        # The file was removed while the first worker restarted: its content still applies.
        assert (await start(first=True).load()).fleet.lock.text == shared
        # The file was changed while the first worker restarted.
        newer = await start(first=True, lockfile=lockfile_with("c")).load()
        await newer.shared.publish()
        assert newer.fleet.lock.lockfile == lockfile_with("c")
        assert other.fleet.lock.text == newer.fleet.lock.text != shared


async def test_note_removed_by_another_worker_stays_removed_after_a_restart(tmp_path: Path) -> None:
    note = {
        "server": "a",
        "tool": "t",
        "id": "1",
        "text": "It fails.",
        "digest": "d",
        "of_failure": True,
        "until_s": None,
    }
    async with workers(tmp_path) as (first, other, start):
        first.notes.replace_all([note])
        await first.shared.publish()
        assert other.notes.entries() == [note]
        # The first worker has ended, so only its file has the note.
        assert other.notes.clear("a", "t")
        await Worker.sync(other)
        again = start(first=True)
        assert again.notes.entries() == [note]
        await again.load()
        assert again.notes.entries() == []
        assert json.loads((tmp_path / "notes.json").read_text()) == []


# Approvals


def question(call: str = "1", by: Approver = "administrator") -> Question:
    return Question(
        principal="ann", session="s", wrapper="bank__wire", server="bank", definition="d", call=call, rule="ask",
        arguments="{}", by=by,
    )  # fmt: skip


async def outcome(worker: Worker, asked: Question, decide: Callable[[], Any]) -> Decision:
    """Wait at a worker for the decision that `decide` makes."""
    found: list[Decision] = []
    backend = worker.backend

    async def wait() -> None:
        found.append(await backend.wait(asked))

    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await decide()
    return found[0]


async def test_call_waiting_at_one_worker_is_decided_at_another(tmp_path: Path) -> None:
    async with workers(tmp_path) as (first, other, _):
        asked = question()
        assert await other.backend.register(asked) is False
        assert [row["id"] for row in first.approvals.rows()] == [asked.id]

        async def decide() -> None:
            assert await first.backend.decide(asked.id, allow=True, lasts="tool", by="administrator")

        assert await outcome(other, asked, decide) == Decision(kind="allowed", lasts="tool", by="administrator")
        assert [await each.backend.register(question("2")) for each in (first, other)] == [True, True]
        await other.backend.decide(asked.id, allow=False, lasts="once", by="administrator")
        assert await first.backend.register(question("3")) is False


async def test_decision_and_repeated_call_are_used_once(tmp_path: Path) -> None:
    async with workers(tmp_path) as (first, other, _):
        asked = question(by="host")
        await first.backend.register(asked)
        # The answer of the host arrives at another worker.
        assert await other.backend.decide(asked.id, allow=True, lasts="once", by="host")
        kinds = [(await each.backend.wait(asked)).kind for each in (other, first)]
        assert kinds == ["allowed", "unknown"]
        await other.backend.allow_again(asked)
        assert await first.backend.register(question()) is True
        await first.shared.publish()
        assert await other.backend.register(question()) is False


async def test_call_repeated_at_two_workers_at_once_runs_once(tmp_path: Path) -> None:
    async with workers(tmp_path) as (first, other, _):
        asked = question()
        await first.backend.register(asked)
        assert await first.backend.decide(asked.id, allow=True, lasts="once", by="administrator")
        assert (await first.backend.wait(asked)).kind == "allowed"
        await first.backend.allow_again(asked)
        assert [each.approvals.repetition(asked) is not None for each in (first, other)] == [True, True]
        granted: list[bool] = []

        async def repeat(backend: ApprovalBackend) -> None:
            granted.append(await backend.register(question()))

        async with anyio.create_task_group() as group:
            group.start_soon(repeat, first.backend)
            group.start_soon(repeat, other.backend)
        assert sorted(granted) == [False, True]


async def test_questions_survive_a_restart_of_the_first_worker(tmp_path: Path) -> None:
    async with workers(tmp_path) as (_, other, start):
        asked = question()
        await other.backend.register(asked)
        again = await start(first=True).load()

        async def decide() -> None:
            assert await again.backend.decide(asked.id, allow=False, lasts="once", by="administrator")

        assert (await outcome(other, asked, decide)).kind == "denied"


async def test_approvals_work_within_one_worker_without_the_parent(tmp_path: Path) -> None:
    worker = Worker(ParentStore(worker_config_in(tmp_path)), tmp_path)
    asked = question()
    backend = worker.backend
    with anyio.fail_after(25):
        assert await backend.register(asked) is False
        assert await backend.decide(asked.id, allow=True, lasts="once", by="administrator")
        assert (await backend.wait(asked)).kind == "allowed"
        assert (await backend.wait(asked)).kind == "unknown"


async def test_many_removed_fields_do_not_fill_the_store(tmp_path: Path) -> None:
    async with stores(tmp_path, 2) as (one, two):
        first, second = Held(is_transient=True), Held(is_transient=True)
        cipher = ValueCipher(b"k" * 32)
        here, there = (
            SharedChanges(store, cipher, StoreStatus(), (part,)) for store, part in ((one, first), (two, second))
        )
        for batch in range(3):
            first.values = {f"{batch}:{number}": 1 for number in range(MAX_TRANSIENT_REMOVALS // 2 + 1)}
            await here.sync()
            await there.sync()
            assert second.values == first.values
            first.values = {}
            await here.sync()
            await there.sync()
            assert second.values == {}
        assert len(await one.read()) == MAX_TRANSIENT_REMOVALS
        first.values = {"last": 1}
        await here.sync()
        await there.sync()
        assert second.values == {"last": 1}
        assert await two.read() == await one.read()
