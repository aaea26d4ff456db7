"""The file of the admin token is trusted only if no other user can have written or read it."""

from __future__ import annotations

import os
import stat
from argparse import Namespace
from pathlib import Path

import pytest

from gateway.access.administrators import UntrustedFile, stored_token
from gateway.commands import admin_client
from gateway.config.model import Config
from gateway.protocol.gateway_errors import ConfigError
from gateway.serving.listen import admin_token


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TYPEGATE_ADMIN_TOKEN", raising=False)
    return tmp_path / "state"


def test_new_admin_token_is_private_and_reused(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = admin_token(Config(), state)
    assert len(token) >= 32
    assert capsys.readouterr().err == f"admin token: {token}\n"
    assert (state / "admin-token").stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700
    assert admin_token(Config(), state) == token
    assert admin_client.admin_token(Namespace(state_dir=state)) == token


@pytest.mark.parametrize("mode", [0o666, 0o622, 0o644, 0o664, 0o602])
def test_token_file_open_to_others_is_refused_with_a_remedy(state: Path, mode: int) -> None:
    state.mkdir()
    path = state / "admin-token"
    path.write_text("planted\n")
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}.*remove it.*chmod 600") as refused:
        admin_token(Config(), state)
    assert "planted" not in str(refused.value)
    with pytest.raises(admin_client.UsageError, match="chmod 600"):
        admin_client.admin_token(Namespace(state_dir=state))
    path.chmod(0o600)
    assert admin_token(Config(), state) == "planted"


@pytest.mark.parametrize("mode", [0o660, 0o640, 0o620, 0o460])
def test_token_file_opened_to_a_group_by_a_volume_is_restricted_and_used(state: Path, mode: int) -> None:
    token = admin_token(Config(), state)
    path = state / "admin-token"
    path.chmod(mode)
    assert admin_token(Config(), state) == token
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_token_file_of_another_user_is_refused(state: Path) -> None:
    state.mkdir()
    path = state / "admin-token"
    path.write_text("planted\n")
    path.chmod(0o600)
    os.chown(path, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to another user \\(id 12345\\)"):
        admin_token(Config(), state)


def test_stored_token_of_another_user_is_refused(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.mkdir()
    path = state / "admin-token"
    path.write_text("planted\n")
    path.chmod(0o600)
    os.chown(path, 54321, 54321) if os.geteuid() == 0 else monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(UntrustedFile, match="another user"):
        stored_token(path)


def test_token_path_that_is_not_a_regular_file_is_not_followed(state: Path, tmp_path: Path) -> None:
    state.mkdir()
    path, elsewhere = state / "admin-token", tmp_path / "elsewhere"
    elsewhere.write_text("planted\n")
    elsewhere.chmod(0o600)
    path.symlink_to(elsewhere)
    with pytest.raises(UntrustedFile):
        stored_token(path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(UntrustedFile, match="not a regular file"):
        stored_token(path)
    path.unlink()
    path.write_text("")
    path.chmod(0o600)
    assert stored_token(path) is None
    assert admin_token(Config(), state)
    assert elsewhere.read_text() == "planted\n"


def private_file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("content", [b"x" * 4097, b"x" * 5000, b"\xff\xfe", "schlüssel".encode()])
def test_file_without_a_valid_token_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(UntrustedFile, match="does not contain a token"):
        stored_token(private_file(tmp_path / "admin-token", content))


@pytest.mark.parametrize(
    ("content", "token"),
    [(b"token", "token"), (b" token\r\n", "token"), (b"x" * 4096, "x" * 4096), (b"", None), (b" \n", None)],
)
def test_token_is_the_content_of_its_file(content: bytes, token: str | None, tmp_path: Path) -> None:
    assert stored_token(private_file(tmp_path / "admin-token", content)) == token
    assert stored_token(tmp_path / "missing") is None


def test_token_path_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UntrustedFile, match="cannot be read \\(Not a directory\\); remove it"):
        stored_token(tmp_path / "file" / "admin-token")
