"""HTTPS upstreams with an untrusted or mismatched certificate receive nothing."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from faults.observing import until_server
from support.certificates import Authority, authority
from support.gateways import running_gateway, text_of
from support.raw_http import Peer, echo, mcp, serving

from gateway.http.http_client import HttpClient
from gateway.protocol.gateway_errors import ConnectionLost, HttpStatusError

SECRET = "Bearer 0nly-for-the-right-one"


@pytest.fixture
def trusted(tmp_path: Path) -> Authority:
    return authority(tmp_path / "trusted.pem")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return authority(tmp_path / "stranger.pem")


@pytest.mark.heavy
async def test_trusted_server_is_called_and_untrusted_ones_receive_nothing(
    tmp_path: Path, trusted: Authority, stranger: Authority
) -> None:
    headers = {"Authorization": SECRET}
    async with (
        serving(mcp, tls=trusted.server("127.0.0.1")) as good,
        serving(mcp, tls=stranger.server("127.0.0.1")) as unknown,
        serving(mcp, tls=trusted.server("elsewhere.test")) as renamed,
    ):
        servers = {
            name: {"url": f"https://127.0.0.1:{site.port}/mcp", "headers": headers, "callTimeout": 1}
            for name, site in (("good", good), ("unknown", unknown), ("renamed", renamed))
        }
        environment = {"SSL_CERT_FILE": str(trusted.file)}
        async with running_gateway(tmp_path, servers, environment=environment) as gateway:
            await gateway.until_listed("good__echo")
            assert text_of(await gateway.call("good__echo")) == "done"
            for name, reason in (("unknown", "certificate verify failed"), ("renamed", "127.0.0.1")):
                row = await until_server(gateway, name, lambda row: row["lastError"])
                assert row["state"] != "ready"
                assert "cannot connect" in row["lastError"]
                assert reason in row["lastError"], row
                refused = await gateway.call(f"{name}__echo")
                assert refused["isError"]
                assert reason in text_of(refused)
            # Connections were tried, and none of them came so far as to carry a request.
            assert all(b"authorization" not in b"".join(peer.requests) for peer in (*unknown.peers, *renamed.peers))
            assert any(SECRET.encode() in request for peer in good.peers for request in peer.requests)


async def ask(url: str, *, within_s: float = 20) -> bytes:
    client = HttpClient(connect_timeout_s=within_s)
    try:
        async with client.send("POST", url, {"authorization": SECRET}, b"question") as response:
            return await response.read()
    finally:
        client.close()


@pytest.mark.parametrize(
    ("names", "days", "reason"),
    [
        (("localhost", "127.0.0.1"), 1, None),
        (("elsewhere.test",), 1, "127.0.0.1"),
        (("127.0.0.2", "localhost"), 1, "127.0.0.1"),
        (("127.0.0.1",), -1, "expired"),
    ],
)
async def test_certificate_name_and_dates_are_verified(
    trusted: Authority, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], days: int, reason: str | None
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted.file))
    async with serving(echo, tls=trusted.server(*names, days=days)) as site:
        url = f"https://127.0.0.1:{site.port}/"
        if reason is None:
            assert await ask(url) == b"question"
            return
        with pytest.raises(ConnectionLost, match=reason) as lost:
            await ask(url)
        assert not lost.value.sent
        assert [peer.requests for peer in site.peers] in ([], [[]])


async def test_server_without_tls_or_with_an_old_version_is_refused(
    trusted: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted.file))
    async with serving(echo) as plain:
        with pytest.raises(ConnectionLost) as lost:
            await ask(f"https://127.0.0.1:{plain.port}/", within_s=2)  # the server waits for a request
        assert not lost.value.sent
    old = trusted.server("127.0.0.1")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(echo, tls=old) as site:
        with pytest.raises(ConnectionLost):
            await ask(f"https://127.0.0.1:{site.port}/")


async def test_idle_tls_connection_is_reused_and_never_for_plain_http(
    trusted: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted.file))
    client = HttpClient()
    async with serving(echo, tls=trusted.server("127.0.0.1")) as site:
        for _ in range(3):
            async with client.send("POST", f"https://127.0.0.1:{site.port}/", {}, b"x") as response:
                assert await response.read() == b"x"
        assert len(site.peers) == 1
        with pytest.raises(ConnectionLost):
            async with client.send("POST", f"http://127.0.0.1:{site.port}/", {}, b"x"):
                pass
    client.close()


async def test_redirect_from_https_to_http_is_not_followed(trusted: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted.file))
    async with serving(echo) as plain:

        async def redirect(peer: Peer) -> None:
            await peer.request()
            peer.answer(b"", b"HTTP/1.1 307 Moved\r\nlocation: " + plain.url.encode() + b"\r\n")

        async with serving(redirect, tls=trusted.server("127.0.0.1")) as site:
            with pytest.raises(HttpStatusError, match="another origin"):
                await ask(f"https://127.0.0.1:{site.port}/")
        assert plain.peers == []
