"""The OpenAPI document of the admin API is valid, drives a client, and matches the responses."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from jsonschema import Draft202012Validator
from support.clients.installed import heavy_package
from support.gateways import TOKEN, RunningGateway, running_gateway
from support.upstreams.running import builtin_tools, scripted_http_server

FUZZED = 2_500
METHODS = ("get", "post", "delete")
# They end the gateway's own way in, or never end.
ENDLESS = frozenset({"/admin/events"})


async def described(gateway: RunningGateway) -> dict[str, Any]:
    document: dict[str, Any] = (await gateway.admin("openapi.json")).json()
    return document


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, item[method]) for path, item in document["paths"].items() for method in METHODS if method in item
    ]


def body_of(operation: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the JSON body of an operation."""
    found: dict[str, Any] = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return found


def url_of(gateway: RunningGateway, path: str, values: dict[str, str]) -> str:
    return gateway.origin + re.sub(r"\{(\w+)\}", lambda part: quote(values[part[1]], safe=""), path)


def check(document: dict[str, Any], schema: dict[str, Any], value: Any, where: str) -> None:
    """Check a value against its schema in the description."""
    validator = Draft202012Validator({**schema, "components": document["components"]})
    assert not (found := next(validator.iter_errors(value), None)), (where, found.message, list(found.absolute_path))


@pytest.mark.heavy
async def test_openapi_document_and_its_examples_are_valid(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        document = await described(gateway)
    heavy_package("openapi_spec_validator").OpenAPIV31SpecValidator(document).validate()
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)
    assert {"/admin", "/admin/", "/admin/openapi.json", "/admin/events", "/admin/overlay"} <= set(document["paths"])
    for method, path, operation in operations(document):
        where = f"{method} {path}"
        for parameter in operation.get("parameters", ()):
            assert parameter["in"] == "query" or "example" in parameter, (path, parameter["name"])
            for example in [parameter.get("example"), *parameter["schema"].get("examples", ())]:
                if example is not None:
                    check(document, parameter["schema"], example, f"{where} {parameter['name']}")
        if "requestBody" in operation:
            body = body_of(operation)
            assert body["example"], where
            model = document["components"]["schemas"][body["schema"]["$ref"].rpartition("/")[2]]
            for name, member in model["properties"].items():
                assert member.get("description"), (where, name)
            check(document, body["schema"], body["example"], where)
        for status, answer in operation["responses"].items():
            empty = status in ("204", "307")
            assert empty != bool(answer.get("content")), (where, status)
            for media in answer.get("content", {}).values():
                check(document, media["schema"], media["example"], f"{where} {status}")


@pytest.mark.heavy
async def test_openapi_document_is_generated_once_and_cached_by_etag(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        first = await gateway.admin("openapi.json")
        head = {"authorization": f"Bearer {TOKEN}", "if-none-match": first.headers["etag"]}
        again = await gateway.client.get(f"{gateway.origin}/admin/openapi.json", headers=head)
        assert (again.status_code, again.content) == (304, b"")
        entry = first.json()["components"]["schemas"]["ServerConfig"]
        assert all(member.get("description") for member in entry["properties"].values())


@pytest.mark.heavy
async def test_generated_client_drives_every_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Files of hosts are in the home directory of the user who runs the gateway.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    async with (
        scripted_http_server(tmp_path, "calendar", tools=builtin_tools("echo")) as up,
        running_gateway(tmp_path, {"calendar": up.config}) as gateway,
    ):
        await gateway.until_listed("calendar__echo")
        document = await described(gateway)
        # Routes that remove come last, so that they have something to remove.
        ordered = sorted(operations(document), key=lambda one: METHODS.index(one[0]))
        for method, path, operation in ordered:
            if path in ENDLESS:
                continue
            parameters = [each for each in operation.get("parameters", ()) if each["in"] == "path"]
            values = {each["name"]: each["example"] for each in parameters}
            if "wrappers" in path:
                values["name"] = "calendar__echo"
            body = body_of(operation).get("example")
            if path == "/admin/servers" and body:
                body = {**body, "name": "another"}
            if body and "wrapper" in body:
                body = {**body, "wrapper": "calendar__echo"}
            answer = await gateway.client.request(
                method, url_of(gateway, path, values), json=body, headers={"authorization": f"Bearer {TOKEN}"}
            )
            declared = operation["responses"].get(str(answer.status_code))
            assert declared is not None, (method, path, answer.status_code, answer.text[:300])
            wanted = next(iter(declared.get("content", {})), None)
            if wanted not in (None, "*/*"):
                assert answer.headers["content-type"].startswith(wanted), path
            if wanted == "application/json":
                check(document, declared["content"][wanted]["schema"], answer.json(), f"{method} {path}")
            if answer.status_code >= 400:
                assert set(answer.json()) == {"error"}, path
            gateway.client.cookies.clear()
            # Every request without the token is refused, except for the page.
            if operation.get("security") != []:
                bare = await gateway.client.request(method, url_of(gateway, path, values), json=body)
                assert bare.status_code == 401, path


async def test_audit_log_is_searched_and_paged(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo", "error")) as up,
        running_gateway(tmp_path, {"up": up.config}) as gateway,
    ):
        await gateway.until_listed("up__echo")
        for number in range(5):
            await gateway.call("up__echo", {"message": str(number)})
        await gateway.rpc("tools/call", {"name": "up__error", "arguments": {"code": -32000, "message": "no"}})
        seen: list[int] = []
        page = (await gateway.admin("audit?q=UP__ECHO&limit=2")).json()
        while True:
            assert all(row["wrapper"] == "up__echo" for row in page["audit"])
            seen += [row["seq"] for row in page["audit"]]
            if page["next"] is None:
                break
            page = (await gateway.admin(f"audit?q=UP__ECHO&limit=2&cursor={page['next']}")).json()
        assert len(seen) == 5
        assert seen == sorted(seen, reverse=True)
        assert (await gateway.admin("audit?q=nothing+like+that")).json()["audit"] == []
        for path in ("audit?cursor=x", "audit?cursor=-1", "audit?limit=0", "audit?limit=1001", "audit?before=1e9"):
            assert (await gateway.admin(path)).status_code == 400, path


async def test_unknown_query_parameter_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        refused = await gateway.admin("wrappers?sever=x")
        assert refused.status_code == 400
        assert "server (did you mean it?)" in refused.json()["error"]
        for path in ("servers?limit=0", "servers?limit=abc", "wrappers?cursor=-1", "config?x=1", "audit?limt=1"):
            assert (await gateway.admin(path)).status_code == 400, path
        refused = await gateway.admin("servers", "POST", {"name": "x", "config": {"url": "http://a.test", "urll": "b"}})
        assert refused.status_code == 400
        assert "did you mean it" in refused.json()["error"]


@pytest.mark.heavy
async def test_lists_are_filtered_and_paged(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo", "sleep", "error")) as up,
        running_gateway(tmp_path, {"up": up.config, "off": {"url": "http://127.0.0.1:9/mcp"}}) as gateway,
    ):
        await gateway.until_listed("up__echo")
        first = (await gateway.admin("wrappers?limit=2")).json()
        assert ([row["name"] for row in first["wrappers"]], first["total"]) == (["up__echo", "up__error"], 3)
        second = (await gateway.admin(f"wrappers?limit=2&cursor={first['next']}")).json()
        assert ([row["name"] for row in second["wrappers"]], second["next"]) == (["up__sleep"], None)
        assert len((await gateway.admin("wrappers?q=SLEE")).json()["wrappers"]) == 1
        assert (await gateway.admin("wrappers?server=off")).json() == {"wrappers": []}
        assert [row["name"] for row in (await gateway.admin("servers?status=ready")).json()["servers"]] == ["up"]


@pytest.mark.heavy
async def test_thousands_of_random_requests_cause_no_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    chance = random.Random(7)
    words = [
        "", "x", "default", "calendar", "..", "%00", "\x00", "\u00e9?", "9" * 400, "{}", "[]", "-1", "1e999", "null",
        "__proto__", "cursor", "calendar__echo", "'", '"', "\r\n", "a" * 5000, "once_", "../../etc",
    ]  # fmt: skip
    values: list[Any] = [None, True, 0, -1, 2**70, 1.5, "", "x", [], {}, [[]], {"a": {}}, "\ud800", *words[:6]]
    async with (
        scripted_http_server(tmp_path, "calendar", tools=builtin_tools("echo")) as up,
        running_gateway(tmp_path, {"calendar": up.config}) as gateway,
    ):
        document = await described(gateway)
        every = [one for one in operations(document) if one[1] not in ENDLESS]
        schemas = document["components"]["schemas"]
        driven: set[tuple[str, str]] = set()
        for _ in range(FUZZED):
            method, path, operation = chance.choice(every)
            parts = {name: quote(chance.choice(words), safe="") or "x" for name in re.findall(r"\{(\w+)\}", path)}
            target = re.sub(r"\{(\w+)\}", lambda part, parts=parts: parts[part[1]], path)  # type: ignore[misc] # of a lambda with a default
            named = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
            query = {chance.choice([*named, "odd"]): chance.choice(words) for _ in range(chance.randrange(3))}
            content = b""
            if "requestBody" in operation or chance.random() < 0.1:
                reference = (
                    operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
                )
                members = list(schemas.get(reference.get("$ref", "").rpartition("/")[2], {}).get("properties", {}))
                body = {name: chance.choice(values) for name in members if chance.random() < 0.7}
                odd = json.dumps(chance.choice(values)).encode()
                content = chance.choice([json.dumps(body).encode(), odd, b"{", b""])
            headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
            if chance.random() < 0.1:
                headers["if-match"] = chance.choice(['"x"', "*", "W/", ",,,"])
            address = f"{gateway.origin}{target}" + (f"?{urlencode(query)}" if query else "")
            answer = await gateway.client.request(method, address, content=content, headers=headers)
            assert answer.status_code < 500, (method, address, content, answer.text[:300])
            driven.add((method, path))
        assert driven == {(method, path) for method, path, _ in every}
        assert (await gateway.admin("servers")).status_code == 200
        # No request writes a host file that was not previewed first.
        assert not any(home.iterdir())
