"""Outgoing connections use the proxies and certificate authorities of the environment or the entry."""

from __future__ import annotations

import gc
import hashlib
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
from support.wires import Line

from gateway.config.load import parse
from gateway.config.upstream_types.http_config import HttpConfig
from gateway.http import proxies
from gateway.http.http_client import HttpClient, tls_context
from gateway.http.proxies import Proxy, _Connect, is_excluded, proxy_for, read_proxy
from gateway.onboarding.packages import fetch_json
from gateway.process.secrets import SECRETS
from gateway.protocol.gateway_errors import ConnectionLost
from gateway.upstream.oauth.guarded_requests import AddressGuard, AddressRefused

VARIABLES = [
    "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "REQUEST_METHOD", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR",
]  # fmt: skip


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    proxies.warn_once.cache_clear()


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
def test_proxy_is_parsed_from_its_url(text: str, expected: Proxy) -> None:
    assert read_proxy(text) == expected


@pytest.mark.parametrize(
    "text", ["socks5://proxy.test:1080", "http://", "http://a b", "http://h:port", "http://[x", "é", "a\x01b", "a\x7f"]
)
def test_invalid_proxy_is_refused_without_its_password(text: str) -> None:
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
def test_proxy_is_chosen_from_the_environment(
    environ: dict[str, str], secure: bool, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = proxy_for("mcp.corp.test", 443 if secure else 80, secure=secure)
    assert (str(found) if found is not None else None) == expected


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "LOCALHOST."])
def test_loopback_uses_only_a_proxy_of_its_entry(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("10.9.9.9/8", "10.1.2.3", 443, True),
        ("corp.test:80, corp.test:443", "corp.test", 443, True),
        ("fe80::/10", "fe80::1%eth0", 443, True),
        ("[fd00::1]:8", "fd00::1", 9, False),
        ("[fd00::1]x", "fd00::1", 443, True),
        ("10.1.2.3", "10.1.2.3", 443, True),
        ("10.1.2.3:80", "10.1.2.3", 443, False),
        ("fd00::/8", "fd00::1", 443, True),
        ("[fd00::1]", "fd00::1", 443, True),
        ("[fd00::1]:8443", "fd00::1", 443, False),
        ("fd00::1", "fd00::1", 443, True),
        ("https://corp.test", "corp.test", 443, True),
        ("http://corp.test:8443/path", "corp.test", 8443, True),
        ("https://[fd00::1]:8443/", "fd00::1", 443, False),
        ("a.test;corp.test", "corp.test", 443, True),
        ("a.test | corp.test", "corp.test", 443, True),
        ("*.corp.test:8443", "mcp.corp.test", 8443, True),
        ("corp.test.", "corp.test", 443, True),
        ("2130706433", "127.0.0.2", 443, True),
        (".", "corp.test", 443, False),
        ("", "corp.test", 443, False),
    ],
)
def test_no_proxy_accepts_names_addresses_networks_and_ports(excluded: str, host: str, port: int, direct: bool) -> None:
    assert is_excluded(host, port, excluded) is direct


def test_password_of_a_proxy_is_hidden_in_every_form() -> None:
    proxy = read_proxy("http://ann:never%40shown@proxy.test")
    assert proxy.authorization is not None
    for secret in ("never@shown", "never%40shown", proxy.authorization.removeprefix("Basic ")):
        assert SECRETS.scrub(f"<{secret}>") == "<[hidden]>"


@pytest.fixture
def trusted(tmp_path: Path) -> Authority:
    return authority(tmp_path / "authority.pem")


async def post_hello(client: HttpClient, url: str) -> tuple[int, bytes]:
    async with client.send("POST", url, {}, b"hello") as response:
        return response.status, await response.read()


@pytest.mark.parametrize("credentials", [None, "ann:p%40ss"])
async def test_plain_http_via_a_proxy_uses_the_absolute_url(
    credentials: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    authorization = "Basic YW5uOnBAc3M=" if credentials else None
    async with serving(echo) as site, forward_proxy({"mcp.corp.test": site.port}, authorization=authorization) as proxy:
        user = f"{credentials}@" if credentials else ""
        monkeypatch.setenv("HTTP_PROXY", f"http://{user}{proxy.address}")
        client = HttpClient()
        for _ in range(2):
            assert await post_hello(client, "http://mcp.corp.test/mcp?x=1") == (200, b"hello")
        assert proxy.request_lines == ["POST http://mcp.corp.test/mcp?x=1 HTTP/1.1"], "the connection is kept"
        assert "host: mcp.corp.test\r\n" in proxy.headers[0]
        client.close()


@pytest.mark.parametrize("way", ["plain", "tls"])
@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"])
async def test_https_via_a_proxy_uses_a_tunnel(
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
            assert await post_hello(client, "https://mcp.corp.test:8443/mcp") == (200, b"hello")
        assert proxy.request_lines == ["CONNECT mcp.corp.test:8443 HTTP/1.1"]
        assert "proxy-authorization" not in site.peers[0].requests[0].decode()
        client.close()


@pytest.mark.parametrize(
    "established",
    [
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200\r\n\r\n",
        b"HTTP/1.1 200 \r\n\r\n",
        b"HTTP/1.1 200 OK\n\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nproxy-connection: close\r\nconnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1_000 + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ],
)
async def test_any_2xx_answer_of_the_proxy_opens_the_tunnel(trusted: Authority, established: bytes) -> None:
    async with (
        serving(echo, tls=trusted.server("mcp.corp.test")) as site,
        forward_proxy({"mcp.corp.test": site.port}) as proxy,
    ):
        proxy.established = established
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SSL_CERT_FILE", str(trusted.file))
            client = HttpClient(proxy=proxy.address, connect_timeout_s=5)
            assert await post_hello(client, "https://mcp.corp.test/mcp") == (200, b"hello")
        client.close()


async def test_tunnel_verifies_the_intended_host(trusted: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(trusted.file))
    async with (
        serving(echo, tls=trusted.server("other.corp.test")) as site,
        forward_proxy({"mcp.corp.test": site.port}) as proxy,
    ):
        client = HttpClient(proxy=proxy.address)
        with pytest.raises(ConnectionLost, match="certificate"):
            await post_hello(client, "https://mcp.corp.test/mcp")
        assert not any(peer.requests for peer in site.peers)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n",
            "407 to CONNECT: it requires a user",
        ),
        (b"HTTP/1.1 403 Forbidden\r\n\r\nno", "HTTP 403 to CONNECT"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not answer with HTTP"),
        (b"x" * 20_000, "does not answer with HTTP"),
        (b"HTTP/1.1 200", "closed the connection"),
    ],
)
async def test_refusing_proxy_is_named_without_its_password(answer: bytes, reason: str) -> None:
    async with forward_proxy({}) as proxy:
        proxy.refuses = answer
        client = HttpClient(proxy=f"http://ann:not-to-be-told@{proxy.address}", connect_timeout_s=5)
        with pytest.raises(ConnectionLost, match=reason) as error:
            await post_hello(client, "https://mcp.corp.test/mcp")
        assert proxy.address in str(error.value)
        assert "not-to-be-told" not in str(error.value)
        assert SECRETS.scrub("not-to-be-told") != "not-to-be-told"


@pytest.mark.parametrize(
    ("proxy", "host", "request_bytes"),
    [
        (Proxy("p.test", 1), "mcp.test", b"CONNECT mcp.test:443 HTTP/1.1\r\nhost: mcp.test:443\r\n\r\n"),
        (
            Proxy("p.test", 1, authorization="Basic eA=="),
            "::1",
            b"CONNECT [::1]:443 HTTP/1.1\r\nhost: [::1]:443\r\nproxy-authorization: Basic eA==\r\n\r\n",
        ),
    ],
)
async def test_tunnel_is_requested_with_the_credentials(proxy: Proxy, host: str, request_bytes: bytes) -> None:
    connect, line = _Connect(proxy, host, 443), Line()
    connect.connection_made(line)
    assert line.take() == request_bytes
    for part in (b"HTTP/1.1 200", b" OK\r\nx: y\r\n", b"\r"):
        connect.data_received(part)
        assert not connect.answered.done()
    connect.data_received(b"\n")
    assert connect.answered.done()
    # Whatever follows belongs to the tunnel.
    connect.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    connect.connection_lost(None)
    await connect.answered


@pytest.mark.parametrize(
    ("parts", "error", "reason"),
    [
        ([b"x" * 16 * 1024], None, "it closed the connection"),
        ([b"x" * 16 * 1024], OSError("reset"), "reset"),
        ([b"x" * 16 * 1024, b"x"], None, "it does not answer with HTTP"),
        ([b"HTTP/1.1 502 No\r\n\r\n"], None, "it answers HTTP 502 to CONNECT"),
        ([b"HTTP/1.1 302 No\n\n"], None, "it answers HTTP 302 to CONNECT"),
        (
            [b"HTTP/1.1 407 No\r\n", b"\r\n"],
            None,
            "it answers HTTP 407 to CONNECT: it requires a user name and a password",
        ),
    ],
)
async def test_failure_of_a_tunnel_has_one_reason(
    parts: list[bytes], error: Exception | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    connect = _Connect(Proxy("p.test", 1), "mcp.test", 443)
    connect.connection_made(Line())
    for part in parts:
        connect.data_received(part)
    connect.connection_lost(error)
    assert str(connect.answered.exception()) == reason
    # Nobody may be waiting any more.
    abandoned = _Connect(Proxy("p.test", 1), "mcp.test", 443)
    abandoned.connection_lost(error)
    del abandoned
    gc.collect()
    assert caplog.records == []


async def test_connection_to_a_refusing_proxy_is_closed() -> None:
    async def refuse(peer: Peer) -> None:
        await peer.request()
        peer.say(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        assert await peer.reader.read() == b""

    async with serving(refuse) as proxy:
        client = HttpClient(proxy=f"127.0.0.1:{proxy.port}")
        with pytest.raises(ConnectionLost, match="HTTP 403 to CONNECT"):
            await post_hello(client, "https://mcp.corp.test/mcp")
        await proxy.peers[0].left.wait()


async def test_plain_http_via_a_tls_proxy_verifies_the_proxy(
    trusted: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(trusted.file))
    for name, is_trusted in (("127.0.0.1", True), ("other.test", False)):
        async with (
            serving(echo) as site,
            forward_proxy({"mcp.corp.test": site.port}, tls=trusted.server(name)) as proxy,
        ):
            client = HttpClient(proxy=f"https://{proxy.address}")
            if is_trusted:
                assert await post_hello(client, "http://mcp.corp.test/mcp") == (200, b"hello")
            else:
                with pytest.raises(ConnectionLost, match="certificate"):
                    await post_hello(client, "http://mcp.corp.test/mcp")
            client.close()


async def test_certificates_may_be_in_a_folder(
    trusted: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # OpenSSL names the files by a hash of the subject, whose text is already in canonical form here.
    digest = hashlib.sha1(trusted.certificate.subject.public_bytes()[2:], usedforsecurity=False).digest()
    (folder := tmp_path / "folder").mkdir()
    (folder / f"{int.from_bytes(digest[:4], 'little'):08x}.0").write_bytes(trusted.file.read_bytes())
    monkeypatch.setenv("CURL_CA_BUNDLE", str(folder))
    async with serving(echo, tls=trusted.server("127.0.0.1")) as site:
        client = HttpClient()
        assert await post_hello(client, f"https://127.0.0.1:{site.port}/mcp") == (200, b"hello")
        client.close()


async def test_unreachable_proxy_is_named() -> None:
    client = HttpClient(proxy="http://127.0.0.1:9")
    for url in ("http://mcp.corp.test/", "https://mcp.corp.test/"):
        with pytest.raises(ConnectionLost, match=r"through the proxy 127\.0\.0\.1:9"):
            await post_hello(client, url)


async def test_client_for_another_proxy_is_created_once_and_closed_with_the_first() -> None:
    async with serving(echo) as site, forward_proxy({"mcp.corp.test": site.port}) as proxy:
        client = HttpClient()
        assert client.with_proxy(None) is client
        through = client.with_proxy(proxy.address)
        assert client.with_proxy(proxy.address) is through
        assert through.with_proxy(proxy.address) is through
        assert client.with_proxy(False) is not client
        assert await post_hello(through, "http://mcp.corp.test/") == (200, b"hello")
        client.close()
        assert not through._idle


async def test_private_address_is_not_reached_via_a_proxy_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(echo) as site, forward_proxy({"auth.test": site.port, "10.0.0.1": site.port}) as proxy:
        guard = AddressGuard(private_hosts=("auth.test",))
        client = HttpClient(resolve=guard.resolve, proxy=proxy.address)
        # A name that cannot be resolved here is the proxy's to resolve.
        assert await post_hello(client, "http://auth.test/") == (200, b"hello")
        with pytest.raises(AddressRefused, match="not public"):
            await post_hello(client, "http://10.0.0.1/")
        client.close()


async def test_registries_are_queried_via_the_proxy(trusted: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert [line.rpartition(" ")[0] for line in proxy.request_lines] == ["CONNECT registry.corp.test:443"]


def test_unreadable_ca_file_is_logged_once_and_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "missing.pem"))
    for _ in range(3):
        assert tls_context().verify_mode == ssl.CERT_REQUIRED
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "certificates of the environment ignored"
    ]


@pytest.mark.parametrize("proxy", ["", "socks5://proxy.test", True, "http://", 7, ["a"]])
def test_entry_proxy_is_a_usable_proxy_or_false(proxy: Any) -> None:
    with pytest.raises(ValueError, match="proxy"):
        HttpConfig.model_validate({"url": "https://mcp.test/mcp", "proxy": proxy})


def test_changed_proxy_is_a_new_connection_to_the_same_server() -> None:
    before, after = (
        HttpConfig.model_validate({"url": "https://mcp.test/mcp", "proxy": proxy}) for proxy in ("a.test:1", False)
    )
    assert before.identity_key() == after.identity_key()
    assert before.connection_key() != after.connection_key()


async def test_entries_use_their_own_proxies(tmp_path: Path) -> None:
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
    assert {line.split()[1] for line in everyone.request_lines} == {"http://mcp.corp.test/mcp"}
    assert {line.split()[1] for line in own.request_lines} == {"http://own.corp.test/mcp"}


def test_entry_with_an_invalid_proxy_is_excluded() -> None:
    entries = {"a": {"url": "https://a.test/mcp", "proxy": "socks5://p.test"}, "b": {"url": "https://b.test/mcp"}}
    config = parse(json.dumps({"mcpServers": entries}))
    assert (list(config.left_out), list(config.servers)) == (["a"], ["b"])
