"""Broken, hostile and large OpenAPI documents (rows F2, F3 and F5)."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from e2e.test_openapi_calls import EAGER
from faults.observing import until_server
from support.gateways import RunningGateway, running_gateway, text_of
from support.upstreams.api_running import PET, ApiService, api_gateway, api_service, operation, parameter, pet_shop


async def findings(gateway: RunningGateway) -> dict[str, str]:
    """The details in the quarantine, by tool."""
    return {row["tool"]: row["detail"] for row in (await gateway.admin("quarantine")).json()["quarantine"]}


async def test_f2_broken_operation_is_quarantined_alone_with_its_pointer(tmp_path: Path) -> None:
    document = pet_shop()
    broken: dict[str, Any] = {
        "missing": operation("missing", {"$ref": "#/components/parameters/None"}),
        "address": operation("address", {"$ref": "http://[x#/a"}),
        "style": operation("style", parameter("a", "query", style="fancy")),
        "number": operation("number", parameter("a", "query", schema=5)),
        "circle": operation("circle", {"$ref": "#/components/parameters/A"}),
        "list": [],
        "variable/{x}": operation("variable"),
        "query?a={y}": operation("query"),
        "part?a=b{y}": operation("part", parameter("y", "query")),
        "form{?y}": operation("form", parameter("y", "query")),
    }
    a, b = ({"$ref": f"#/components/parameters/{name}"} for name in "BA")
    document["components"]["parameters"] = {"A": a, "B": b}
    document["paths"] |= {f"/{path}": {"get": item} for path, item in broken.items()}
    document["paths"]["/lost"] = {"$ref": "#/components/pathItems/None"}
    async with api_gateway(tmp_path, document, gateway=EAGER) as (_, gateway):
        await gateway.until_listed("shop__getPet")
        found = await findings(gateway)
        assert found == {
            "(document)": "the reference to http://[x leads out of the folder or origin of the document and is not "
            "followed",
            "GET /missing": "openapi.json#/paths/~1missing/get/parameters/0: refers to a missing value: "
            "#/components/parameters/None",
            "GET /address": "openapi.json#/paths/~1address/get/parameters/0: refers to a missing value: http://[x#/a",
            "GET /style": "openapi.json#/paths/~1style/get/parameters/0: the style fancy is not one of deepObject, "
            "form, pipeDelimited, spaceDelimited, tabDelimited",
            "GET /number": "openapi.json#/paths/~1number/get/parameters/0/schema: is int; expected a schema",
            "GET /circle": "openapi.json#/components/parameters/A: the references form a cycle",
            "GET /list": "openapi.json#/paths/~1list/get: is not an object; expected an operation",
            "GET /variable/{x}": "openapi.json#/paths/~1variable~1{x}/get: the path has {x}, and there is no parameter "
            "of this name",
            "GET /query?a={y}": "openapi.json#/paths/~1query?a={y}/get: the path has {y}, and there is no parameter of "
            "this name",
            "GET /part?a=b{y}": "openapi.json#/paths/~1part?a=b{y}/get: the query part a=b{y} is not supported; "
            "expected a value or NAME={NAME}",
            "GET /form{?y}": "openapi.json#/paths/~1form{?y}/get: the query part y} is not supported; expected a value "
            "or NAME={NAME}",
            "/lost": "openapi.json#/paths/~1lost: refers to a missing value: #/components/pathItems/None",
        }
        assert not [name for name in await gateway.tools() if name.removeprefix("shop__") in broken]


async def test_f2_recursive_schemas_stay_recursive_and_references_resolve(tmp_path: Path) -> None:
    document = pet_shop()
    loop = {"$ref": "#/components/schemas/Loop"}
    document["components"]["schemas"] |= {
        "Tree": {"type": "object", "properties": {"left": {"$ref": "#/components/schemas/Tree"}, "pet": PET}},
        "Loop": loop,
    }
    body: dict[str, Any] = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Tree"}}}}
    # A reference in an example is data, and has no target in a tool.
    body["content"]["application/json"]["example"] = {"$ref": "#/components/examples/tree"}
    document["paths"]["/echo/tree"] = {"post": operation("tree", requestBody=body)}
    document["paths"]["/echo/loop"] = {"get": operation("loop", parameter("a", "query", loop))}
    async with api_gateway(tmp_path, document, gateway=EAGER) as (_, gateway):
        tools = await gateway.until_listed("shop__tree")
        definitions = tools["shop__tree"]["inputSchema"]["$defs"]
        assert set(definitions) == {"Tree", "Pet"}
        assert definitions["Tree"]["properties"]["left"] == {"$ref": "#/$defs/Tree"}
        for tool in tools.values():
            for schema in (tool["inputSchema"], tool.get("outputSchema", {})):
                names = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(schema)))
                assert names == {f"#/$defs/{name}" for name in schema.get("$defs", {})}
        sent = await gateway.call("shop__tree", {"body": {"left": {"left": {"pet": {"name": "x"}}}}})
        assert "isError" not in sent
        refused = await gateway.call("shop__tree", {"body": {"left": {"left": {"pet": {}}}}})
        assert "Not called" in text_of(refused)


@pytest.mark.heavy
async def test_f6_large_output_schema_is_reduced_and_accepts_every_answer(tmp_path: Path) -> None:
    document = pet_shop()
    large = {f"member{number}": {"type": "string", "description": "x" * 400} for number in range(30)}
    document["components"]["schemas"] |= {
        "Dog": {"type": "object", "required": ["bark"], "properties": {"bark": {"type": "string"}, **large}},
        "Cat": {"type": "object", "required": ["meow"], "properties": {"meow": {"type": "string"}, **large}},
    }
    dog, cat = ({"$ref": f"#/components/schemas/{name}"} for name in ("Dog", "Cat"))
    inner = {"type": "object", "properties": {"pet": {"oneOf": [dog, cat]}, "headers": {"not": dog}}}
    document["paths"]["/echo"] = {"get": operation("either", result=inner)}
    document["paths"]["/echo/inline"] = {"get": operation("inline", result={"type": "object", "properties": large})}
    async with api_gateway(tmp_path, document, gateway=EAGER) as (_, gateway):
        tools = await gateway.until_listed("shop__either", "shop__inline")
        cut = tools["shop__either"]["outputSchema"]
        assert cut["$defs"] == {"Dog": {"type": "object"}, "Cat": {"type": "object"}}
        assert len(cut["properties"]["pet"]["anyOf"]) == 2
        assert cut["properties"]["headers"] == {}
        assert tools["shop__inline"]["outputSchema"] == {"type": "object"}
        assert "isError" not in await gateway.call("shop__either")
        assert "cut to 8192 bytes" in (await findings(gateway))["either"]


@pytest.mark.heavy
async def test_f5_references_are_limited_to_the_folder_of_the_document(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"password": {"type": "string", "const": "hunter2"}}')
    folder = tmp_path / "api"
    folder.mkdir()
    (folder / "parts.json").write_text('{"Day": {"type": "string", "enum": ["monday"]}}')
    (folder / "link.json").symlink_to(tmp_path / "secret.json")
    document = pet_shop()
    for name, reference in (
        ("inside", "parts.json#/Day"),
        ("outside", "../secret.json#/password"),
        ("linked", "link.json#/password"),
        ("local", "file:///etc/passwd"),
        ("remote", "http://127.0.0.1:1/x.json#/Day"),
    ):
        document["paths"][f"/echo/{name}"] = {"get": operation(name, parameter("a", "query", {"$ref": reference}))}
    async with api_gateway(folder, document, gateway=EAGER) as (_, gateway):
        tools = await gateway.until_listed("shop__inside")
        assert tools["shop__inside"]["inputSchema"]["$defs"]["Day"]["enum"] == ["monday"]
        found = await findings(gateway)
        for name in ("outside", "linked", "local", "remote"):
            assert f"shop__{name}" not in tools
            assert "refers to a missing value" in found[f"GET /echo/{name}"]
        assert "hunter2" not in json.dumps([tools, found]) + gateway.logged()


def bomb(levels: int) -> str:
    """YAML of which each level has the previous one nine times."""
    lines = ["openapi: 3.1.0", "a0: &a0 [x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, levels)]
    return "\n".join(lines)


async def test_f5_hostile_documents_are_refused_without_affecting_others(tmp_path: Path) -> None:
    deep = '{"openapi": "3.0.0", "paths": ' + '{"a":' * 5_000 + "1" + "}" * 5_000 + "}"
    cases = {
        "text": ("hello", "is not an object"),
        "version": ('{"openapi": "9.0"}', "is of version 9.0"),
        "none": ("{}", "names no version"),
        "deep": (deep, "is not JSON"),
        "bomb": (bomb(12), "more than 2000000 values"),
        "python": ("openapi: !!python/object/apply:os.system ['true']", "is neither JSON nor YAML at line 1"),
        "sequences": ("openapi: " + "[" * 100_000, "is neither JSON nor YAML"),
        "entries": ("- " * 100_000 + "x", "is nested more than 190 levels"),
        "itself": ("openapi: &a\n  - *a", "nested more than"),
        "utf16": ("\ufeff\x00", "is neither JSON nor YAML"),
    }
    servers = {"fine": {"spec": str(tmp_path / "fine.json"), "baseUrl": "http://127.0.0.1:1"}}
    (tmp_path / "fine.json").write_text(json.dumps(pet_shop()))
    for name, (text, _) in cases.items():
        (tmp_path / f"{name}.yaml").write_text(text)
        servers[name] = {"spec": str(tmp_path / f"{name}.yaml"), "baseUrl": "http://127.0.0.1:1"}
    servers["folder"] = {"spec": str(tmp_path), "baseUrl": "http://127.0.0.1:1"}
    cases["folder"] = ("", "is not a file")
    async with running_gateway(tmp_path, servers, gateway=EAGER) as gateway:
        await gateway.until_listed("fine__getPet")
        for name, (_, words) in cases.items():
            row = await until_server(gateway, name, lambda row: row["lastError"] is not None, within_s=20)
            assert words in row["lastError"], (name, row["lastError"])


@pytest.mark.heavy
async def test_f5_document_does_not_choose_credential_targets_or_private_addresses(tmp_path: Path) -> None:
    service = ApiService(origin="", document=tmp_path / "openapi.json")
    service.write({**pet_shop(), "servers": [{"url": "http://127.0.0.1:1/v1"}]})
    entry = {"spec": str(service.document)}
    servers = {
        "private": entry,
        "credentials": {**entry, "headers": {"Authorization": "Bearer x"}},
        "allowed": {**entry, "privateHosts": ["127.0.0.1"]},
    }
    async with running_gateway(tmp_path, servers, gateway=EAGER) as gateway:
        await gateway.until_listed("allowed__getPet")
        for alias in ("private", "credentials"):
            row = await until_server(gateway, alias, lambda row: row["lastError"] is not None, within_s=10)
            assert "expected baseUrl" in row["lastError"]


@pytest.mark.heavy
async def test_f5_component_repeated_by_thousands_of_operations_does_not_fill_memory(tmp_path: Path) -> None:
    document = pet_shop()
    members = {f"member{number}": {"type": "string", "description": "x" * 1_000} for number in range(800)}
    document["components"]["schemas"]["Large"] = {"type": "object", "properties": members}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Large"}}}}
    for number in range(5_000):
        document["paths"][f"/echo/{number}"] = {"post": operation(f"bomb{number}", requestBody=body)}
    service = ApiService(origin="http://127.0.0.1:1", document=tmp_path / "openapi.json")
    service.write(document)
    async with running_gateway(tmp_path, {"shop": service.entry(connectTimeout=60)}) as gateway:
        await until_server(gateway, "shop", lambda row: row["state"] == "ready", within_s=60)
        status = await anyio.Path(f"/proc/{gateway.process.pid}/status").read_text()
        [peak_kb] = re.findall(r"VmHWM:\s+(\d+) kB", status)
        # 5,000 tools of 800 kB would have 4 GB.
        assert int(peak_kb) < 900_000
        assert (await gateway.call("invoke_tool", {"server": "shop", "tool": "getPet", "arguments": {"id": 1}}))[
            "isError"
        ]


@pytest.mark.heavy
async def test_f3_swagger_2_documents_are_converted(tmp_path: Path) -> None:
    def old(name: str, place: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "in": place, "type": "string", **more}

    numbers = {"type": "array", "items": {"type": "integer"}}
    many = [
        old("csv", "query", **numbers),
        old("multi", "query", **numbers, collectionFormat="multi"),
        old("pipes", "query", **numbers, collectionFormat="pipes"),
        old("X-Ids", "header", **numbers),
        old("ids", "path", **numbers, required=True),
    ]
    fields = [old("file", "formData", type="file"), old("tags", "formData", **numbers, collectionFormat="multi")]
    whole = {"name": "pet", "in": "body", "required": True, "schema": {"$ref": "#/definitions/Pet"}}
    document = {
        "swagger": "2.0",
        "info": {"title": "Old", "version": "1"},
        "basePath": "/echo",
        "paths": {
            "/a/{ids}": {"get": {"operationId": "lists", "parameters": many}},
            "/b": {"post": {"operationId": "form", "parameters": fields, "consumes": ["multipart/form-data"]}},
            "/c": {"post": {"operationId": "whole", "parameters": [whole]}},
        },
        "definitions": {
            "Pet": {
                "type": "object",
                "properties": {
                    "id": {"type": "integer", "readOnly": True},
                    "age": {"type": "integer", "x-nullable": True},
                },
            }
        },
    }
    async with api_service(tmp_path, document) as service:
        entry = {"spec": f"{service.origin}/openapi.json"}
        async with running_gateway(tmp_path, {"shop": entry}, gateway=EAGER) as gateway:
            tools = await gateway.until_listed("shop__lists", "shop__form", "shop__whole")
            pet = tools["shop__whole"]["inputSchema"]["$defs"]["Pet"]["properties"]
            assert pet == {"age": {"type": ["integer", "null"]}}
            lists = {"csv": [1, 2], "multi": [1, 2], "pipes": [1, 2], "X-Ids": [3, 4], "ids": [5, 6]}
            sent = (await gateway.call("shop__lists", lists))["structuredContent"]
            assert sent["target"] == "/echo/a/5,6?csv=1,2&multi=1&multi=2&pipes=1%7C2"
            assert sent["headers"]["x-ids"] == "3,4"
            form = {"body": {"file": base64.b64encode(b"\0x").decode(), "tags": [1, 2]}}
            sent = base64.b64decode((await gateway.call("shop__form", form))["structuredContent"]["body"])
            assert b'name="file"; filename="file"\r\nContent-Type: application/octet-stream\r\n\r\n\0x\r\n' in sent
            assert sent.count(b'name="tags"') == 2
            sent = (await gateway.call("shop__whole", {"body": {"age": None}}))["structuredContent"]
            assert base64.b64decode(sent["body"]) == b'{"age":null}'
