"""Ended sessions and used links are known to all processes until they would have expired."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gateway.access.administrators import EndedSessions

START_S = 1_900_000_000.0


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.now_s = START_S

    def __call__(self) -> float:
        return self.now_s


def folder_of(state: Path) -> Path:
    return state / "ended-admin-sessions"


def names(state: Path) -> set[str]:
    return {path.name for path in folder_of(state).iterdir()}


@pytest.mark.parametrize("is_stored", [True, False])
def test_id_is_added_once(is_stored: bool, tmp_path: Path) -> None:
    changes: list[int] = []
    ended = EndedSessions(tmp_path if is_stored else None, on_change=lambda: changes.append(1), clock=Clock())
    assert "a" not in ended
    assert ended.add("a", START_S + 60)
    assert "a" in ended
    assert changes == [1]
    assert not ended.add("a", START_S + 60)
    assert changes == [1]
    assert "b" not in ended
    assert ended.fields() == {"a": START_S + 60}
    assert folder_of(tmp_path).exists() is is_stored


def test_only_one_process_adds_an_id(tmp_path: Path) -> None:
    one, other = EndedSessions(tmp_path, clock=Clock()), EndedSessions(tmp_path, clock=Clock())
    assert one.add("a", START_S + 60)
    assert "a" in other
    assert not other.add("a", START_S + 60)
    assert other.fields() == {}


def test_id_that_another_process_adds_at_the_same_time_is_added_once(tmp_path: Path) -> None:
    # A link without a target does not exist yet when it is looked for, but cannot be created.
    path = folder_of(tmp_path) / "a"
    path.parent.mkdir()
    path.symlink_to("missing")
    os.utime(path, (START_S + 60, START_S + 60), follow_symlinks=False)
    assert not EndedSessions(tmp_path, clock=Clock()).add("a", START_S + 60)


def test_id_is_a_private_file_with_the_time_of_its_expiry(tmp_path: Path) -> None:
    state = tmp_path / "state"
    EndedSessions(state, clock=Clock()).add("a", START_S + 60)
    status = (folder_of(state) / "a").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_size, status.st_mtime) == (0o600, 0, START_S + 60)
    assert stat.S_IMODE(folder_of(state).stat().st_mode) == 0o700


def test_expired_ids_are_dropped(tmp_path: Path) -> None:
    clock = Clock()
    ended = EndedSessions(tmp_path, clock=clock)
    ended.add("first", START_S + 10)
    ended.add("second", START_S + 20)
    clock.now_s = START_S + 10
    assert ended.fields() == {"first": START_S + 10, "second": START_S + 20}
    ended.add("third", START_S + 30)
    assert names(tmp_path) == {*ended.fields()} == {"first", "second", "third"}
    clock.now_s += 0.5
    assert ended.fields() == {"second": START_S + 20, "third": START_S + 30}
    ended.add("fourth", START_S + 40)
    assert names(tmp_path) == {"second", "third", "fourth"}
    assert "first" not in ended
    assert "second" in ended


def test_old_entry_that_cannot_be_deleted_does_not_prevent_others(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    for name in ("x", "y"):
        (folder / name).mkdir(parents=True)
        os.utime(folder / name, (1, 1))
    assert EndedSessions(tmp_path, clock=Clock()).add("a", START_S + 60)
    assert "a" in EndedSessions(tmp_path, clock=Clock())


def test_link_in_the_folder_is_deleted_by_its_own_age(tmp_path: Path) -> None:
    folder, target = folder_of(tmp_path), tmp_path / "target"
    folder.mkdir()
    target.write_text("")
    os.utime(target, (START_S + 60, START_S + 60))
    (folder / "link").symlink_to(target)
    os.utime(folder / "link", (1, 1), follow_symlinks=False)
    EndedSessions(tmp_path, clock=Clock()).add("a", START_S + 60)
    assert names(tmp_path) == {"a"}
    assert target.exists()


def test_id_that_cannot_be_stored_is_kept_in_memory(tmp_path: Path) -> None:
    (tmp_path / "ended-admin-sessions").write_text("in the way")
    ended = EndedSessions(tmp_path, clock=Clock())
    assert ended.add("a", START_S + 60)
    assert "a" in ended
    assert not ended.add("a", START_S + 60)


def test_ids_of_other_replicas_are_applied(tmp_path: Path) -> None:
    changes: list[int] = []
    ended = EndedSessions(on_change=lambda: changes.append(1), clock=Clock())
    ended.add("a", START_S + 60)
    ended.apply({"a": START_S + 5, "b": START_S + 20})
    assert ended.fields() == {"a": START_S + 60, "b": START_S + 20}
    assert "b" in ended
    assert changes == [1]  # what other replicas know is not reported to them


def test_number_of_ids_in_memory_is_limited() -> None:
    ended = EndedSessions(clock=Clock())
    ended.apply({f"id-{number}": START_S + 60 for number in range(4_097)})
    assert len(ended.fields()) == 4_096
    assert "id-0" not in ended
    assert "id-1" in ended
    assert "id-4096" in ended
