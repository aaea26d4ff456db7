"""The file that keeps what administrators have changed, as those see it who only read it."""

from __future__ import annotations

from pathlib import Path

from gateway.config.overlay import Change, Overlay


def test_whoever_follows_a_file_has_its_latest_changes_and_keeps_them_where_it_is_damaged(tmp_path: Path) -> None:
    config = tmp_path / "typegate.json"
    written, followed = Overlay(tmp_path, config), Overlay(tmp_path, config, writes=False, follows=True)
    disabled = Change(kind="server_disabled", target="bank")
    written.replace([disabled])
    assert followed.changes == ()
    assert followed.latest() == (disabled,)
    followed.replace(followed.latest())
    assert followed.path is not None
    followed.path.write_bytes(b"{")
    assert followed.latest() == (disabled,)
    assert followed.error is not None
    written.replace([])
    assert followed.latest() == ()
    assert followed.error is None
