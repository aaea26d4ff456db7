"""Requests of unknown hosts and origins are refused, and pages of allowed origins may read the responses."""

from __future__ import annotations

from typing import Any

import pytest
from support.wires import SingleHandler, connect

from gateway.http.http_request import RequestHead, RequestRefused
from gateway.http.origins import VARY, CrossOrigin, HostCheck

HOSTS, ORIGINS = frozenset({"gate.test", "gate.test:8443"}), frozenset({"https://app.test"})


def head_of(*, version: str = "1.1", method: bytes = b"GET", **fields: Any) -> RequestHead:
    lines = [
        (name.replace("_", "-").encode(), value.encode())
        for name, given in fields.items()
        for value in ([given] if isinstance(given, str) else given)
    ]
    return RequestHead(method, b"/a", lines, version=version, keep_alive=True)


def status_of(check: HostCheck, head: RequestHead) -> int:
    try:
        check.check(head)
    except RequestRefused as refused:
        return refused.status
    return 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("gate.test", 200),
        ("GATE.test", 200),
        ("gate.test:1", 200),
        ("gate.test:8443", 200),
        ("10.0.0.1", 200),
        ("10.0.0.1:9", 200),
        ("[fd00::1]", 200),
        ("[fd00::1]:9", 200),
        ("evil.test", 421),
        ("gate.test.evil.test", 421),
        ("gate.test:port", 421),
        ("gate.test:123456", 421),
        ("gate.test/", 421),
        ("a@gate.test", 421),
        ("[10.0.0.1]", 421),
        ("fd00::1", 421),
        ("2130706433", 421),
        ("127.1", 421),
        ("", 421),
        ([], 400),
        (["gate.test", "gate.test"], 400),
    ],
    ids=str,
)
def test_host_is_a_known_name_or_an_address(host: str | list[str], status: int) -> None:
    check = HostCheck(HOSTS, ORIGINS)
    for _ in range(2):
        assert status_of(check, head_of(host=host)) == status
    any_host = HostCheck(None, ORIGINS)
    assert status_of(any_host, head_of(host=host)) == (400 if status == 400 else 200)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://app.test", 200),
        (" HTTPS://APP.test", 200),
        ("http://localhost:3000", 200),
        ("https://127.0.0.1", 200),
        ("http://[::1]:9", 200),
        ("http://app.test", 403),
        ("ftp://localhost", 403),
        ("http://localhost@evil.test", 403),
        ("http://localhost:80@evil.test", 403),
        ("http://localhost.evil.test", 403),
        ("http://10.0.0.1", 403),
        ("localhost", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_origin_is_configured_or_on_this_machine(origin: str, status: int) -> None:
    check = HostCheck(HOSTS, ORIGINS)
    for _ in range(2):
        assert status_of(check, head_of(host="gate.test", origin=origin)) == status


def test_http_1_0_may_omit_the_host() -> None:
    check = HostCheck(HOSTS, ORIGINS)
    assert status_of(check, head_of(version="1.0")) == 200
    assert status_of(check, head_of(version="1.1")) == 400, "the earlier result depends on the version"
    assert status_of(check, head_of(version="1.0", origin="null")) == 403
    assert status_of(check, head_of(version="1.0", host=["gate.test", "gate.test"])) == 400


def test_replaced_hosts_and_origins_apply_to_known_requests() -> None:
    check = HostCheck(HOSTS, ORIGINS)
    heads = [head_of(host="gate.test"), head_of(host="10.0.0.1", origin="https://app.test")]
    assert [status_of(check, head) for head in heads] == [200, 200]
    edition = check.edition
    check.replace(frozenset({"other.test"}), frozenset())
    assert [status_of(check, head) for head in heads] == [421, 403]
    assert status_of(check, head_of(host="other.test")) == 200
    assert check.edition is not edition


def test_response_names_the_origin_that_may_read_it() -> None:
    cross_origin = CrossOrigin(ORIGINS)
    assert cross_origin.lines(head_of(host="gate.test")) == b""
    lines = {
        origin: cross_origin.lines(head_of(origin=origin)).split(b"\r\n")
        for origin in ("https://APP.test", " http://localhost:3000")
    }
    allowed, local = lines.values()
    assert allowed[:2] == [
        b"access-control-allow-origin: https://APP.test",
        b"access-control-allow-credentials: true",
    ]
    assert local[0] == b"access-control-allow-origin: http://localhost:3000"
    assert not any(b"credentials" in line for line in local)
    for each in (allowed, local):
        assert any(line.startswith(b"access-control-expose-headers: mcp-session-id") for line in each)
        assert each[-2:] == [VARY.strip(), b""]


def test_preflight_is_an_options_request_of_a_page() -> None:
    page = {"origin": "https://app.test", "access_control_request_method": "POST"}
    assert CrossOrigin.is_preflight(head_of(method=b"OPTIONS", **page))
    assert not CrossOrigin.is_preflight(head_of(method=b"POST", **page))
    for missing in page:
        assert not CrossOrigin.is_preflight(head_of(method=b"OPTIONS", **{**page, missing: []}))


async def preflight(**fields: str) -> tuple[bytes, list[str]]:
    """Return the status line and the headers of the response to a preflight request."""
    protocol, line = connect(SingleHandler(CrossOrigin(ORIGINS)))
    lines = [f"access-control-request-{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items()]
    protocol.data_received(f"OPTIONS /a HTTP/1.1\r\nhost: x\r\n{''.join(lines)}\r\n".encode("latin-1"))
    status_line, *headers = line.take().decode("latin-1").split("\r\n")
    return status_line.encode(), headers


ALWAYS = (
    "authorization, content-type, accept, mcp-protocol-version, mcp-session-id, mcp-method, mcp-name, last-event-id"
)


async def test_preflight_allows_the_requested_headers() -> None:
    common = ["access-control-allow-methods: GET, POST, DELETE, OPTIONS", "access-control-max-age: 7200"]
    for requested, allowed in (
        ({}, ALWAYS),
        ({"headers": "X-A ,\tx-b,ACCEPT, x-a"}, "x-a, x-b, accept, " + ALWAYS.replace(" accept,", "")),
    ):
        status_line, headers = await preflight(**requested)
        assert status_line == b"HTTP/1.1 204 No Content"
        assert headers == [common[0], f"access-control-allow-headers: {allowed}", common[1], "", ""]


async def test_preflight_allows_private_networks_on_request() -> None:
    name = "access-control-allow-private-network: true"
    assert name in (await preflight(private_network="True"))[1]
    assert name not in (await preflight(private_network="false"))[1]
    assert name not in (await preflight())[1]


@pytest.mark.parametrize(
    ("names", "is_allowed"),
    [("x" * 4096, True), ("x" * 4097, False), ("a b", False), ("a,", False), ("a:b", False), ("a\x85", False)],
    ids=["4096 bytes", "4097 bytes", "a space", "a comma", "a colon", "a control character"],
)
async def test_preflight_with_malformed_or_long_header_names_is_refused(names: str, is_allowed: bool) -> None:
    status_line, headers = await preflight(headers=names)
    assert status_line.split()[1] == (b"204" if is_allowed else b"400")
    assert any(names in header for header in headers) is is_allowed
