"""The identity of a caller, and the profiles that the caller may use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.access.principal import Principal

ANN = Principal(name="ann@id.test", issuer="https://id.test", client="host", groups=frozenset({"a"}))


def test_identity_consists_of_name_and_client_and_not_of_rights() -> None:
    assert Principal(name="ann").identity == "ann"
    assert ANN.identity == "host\nann@id.test"
    assert replace(ANN, groups=frozenset(), scopes=frozenset({"tools"})).identity == ANN.identity
    assert replace(ANN, client="page").identity != ANN.identity


def test_token_and_expiry_do_not_make_another_principal() -> None:
    assert replace(ANN, token=b"x", expires_s=1.0, is_simulated=True) == ANN
    assert replace(ANN, groups=frozenset()) != ANN


@pytest.mark.parametrize(
    ("profiles", "may_enter"),
    [(None, True), (frozenset({"dev", "ops"}), True), (frozenset({"ops"}), False), (frozenset(), False)],
)
def test_profiles_restrict_the_caller_unless_none_are_named(profiles: frozenset[str] | None, may_enter: bool) -> None:
    assert Principal(name="ann", profiles=profiles).may_enter("dev") is may_enter
