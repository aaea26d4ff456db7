"""Upstreams of type openapi with the other features of the gateway (rows F1, F5, F6, F7 and F8)."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from e2e.test_openapi_calls import EAGER
from faults.observing import until_server
from support.forward_proxy import forward_proxy
from support.gateways import running_gateway, text_of
from support.hooked import sample
from support.upstreams.api_running import (
    PET,
    ApiService,
    answer_operation,
    api_gateway,
    api_service,
    operation,
    parameter,
    pet_shop,
)

from gateway.config.upstream_types.openapi_config import OpenapiConfig
from gateway.upstream.openapi.openapi_messages import Body, Operation, Parameter
from gateway.upstream.openapi.openapi_results import ApiAnswer, result_of

LAZY = {"profiles": {"default": {"disclosure": "lazy"}}}


async def test_f1_server_variables_and_proxy_lead_to_the_api(tmp_path: Path) -> None:
    document = pet_shop()
    document["paths"]["/there"] = {"get": operation("there")}
    async with api_service(tmp_path, document) as service:
        port = service.origin.rpartition(":")[2]
        document["servers"] = [
            {
                "url": "http://{host}:{port}/{place}",
                "variables": {"host": {"default": "a.test"}, "port": {"default": port}, "place": {"default": "pets"}},
            }
        ]
        service.write(document)
        async with forward_proxy({"api.test": int(port)}) as proxy:
            spec = {"spec": str(service.document)}
            chosen = {"host": "127.0.0.1", "place": "echo"}
            servers = {
                "chosen": {**spec, "serverVariables": chosen, "privateHosts": ["127.0.0.1"]},
                "behind": {**spec, "baseUrl": "http://api.test/echo/base", "proxy": f"http://{proxy.address}"},
            }
            async with running_gateway(tmp_path, servers, gateway=EAGER) as gateway:
                await gateway.until_listed("chosen__there", "behind__there")
                sent = (await gateway.call("chosen__there"))["structuredContent"]
                assert (sent["target"], sent["headers"]["host"]) == ("/echo/there", f"127.0.0.1:{port}")
                sent = (await gateway.call("behind__there"))["structuredContent"]
                assert (sent["target"], sent["headers"]["host"]) == ("/echo/base/there", "api.test")
        assert proxy.request_lines == ["GET http://api.test/echo/base/there HTTP/1.1"]


@pytest.mark.heavy
async def test_f7_hints_examples_and_tags_of_the_document_are_used(tmp_path: Path) -> None:
    document = pet_shop()
    body = {"content": {"application/json": {"schema": PET, "example": {"name": "Zoe"}}}}
    document["paths"] |= {
        "/echo/a": {
            "post": operation(
                "long_name_of_a_framework",
                parameter("size", "query", example="large", description="How large."),
                requestBody=body,
                tags=["grooming"],
                description="Brushes one animal.",
                **{"x-mcp": {"name": "brush", "annotations": {"readOnlyHint": True}, "openWorldHint": False}},
            )
        },
        "/echo/b": {"get": operation("off", **{"x-mcp": False}), "put": operation("replace")},
        "/echo/c": {"get": operation("disabled", **{"x-speakeasy-mcp": {"disabled": True}}), "head": operation("look")},
    }
    async with api_gateway(tmp_path, document, gateway=EAGER) as (_, gateway):
        tools = await gateway.until_listed("shop__brush")
        assert not {"shop__off", "shop__disabled", "shop__long_name_of_a_framework"} & tools.keys()
        brush = tools["shop__brush"]
        assert brush["annotations"] == {"readOnlyHint": True, "openWorldHint": False}
        assert tools["shop__replace"]["annotations"] == {"readOnlyHint": False, "idempotentHint": True}
        assert tools["shop__look"]["annotations"] == {"readOnlyHint": True, "idempotentHint": True}
        properties = brush["inputSchema"]["properties"]
        assert properties["size"] == {"type": "string", "description": "How large.", "examples": ["large"]}
        assert properties["body"]["examples"] == [{"name": "Zoe"}]
        assert "POST /echo/a (tags: grooming)" in brush["description"]
        assert text_of(await gateway.call("shop__look")) == "HTTP 200, without content."


@pytest.mark.heavy
async def test_f7_tools_are_found_by_a_tag_of_the_document(tmp_path: Path) -> None:
    document = pet_shop()
    document["paths"]["/echo/a"] = {"post": operation("brush", tags=["grooming"])}
    async with api_gateway(tmp_path, document, gateway=LAZY) as (_, gateway):
        await until_server(gateway, "shop", lambda row: row["state"] == "ready", within_s=60)
        found = text_of(await gateway.call("find_tools", {"query": "grooming"}))
        assert "shop__brush" in found


async def test_f8_hooks_quotas_audit_log_and_admin_rows_apply(tmp_path: Path) -> None:
    hook = sample("Setter", config={"set": {"id": 2}}, conditions={"wrappers": ["getPet"]})
    settings = {**EAGER, "hooks": [hook], "quotas": {"default": {"callsPerMinute": 2}}}
    async with api_gateway(tmp_path, gateway=settings) as (_, gateway):
        await gateway.until_listed("shop__getPet")
        # The hook replaces the argument before the request is written.
        assert (await gateway.call("shop__getPet", {"id": 9}))["structuredContent"]["id"] == 2
        assert "this name is taken" in text_of(await gateway.call("shop__createPet", {"body": {"name": "Rex"}}))
        refused = await gateway.rpc("tools/call", {"name": "shop__listPets", "arguments": {}})
        assert refused["error"]["code"] == -32029
        rows = (await gateway.admin("audit?event=call")).json()["audit"][::-1]
        assert [(row["tool"], row["server"]) for row in rows][:2] == [("getPet", "shop"), ("createPet", "shop")]
        assert [row["outcome"]["tool"] for row in rows][:2] == ["ok", "error"]
        row = await gateway.server("shop")
        assert (row["type"], row["state"], row["tools"]) == ("openapi", "ready", 13)


def test_f8_lock_identity_is_the_digest_of_the_document(tmp_path: Path) -> None:
    file = tmp_path / "openapi.json"
    file.write_text("{}")
    config = OpenapiConfig(spec=str(file), base_url="https://api.example.test/v1?key=secret")
    before = config.launch_identity(None)
    assert f"document:sha256:{hashlib.sha256(b'{}').hexdigest()}" in before
    assert "secret" not in before
    file.write_text("{} ")
    assert config.launch_identity(None) != before
    file.unlink()
    assert "document:unreadable" in config.launch_identity(None)


@pytest.mark.heavy
async def test_f6_sounds_bytes_and_xml_reach_the_host(tmp_path: Path) -> None:
    document = pet_shop()
    for kind, media_type in (("sound", "audio/wav"), ("octets", "application/octet-stream"), ("feed", "text/xml")):
        document["paths"][f"/answers/{kind}"] = {"get": answer_operation(kind, media_type)}
    async with api_gateway(tmp_path, document, gateway=EAGER) as (service, gateway):
        await gateway.until_listed("shop__sound")
        [sound] = (await gateway.call("shop__sound"))["content"]
        assert (sound["type"], sound["mimeType"], sound["data"]) == ("audio", "audio/wav", "UklGRgA=")
        [octets] = (await gateway.call("shop__octets"))["content"]
        assert octets["type"] == "resource"
        resource = octets["resource"]
        assert (resource["uri"], resource["blob"]) == (f"{service.origin}/answers/octets", "AP8=")
        assert text_of(await gateway.call("shop__feed")) == "<feed>é</feed>"


@pytest.mark.heavy
async def test_f4_file_of_an_upload_may_be_a_result_handle(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"file": {"type": "string", "format": "binary"}}}
    document = pet_shop()
    body = {"content": {"multipart/form-data": {"schema": schema}}}
    document["paths"]["/echo/upload"] = {"post": operation("upload", requestBody=body)}
    # The host reads no images, so that each becomes a handle.
    results = {"binaryTypes": ["text/*"]}
    async with api_gateway(tmp_path, document, gateway=EAGER, results=results) as (_, gateway):
        await gateway.until_listed("shop__upload")
        [link] = (await gateway.call("shop__photo"))["content"]
        assert link["type"] == "resource_link"
        sent = await gateway.call("shop__upload", {"body": {"file": link["uri"]}})
        assert "isError" not in sent, text_of(sent)
        assert b"Content-Type: image/png\r\n\r\n\x89PNG" in base64.b64decode(sent["structuredContent"]["body"]), (
            text_of(sent)
        )


def planned(**more: Any) -> Operation:
    """Return the plan of a request with the parameter `page` and a body."""
    page = Parameter(name="page", place="query", argument="page", style="form", explode=True)
    body = Body(media_type="application/json", kind="json")
    return Operation(
        name="x", method="POST", path="/x", parameters=(page,), body=body, definition={}, accept="*/*", **more
    )


@pytest.mark.parametrize(
    ("body", "line"),
    [
        # RFC 9457, Laravel, Google, FastAPI, Stripe, JSON:API.
        ({"title": "Bad", "invalid-params": [{"name": "page", "reason": "is negative"}]}, "page: is negative"),
        ({"message": "Invalid", "errors": {"email": ["is taken", "x"]}}, "body.email: is taken"),
        (
            {"error": {"details": [{"fieldViolations": [{"field": "pet.name", "description": "is empty"}]}]}},
            "body.pet.name: is empty",
        ),
        ({"detail": [{"loc": ["query", "page"], "msg": "not a number"}]}, "page: not a number"),
        ({"error": {"message": "No such customer", "param": "customer"}}, "body.customer: No such customer"),
        ({"errors": [{"detail": "is short", "source": {"pointer": "/x"}, "pointer": "/data/name"}]}, "is short"),
    ],
)
def test_f6_errors_of_common_frameworks_name_the_argument(body: dict[str, Any], line: str) -> None:
    headers = {"content-type": "application/json"}
    answer = ApiAnswer(status=400, headers=headers, body=json.dumps(body).encode(), url="http://api.test/x")
    result = result_of(answer, planned())
    assert result["isError"]
    assert line in text_of(result)


@pytest.mark.heavy
async def test_f5_documents_beyond_the_limits_are_refused(tmp_path: Path) -> None:
    document = pet_shop()
    for number in range(1_001):
        (tmp_path / f"part{number}.json").write_text('{"type": "string"}')
        document["paths"][f"/p{number}"] = {
            "get": operation(f"p{number}", parameter("a", "query", {"$ref": f"part{number}.json"}))
        }
    many = ApiService(origin="http://127.0.0.1:1", document=tmp_path / "many.json")
    many.write(document)
    large = tmp_path / "large.json"
    with large.open("wb") as sparse:
        sparse.write(b"{")
        sparse.truncate(65 * 1024 * 1024)
    yaml = tmp_path / "large.yaml"
    yaml.write_text("# x\n" * (8 * 1024 * 1024 + 1))
    servers = {"many": many.entry(connectTimeout=60)}
    servers |= {file.suffix[1:]: {"spec": str(file), "baseUrl": "http://127.0.0.1:1"} for file in (large, yaml)}
    async with running_gateway(tmp_path, servers, gateway=EAGER) as gateway:
        for alias, words in (
            ("many", "refers to too many or too large documents"),
            ("json", "has more than 67108864 bytes"),
            ("yaml", "bytes of YAML; expected the document as JSON"),
        ):
            row = await until_server(gateway, alias, lambda row: row["lastError"] is not None, within_s=60)
            assert words in row["lastError"]
