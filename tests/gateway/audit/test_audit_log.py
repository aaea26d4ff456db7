"""The audit log accepts entries without waiting, and reports entries that it could not store."""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from threading import Lock
from typing import Any

import anyio
import pytest
from support.waiting import until

from gateway.access.principal import LOCAL
from gateway.audit.audit_entries import EventEntry, Line, Outcome
from gateway.audit.log_reader import Filter, Page, verify
from gateway.audit.log_writer import Batch, Limits, locked
from gateway.audit.recording import Audit
from gateway.calls.caller import Caller
from gateway.calls.profile_views import ProfileViews
from gateway.config.operation_config import AuditConfig
from gateway.process.secrets import SECRETS
from registry.catalog.registry import Registry
from registry.catalog.shape import Shape


def caller() -> Caller:
    return Caller(principal=LOCAL, view=ProfileViews(Registry(Shape()), {}).view(), peer="127.0.0.1:9")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "audit.jsonl").read_bytes().splitlines()]


def call(audit: Audit, name: str) -> None:
    audit.call(caller(), None, "wrapper", Outcome(), 0.001, name=name)


async def test_entries_beyond_the_queue_are_counted_and_reported_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = Audit(AuditConfig(required=True), tmp_path, most_waiting=3)
    for number in range(5):
        assert audit.refuses is (number >= 3)
        call(audit, str(number))
    assert audit.lost == 2
    assert caplog.messages == ["audit log queue full, losing entries"]
    await audit.flush()
    assert audit.refuses is False
    call(audit, "later")
    await audit.flush()
    assert [(row["event"], row.get("name", row.get("lines"))) for row in lines(tmp_path)] == [
        ("call", "0"), ("call", "1"), ("call", "2"), ("lost", 2), ("call", "later"),
    ]  # fmt: skip


async def test_failed_write_loses_no_entry_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    audit = Audit(AuditConfig(), tmp_path)
    for name in ("a", "b"):
        call(audit, name)
        await audit.flush()
    assert audit.last_error is not None
    assert [message for message in caplog.messages if "cannot be written" in message] == caplog.messages[:1]
    assert audit.refuses is False, "calls go on, unless the record is required"
    (tmp_path / "audit.jsonl").rmdir()
    await audit.aclose()
    assert [row["name"] for row in lines(tmp_path)] == ["a", "b"]
    assert audit.last_error is None


async def test_partly_written_batch_is_completed_without_duplicates(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="the system has no limits on the size of files")
    audit, shown = Audit(AuditConfig(), tmp_path, most_waiting=1_000), list[Line]()
    audit.watch(shown.extend)
    for number in range(1_001):
        call(audit, str(number))
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Room for some of the lines, which are written in several parts.
    resource.setrlimit(resource.RLIMIT_FSIZE, (128 * 1024, unlimited[1]))
    try:
        await audit.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert audit.last_error is not None
    assert 0 < audit.written == len(lines(tmp_path)) < 1_000
    call(audit, "later")
    await audit.flush()
    assert audit.last_error is None
    names = [row.get("name") for row in lines(tmp_path) if row["event"] == "call"]
    assert names == [*map(str, range(1_000)), "later"]
    assert [row["lines"] for row in lines(tmp_path) if row["event"] == "lost"] == [1]
    assert audit.written == 1_002
    assert [line.row().get("name") for line in shown] == names
    assert audit.file is not None
    assert verify(audit.file).faults == []


@pytest.mark.heavy
async def test_entries_keep_their_order_after_a_cancelled_flush(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(), tmp_path)
    for number in range(8_000):
        call(audit, str(number))
    assert audit.file is not None
    with locked(audit.file.head_path, write=True):
        with anyio.move_on_after(0.05):
            await audit.flush()
        call(audit, "later")
        # The thread continues to wait for the lock, after the cancellation.
        assert audit.written == 0
        assert [batch.written for batch in audit._batches] == [None]
        # The writing thread has not begun yet, because it waits for the other thread.
        with anyio.move_on_after(0.05):
            await audit.flush()
    call(audit, "last")
    await audit.flush()
    assert [row["name"] for row in lines(tmp_path)] == [*map(str, range(8_000)), "later", "last"]
    assert audit.written == 8_002


async def test_entries_are_queued_again_if_the_flush_is_cancelled_early(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(), tmp_path)
    shown: list[Line] = []
    with anyio.CancelScope() as scope:

        def watch(latest: list[Line]) -> None:
            shown.extend(latest)
            scope.cancel()

        audit.watch(watch)
        call(audit, "a")
        await audit.flush()
    assert scope.cancelled_caught
    call(audit, "b")
    await audit.flush()
    assert [row["name"] for row in lines(tmp_path)] == ["a", "b"]
    assert [line.row()["name"] for line in shown] == ["a", "b"]
    assert audit.written == 2


async def test_entries_are_written_later_after_an_unawaited_write_failed(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(), tmp_path, most_waiting=2)
    shown: list[Line] = []
    audit.watch(shown.extend)
    for name in ("a", "b", "lost"):
        call(audit, name)
    assert audit.file is not None
    with locked(audit.file.head_path, write=True):
        with anyio.move_on_after(0.05):
            await audit.flush()
        # For so long a write waits for its turn.
        await anyio.sleep(2.2)
    call(audit, "c")
    await audit.flush()
    assert [row.get("name", row.get("lines")) for row in lines(tmp_path)] == ["a", "b", "c", 1]
    assert [line.row().get("name") for line in shown] == ["a", "b", "c"]
    assert (audit.written, audit.lost) == (4, 1)


async def test_failing_watcher_does_not_stop_the_audit_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def watch(latest: list[Line]) -> None:
        seen.append(len(latest))
        raise ValueError("not understood")

    audit = Audit(AuditConfig(), tmp_path)
    audit.watch(watch)
    for name in ("a", "b"):
        call(audit, name)
        await audit.flush()
    assert [row["name"] for row in lines(tmp_path)] == ["a", "b"]
    assert seen == [1, 1]
    assert "1 audit entries not shown to administrators" in caplog.text


async def test_refused_credentials_of_one_address_are_summarized(tmp_path: Path) -> None:
    now = [1_800_000_000.0]
    audit = Audit(AuditConfig(), tmp_path, clock=lambda: now[0])
    for number in range(1_000):
        audit.credentials_refused("/mcp", f"10.0.0.1:{number}", "not valid")
    audit.credentials_refused("/mcp", "10.0.0.2:1", "missing")
    now[0] += 61
    audit.credentials_refused("/mcp", "10.0.0.1:1", "not valid")
    await audit.flush()
    found = lines(tmp_path)
    assert [row["peer"].partition(":")[0] for row in found] == ["10.0.0.1"] * 10 + ["10.0.0.2", "10.0.0.1"]
    assert [row.get("more") for row in found][-3:] == [None, None, 990]


@pytest.mark.heavy
async def test_refused_calls_of_one_caller_are_summarized(tmp_path: Path) -> None:
    now = [1_800_000_000.0]
    audit = Audit(AuditConfig(), tmp_path, clock=lambda: now[0], most_waiting=10_000)
    for number in range(1_000):
        audit.refused(caller(), "tools/call", f"t{number}", rule="r")
        audit.request(caller(), "resources/read", f"u{number}", 0.001, code=-32602)
        audit.request(caller(), "resources/read", f"v{number}", 0.001)
    now[0] += 61
    audit.refused(caller(), "tools/call", "later", rule="r")
    await audit.flush()
    found = lines(tmp_path)
    assert sum(row["name"].startswith("v") for row in found) == 1_000
    assert sum(row["name"].startswith(("t", "u")) for row in found) == 300
    assert (found[-1]["name"], found[-1]["more"]) == ("later", 1_700)


async def test_caller_chosen_names_are_truncated_and_escaped(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(), tmp_path)
    audit.refused(caller(), "tools/call", "x\u202e\n\x1b[31m" + "y" * 10_000, rule="r")
    audit.refused(caller(), "prompts/get", {"not": "a name"}, rule="r")
    audit.refused(caller(), "resources/read", None, reason="none")
    await audit.flush()
    first, second, third = lines(tmp_path)
    assert len(first["name"]) == 200
    assert first["name"].startswith("x yyy")
    assert second["name"] == "{'not': 'a name'}"
    assert third["name"] is None


async def test_changed_configuration_switches_the_file_or_turns_the_log_off(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(), tmp_path)
    call(audit, "a")
    await audit.flush()
    audit.replace(AuditConfig(file="other/record.jsonl"))
    call(audit, "b")
    await audit.flush()
    assert [row["name"] for row in lines(tmp_path)] == ["a"]
    assert json.loads((tmp_path / "other" / "record.jsonl").read_text())["name"] == "b"
    audit.replace(AuditConfig(enabled=False))
    call(audit, "c")
    await audit.aclose()
    assert len((tmp_path / "other" / "record.jsonl").read_text().splitlines()) == 1


async def test_recorded_fields_of_a_call_can_be_reconfigured(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(), tmp_path)
    for settings in (AuditConfig(), AuditConfig(arguments=True), AuditConfig(results=True), AuditConfig()):
        audit.replace(settings)
        audit.call(caller(), None, "wrapper", Outcome(), 0.001, {"a": 1}, {"b": 2}, name="x")
    await audit.flush()
    assert [(row.get("arguments"), row.get("result")) for row in lines(tmp_path)] == [
        (None, None), ({"a": 1}, None), (None, {"b": 2}), (None, None),
    ]  # fmt: skip


async def test_entries_after_a_read_are_written_in_the_background(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(), tmp_path)
    async with anyio.create_task_group() as group:
        group.start_soon(audit.run)
        await anyio.wait_all_tasks_blocked()
        # A query first writes the pending entries; there are no pending ones here.
        await audit.page(Filter(), limit=10)
        call(audit, "later")
        await until((tmp_path / "audit.jsonl").exists)
        group.cancel_scope.cancel()
    assert [row["name"] for row in lines(tmp_path)] == ["later"]


async def test_new_secret_is_scrubbed_without_breaking_the_chain(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(arguments=True), tmp_path)

    async def recorded() -> None:
        audit.call(caller(), None, "wrapper", Outcome(), 0.001, {"key": "sk-12345678"}, name="sk-12345678")
        audit.refused(caller(), "tools/call", "sk-12345678", rule="r")
        await audit.flush()

    await recorded()
    # Beside a credential something that every number, time and digest may hold by chance.
    SECRETS.hide(["sk-12345678", "2027", *(f"{number:04x}" for number in range(0, 0x10000, 7))])
    await recorded()
    await recorded()
    found = lines(tmp_path)
    assert [row["name"] for row in found][:2] == ["sk-12345678"] * 2
    assert found[0]["arguments"] == {"key": "sk-12345678"}
    assert "sk-12345678" not in str(found[2:])
    assert audit.file is not None
    assert verify(audit.file).faults == []


async def test_rewritten_log_does_not_match_the_anchors_logged_earlier(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    audit = Audit(AuditConfig(), tmp_path)
    for name in ("a", "b", "c"):
        call(audit, name)
    await audit.aclose()
    [message] = [one.getMessage() for one in caplog.records if "anchored" in one.getMessage()]
    number, _, digest = message.removeprefix("audit log anchored: ").partition(":")
    assert audit.file is not None
    anchors = {int(number): digest}
    assert verify(audit.file, anchors).faults == []
    forged = Audit(AuditConfig(), tmp_path / "anew")
    for name in ("a", "c"):
        call(forged, name)
    await forged.aclose()
    assert forged.file is not None
    assert verify(forged.file).faults == []
    [fault] = verify(forged.file, anchors).faults
    assert "line 3 is missing, for which the gateway has logged an anchor" in fault
    call(forged, "d")
    await forged.flush()
    [fault] = verify(forged.file, anchors).faults
    assert "line 3 or an earlier line does not match the anchor logged by the gateway" in fault


async def test_anchor_of_the_chain_is_logged_hourly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now = [1_800_000_000.0]
    audit = Audit(AuditConfig(), tmp_path, clock=lambda: now[0])
    async with anyio.create_task_group() as group:
        group.start_soon(audit.run)
        for name in ("a", "b"):
            now[0] += 1_801
            call(audit, name)
            await until(lambda: audit.written >= (1 if name == "a" else 2))  # noqa: B023 - awaited here
        await until(lambda: "audit log anchored: 2:" in caplog.text)
        group.cancel_scope.cancel()
    assert "audit log anchored: 1:" not in caplog.text


async def test_sound_log_causes_no_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(AuditConfig(required=True), tmp_path)
    for name in ("a", "b"):
        assert await audit.can_record()
        call(audit, name)
        await audit.flush()
    await audit.aclose()
    assert (audit.written, audit.lost) == (2, 0)
    assert caplog.records == []


def test_limits_and_switches_come_from_the_settings(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(keep_days=7, max_mebibytes=3), tmp_path)
    assert audit.file is not None
    assert (audit.file.path, audit.file.limits) == (tmp_path / "audit.jsonl", Limits(days=7, total_bytes=3 * 2**20))
    full: dict[str, Any] = {"required": True, "arguments": True, "results": True}
    for settings, state_dir, is_on in (
        (AuditConfig(**full), tmp_path, True),
        (AuditConfig(**full, enabled=False), tmp_path, False),
        (AuditConfig(**full), None, False),
    ):
        audit = Audit(settings, state_dir)
        assert [audit.on, audit.required, audit.keeps_arguments, audit.keeps_results] == [is_on] * 4
        assert (audit.file is not None) is is_on


def test_withdrawn_batch_is_not_written(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(), tmp_path)
    assert audit.file is not None
    batch = Batch(deque([EventEntry(1.0, {"event": "started"})]), 0)
    assert batch.withdraw()
    batch.write(audit.file, Lock())
    assert (batch.written, batch.withdraw(), os.listdir(tmp_path)) == (None, False, [])


async def test_log_without_entries_has_no_file(tmp_path: Path) -> None:
    for audit in (Audit(AuditConfig(), tmp_path), Audit(AuditConfig(), None)):
        await audit.flush()
        await audit.aclose()
    assert os.listdir(tmp_path) == []


async def test_queued_entries_are_written_after_the_log_is_switched_off(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(), tmp_path)
    call(audit, "a")
    audit.replace(AuditConfig(enabled=False, file="other.jsonl"))
    await audit.aclose()
    assert [row["name"] for row in lines(tmp_path)] == ["a"]
    assert not (tmp_path / "other.jsonl").exists()


async def test_last_entries_are_written_although_the_gateway_is_being_cancelled(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(), tmp_path)
    call(audit, "a")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await audit.aclose()
    assert [row["name"] for row in lines(tmp_path)] == ["a"]


async def test_page_contains_queued_entries(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(), tmp_path)
    call(audit, "a")
    call(audit, "b")
    page = await audit.page(Filter(), limit=1)
    assert ([row["name"] for row in page.rows], page.next) == (["b"], 2)
    assert await Audit(AuditConfig(), None).page(Filter(), limit=1) == Page(rows=[], next=None)


async def test_call_may_not_be_made_while_it_cannot_be_recorded(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    assert await Audit(AuditConfig(), tmp_path).can_record(), "recording is not required"
    assert os.listdir(tmp_path) == ["audit.jsonl"], "nothing was checked"
    audit = Audit(AuditConfig(required=True), tmp_path, most_waiting=2)
    assert not audit.refuses
    assert not await audit.can_record()
    assert audit.refuses
    assert audit.last_error is not None
    (tmp_path / "audit.jsonl").rmdir()
    await audit.flush()
    assert (audit.last_error, audit.refuses) == (None, False)
    assert await audit.can_record()
    call(audit, "a")
    assert await audit.can_record()
    call(audit, "b")
    assert not await audit.can_record(), "the queue is full"
    assert audit.last_error is None


async def test_failed_write_is_repeated_in_the_background(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    audit = Audit(AuditConfig(), tmp_path)
    async with anyio.create_task_group() as group:
        group.start_soon(audit.run)
        call(audit, "a")
        await until(lambda: audit.last_error is not None)
        (tmp_path / "audit.jsonl").rmdir()
        await until(lambda: audit.last_error is None)
        group.cancel_scope.cancel()
    assert [row["name"] for row in lines(tmp_path)] == ["a"]


async def test_entry_that_cannot_be_encoded_does_not_block_later_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = Audit(AuditConfig(), tmp_path)
    audit.process("started", defect=object())
    with pytest.raises(ValueError, match="object"):
        await audit.flush()
    call(audit, "a")
    await audit.flush()
    assert [row["name"] for row in lines(tmp_path)] == ["a"]
    assert audit.written == 1
    assert caplog.records == []


async def test_large_arguments_and_results_are_omitted(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(arguments=True, results=True), tmp_path)
    # JSON of exactly 64 KiB; 256 of these are exactly 16 MiB.
    large = "x" * (64 * 1024 - 2)
    for _ in range(2):
        for number in range(257):
            audit.call(caller(), None, "wrapper", Outcome(), 0.001, large + "x", large, name=str(number))
        await audit.flush()
    rows = lines(tmp_path)
    assert {row["arguments"] for row in rows} == {"not shown: it has 65537 bytes"}
    assert [row["name"] for row in rows if row["result"] != large] == ["256"] * 2
    assert rows[-1]["result"] == "not shown: it has 65536 bytes"


async def test_arguments_are_recorded_as_they_were_at_the_call(tmp_path: Path) -> None:
    audit = Audit(AuditConfig(arguments=True, results=True), tmp_path)
    arguments = {"a": 1}
    audit.call(caller(), None, "wrapper", Outcome(), 0.001, arguments, {"a": object()}, name="a")
    arguments["a"] = 2
    await audit.flush()
    [row] = lines(tmp_path)
    assert row["arguments"] == {"a": 1}
    assert row["result"] == "not shown: it cannot be expressed as JSON"


@pytest.mark.parametrize(("after_s", "is_anchored"), [(0, False), (3_599, False), (3_600, True), (-1, True)])
async def test_anchor_is_logged_after_an_hour_or_when_the_clock_goes_back(
    after_s: int, is_anchored: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    now = [1_800_000_000.0]
    audit = Audit(AuditConfig(), tmp_path, clock=lambda: now[0])
    async with anyio.create_task_group() as group:
        group.start_soon(audit.run)
        now[0] += after_s
        # The anchor is logged before the second entry is written.
        for count in (1, 2):
            call(audit, "a")
            await until(lambda: audit.written >= count)  # noqa: B023 - awaited here
        group.cancel_scope.cancel()
    assert caplog.text.count("audit log anchored: ") == is_anchored
