"""Files of the state directory: permissions, and files that are not read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gateway.config.overlay import Change, Overlay
from gateway.process.files import ForeignFile, make_private_folder, prepare_state_dir, read_private

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes are those of POSIX")
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask() -> object:
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o660, 0o670, 0o440])
def test_file_open_to_its_group_is_restricted_and_read(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"secret")
    path.chmod(mode)
    assert read_private(path, most_bytes=10) == b"secret"
    assert mode_of(path) == mode & ~0o070


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o664, 0o666, 0o777])
def test_file_open_to_everyone_is_not_read(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"secret")
    path.chmod(mode)
    with pytest.raises(ForeignFile, match=f"open to other users \\(mode {mode:04o}\\)"):
        read_private(path, most_bytes=10)
    assert mode_of(path) == mode


@as_root
def test_file_of_root_with_a_read_only_group_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"secret")
    monkeypatch.setattr(os, "geteuid", lambda: 10_001)
    for mode, is_read in ((0o400, True), (0o440, True), (0o460, False), (0o444, False)):
        path.chmod(mode)
        if is_read:
            assert read_private(path, most_bytes=10) == b"secret"
        else:
            with pytest.raises(ForeignFile, match="open to other users"):
                read_private(path, most_bytes=10)
        assert mode_of(path) == mode
    os.chown(path, 10_002, -1)
    path.chmod(0o600)
    with pytest.raises(ForeignFile, match="another user"):
        read_private(path, most_bytes=10)


@pytest.mark.usefixtures("umask")
def test_new_folder_and_missing_parents_are_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path / "a" / "b" / "c")
    assert [mode_of(tmp_path / each) for each in ("", "a", "a/b", "a/b/c")] == [0o755, 0o700, 0o700, 0o700]


@pytest.mark.usefixtures("umask")
def test_state_directory_is_created_private_and_an_existing_one_restricted(tmp_path: Path) -> None:
    state = tmp_path / "lib" / "state"
    prepare_state_dir(state)
    assert mode_of(state) == mode_of(state.parent) == 0o700
    (state / "overlays").mkdir()
    (state / "file").write_text("")
    (state / "link").symlink_to(tmp_path)
    tmp_path.chmod(0o755)
    for mode, after in ((0o755, 0o700), (0o2775, 0o2700), (0o770, 0o700)):
        state.chmod(mode)
        (state / "overlays").chmod(mode)
        prepare_state_dir(state)
        assert mode_of(state) == mode_of(state / "overlays") == after
    assert mode_of(tmp_path) == 0o755


def test_directory_that_is_not_only_a_state_directory_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, work, common = (tmp_path / name for name in ("home/ada", "work/project", "common"))
    for folder, mode in ((home, 0o755), (work, 0o755), (common, 0o1777)):
        folder.mkdir(parents=True)
        folder.chmod(mode)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    for folder in (home, home.parent, work, work.parent, common, Path()):
        before = mode_of(folder)
        prepare_state_dir(folder)
        assert mode_of(folder) == before


def test_state_directory_that_cannot_be_created_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    prepare_state_dir(tmp_path / "file" / "state")
    prepare_state_dir(tmp_path / "file")


def config_volume(folder: Path, time: str) -> Path:
    """A volume of a ConfigMap, as the kubelet mounts it."""
    (folder / f"..{time}").mkdir(parents=True)
    (folder / f"..{time}" / "config.yaml").write_text("mcpServers: {}\n")
    (folder / "..data").symlink_to(f"..{time}")
    (folder / "config.yaml").symlink_to("..data/config.yaml")
    return folder / "config.yaml"


def test_overlay_is_found_after_the_configuration_is_remounted(tmp_path: Path) -> None:
    config = config_volume(tmp_path / "etc", "2026_01_01_00_00_00.1")
    disabled = Change(kind="tool_disabled", target="up__echo", server="up", tool="echo")
    Overlay(tmp_path, config).replace([disabled])
    (tmp_path / "etc").rename(tmp_path / "before")
    config = config_volume(tmp_path / "etc", "2026_02_02_00_00_00.2")
    assert Overlay(tmp_path, config).changes == (disabled,)


def test_overlay_stored_under_the_resolved_path_is_found(tmp_path: Path) -> None:
    config = config_volume(tmp_path / "etc", "2026_01_01_00_00_00.1")
    disabled = Change(kind="tool_disabled", target="up__echo", server="up", tool="echo")
    Overlay(tmp_path, config.resolve()).replace([disabled])
    read = Overlay(tmp_path, config)
    assert read.changes == (disabled,)
    read.replace([])
    assert Overlay(tmp_path, config).changes == ()


def test_symlink_to_another_folder_resolves_to_that_file(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles/mcp.json").write_text("{}")
    (tmp_path / "mcp.json").symlink_to("dotfiles/mcp.json")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/mcp.json").symlink_to("../dotfiles/mcp.json")
    disabled = Change(kind="server_disabled", target="up")
    Overlay(tmp_path, tmp_path / "elsewhere/mcp.json").replace([disabled])
    assert Overlay(tmp_path, tmp_path / "dotfiles/mcp.json").changes == (disabled,)
