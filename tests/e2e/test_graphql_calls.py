"""Calls of GraphQL operations: what is sent, and what comes back (rows G8, G9 and G13)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.callers import handshake
from support.gateways import RunningGateway, answer_of, envelope, running_gateway, text_of
from support.upstreams.graphql_running import GET_EMPLOYEE, PLAIN, graphql_gateway, graphql_server

NAME = "hr__get_employee"
FILES = {"a.graphql": GET_EMPLOYEE, "b.graphql": PLAIN}
BIG = 2**53 + 1
TOKEN = "Bearer for-the-endpoint-only"
ERRORS, EXTENSIONS = "typegate/graphqlErrors", "typegate/graphqlExtensions"


async def call(gateway: RunningGateway, era: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The result that a caller of this era gets."""
    if era == "modern":
        return await gateway.call(name, arguments)
    result: dict[str, Any] = (await (await handshake(gateway)).call(name, arguments))["result"]
    return result


@pytest.mark.parametrize("era", ["modern", "handshake"])
@pytest.mark.parametrize("kind", ["application/json", "application/graphql-response+json", "text/plain"])
@pytest.mark.heavy
async def test_g8_data_is_lossless_structured_content_and_text(tmp_path: Path, era: str, kind: str) -> None:
    async with graphql_gateway(tmp_path, FILES) as (server, gateway):
        await gateway.until_listed(NAME)
        employee = {"id": 7, "name": "Zoë \u2028", "salary": BIG}
        server.change(root={"employee": employee}, extensions={"cost": {"left": BIG}}, content_type=kind)
        result = await call(gateway, era, NAME, {"id": 7, "includeDetails": True})
        assert "isError" not in result
        assert result["structuredContent"] == {"employee": employee}
        [text] = result["content"]
        assert json.loads(text["text"]) == {"employee": employee}
        assert str(BIG) in text["text"]
        assert result["_meta"][EXTENSIONS] == {"cost": {"left": BIG}}
        server.change(extensions=None)
        result = await call(gateway, era, NAME, {"id": 7})
        assert EXTENSIONS not in result.get("_meta", {})


@pytest.mark.parametrize("era", ["modern", "handshake"])
@pytest.mark.heavy
async def test_g8_errors_are_error_results_with_partial_data(tmp_path: Path, era: str) -> None:
    async with graphql_gateway(tmp_path, FILES) as (server, gateway):
        await gateway.until_listed(NAME)
        server.change(root={"employee": {"id": 7, "name": "Ada", "salary": {"$error": "salaries are secret"}}})
        both = await call(gateway, era, NAME, {"id": 7, "includeDetails": True})
        assert both["isError"]
        assert both["structuredContent"] == {"employee": {"id": 7, "name": "Ada", "salary": None}}
        assert both["content"][0]["text"] == "salaries are secret (at employee.salary)"
        assert json.loads(both["content"][1]["text"]) == both["structuredContent"]
        assert both["_meta"][ERRORS][0]["path"] == ["employee", "salary"]
        server.change(root={"find": {"$error": "no\nlist"}})
        only = await call(gateway, era, "hr__list_people", {})
        assert only["isError"]
        assert "structuredContent" not in only
        assert [one["text"] for one in only["content"]] == ["no\nlist (at find)"]


@pytest.mark.parametrize("era", ["modern", "handshake"])
@pytest.mark.heavy
async def test_g8_refused_document_is_an_error_in_the_endpoints_words(tmp_path: Path, era: str) -> None:
    async with graphql_gateway(tmp_path, FILES) as (server, gateway):
        await gateway.until_listed(NAME)
        for status in (200, 400, 422, 500):
            errors = [{"message": "over the limit", "extensions": {"code": "COST"}}, {"message": 5}, "text"]
            server.change(fault={"kind": "answer", "status": status, "body": json.dumps({"errors": errors})})
            result = await call(gateway, era, NAME, {"id": 7})
            assert result["isError"]
            assert text_of(result) == "over the limit\nthe endpoint gave no reason\ntext"
            assert result["_meta"][ERRORS] == errors


FORMS: tuple[tuple[int, str, Any, str], ...] = (
    (200, "application/json", {"data": None, "errors": "quota used up"}, "quota used up"),
    (404, "application/json", {"errors": "[API] Not Found"}, "[API] Not Found"),
    (200, "application/json", {"errors": {"message": "throttled"}}, "throttled"),
    (200, "application/json", {"errors": ["Not Authenticated"]}, "Not Authenticated"),
    (200, "application/json", {"errors": [{"error": {"message": "deeper"}}]}, "deeper"),
    (200, "application/json", {"error_code": "X", "error_message": "budget exhausted"}, "budget exhausted"),
    (200, "application/json", {"data": None, "error": "no rows"}, "no rows"),
    (400, "application/json", {"path": "$", "error": "not in any of the allowlists"}, "not in any of the allowlists"),
    (429, "application/json", {"error": {"code": 7, "message": "slow down"}}, "slow down"),
    (400, "application/problem+json", {"type": "about:blank", "title": "Bad", "detail": "no such day"}, "no such day"),
    (400, "text/plain", "unknown field day", "HTTP 400: unknown field day"),
    (404, "text/html", "<style>p{}</style><p>No such <b>shop</b> &amp; more</p>", "HTTP 404: No such shop & more"),
    (503, "application/json", {"message": "being repaired"}, "HTTP 503: being repaired"),
)


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_g8_errors_in_any_form_keep_their_text_and_are_requested_once(tmp_path: Path, era: str) -> None:
    async with graphql_gateway(tmp_path, FILES) as (server, gateway):
        await gateway.until_listed(NAME)
        for status, content_type, body, words in FORMS:
            body_text = body if isinstance(body, str) else json.dumps(body)
            server.change(fault={"kind": "answer", "status": status, "body": body_text, "content_type": content_type})
            before = len(server.sent())
            result = await call(gateway, era, NAME, {"id": 7})
            assert result["isError"], (body, result)
            assert words in text_of(result), (body, result)
            assert len(server.sent()) - before == 1, body
            if isinstance(body, dict) and status < 500 and "errors" not in body:
                # The whole object is kept, with all other members.
                assert {key: result["_meta"][ERRORS][0][key] for key in body} == body
        for errors in ([], None, {}, ""):
            body_text = json.dumps({"data": {"employee": None}, "errors": errors, "extensions": {"cost": 1}})
            server.change(fault={"kind": "answer", "status": 200, "body": body_text})
            result = await call(gateway, era, NAME, {"id": 7})
            assert "isError" not in result
            assert result["structuredContent"] == {"employee": None}
            assert result["_meta"]["typegate/graphqlExtensions"] == {"cost": 1}


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_g8_proxy_error_page_becomes_a_short_error(tmp_path: Path, era: str) -> None:
    page = "<html><body>" + "<h1>Bad Gateway</h1>" * 500 + "</body></html>"
    async with graphql_gateway(tmp_path, FILES) as (server, gateway):
        await gateway.until_listed(NAME)
        for status in (404, 502, 503):
            server.change(fault={"kind": "answer", "status": status, "body": page, "content_type": "text/html"})
            result = await call(gateway, era, NAME, {"id": 7})
            assert result["isError"]
            assert f"HTTP {status}" in text_of(result)
            assert "'hr'" in text_of(result)
            assert len(text_of(result)) < 200
        server.change(fault=None)
        assert "isError" not in await call(gateway, era, NAME, {"id": 7})


async def test_g8_refused_credentials_are_reported_without_repeating_them(tmp_path: Path) -> None:
    async with graphql_gateway(tmp_path, FILES, headers={"Authorization": TOKEN}) as (server, gateway):
        await gateway.until_listed(NAME)
        for status in (401, 403):
            body_text = json.dumps({"errors": [{"message": f"{TOKEN} is not known"}], "data": None})
            server.change(fault={"kind": "answer", "status": status, "body": body_text})
            result = await gateway.call(NAME, {"id": 7})
            assert result["isError"]
            assert f"HTTP {status}: the credentials were refused" in text_of(result)
            assert "'hr'" in text_of(result)
            assert TOKEN not in json.dumps(result)
        row = await gateway.server("hr")
        assert row["auth"] is True
        assert TOKEN not in gateway.logged() + json.dumps(row)
        assert "for-the-endpoint-only" not in (await gateway.admin("servers")).text


@pytest.mark.parametrize("route", ["wrapper", "invoke_tool"])
async def test_g9_call_without_required_arguments_is_refused_and_not_sent(tmp_path: Path, route: str) -> None:
    async with graphql_gateway(tmp_path, FILES) as (server, gateway):
        await gateway.until_listed(NAME)
        if route == "wrapper":
            result = await gateway.call(NAME, {"includeDetails": True})
        else:
            arguments = {"server": "hr", "tool": "get_employee", "arguments": {"includeDetails": True}}
            result = await gateway.call("invoke_tool", arguments)
        assert result["isError"]
        assert "Missing: id. Keys sent: includeDetails." in text_of(result)
        for wrong in ({"id": "seven"}, {"id": 1.5}, {"id": None}, {"id": 1, "includeDetials": True}):
            assert (await gateway.call(NAME, wrong))["isError"], wrong
        assert server.sent() == []
        assert "isError" not in await gateway.call(NAME, {"id": "7"})  # a repair of the pipeline
        assert server.sent()[0]["variables"] == {"id": 7}


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_g13_only_configured_and_trace_headers_are_sent(tmp_path: Path, era: str) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    theirs = {
        "authorization": "Bearer of-the-caller", "cookie": "a=b", "x-api-key": "caller", "x-forwarded-for": "1.2.3.4",
        "traceparent": trace, "tracestate": "a=b", "te": "trailers", "x-own": "caller",
    }  # fmt: skip
    ours = {"X-Own": "configured", "Connection": "close", "Content-Length": "5", "Transfer-Encoding": "chunked"}
    ours |= {"Keep-Alive": "1", "TE": "trailers", "Upgrade": "h2c", "Host": "elsewhere.test"}
    async with graphql_gateway(tmp_path, FILES, headers=ours) as (server, gateway):
        await gateway.until_listed(NAME)
        if era == "modern":
            params = {"name": NAME, "arguments": {"id": 1}, "_meta": envelope()}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            answer = answer_of(await gateway.post(body, theirs))
        else:
            answer = await (await handshake(gateway, **theirs)).call(NAME, {"id": 1})
        assert "isError" not in answer["result"]
        sent = server.sent()[0]["headers"]
        assert (sent["traceparent"], sent["tracestate"], sent["x-own"]) == (trace, "a=b", "configured")
        assert sent.keys() == {
            *("host", "accept", "accept-encoding", "content-type", "content-length"),
            *("traceparent", "tracestate", "x-own"),
        }
        assert sent["host"] == f"127.0.0.1:{server.port}"


async def test_g13_configured_authorization_is_sent_and_not_to_redirects(tmp_path: Path) -> None:
    async with (
        graphql_server(tmp_path, name="other") as other,
        graphql_gateway(tmp_path, FILES, headers={"Authorization": TOKEN}) as (server, gateway),
    ):
        await gateway.until_listed(NAME)
        await gateway.call(NAME, {"id": 1})
        assert server.sent()[0]["headers"]["authorization"] == TOKEN
        for status in (301, 302, 303, 307, 308):
            for place in (other.endpoint, "file:///etc/passwd", "//["):
                headers = {"location": place}
                server.change(fault={"kind": "answer", "status": status, "headers": headers})
                result = await gateway.call(NAME, {"id": 1})
                assert result["isError"]
                assert str(status) in text_of(result)
        assert other.sent() == []


async def test_one_endpoint_may_be_several_servers_with_or_without_prefix(tmp_path: Path) -> None:
    async with graphql_server(tmp_path, FILES) as server:
        servers = {
            "a": server.config(prefix="none"),
            "b": server.config(deny=["list_*"], defaults={"id": 3}),
        }
        profiles = {"few": {"tools": ["get_*"], "dialect": "openai-strict"}}
        async with running_gateway(tmp_path, servers, gateway={"profiles": profiles}) as gateway:
            tools = await gateway.until_listed("get_employee", "b__get_employee")
            assert "b__list_people" not in tools
            assert "isError" not in await gateway.call("b__get_employee", {})
            assert server.sent()[-1]["variables"] == {"id": 3}
            assert "isError" not in await gateway.call("get_employee", {"id": 4})
            metrics = (await gateway.client.get(f"{gateway.origin}/metrics")).text
            assert 'server="b"' in metrics
