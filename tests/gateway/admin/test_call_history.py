"""The history of calls: every range, across restarts and processes, within its bounds."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from gateway.admin.call_history import OTHER, RANGES, CallHistory, Figures, Kind

NOON = 1_801_382_400.0


def figures(took_ms: float, *, errors: int = 0) -> Figures:
    made = Figures()
    made.add("error" if errors else "ok", [took_ms])
    return made


async def test_two_processes_write_one_history_that_survives_them(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    first, second = (CallHistory(path, lambda: NOON) for _ in range(2))
    for history, took_ms in ((first, 10.0), (second, 90.0)):
        history.add(NOON, figures(took_ms), server="bank", tool="bank__pay", caller="ci")
    first.add(NOON, figures(40.0, errors=1), server="mail", tool="mail__send", caller="ann")
    async with anyio.create_task_group() as group:
        group.start_soon(first.save)
        group.start_soon(second.save)
    later = CallHistory(path, lambda: NOON)
    for name in RANGES:
        whole = await later.document(name, by="server")
        assert (whole["total"]["calls"], whole["total"]["errors"], whole["total"]["maxMs"]) == (3, 1, 90.0)
        assert [(row["name"], row["calls"], row["errors"]) for row in whole["series"]] == [
            ("bank", 2, 0),
            ("mail", 1, 1),
        ]
        bank = await later.document(name, only=("tool", "bank__pay"))
        [point] = bank["points"]
        assert point["calls"] == 2
        assert point["p95Ms"] == pytest.approx(90.0, rel=0.1)
        assert bank["series"] == []


async def test_each_range_has_the_calls_of_its_time_and_old_ones_are_deleted(tmp_path: Path) -> None:
    path, now = tmp_path / "history.sqlite", NOON
    history = CallHistory(path, lambda: now)
    ages_s = {"15m": 600.0, "1h": 3_000.0, "24h": 80_000.0, "7d": 500_000.0}
    for age_s in (*ages_s.values(), 700_000.0):
        history.add(NOON - age_s, figures(5.0))
    counts = [(await history.document(name))["total"]["calls"] for name in ages_s]
    assert counts == [1, 2, 3, 4]
    assert path.stat().st_mode & 0o077 == 0
    # Two weeks later, the next call deletes all of them.
    now += 14 * 86_400
    history.add(now, figures(5.0))
    assert [(await history.document(name))["total"]["calls"] for name in ages_s] == [1, 1, 1, 1]
    assert b"".join(path.read_bytes().split(b"\0")).count(b"[[") == len(RANGES)


async def test_names_above_the_limit_are_counted_together(tmp_path: Path) -> None:
    limits: dict[Kind, int] = {"all": 1, "server": 2, "tool": 3, "caller": 2}
    history = CallHistory(tmp_path / "history.sqlite", lambda: NOON, max_names=limits)
    for number in range(10):
        history.add(NOON, figures(1.0), server="s", tool=f"s__{number}", caller="ci")
    tools = (await history.document("1h", by="tool"))["series"]
    assert [(row["name"], row["calls"]) for row in tools] == [(OTHER, 7), ("s__0", 1), ("s__1", 1), ("s__2", 1)]


async def test_damaged_file_is_replaced_and_a_folder_in_its_place_reported(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    path.write_bytes(b"not a database, but long enough to be read as the header of one" * 100)
    history = CallHistory(path, lambda: NOON)
    history.add(NOON, figures(1.0))
    await history.save()
    assert history.last_error is not None
    # The figures have waited for a file that can be written.
    assert (await history.document("1h"))["total"]["calls"] == 1
    assert history.last_error is None
    path.unlink()
    path.mkdir()
    history.add(NOON, figures(1.0))
    shown = await history.document("15m")
    assert shown["total"]["calls"] == 0
    assert "unable to open" in shown["lastError"]
