"""The lock file on disk: written only when it changes, and recognised as that of another configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config.load import load, parse
from gateway.config.model import Config
from gateway.fleet.lock_file import (
    FILE_NAME,
    FIRST_LISTINGS,
    FirstListings,
    is_of_others,
    lock_files,
    lock_notes,
    lock_path,
    name_in,
    other_configuration,
    read_approved,
    read_lockfile,
    write_lockfile,
)
from gateway.protocol.gateway_errors import ConfigError
from registry.lock.lockfile import MAX_BYTES, Lockfile, Surface


def surface() -> Surface:
    return Surface(identity="npm:server@1.0.0", items={"tools": {"read": {"name": "read"}}})


def config_with(tmp_path: Path, *aliases: str, name: str = "typegate.json", **gateway: Any) -> Config:
    path = tmp_path / name
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


def test_configuration_without_a_file_has_only_an_absolute_lock_file(tmp_path: Path) -> None:
    def configured(file: str | None) -> Config:
        return parse(json.dumps({"mcpServers": {}, "gateway": {"lock": {"file": file}}}))

    for file in (None, "mine.lock"):
        assert lock_path(configured(file)) is None
        assert lock_files(configured(file)) == ()
        assert lock_notes(configured(file), None) == []
    absolute = configured(str(tmp_path / "mine.lock"))
    assert lock_path(absolute) == tmp_path / "mine.lock"
    assert lock_notes(absolute, Lockfile({"two": surface()})) == []
    assert read_approved(configured(None)) is None
    with pytest.raises(ConfigError, match=r"there is no lock file at mine\.lock"):
        read_approved(configured("mine.lock"))


def test_relative_lock_file_is_in_the_folder_of_its_configuration(tmp_path: Path) -> None:
    config = config_with(tmp_path, "one", lock={"file": "locks/mine.lock"})
    assert lock_path(config) == tmp_path / "locks/mine.lock"
    assert config.path is not None
    assert name_in(tmp_path / "locks/mine.lock", config.path) == "../typegate.json"
    assert name_in(tmp_path / FILE_NAME, config.path) == "typegate.json"


def lock_named(tmp_path: Path, configuration: str, *, name: str = FILE_NAME) -> Path:
    path = tmp_path / name
    write_lockfile(path, Lockfile({"one": surface()}, configuration=configuration))
    return path


def test_two_configurations_in_one_folder_have_two_lock_files(tmp_path: Path) -> None:
    one, other = config_with(tmp_path, "one"), config_with(tmp_path, "two", name="other.json")
    usual = lock_named(tmp_path, "typegate.json")
    assert lock_path(one) == usual
    assert lock_path(other) == tmp_path / "typegate.other.json.lock"
    assert other_configuration(usual, other.path) == "typegate.json"
    assert other_configuration(usual, one.path) == ""
    assert other_configuration(usual, None) == ""
    # The own file counts, even after the other configuration is gone.
    own = lock_named(tmp_path, "other.json", name="typegate.other.json.lock")
    (tmp_path / "typegate.json").unlink()
    assert other_configuration(usual, other.path) == ""
    assert lock_path(other) == own
    own.unlink()
    assert lock_path(other) == usual


def test_lock_file_of_a_renamed_configuration_stays_in_use(tmp_path: Path) -> None:
    config = config_with(tmp_path, "one")
    usual = lock_named(tmp_path, "former.json")
    assert lock_path(config) == usual
    (tmp_path / "former.json").mkdir()
    assert lock_path(config) == usual


def test_lock_file_names_another_configuration_than_one_that_is_not_written_yet(tmp_path: Path) -> None:
    config_with(tmp_path, "one")
    assert other_configuration(lock_named(tmp_path, "typegate.json"), tmp_path / "new.json") == "typegate.json"


def test_unreadable_lock_file_names_no_configuration(tmp_path: Path) -> None:
    config_with(tmp_path, "one")
    for path in (tmp_path, tmp_path / "missing.lock", Path("/dev/null")):
        assert other_configuration(path, tmp_path / "other.json") == ""
    (tmp_path / FILE_NAME).write_bytes(b'{"configuration": "typegate.json", "\xff')
    assert other_configuration(tmp_path / FILE_NAME, tmp_path / "other.json") == "typegate.json"


def test_lock_file_of_another_configuration_is_explained(tmp_path: Path) -> None:
    one, other = config_with(tmp_path, "one"), config_with(tmp_path, "two", name="other.json")
    assert lock_notes(one, None) == []
    usual = lock_named(tmp_path, "typegate.json")
    locked = read_lockfile(usual)
    assert lock_notes(one, locked) == []
    assert lock_notes(one, None) == []
    [note] = lock_notes(other, None)
    assert note.startswith(f"{usual} is the lock file of typegate.json, and other.json has none: ")
    assert note.endswith(f"`typegate lock --config {other.path}` has written typegate.other.json.lock")
    shared = config_with(tmp_path, "two", name="other.json", lock={"file": FILE_NAME})
    [note] = lock_notes(shared, locked)
    assert note.startswith(f"{usual} is the lock file of typegate.json, and other.json also uses it ")
    # Without a lock file, there is nothing to explain.
    elsewhere = config_with(tmp_path, "two", name="other.json", lock={"file": "mine.lock"})
    usual.unlink()
    assert lock_notes(elsewhere, None) == []
    unnamed = Lockfile({"three": surface()})
    [note] = lock_notes(one, unnamed)
    assert note.startswith(f"{usual} names no configuration and has none of the servers of typegate.json")
    assert lock_notes(one, Lockfile({"one": surface()})) == []


def test_server_that_is_left_out_is_an_own_server(tmp_path: Path) -> None:
    path = tmp_path / "typegate.json"
    servers = {"one": {"command": "true"}, "two": {"command": "true", "disabled": True}}
    path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    assert not is_of_others(load(path), Lockfile({"two": surface()}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff{}", "is not UTF-8 at byte 0; expected a lock file"),
        (b" " * 1_500_000 + b"\xff", "is not UTF-8 at byte 1500000"),
        (b'{"a": "\xc3', "is not UTF-8 at byte 7"),
        (b"{", "is not JSON at line 1"),
        (b'{"lockVersion": 2}', "lockVersion: has another version"),
        (None, "cannot be read (Is a directory); expected a lock file"),
    ],
)
def test_unusable_lock_file_is_an_error_naming_it(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        read_lockfile(path)
    assert str(raised.value).startswith(f"{path}: {message}")
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_lockfile(Path("/dev/null"))


def test_lock_file_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    text = Lockfile({"one": surface()}).to_text().encode()
    path.write_bytes(text + b" " * (MAX_BYTES + 1 - len(text)))
    with pytest.raises(ConfigError, match="is too big"):
        read_lockfile(path)


def test_lock_file_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    tool = {"name": "read", "description": "é" * 1_500_000}
    lockfile = Lockfile({"one": Surface(items={"tools": {"read": tool}})})
    # With one of these starts, the first part ends within a character of two bytes.
    for start in (b"", b" ", b"\xef\xbb\xbf"):
        path.write_bytes(start + lockfile.to_text().encode())
        assert read_lockfile(path) == lockfile


def test_configured_lock_file_has_to_exist(tmp_path: Path) -> None:
    assert read_approved(config_with(tmp_path, "one")) is None
    config = config_with(tmp_path, "one", lock={"file": "mine.lock"})
    with pytest.raises(ConfigError) as raised:
        read_approved(config)
    assert str(raised.value).startswith(
        f"{config.path}: gateway.lock.file: there is no lock file at {tmp_path}/mine.lock"
    )
    write_lockfile(tmp_path / "mine.lock", Lockfile({"one": surface()}))
    assert read_approved(config) == Lockfile({"one": surface()})
    write_lockfile(tmp_path / FILE_NAME, Lockfile({"two": surface()}))
    assert read_approved(config_with(tmp_path, "one")) == Lockfile({"two": surface()})


def test_first_listings_survive_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    listings = FirstListings(folder)
    assert listings.lockfile == Lockfile()
    listings.put("one", surface())
    listings.put("two", Surface(identity="a"))
    listings.put("two", Surface(identity="b"))
    assert listings.lockfile == Lockfile({"one": surface(), "two": Surface(identity="b")})
    assert FirstListings(folder).lockfile == listings.lockfile
    assert folder.stat().st_mode & 0o077 == 0


def test_first_listings_are_written_by_one_process(tmp_path: Path) -> None:
    FirstListings(tmp_path).put("one", surface())
    before = (tmp_path / FIRST_LISTINGS).read_bytes()
    other = FirstListings(tmp_path, saves=False)
    other.put("two", surface())
    assert list(other.lockfile.servers) == ["one", "two"]
    assert (tmp_path / FIRST_LISTINGS).read_bytes() == before


def test_first_listings_need_no_state_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert FirstListings(tmp_path / "file").lockfile == Lockfile()
    in_memory = FirstListings(None)
    in_memory.put("one", surface())
    assert in_memory.lockfile == Lockfile({"one": surface()})
