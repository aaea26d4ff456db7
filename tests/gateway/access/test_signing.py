"""Signed state is accepted only from its caller, for its request, before it expires."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.signing import FILE_NAME, BadSignature, Signer

KEPT = Signer()


@given(st.text(), st.lists(st.text(max_size=5), max_size=3))
def test_signed_text_verifies_with_its_binding(text: str, binding: list[str]) -> None:
    if any("\ud800" <= one <= "\udfff" for one in text):
        return
    assert KEPT.verify(KEPT.sign(text, *binding), *binding) == text


@given(st.lists(st.text(max_size=3), max_size=3), st.lists(st.text(max_size=3), max_size=3))
def test_signature_does_not_verify_with_another_binding(one: list[str], other: list[str]) -> None:
    if one == other:
        return
    with pytest.raises(BadSignature):
        KEPT.verify(KEPT.sign("state", *one), *other)
    assert KEPT.mark("id", *one) != KEPT.mark("id", *other)


@pytest.mark.parametrize("forged", ["", ".", "x", "x.y", "é.é", "a" * 100_000, "W10.AAAA"])
def test_forged_text_is_refused(forged: str) -> None:
    with pytest.raises(BadSignature):
        KEPT.verify(forged, "ann")


def test_one_changed_character_breaks_the_signature() -> None:
    signed = KEPT.sign("state", "ann")
    for at in range(len(signed) - 1):
        other = "A" if signed[at] != "A" else "B"
        with pytest.raises(BadSignature):
            KEPT.verify(signed[:at] + other + signed[at + 1 :], "ann")


@pytest.mark.parametrize(("age_s", "is_valid"), [(0, True), (99, True), (100, True), (100.5, False), (101, False)])
def test_signature_expires(age_s: float, is_valid: bool) -> None:
    now_s = 1_900_000_000.0
    signer = Signer(max_age_s=100, clock=lambda: now_s)
    signed = signer.sign("state", "ann")
    now_s += age_s
    if is_valid:
        assert signer.verify(signed, "ann") == "state"
        return
    with pytest.raises(BadSignature, match="has expired"):
        signer.verify(signed, "ann")


def test_signature_is_valid_for_a_day_by_default() -> None:
    now_s = 1_900_000_000.0
    signer = Signer(clock=lambda: now_s)
    signed = signer.sign("state")
    now_s += 24 * 3600
    assert signer.verify(signed) == "state"
    now_s += 1
    with pytest.raises(BadSignature, match="has expired"):
        signer.verify(signed)


def test_signatures_of_earlier_releases_stay_valid() -> None:
    signer = Signer(key=b"k" * 32, clock=lambda: 1_900_000_000.0)
    assert (
        signer.verify("UfDKCXY8DlwKZ5gHJ2XB1Cz3R7CJ-IGnx66YrzZmV0b_FtFZ4ooQunyWTaeXLVdr", "ann", "request") == "state"
    )
    assert signer.mark("id", "ann") == "370fa65a3b5b374a"


def test_key_given_by_another_process_takes_precedence(tmp_path: Path) -> None:
    own, given = Signer(tmp_path), Signer(tmp_path, key=b"k" * 32)
    assert len(own.key) == 32
    assert given.key == b"k" * 32
    assert Signer(tmp_path).key == own.key
    assert Signer().key != Signer().key
    assert len(Signer().key) == 32


def test_signing_key_is_persistent_and_private(tmp_path: Path) -> None:
    state = tmp_path / "state"
    signed = Signer(state).sign("state", "ann")
    assert Signer(state).verify(signed, "ann") == "state"
    assert (state / FILE_NAME).stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadSignature):
        Signer(tmp_path / "other").verify(signed, "ann")


@pytest.mark.parametrize("planted", ["open to others", "a link", "a pipe", "another user's", "too short", "too long"])
def test_planted_or_damaged_key_is_replaced(planted: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, known = tmp_path / FILE_NAME, b"k" * 32
    if planted == "a link":
        (tmp_path / "elsewhere").write_bytes(known)
        (tmp_path / "elsewhere").chmod(0o600)
        path.symlink_to(tmp_path / "elsewhere")
    elif planted == "a pipe":
        os.mkfifo(path, 0o600)
    else:
        path.write_bytes({"too short": known[:31], "too long": known + b"k"}.get(planted, known))
        path.chmod(0o644 if planted == "open to others" else 0o600)
    if planted == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only the superuser can give a file away")
        os.chown(path, 12_345, -1)
    signed = Signer(tmp_path).sign("state", "ann")
    assert "signing key replaced" in caplog.text
    # The current key stays, is readable only by its owner, and is not the planted one.
    assert Signer(tmp_path).verify(signed, "ann") == "state"
    found = path.lstat()
    assert stat.S_ISREG(found.st_mode)
    assert (found.st_mode & 0o777, found.st_uid, found.st_size) == (0o600, os.geteuid(), 32)
    with pytest.raises(BadSignature):
        Signer(key=known).verify(signed, "ann")


def test_key_opened_to_a_group_by_a_volume_is_restricted_and_used(tmp_path: Path) -> None:
    signed = Signer(tmp_path).sign("state", "ann")
    (tmp_path / FILE_NAME).chmod(0o660)
    assert Signer(tmp_path).verify(signed, "ann") == "state"
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


def test_signed_text_is_not_readable() -> None:
    signed = KEPT.sign("the state of an upstream", "ann")
    assert b"state" not in base64.urlsafe_b64decode(signed + "=" * (-len(signed) % 4))
    assert signed != KEPT.sign("the state of an upstream", "ann")


def test_damaged_key_is_replaced_and_an_unstorable_one_is_warned_about(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"short")
    kept = Signer(tmp_path)
    assert Signer(tmp_path).verify(kept.sign("state"), *()) == "state"
    (tmp_path / "in the way").write_text("")
    lost = Signer(tmp_path / "in the way")
    assert lost.verify(lost.sign("state")) == "state"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
