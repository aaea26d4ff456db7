"""The admin token that a gateway generates."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gateway.config.model import Config
from gateway.serving.listen import admin_token


def test_generated_token_is_stored_privately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TYPEGATE_ADMIN_TOKEN", raising=False)
    before = os.umask(0)
    try:
        token = admin_token(Config(), tmp_path / "state")
    finally:
        os.umask(before)
    path = tmp_path / "state" / "admin-token"
    assert path.read_text().strip() == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert token in capsys.readouterr().err
    # The next start takes the same one.
    assert admin_token(Config(), tmp_path / "state") == token
