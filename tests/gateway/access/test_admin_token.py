"""The file of the admin token is believed only where nobody else can have written or read it."""

from __future__ import annotations

import os
import stat
from argparse import Namespace
from pathlib import Path

import pytest

from gateway.access.admin_token import UntrustedFile, kept_token
from gateway.commands import locations
from gateway.config.model import Config
from gateway.errors import ConfigError
from gateway.serving.listen import admin_token


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TYPEGATE_ADMIN_TOKEN", raising=False)
    return tmp_path / "state"


def test_a_new_token_is_kept_for_its_owner_alone_and_found_again(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = admin_token(Config(), state)
    assert len(token) >= 32
    assert capsys.readouterr().err == f"admin token: {token}\n"
    assert (state / "admin-token").stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700
    assert admin_token(Config(), state) == token
    assert locations.admin_token(Namespace(state_dir=state)) == token


@pytest.mark.parametrize("mode", [0o666, 0o622, 0o644, 0o664, 0o602])
def test_a_file_that_others_can_read_or_write_is_refused_with_what_to_do(state: Path, mode: int) -> None:
    state.mkdir()
    path = state / "admin-token"
    path.write_text("planted\n")
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}.*remove it.*chmod 600") as refused:
        admin_token(Config(), state)
    assert "planted" not in str(refused.value)
    with pytest.raises(locations.UsageError, match="chmod 600"):
        locations.admin_token(Namespace(state_dir=state))
    path.chmod(0o600)
    assert admin_token(Config(), state) == "planted"


@pytest.mark.parametrize("mode", [0o660, 0o640, 0o620, 0o460])
def test_a_token_whose_file_a_volume_has_given_to_a_group_is_narrowed_and_used(state: Path, mode: int) -> None:
    token = admin_token(Config(), state)
    path = state / "admin-token"
    path.chmod(mode)
    assert admin_token(Config(), state) == token
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(state: Path) -> None:
    state.mkdir()
    path = state / "admin-token"
    path.write_text("planted\n")
    path.chmod(0o600)
    os.chown(path, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to another user \\(id 12345\\)"):
        admin_token(Config(), state)


def test_a_file_of_another_user_is_refused_whoever_asks(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.mkdir()
    path = state / "admin-token"
    path.write_text("planted\n")
    path.chmod(0o600)
    os.chown(path, 54321, 54321) if os.geteuid() == 0 else monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(UntrustedFile, match="another user"):
        kept_token(path)


def test_what_is_no_regular_file_is_neither_read_nor_written_through(state: Path, tmp_path: Path) -> None:
    state.mkdir()
    path, elsewhere = state / "admin-token", tmp_path / "elsewhere"
    elsewhere.write_text("planted\n")
    elsewhere.chmod(0o600)
    path.symlink_to(elsewhere)
    with pytest.raises(UntrustedFile):
        kept_token(path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(UntrustedFile, match="no regular file"):
        kept_token(path)
    path.unlink()
    path.write_text("")
    path.chmod(0o600)
    assert kept_token(path) is None
    assert admin_token(Config(), state)
    assert elsewhere.read_text() == "planted\n"


def test_a_file_that_is_no_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "admin-token"
    for content in (b"x" * 5000, b"\xff\xfe"):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(UntrustedFile, match="holds no token"):
            kept_token(path)
