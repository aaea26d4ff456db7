"""Files of the state directory: whose rights are taken, and which files are not read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gateway.config.overlay import Change, Overlay
from gateway.files import NotOurs, make_private_folder, prepare_state_dir, read_private

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
def test_a_file_that_only_its_group_can_open_beside_its_owner_is_narrowed_and_read(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"secret")
    path.chmod(mode)
    assert read_private(path, most_bytes=10) == b"secret"
    assert mode_of(path) == mode & ~0o070


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o664, 0o666, 0o777])
def test_a_file_that_everybody_can_open_is_not_read(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"secret")
    path.chmod(mode)
    with pytest.raises(NotOurs, match=f"open to other users \\(mode {mode:04o}\\)"):
        read_private(path, most_bytes=10)
    assert mode_of(path) == mode


@as_root
def test_a_file_of_root_is_read_by_a_user_whose_group_may_only_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"secret")
    monkeypatch.setattr(os, "geteuid", lambda: 10_001)
    for mode, is_read in ((0o400, True), (0o440, True), (0o460, False), (0o444, False)):
        path.chmod(mode)
        if is_read:
            assert read_private(path, most_bytes=10) == b"secret"
        else:
            with pytest.raises(NotOurs, match="open to other users"):
                read_private(path, most_bytes=10)
        assert mode_of(path) == mode
    os.chown(path, 10_002, -1)
    path.chmod(0o600)
    with pytest.raises(NotOurs, match="another user"):
        read_private(path, most_bytes=10)


@pytest.mark.usefixtures("umask")
def test_a_new_folder_and_its_missing_parents_are_for_this_user_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path / "a" / "b" / "c")
    assert [mode_of(tmp_path / each) for each in ("", "a", "a/b", "a/b/c")] == [0o755, 0o700, 0o700, 0o700]


@pytest.mark.usefixtures("umask")
def test_a_state_directory_is_created_for_this_user_alone_and_one_that_exists_is_narrowed(tmp_path: Path) -> None:
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


def test_a_directory_that_is_more_than_a_state_directory_is_left_as_it_is(
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


def test_a_state_directory_that_cannot_be_created_is_no_error_here(tmp_path: Path) -> None:
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


def test_what_administrators_changed_is_found_again_when_the_configuration_is_mounted_anew(tmp_path: Path) -> None:
    config = config_volume(tmp_path / "etc", "2026_01_01_00_00_00.1")
    disabled = Change(kind="tool_disabled", target="up__echo", server="up", tool="echo")
    Overlay(tmp_path, config).replace([disabled])
    (tmp_path / "etc").rename(tmp_path / "before")
    config = config_volume(tmp_path / "etc", "2026_02_02_00_00_00.2")
    assert Overlay(tmp_path, config).changes == (disabled,)


def test_what_was_kept_under_the_path_that_a_link_led_to_is_still_found(tmp_path: Path) -> None:
    config = config_volume(tmp_path / "etc", "2026_01_01_00_00_00.1")
    disabled = Change(kind="tool_disabled", target="up__echo", server="up", tool="echo")
    Overlay(tmp_path, config.resolve()).replace([disabled])
    read = Overlay(tmp_path, config)
    assert read.changes == (disabled,)
    read.replace([])
    assert Overlay(tmp_path, config).changes == ()


def test_a_link_to_another_folder_stands_for_the_file_there(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles/mcp.json").write_text("{}")
    (tmp_path / "mcp.json").symlink_to("dotfiles/mcp.json")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/mcp.json").symlink_to("../dotfiles/mcp.json")
    disabled = Change(kind="server_disabled", target="up")
    Overlay(tmp_path, tmp_path / "elsewhere/mcp.json").replace([disabled])
    assert Overlay(tmp_path, tmp_path / "dotfiles/mcp.json").changes == (disabled,)
