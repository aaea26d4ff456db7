"""`gateway.cluster`: errors and warnings at start."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config.load import parse
from gateway.protocol.gateway_errors import ConfigError

SECRET = "s" * 32
PEERS = {"listen": "0.0.0.0:8766", "secret": SECRET, "name": "typegate-0", "discovery": {"dns": "typegate.tools.svc"}}
STORE = {"url": "redis://valkey:6379/0"}


def read(**cluster: Any) -> Any:
    return parse(json.dumps({"mcpServers": {}, "gateway": {"cluster": cluster}}))


def peers(**changed: Any) -> dict[str, Any]:
    return {key: value for key, value in {**PEERS, **changed}.items() if value is not ...}


def test_peers_and_store_are_accepted_without_a_warning() -> None:
    config = read(peers=PEERS, store=STORE)
    assert config.gateway.cluster.peers.own_name == "typegate-0"
    assert config.warnings == []


@pytest.mark.parametrize(
    ("cluster", "key", "words"),
    [
        ({}, "gateway.cluster", "peers, store, or both"),
        ({"peers": peers(secret="short")}, "gateway.cluster.peers.secret", "at least 32 characters"),
        ({"peers": peers(secret=...)}, "gateway.cluster.peers.secret", ""),
        ({"peers": peers(name="Not A Name")}, "gateway.cluster.peers.name", "lower-case"),
        ({"peers": peers(listen="8766x")}, "gateway.cluster.peers.listen", "HOST:PORT"),
        ({"peers": peers(listen="0.0.0.0:70000")}, "gateway.cluster.peers.listen", "65535"),
        ({"peers": peers(discovery={})}, "gateway.cluster.peers.discovery", "either dns or addresses"),
        ({"peers": peers(discovery={"dns": "a b"})}, "gateway.cluster.peers.discovery.dns", "headless Service"),
        ({"peers": peers(discovery={"addresses": {"A": "h:1"}})}, "gateway.cluster.peers.discovery", "lower-case"),
        ({"peers": peers(discovry={})}, "gateway.cluster.peers", "discovery (did you mean it?)"),
        ({"store": STORE}, "gateway.cluster.signingKey", "peers with a secret"),
        ({"store": STORE, "signingKey": "short"}, "gateway.cluster.signingKey", "at least 32 characters"),
        ({"peers": PEERS, "store": {"url": "http://valkey"}}, "gateway.cluster.store.url", "redis://"),
        ({"peers": PEERS, "store": {"url": "redis://:pw@valkey"}}, "gateway.cluster.store.url", "password"),
        ({"peers": PEERS, "store": {"url": "redis://valkey/nine"}}, "gateway.cluster.store.url", "number"),
        ({"peers": PEERS, "stor": STORE}, "gateway.cluster", "store (did you mean it?)"),
    ],
)
def test_invalid_cluster_setting_is_refused_naming_its_key(cluster: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(**cluster)
    text = str(refused.value)
    assert key in text
    assert words in text
    assert SECRET not in text
    assert text.count("\n") == 0


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("redis://store.example.com", True), ("redis://203.0.114.7:6379", True), ("rediss://store.example.com", False),
        ("redis://valkey.tools.svc", False), ("redis://127.0.0.1:6379", False), ("redis://10.1.2.3", False),
        ("unix:///run/valkey.sock", False),
    ],
)  # fmt: skip
def test_plain_text_password_beyond_a_private_network_is_warned_about(url: str, warns: bool) -> None:
    config = read(peers=PEERS, store={"url": url})
    assert any("rediss://" in text for text in config.warnings) == warns


def test_replicas_without_a_store_are_warned_about_unshared_state() -> None:
    assert any("each replica separately" in text for text in read(peers=PEERS).warnings)
