"""Server identity after a change of the configuration."""

from __future__ import annotations

from gateway.fleet.snapshot import ServerIds


def ids_of(ids: ServerIds, **fingerprints: str) -> dict[str, str | None]:
    ids.identify(fingerprints)
    return {alias: ids.get(alias) for alias in fingerprints}


def test_servers_that_exchange_their_aliases_keep_their_ids() -> None:
    ids = ServerIds()
    before = ids_of(ids, a="1", b="2")
    assert ids_of(ids, a="2", b="1") == {"a": before["b"], "b": before["a"]}
    assert not ids.identify({"a": "2", "b": "1"})


def test_equal_servers_are_distinguished_by_alias_and_then_by_order() -> None:
    ids = ServerIds()
    before = ids_of(ids, a="1", b="1", c="1")
    assert ids_of(ids, x="1", b="1", y="1") == {"x": before["a"], "b": before["b"], "y": before["c"]}


def test_new_server_under_a_former_alias_has_another_id() -> None:
    ids, other = ServerIds(), ServerIds()
    first = ids_of(ids, a="1")["a"]
    second = ids_of(ids, b="1", a="2")
    assert second["b"] == first != second["a"]
    assert ids.current_alias("a") == "b"
    assert ids_of(other, a="anything")["a"] == first, "gateways that share no state agree"


def test_removed_servers_are_remembered_with_a_limit() -> None:
    ids = ServerIds()
    first = ids_of(ids, a="1")["a"]
    ids.identify({})
    assert ids.get("a") is None
    assert ids_of(ids, b="1")["b"] == first
    for number in range(400):
        ids.identify({f"s{number}": str(number + 10)})
    assert len(ids.identities) < 300
    for number in range(100):
        ids.identify({f"t{number}": "moving"})
    assert len(ids.identities) < 300
    assert max(len(known.former) for known in ids.identities.values()) <= 20


def test_identifiers_survive_being_stored() -> None:
    ids, again = ServerIds(), ServerIds()
    before = ids_of(ids, a="1", b="2")
    again.restore(ids.identities)
    assert ids_of(again, c="1", b="3") == {"c": before["a"], "b": before["b"]}
    assert again.current_alias("a") == "c"
