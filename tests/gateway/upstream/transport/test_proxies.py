"""Our own connections go through the proxies, and trust the authorities, that the environment or an entry names."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.certificates import Authority, authority
from support.forward_proxy import forward_proxy
from support.gateways import running_gateway, text_of
from support.raw_http import Peer, echo, mcp, serving

from gateway.config.load import parse
from gateway.config.upstream_types.http_config import HttpConfig
from gateway.errors import ConnectionLost
from gateway.secrets import SECRETS
from gateway.server_sources.fetch import fetch_json
from gateway.upstream.oauth.address_guard import AddressGuard, AddressRefused
from gateway.upstream.transport import proxies
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.transport.proxies import Proxy, is_excluded, proxy_for, read_proxy, tls_context

VARIABLES = [
    "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "REQUEST_METHOD", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR",
]  # fmt: skip


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    proxies._warn.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://proxy.test:3128", Proxy("proxy.test", 3128)),
        ("proxy.test:3128", Proxy("proxy.test", 3128)),
        ("http://proxy.test", Proxy("proxy.test", 80)),
        ("https://proxy.test/", Proxy("proxy.test", 443, secure=True)),
        (" HTTP://Proxy.test:3128/ ", Proxy("proxy.test", 3128)),
        ("http://[::1]:3128", Proxy("::1", 3128)),
        ("http://ann:p%40ss@proxy.test:3128", Proxy("proxy.test", 3128, False, "Basic YW5uOnBAc3M=")),
        ("ann:pass@proxy.test:3128", Proxy("proxy.test", 3128, False, "Basic YW5uOnBhc3M=")),
        ("http://ann@proxy.test", Proxy("proxy.test", 80, False, "Basic YW5uOg==")),
    ],
)
def test_a_proxy_is_read_from_its_url(text: str, expected: Proxy) -> None:
    assert read_proxy(text) == expected


@pytest.mark.parametrize(
    "text", ["socks5://proxy.test:1080", "http://", "http://a b", "http://h:port", "http://[x", "é"]
)
def test_what_is_no_proxy_is_refused_without_the_password(text: str) -> None:
    with pytest.raises(ValueError, match=r"proxy|URL") as error:
        read_proxy(text)
    assert "pass" not in str(error.value)


@pytest.mark.parametrize(
    ("environ", "secure", "expected"),
    [
        ({"HTTP_PROXY": "a:1"}, False, "a:1"),
        ({"HTTP_PROXY": "a:1"}, True, None),
        ({"HTTPS_PROXY": "a:1"}, True, "a:1"),
        ({"https_proxy": "a:1"}, True, "a:1"),
        ({"http_proxy": "a:1", "HTTP_PROXY": "b:1"}, False, "a:1"),
        ({"https_proxy": "", "HTTPS_PROXY": "b:1"}, True, None),
        ({"ALL_PROXY": "a:1"}, True, "a:1"),
        ({"all_proxy": "a:1"}, False, "a:1"),
        ({"HTTPS_PROXY": "b:1", "ALL_PROXY": "a:1"}, True, "b:1"),
        ({"HTTP_PROXY": "a:1", "NO_PROXY": "mcp.corp.test"}, False, None),
        ({"HTTP_PROXY": "a:1", "no_proxy": "other.test", "NO_PROXY": "*"}, False, "a:1"),
        ({"HTTP_PROXY": "a:1", "REQUEST_METHOD": "GET"}, False, None),
        ({"http_proxy": "a:1", "REQUEST_METHOD": "GET"}, False, "a:1"),
        ({"HTTP_PROXY": "socks5://a:1"}, False, None),
        ({"HTTP_PROXY": "http://[bad"}, False, None),
        ({}, False, None),
    ],
)
def test_the_environment_says_which_proxy(
    environ: dict[str, str], secure: bool, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = proxy_for("mcp.corp.test", 443 if secure else 80, secure=secure)
    assert (str(found) if found is not None else None) == expected


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "LOCALHOST."])
def test_this_machine_is_reached_through_a_proxy_of_its_entry_only(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "proxy.test:3128")
    assert proxy_for(host, 80, secure=False) is None
    assert str(proxy_for(host, 80, secure=False, choice="other.test:1")) == "other.test:1"
    assert proxy_for("mcp.test", 80, secure=False, choice=False) is None


@pytest.mark.parametrize(
    ("excluded", "host", "port", "direct"),
    [
        ("corp.test", "corp.test", 443, True),
        ("corp.test", "mcp.corp.test", 443, True),
        (".corp.test", "mcp.corp.test", 443, True),
        (".corp.test", "corp.test", 443, True),
        ("*.corp.test", "mcp.corp.test", 443, True),
        ("corp.test", "notcorp.test", 443, False),
        ("corp.test", "corp.test.evil.test", 443, False),
        ("CORP.test", "MCP.corp.TEST.", 443, True),
        ("a.test, corp.test", "corp.test", 443, True),
        ("a.test corp.test", "corp.test", 443, True),
        (" ,,corp.test,", "corp.test", 443, True),
        ("*", "anything.test", 443, True),
        ("corp.test:8443", "corp.test", 8443, True),
        ("corp.test:8443", "corp.test", 443, False),
        ("10.0.0.0/8", "10.1.2.3", 443, True),
        ("10.0.0.0/8", "11.1.2.3", 443, False),
        ("10.1.2.3", "10.1.2.3", 443, True),
        ("10.1.2.3:80", "10.1.2.3", 443, False),
        ("fd00::/8", "fd00::1", 443, True),
        ("[fd00::1]", "fd00::1", 443, True),
        ("[fd00::1]:8443", "fd00::1", 443, False),
        ("fd00::1", "fd00::1", 443, True),
        (".", "corp.test", 443, False),
        ("", "corp.test", 443, False),
    ],
)
def test_no_proxy_lists_names_addresses_networks_and_ports(excluded: str, host: str, port: int, direct: bool) -> None:
    assert is_excluded(host, port, excluded) is direct


@pytest.fixture
def trusted(tmp_path: Path) -> Authority:
    return authority(tmp_path / "authority.pem")


async def asked(client: HttpClient, url: str) -> tuple[int, bytes]:
    async with client.send("POST", url, {}, b"hello") as response:
        return response.status, await response.read()


@pytest.mark.parametrize("credentials", [None, "ann:p%40ss"])
async def test_a_plain_server_is_asked_by_its_whole_url(
    credentials: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    authorization = "Basic YW5uOnBAc3M=" if credentials else None
    async with serving(echo) as site, forward_proxy({"mcp.corp.test": site.port}, authorization=authorization) as proxy:
        user = f"{credentials}@" if credentials else ""
        monkeypatch.setenv("HTTP_PROXY", f"http://{user}{proxy.address}")
        client = HttpClient()
        for _ in range(2):
            assert await asked(client, "http://mcp.corp.test/mcp?x=1") == (200, b"hello")
        assert proxy.asked == ["POST http://mcp.corp.test/mcp?x=1 HTTP/1.1"], "the connection is kept"
        assert "host: mcp.corp.test\r\n" in proxy.headers[0]
        client.close()


@pytest.mark.parametrize("way", ["plain", "tls"])
@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"])
async def test_a_server_behind_tls_is_reached_through_a_tunnel(
    variable: str, way: str, trusted: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = trusted.server("127.0.0.1") if way == "tls" else None
    monkeypatch.setenv(variable, str(trusted.file))
    async with (
        serving(echo, tls=trusted.server("mcp.corp.test")) as site,
        forward_proxy({"mcp.corp.test": site.port}, tls=own, authorization="Basic YW5uOnBhc3M=") as proxy,
    ):
        monkeypatch.setenv("https_proxy", f"{'https' if own else 'http'}://ann:pass@{proxy.address}")
        client = HttpClient()
        for _ in range(2):
            assert await asked(client, "https://mcp.corp.test:8443/mcp") == (200, b"hello")
        assert proxy.asked == ["CONNECT mcp.corp.test:8443 HTTP/1.1"]
        assert "proxy-authorization" not in site.peers[0].requests[0].decode()
        client.close()


async def test_a_tunnel_ends_at_the_host_that_was_meant(trusted: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(trusted.file))
    async with (
        serving(echo, tls=trusted.server("other.corp.test")) as site,
        forward_proxy({"mcp.corp.test": site.port}) as proxy,
    ):
        client = HttpClient(proxy=proxy.address)
        with pytest.raises(ConnectionLost, match="certificate"):
            await asked(client, "https://mcp.corp.test/mcp")
        assert not any(peer.requests for peer in site.peers)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n", "407 to CONNECT: it wants a user"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\nno", "HTTP 403 to CONNECT"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "something else than HTTP"),
        (b"x" * 20_000, "something else than HTTP"),
        (b"HTTP/1.1 200", "closed the connection"),
    ],
)
async def test_a_proxy_that_refuses_is_named_and_its_password_is_not(answer: bytes, reason: str) -> None:
    async with forward_proxy({}) as proxy:
        proxy.refuses = answer
        client = HttpClient(proxy=f"http://ann:not-to-be-told@{proxy.address}", connect_timeout_s=5)
        with pytest.raises(ConnectionLost, match=reason) as error:
            await asked(client, "https://mcp.corp.test/mcp")
        assert proxy.address in str(error.value)
        assert "not-to-be-told" not in str(error.value)
        assert SECRETS.scrub("not-to-be-told") != "not-to-be-told"


async def test_a_proxy_that_is_away_is_named() -> None:
    client = HttpClient(proxy="http://127.0.0.1:9")
    for url in ("http://mcp.corp.test/", "https://mcp.corp.test/"):
        with pytest.raises(ConnectionLost, match=r"by the proxy 127\.0\.0\.1:9"):
            await asked(client, url)


async def test_a_client_through_another_proxy_is_made_once_and_closed_with_the_first() -> None:
    async with serving(echo) as site, forward_proxy({"mcp.corp.test": site.port}) as proxy:
        client = HttpClient()
        assert client.via(None) is client
        through = client.via(proxy.address)
        assert client.via(proxy.address) is through
        assert through.via(proxy.address) is through
        assert client.via(False) is not client
        assert await asked(through, "http://mcp.corp.test/") == (200, b"hello")
        client.close()
        assert not through._idle


async def test_what_is_known_to_be_private_is_not_reached_through_a_proxy_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(echo) as site, forward_proxy({"auth.test": site.port, "10.0.0.1": site.port}) as proxy:
        guard = AddressGuard(private_hosts=("auth.test",))
        client = HttpClient(resolve=guard.resolve, proxy=proxy.address)
        # A name that cannot be resolved here is the proxy's to resolve.
        assert await asked(client, "http://auth.test/") == (200, b"hello")
        with pytest.raises(AddressRefused, match="not public"):
            await asked(client, "http://10.0.0.1/")
        client.close()


async def test_registries_are_asked_through_the_proxy_too(trusted: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    async def document(peer: Peer) -> None:
        await peer.request()
        peer.answer(b'{"name": "x"}')

    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(trusted.file))
    async with (
        serving(document, tls=trusted.server("registry.corp.test")) as site,
        forward_proxy({"registry.corp.test": site.port}, authorization="Basic YW5uOnBhc3M=") as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", f"http://ann:pass@{proxy.address}")
        found = await anyio.to_thread.run_sync(fetch_json, "https://registry.corp.test/x")
        assert found == {"name": "x"}
        assert [line.rpartition(" ")[0] for line in proxy.asked] == ["CONNECT registry.corp.test:443"]


def test_authorities_that_cannot_be_read_are_told_once_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "missing.pem"))
    for _ in range(3):
        assert tls_context().verify_mode == ssl.CERT_REQUIRED
    assert [record.message.partition(":")[0] for record in caplog.records] == ["REQUESTS_CA_BUNDLE is not used"]


@pytest.mark.parametrize("proxy", ["", "socks5://proxy.test", True, "http://", 7, ["a"]])
def test_an_entry_names_a_proxy_that_can_be_used_or_false(proxy: Any) -> None:
    with pytest.raises(ValueError, match="proxy"):
        HttpConfig.model_validate({"url": "https://mcp.test/mcp", "proxy": proxy})


def test_a_change_of_the_proxy_is_another_connection_to_the_same_server() -> None:
    before, after = (
        HttpConfig.model_validate({"url": "https://mcp.test/mcp", "proxy": proxy}) for proxy in ("a.test:1", False)
    )
    assert before.identity_key() == after.identity_key()
    assert before.reach_key() != after.reach_key()


async def test_entries_have_proxies_of_their_own(tmp_path: Path) -> None:
    async with (
        serving(mcp) as site,
        forward_proxy({"mcp.corp.test": site.port}) as everyone,
        forward_proxy({"own.corp.test": site.port}) as own,
    ):
        servers = {
            "usual": {"url": "http://mcp.corp.test/mcp"},
            "own": {"url": "http://own.corp.test/mcp", "proxy": f"http://{own.address}"},
            "direct": {"url": f"http://127.0.0.1:{site.port}/mcp", "proxy": False},
        }
        environment = {"http_proxy": f"http://{everyone.address}"}
        async with running_gateway(tmp_path, servers, environment=environment) as gateway:
            await gateway.until_listed("usual__echo", "own__echo", "direct__echo")
            for alias in servers:
                assert text_of(await gateway.call(f"{alias}__echo")) == "done"
    assert {line.split()[1] for line in everyone.asked} == {"http://mcp.corp.test/mcp"}
    assert {line.split()[1] for line in own.asked} == {"http://own.corp.test/mcp"}


def test_a_proxy_that_an_entry_cannot_have_leaves_out_that_entry() -> None:
    entries = {"a": {"url": "https://a.test/mcp", "proxy": "socks5://p.test"}, "b": {"url": "https://b.test/mcp"}}
    config = parse(json.dumps({"mcpServers": entries}))
    assert (list(config.left_out), list(config.servers)) == (["a"], ["b"])
