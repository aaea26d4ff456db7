"""Header blocks of requests: target, lists, media types, and headers that must not be repeated."""

from __future__ import annotations

import pytest

from gateway.http.http_request import (
    Fields,
    RequestHead,
    RequestRefused,
    accepts,
    check_post,
    head_without_upgrade,
    over_quota,
)
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import QuotaExceeded

EVENTS = "text/event-stream"


def head_of(*lines: str, target: str = "/a") -> RequestHead:
    fields: Fields = [
        (name.encode(), value.encode("latin-1")) for name, _, value in (line.partition(": ") for line in lines)
    ]
    return RequestHead(b"POST", target.encode(), fields, version="1.1", keep_alive=True)


@pytest.mark.parametrize(
    ("target", "path", "query", "host"),
    [
        ("/a?b?c", "/a", "b?c", "x"),
        ("/", "/", "", "x"),
        ("/http://y/a", "/http://y/a", "", "x"),
        ("http://y/a?b", "/a", "b", "y"),
        ("HTTPS://y:1", "/", "", "y:1"),
        ("http://", "http://", "", "x"),
        ("ftp://y/a", "ftp://y/a", "", "x"),
        ("y:80", "y:80", "", "x"),
        ("*", "*", "", "x"),
    ],
)
def test_target_is_split_into_host_path_and_query(target: str, path: str, query: str, host: str) -> None:
    head = head_of("host: x", "accept: host", target=target)
    assert (head.path, head.query, head.raw(b"host")) == (path.encode(), query.encode(), host.encode())
    assert (head.target, head.raw(b"accept")) == (target.encode(), b"host")


def test_lines_of_a_repeated_header_are_one_list() -> None:
    head = head_of("accept: a", "x: 1", "accept: b, c")
    assert (head.raw(b"accept"), head.raw(b"x"), head.raw(b"absent")) == (b"a, b, c", b"1", None)
    assert head.texts() == {"accept": "a, b, c", "x": "1"}


def test_text_of_a_header_has_no_surrounding_space() -> None:
    head = head_of("x: \t \xe9 y \t", "empty: ")
    assert [head.text(b"x"), head.text(b"x"), head.text(b"empty", "d")] == ["é y", "é y", ""]
    assert [head.text(b"absent"), head.text(b"absent", "d")] == ["", "d"]


@pytest.mark.parametrize("name", ["traceparent", "tracestate", "baggage"])
def test_trace_context_consists_of_its_headers(name: str) -> None:
    assert head_of(f"{name}:  v ", "x: y").trace == {name: "v"}
    assert head_of("x: y").trace == {}


@pytest.mark.parametrize(("lines", "length"), [(["5"], 5), ([" 5 "], 5), (["x"], None), (["5", "5"], None), ([], None)])
def test_declared_length_is_a_number_or_unknown(lines: list[str], length: int | None) -> None:
    assert head_of(*(f"content-length: {line}" for line in lines)).content_length == length


@pytest.mark.parametrize("name", ["host", "authorization", "content-length", "mcp-session-id", "mcp-param-region"])
def test_header_that_decides_may_appear_once(name: str) -> None:
    head_of(f"{name}: a", "accept: a", "accept: b").check_fields()
    head_of(f"{name}: a", "x: y").check_fields()
    with pytest.raises(RequestRefused, match=f"the header {name} appears more than once") as refused:
        head_of("accept: a", f"{name}: a", "x: y", f"{name}: a").check_fields()
    assert refused.value.status == 400


def test_refusal_has_a_json_rpc_error_unless_it_has_a_body() -> None:
    refused = RequestRefused(403, "no")
    assert (str(refused), refused.status, refused.fields, refused.close) == ("no", 403, [], False)
    assert json_bytes.loads(refused.body) == {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no"}}
    refused = RequestRefused(403, "no", [(b"a", b"b")], body=b"{}", close=True)
    assert (refused.fields, refused.body, refused.close) == ([(b"a", b"b")], b"{}", True)


@pytest.mark.parametrize(("own", "status"), [(True, 429), (False, 503)])
def test_exceeded_quota_names_the_time_to_wait(own: bool, status: int) -> None:
    refused = over_quota(QuotaExceeded("later", retry_after_s=7, own=own), body=b"{}", close=True)
    assert (refused.status, refused.fields, str(refused)) == (status, [(b"retry-after", b"7")], "later")
    assert (refused.body, refused.close) == (b"{}", True)


def test_upgrade_is_removed_from_a_header_block() -> None:
    fields = [
        (b"host", b"x"),
        (b"connection", b"keep-alive, Upgrade,http2-settings , te"),
        (b"upgrade", b"h2c"),
        (b"http2-settings", b"AAMAAABk"),
        (b"x", b"upgrade"),
    ]
    wanted = b"GET /a HTTP/1.0\r\nhost: x\r\nconnection: keep-alive, te\r\nx: upgrade\r\n\r\n"
    assert head_without_upgrade(b"GET", b"/a", fields, "1.0") == wanted


@pytest.mark.parametrize(
    ("content_type", "is_json"),
    [
        ("application/json", True),
        (" Application/JSON ; charset=utf-8", True),
        ("application/json;x", True),
        ("application/jsonp", False),
        ("text/plain; application/json", False),
        ("", False),
    ],
)
def test_body_of_a_post_is_json(content_type: str, is_json: bool) -> None:
    head = head_of(f"content-type: {content_type}")
    if is_json:
        assert check_post(head) == (True, True)
        return
    with pytest.raises(RequestRefused) as refused:
        check_post(head)
    assert refused.value.status == 415


@pytest.mark.parametrize(
    ("accept", "forms"),
    [
        (f"application/json, {EVENTS}", (True, True)),
        ("*/*", (True, True)),
        ("", (True, True)),
        ("*", (True, True)),
        ("application/json", (True, False)),
        (f"text/html, {EVENTS.upper()};q=0.5", (False, True)),
        ("application/*", (True, False)),
        ("text/*;q=0, */*", (True, False)),
        (f"{EVENTS};q=0,*/*;q=0.1", (True, False)),
        (f"*/* , {EVENTS} ; q=0.000", (True, False)),
        ("application/json;q=0, application/json", None),
        ("text/html", None),
        ("*/*;q=0", None),
    ],
)
def test_accept_decides_the_form_of_the_response(accept: str, forms: tuple[bool, bool] | None) -> None:
    head = head_of("content-type: application/json", f"accept: {accept}")
    assert (accepts(head, "application/json"), accepts(head, EVENTS)) == (forms or (False, False))
    if forms is not None:
        assert check_post(head) == forms
        return
    with pytest.raises(RequestRefused) as refused:
        check_post(head)
    assert refused.value.status == 406


def test_post_without_accept_gets_either_form() -> None:
    assert check_post(head_of("content-type: application/json")) == (True, True)
