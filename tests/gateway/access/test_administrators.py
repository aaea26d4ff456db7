"""Administrators: tokens with roles, links that work once, and browser sessions that end."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.access.administrators import (
    CODE_S,
    OWNER,
    SESSION_S,
    Administrator,
    Administrators,
    EndedSessions,
)
from gateway.access.signing import Signer
from gateway.config.operation_config import AdminToken, Role

START_S = 1_900_000_000.0
OWN = "the gateway's own token"


def token(name: str, text: str, role: Role = "viewer") -> AdminToken:
    return AdminToken(name=name, token_hash=f"sha256:{hashlib.sha256(text.encode()).hexdigest()}", role=role)


@dataclass
class Gateway:
    """Administrators whose time and configured tokens a test changes."""

    tokens: list[AdminToken] = field(default_factory=list)
    own: str = OWN
    key: bytes = b"k" * 32
    state_dir: Path | None = None
    now_s: float = START_S

    def __post_init__(self) -> None:
        self.administrators = self.restarted()

    def restarted(self) -> Administrators:
        """Return those of another process with the same key and state directory."""
        clock = lambda: self.now_s  # noqa: E731
        ended = EndedSessions(self.state_dir, clock=clock) if self.state_dir is not None else None
        return Administrators(self.own, lambda: self.tokens, Signer(key=self.key), ended=ended, clock=clock)


ANN, BOB = token("ann", "ann's", "operator"), token("bob", "bob's")


@pytest.mark.parametrize(
    ("authorization", "name", "role"),
    [
        (f"Bearer {OWN}", OWNER, "admin"),
        (f"bearer  {OWN} ", OWNER, "admin"),
        ("Bearer ann's", "ann", "operator"),
        ("Bearer bob's", "bob", "viewer"),
    ],
)
def test_token_in_a_header_has_its_name_and_role(authorization: str, name: str, role: Role) -> None:
    found = Gateway([ANN, BOB]).administrators.by_token(authorization)
    assert found == Administrator(name=name, role=role)


@pytest.mark.parametrize(
    "authorization",
    ["", OWN, "Bearer", "Bearer ", f"Basic {OWN}", "Bearer ann", f"Bearer {OWN}x", "Bearer \u20ac", ANN.token_hash],
)
def test_other_headers_have_no_administrator(authorization: str) -> None:
    gateway = Gateway([ANN, BOB])
    assert gateway.administrators.by_token(authorization) is None
    assert gateway.administrators.by_token(f"Bearer {ANN.token_hash}") is None
    assert gateway.administrators.guessable_chars == len(OWN)


def test_removed_token_is_refused() -> None:
    gateway = Gateway([ANN])
    gateway.tokens = [BOB]
    assert gateway.administrators.by_token("Bearer ann's") is None
    assert gateway.administrators.by_token("Bearer bob's") is not None


@pytest.mark.parametrize(
    ("role", "permitted"),
    [("viewer", ["viewer"]), ("operator", ["viewer", "operator"]), ("admin", ["viewer", "operator", "admin"])],
)
def test_role_includes_the_weaker_roles(role: Role, permitted: list[Role]) -> None:
    roles: tuple[Role, ...] = ("viewer", "operator", "admin")
    assert [each for each in roles if Administrator(name="ann", role=role).may(each)] == permitted


OWNER_ROLE = Administrator(name=OWNER, role="admin")
ANN_ROLE = Administrator(name="ann", role="operator")


@pytest.mark.parametrize("administrator", [OWNER_ROLE, ANN_ROLE])
def test_link_signs_in_once(administrator: Administrator) -> None:
    administrators = Gateway([ANN, BOB]).administrators
    code = f"Bearer {administrators.new_code(administrator)}"
    assert administrators.by_token(code) is None
    assert administrators.by_code(code, take=False) == administrator
    assert administrators.by_code(code, take=True) == administrator
    assert administrators.by_code(code, take=True) is None
    assert administrators.by_code(code, take=False) is None
    assert administrators.by_code(f"Bearer {administrators.new_code(administrator)}", take=True) == administrator


def test_link_works_for_a_minute() -> None:
    gateway = Gateway()
    code = f"Bearer {gateway.administrators.new_code(OWNER_ROLE)}"
    gateway.now_s += CODE_S
    assert gateway.administrators.by_code(code, take=False) == OWNER_ROLE
    gateway.now_s += 1
    assert gateway.administrators.by_code(code, take=False) is None


def test_used_link_stays_used_until_it_would_have_expired(tmp_path: Path) -> None:
    gateway = Gateway(state_dir=tmp_path)
    code = f"Bearer {gateway.administrators.new_code(OWNER_ROLE)}"
    assert gateway.administrators.by_code(code, take=True) == OWNER_ROLE
    gateway.now_s += CODE_S
    gateway.administrators.ended.add("another", gateway.now_s + 1)
    for administrators in (gateway.administrators, gateway.restarted()):
        assert administrators.by_code(code, take=True) is None


def test_link_is_used_once_by_all_processes(tmp_path: Path) -> None:
    gateway = Gateway(state_dir=tmp_path)
    code = f"Bearer {gateway.administrators.new_code(OWNER_ROLE)}"
    other = gateway.restarted()
    assert other.by_code(code, take=True) == OWNER_ROLE
    assert gateway.administrators.by_code(code, take=True) is None


@pytest.mark.parametrize("change", ["once_", "Once_", "x", ""])
def test_forged_link_is_refused(change: str) -> None:
    administrators = Gateway().administrators
    code = administrators.new_code(OWNER_ROLE)
    assert code.startswith("once_")
    changed = change + code.removeprefix("once_")[bool(change == "once_") :]
    assert administrators.by_code(f"Bearer {changed}", take=True) is None
    assert Gateway(key=b"x" * 32).administrators.by_code(f"Bearer {code}", take=True) is None


def test_session_has_the_rights_of_its_administrator() -> None:
    gateway = Gateway([ANN, BOB])
    session, value = gateway.administrators.new_session(ANN_ROLE)
    assert (session.name, session.role, session.until_s) == ("ann", "operator", START_S + SESSION_S)
    cookie = f"theme=dark; {gateway.administrators.cookie}={value}; lang=en"
    gateway.now_s += 100
    assert gateway.administrators.by_cookie(cookie) == session
    assert gateway.restarted().by_cookie(cookie) == session
    gateway.tokens = [token("ann", "ann's", "admin")]
    changed = gateway.administrators.by_cookie(cookie)
    assert changed is not None
    assert changed.role == "admin"


def test_sessions_are_distinct_and_end_alone() -> None:
    administrators = Gateway().administrators
    (first, first_value), (second, second_value) = (administrators.new_session(OWNER_ROLE) for _ in range(2))
    assert first.session != second.session
    assert administrators.csrf_token(first) != administrators.csrf_token(second)
    administrators.end_session(first)
    assert administrators.by_cookie(f"{administrators.cookie}={first_value}") is None
    assert administrators.by_cookie(f"{administrators.cookie}={second_value}") == second


def test_session_expires_after_a_working_day() -> None:
    gateway = Gateway()
    _, value = gateway.administrators.new_session(OWNER_ROLE)
    cookie = f"{gateway.administrators.cookie}={value}"
    gateway.now_s += SESSION_S
    assert gateway.administrators.by_cookie(cookie) is not None
    gateway.now_s += 1
    assert gateway.administrators.by_cookie(cookie) is None


def test_ended_session_stays_ended_until_it_would_have_expired(tmp_path: Path) -> None:
    gateway = Gateway(state_dir=tmp_path)
    session, value = gateway.administrators.new_session(OWNER_ROLE)
    gateway.administrators.end_session(session)
    gateway.now_s += SESSION_S
    gateway.administrators.ended.add("another", gateway.now_s + 1)
    for administrators in (gateway.administrators, gateway.restarted()):
        assert administrators.by_cookie(f"{administrators.cookie}={value}") is None


@pytest.mark.parametrize(
    "header",
    [
        "",
        "{name}",
        "{name}=",
        "{name}=x",
        "other={name}",
        "x{name}={value}",
        "{name}={value}x",
        "{name}=é",
        "a,b;{name}",
    ],
)
def test_other_cookies_are_not_sessions(header: str) -> None:
    administrators = Gateway().administrators
    _, value = administrators.new_session(OWNER_ROLE)
    assert administrators.by_cookie(header.format(name=administrators.cookie, value=value)) is None


def test_link_and_session_are_not_valid_in_place_of_each_other() -> None:
    administrators = Gateway().administrators
    _, value = administrators.new_session(OWNER_ROLE)
    code = administrators.new_code(OWNER_ROLE)
    assert administrators.by_code(f"Bearer once_{value}", take=True) is None
    assert administrators.by_cookie(f"{administrators.cookie}={code.removeprefix('once_')}") is None


@pytest.mark.parametrize(
    "after",
    [[], [BOB], [token("ann", "a new one", "operator")], [token("bob", "ann's", "operator")]],
    ids=["removed", "another", "replaced", "renamed"],
)
def test_links_and_sessions_end_with_the_token(after: list[AdminToken]) -> None:
    gateway = Gateway([ANN])
    _, value = gateway.administrators.new_session(ANN_ROLE)
    cookie = f"{gateway.administrators.cookie}={value}"
    code = f"Bearer {gateway.administrators.new_code(ANN_ROLE)}"
    assert gateway.administrators.by_cookie(cookie) is not None
    gateway.tokens = after
    assert gateway.administrators.by_cookie(cookie) is None
    assert gateway.administrators.by_code(code, take=True) is None


def test_sessions_of_the_own_token_end_when_it_is_replaced() -> None:
    gateway = Gateway([ANN])
    _, value = gateway.administrators.new_session(OWNER_ROLE)
    cookie = f"{gateway.administrators.cookie}={value}"
    gateway.own = "another token"
    assert gateway.restarted().by_cookie(cookie) is None
    assert gateway.administrators.by_cookie(cookie) is not None


def test_cookie_and_csrf_token_depend_on_the_key_of_the_gateway() -> None:
    one, other = Gateway().administrators, Gateway(key=b"x" * 32).administrators
    assert one.cookie != other.cookie
    assert one.cookie == Gateway().administrators.cookie
    session, _ = one.new_session(OWNER_ROLE)
    assert one.csrf_token(session) == Gateway().administrators.csrf_token(session)
    assert one.csrf_token(session) != other.csrf_token(session)


def test_token_in_a_header_has_no_session_to_end_and_needs_no_csrf_token() -> None:
    administrators = Gateway().administrators
    assert administrators.csrf_token(OWNER_ROLE) == ""
    administrators.end_session(OWNER_ROLE)
    assert administrators.ended.fields() == {}
