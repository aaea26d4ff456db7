"""The callers that receive a sign-in link."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.access.principal import LOCAL, Principal
from gateway.calls.caller import Caller
from gateway.calls.sign_in_prompts import may_follow


@pytest.mark.parametrize(
    ("peer", "good"),
    [
        ("127.0.0.1:1234", True),
        ("[::1]:1234", True),
        ("::1:1234", True),
        ("stdio", True),
        ("", True),
        ("10.0.0.7:1234", False),
        ("93.184.216.34:1234", False),
        ("localhost.evil.test:1", False),
    ],
)
def test_sign_in_link_is_given_only_to_a_single_local_user(peer: str, good: bool) -> None:
    view: Any = None
    assert may_follow(Caller(principal=LOCAL, view=view, peer=peer)) is good
    assert not may_follow(Caller(principal=Principal(name="local"), view=view, peer=peer))
