"""The overlay file as processes that only read it see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.overlay import Change, Overlay


def test_following_process_reads_changes_and_keeps_the_last_valid_overlay(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "text", [b"null", b"[]", b"{}", b'{"changes": null}', b'{"changes": [{"kind": "x", "new": 1}]}']
)
def test_overlay_of_another_structure_is_reported_as_such(tmp_path: Path, text: bytes) -> None:
    config = tmp_path / "typegate.json"
    Overlay(tmp_path, config).replace([Change(kind="server_disabled", target="bank")])
    [path] = (tmp_path / "overlays").glob("*.json")
    path.write_bytes(text)
    damaged = Overlay(tmp_path, config)
    assert damaged.changes == ()
    assert damaged.error == f"{path} cannot be read (its content has another structure)"
