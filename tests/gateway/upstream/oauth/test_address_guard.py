"""Addresses that a sign-in may reach, by number and by name."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from gateway.http.http_client import split_url
from gateway.upstream.oauth.guarded_requests import AddressGuard, AddressRefused, GuardedRequests, create_guard

PUBLIC = AddressGuard()
LOCAL = AddressGuard(loopback=True)
FORBIDDEN = [
    "https://127.0.0.1/x",
    "https://localhost/x",
    "https://[::1]/x",
    "https://0.0.0.0/x",
    "https://10.0.0.1/x",
    "https://172.16.3.4/x",
    "https://192.168.1.1/x",
    "https://100.64.0.1/x",
    "https://169.254.169.254/latest/meta-data",
    "https://[fe80::1]/x",
    "https://[fd00:ec2::254]/x",
    "https://[::ffff:169.254.169.254]/x",
    "https://[::ffff:7f00:1]/x",
    "https://[64:ff9b::a9fe:a9fe]/x",
    "https://[2002:a9fe:a9fe::1]/x",
    "https://224.0.0.1/x",
    "https://255.255.255.255/x",
]
MALFORMED = [
    "file:///etc/passwd",
    "gopher://example.test/",
    "javascript:alert(1)",
    "data:application/json,{}",
    "//example.test/x",
    "/x",
    "",
    "https://",
    "https://user:secret@example.test/x",
    "https://example.test/x#part",
    "https://example.test:99999/x",
    "https://example.test/a b",
    "https://[bad/x",
    "https://example.test/" + "x" * 5_000,
    "http://example.test/x",
    "http://93.184.216.34/x",
]


@pytest.mark.parametrize("url", [*FORBIDDEN, *MALFORMED])
def test_forbidden_metadata_url_is_refused_before_resolving(url: str) -> None:
    with pytest.raises(AddressRefused):
        PUBLIC.check_url(url)


@pytest.mark.parametrize(
    "url", [url for url in FORBIDDEN if not any(own in url for own in ("127.0.0.1", "localhost", "::1]/", "7f00"))]
)
def test_local_upstream_allows_only_loopback(url: str) -> None:
    with pytest.raises(AddressRefused):
        LOCAL.check_url(url)


def test_public_https_is_allowed_and_loopback_for_a_local_upstream() -> None:
    assert str(PUBLIC.check_url("https://auth.example.test/token")) == "https://auth.example.test"
    assert str(PUBLIC.check_url("https://93.184.216.34/token")) == "https://93.184.216.34"
    for url in ("http://127.0.0.1:9000/token", "http://localhost:9000/token", "https://[::1]/token"):
        LOCAL.check_url(url)
    assert create_guard("http://localhost:8000/mcp").loopback
    assert create_guard("http://[::1]:8000/mcp").loopback
    assert not create_guard("https://mcp.example.test/mcp").loopback


def test_operator_may_allow_names_addresses_and_networks() -> None:
    allowed = create_guard("https://mcp.example.test/mcp", ["auth.corp.test", "10.1.0.0/16", "169.254.169.254"])
    for url in ("http://auth.corp.test/token", "https://10.1.2.3/token", "http://169.254.169.254/token"):
        allowed.check_url(url)
    with pytest.raises(AddressRefused):
        allowed.check_url("https://10.2.0.1/token")


@pytest.mark.parametrize("address", ["169.254.169.254", "10.0.0.1", "127.0.0.1", "::1", "fd00::1"])
async def test_public_name_with_a_private_address_is_not_dialed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts: list[Any] = []

    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        hosts.append(host)
        return [(0, 0, 0, "", ("93.184.216.34", port)), (0, 0, 0, "", (address, port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
    with pytest.raises(AddressRefused):
        await PUBLIC.resolve(split_url("https://rebinding.example.test/")[0])
    assert hosts == ["rebinding.example.test"]


async def test_checked_address_is_the_dialed_address(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])

    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, 0, 0, "", (one, port)) for one in next(answers)]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{"a": 1}')
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    requests = GuardedRequests(AddressGuard(loopback=True, private_hosts=("rebinding.example.test",)))
    async with server:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
        # A second look-up would find another machine.
        answer = await requests.get_json(f"http://rebinding.example.test:{port}/x")
    requests.close()
    assert answer.document == {"a": 1}
