"""The lock file on disk: written only when it changes, and recognised as that of another configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config.load import load
from gateway.fleet.lock_file import (
    FILE_NAME,
    is_of_others,
    item_name,
    lock_files,
    lock_path,
    read_lockfile,
    write_lockfile,
)
from registry.lock.lockfile import Lockfile, Surface
from registry.lock.review import Change


def surface() -> Surface:
    return Surface(identity="npm:server@1.0.0", items={"tools": {"read": {"name": "read"}}})


def config_with(tmp_path: Path, *aliases: str, **gateway: Any) -> Any:
    path = tmp_path / "typegate.json"
    entries = {alias: {"command": "true"} for alias in aliases}
    path.write_text(json.dumps({"mcpServers": entries, "gateway": gateway}), encoding="utf-8")
    return load(path)


@pytest.mark.parametrize(
    ("aliases", "lockfile", "expected"),
    [
        (["one"], Lockfile({"two": surface()}), True),
        (["one"], Lockfile({"one": surface(), "two": surface()}), False),
        (["one"], Lockfile({"two": surface()}, configuration="other.json"), False),
        (["one"], Lockfile({}), False),
        ([], Lockfile({"two": surface()}), False),
    ],
)
def test_lock_file_without_any_own_server_is_that_of_others(
    aliases: list[str], lockfile: Lockfile, expected: bool, tmp_path: Path
) -> None:
    assert is_of_others(config_with(tmp_path, *aliases), lockfile) is expected


def test_lock_file_is_written_only_if_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    assert write_lockfile(path, Lockfile({"one": surface()})) is True
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o640)
    before = path.stat()
    assert write_lockfile(path, Lockfile({"one": surface()})) is False
    assert path.stat().st_ino == before.st_ino
    assert write_lockfile(path, Lockfile({"one": surface(), "two": surface()})) is True
    assert path.stat().st_mode & 0o777 == 0o640
    read = read_lockfile(path)
    assert read is not None
    assert list(read.servers) == ["one", "two"]
    assert read_lockfile(tmp_path / "missing.lock") is None
    assert read_lockfile(None) is None


def test_lock_file_is_written_through_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.lock", tmp_path / FILE_NAME
    link.symlink_to(real)
    write_lockfile(link, Lockfile({"one": surface()}))
    assert link.is_symlink()
    assert read_lockfile(real) is not None


def test_watched_lock_file_is_the_configured_one(tmp_path: Path) -> None:
    config = config_with(tmp_path, "one", lock={"file": str(tmp_path / "mine.lock")})
    assert lock_path(config) == tmp_path / "mine.lock"
    assert lock_files(config) == (tmp_path / "mine.lock",)
    assert lock_path(config_with(tmp_path, "one")) == tmp_path / FILE_NAME


def test_changed_items_are_named_as_on_the_command_line() -> None:
    tool = Change(kind="tools", name="read", classes=("text",), before={}, after={})
    whole = Change(kind="instructions", name="", classes=("text",), before="a", after="b")
    assert item_name("fs", tool) == "fs__read"
    assert item_name("fs", whole) == "fs (instructions)"
