"""Operations of an HTTP API as wrappers: lists, requests and results (rows F1 to F8)."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.test_lock import until_changed
from e2e.test_sign_in_per_user import AUTH, KEYS, User
from support.clients import installed
from support.gateways import RunningGateway, brief_pause, running_gateway, text_of
from support.issuer import running_issuer
from support.upstreams.api_running import ApiService, api_gateway, api_service, operation, parameter, pet_shop
from support.upstreams.running import unused_port

META = "typegate/http"
EAGER = {"profiles": {"default": {"disclosure": "eager"}}}
JSON = "application/json"


async def until_error(gateway: RunningGateway, *words: str) -> str:
    """Wait until the API's last error has these words."""
    error = ""
    with anyio.move_on_after(10):
        while True:
            error = str((await gateway.server("shop"))["lastError"])
            if all(word in error for word in words):
                return error
            await brief_pause()
    raise AssertionError(error)


async def test_f1_each_operation_is_a_typed_callable_wrapper(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, gateway=EAGER) as (_, gateway):
        tools = await gateway.until_listed("shop__getPet", "shop__listPets", "shop__deletePet")
        assert len(tools) == 13
        get, delete = tools["shop__getPet"], tools["shop__deletePet"]
        assert get["inputSchema"]["properties"]["id"] == {"type": "integer", "description": "The number of the pet."}
        assert get["inputSchema"]["required"] == ["id"]
        assert get["annotations"]["readOnlyHint"] is True
        assert delete["annotations"] == {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True}
        assert "List the pets" in tools["shop__listPets"]["description"]
        result = await gateway.call("shop__getPet", {"id": 2})
        assert result["structuredContent"]["parent"] == {"id": 1, "name": "Rex", "parent": None}
        assert json.loads(text_of(result)) == result["structuredContent"]
        row = await gateway.server("shop")
        assert (row["type"], row["state"]) == ("openapi", "ready")


@pytest.mark.heavy
async def test_f1_python_sdk_client_lists_and_calls(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, gateway=EAGER) as (_, gateway):
        await gateway.until_listed("shop__getPet")
        calls = [{"name": "shop__getPet", "arguments": {"id": 1}}, {"name": "shop__getPet", "arguments": {"id": 9}}]
        seen = await installed.report("sdk2-2026-07-28", gateway.url, calls)
        assert "shop__createPet" in {tool["name"] for tool in seen["tools"]}
        found, missing = (call["result"] for call in seen["calls"])
        assert found["structuredContent"]["name"] == "Rex"
        assert missing["isError"]
        assert "HTTP 404: there is no such pet" in text_of(missing)


@pytest.mark.heavy
async def test_f1_operations_are_selected_by_id_tag_method_and_path(tmp_path: Path) -> None:
    selections: dict[str, tuple[dict[str, Any], set[str]]] = {
        "tags": (
            {"includeOperations": ["tag:pets"], "excludeOperations": ["POST"]},
            {"listPets", "getPet"},
        ),
        "paths": ({"includeOperations": ["/pets/*"]}, {"getPet", "deletePet"}),
        "names": ({"includeOperations": ["GET /pets*", "create*"]}, {"listPets", "getPet", "createPet"}),
    }
    service = ApiService(origin="http://127.0.0.1:1", document=tmp_path / "openapi.json")
    service.write(pet_shop())
    servers = {alias: service.entry(**keys) for alias, (keys, _) in selections.items()}
    expected = {f"{alias}__{name}" for alias, (_, names) in selections.items() for name in names}
    async with running_gateway(tmp_path, servers, gateway=EAGER) as gateway:
        assert (await gateway.until_listed(*expected)).keys() == expected


async def test_f3_read_only_members_are_not_input_and_duplicate_names_are_distinguished(tmp_path: Path) -> None:
    document = pet_shop()
    twice = [parameter("id", "path"), parameter("id", "query"), parameter("body", "header")]
    body = {"content": {JSON: {"schema": {"type": "object"}}}}
    document["paths"]["/echo/{id}"] = {"put": operation("twice", *twice, requestBody=body)}
    async with api_gateway(tmp_path, document, gateway=EAGER) as (_, gateway):
        tools = await gateway.until_listed("shop__twice", "shop__createPet")
        pet = tools["shop__createPet"]["inputSchema"]["$defs"]["Pet"]
        assert set(pet["properties"]) == {"name", "pin", "parent"}
        assert pet["required"] == ["name"]
        assert "nullable" not in json.dumps(tools)
        assert tools["shop__listPets"]["inputSchema"]["properties"]["limit"]["exclusiveMinimum"] == 0
        returned = tools["shop__getPet"]["outputSchema"]["$defs"]["Pet"]
        assert set(returned["properties"]) == {"id", "name", "parent"}
        names = tools["shop__twice"]["inputSchema"]["properties"]
        assert set(names) == {"id", "id_query", "body_header", "body"}
        assert "query parameter `id`" in names["id_query"]["description"]
        arguments = {"id": "1", "id_query": "2", "body_header": "3", "body": {"x": 4}}
        sent = (await gateway.call("shop__twice", arguments))["structuredContent"]
        assert sent["target"] == "/echo/1?id=2"
        assert sent["headers"]["body"] == "3"
        assert base64.b64decode(sent["body"]) == b'{"x":4}'


# Style, explode and place of a parameter, a value, and what the request has: RFC 6570, and the table "Style Examples"
# The example values of OpenAPI 3.1.1.
OBJECT = {"R": 100, "G": 200}
COLORS = ["blue", "black"]
GOLDEN: tuple[tuple[dict[str, Any], Any, str], ...] = (
    (parameter("color", "path", {}), "a/b?c#d ü", "/echo/a%2Fb%3Fc%23d%20%C3%BC"),
    (parameter("color", "path", {}), COLORS, "/echo/blue,black"),
    (parameter("color", "path", {}, explode=True), OBJECT, "/echo/R=100,G=200"),
    (parameter("color", "path", {}, style="label"), COLORS, "/echo/.blue,black"),
    (parameter("color", "path", {}, style="label", explode=True), OBJECT, "/echo/.R=100.G=200"),
    (parameter("color", "path", {}, style="matrix"), "blue", "/echo/;color=blue"),
    (parameter("color", "path", {}, style="matrix"), OBJECT, "/echo/;color=R,100,G,200"),
    (parameter("color", "path", {}, style="matrix", explode=True), COLORS, "/echo/;color=blue;color=black"),
    (parameter("color", "query", {}), "a&b=c d", "?color=a%26b%3Dc%20d"),
    (parameter("color", "query", {}), COLORS, "?color=blue&color=black"),
    (parameter("color", "query", {}, explode=False), COLORS, "?color=blue,black"),
    (parameter("color", "query", {}), OBJECT, "?R=100&G=200"),
    (parameter("color", "query", {}, explode=False), OBJECT, "?color=R,100,G,200"),
    (parameter("color", "query", {}, style="spaceDelimited", explode=False), COLORS, "?color=blue%20black"),
    (parameter("color", "query", {}, style="pipeDelimited", explode=False), COLORS, "?color=blue%7Cblack"),
    (parameter("color", "query", {}, style="deepObject", explode=True), OBJECT, "?color%5BR%5D=100&color%5BG%5D=200"),
    (parameter("color", "query", {}, allowReserved=True), "a/b:c?d&e", "?color=a/b:c?d%26e"),
    (parameter("color", "query", {}), True, "?color=true"),
    (parameter("color", "query", {}), 1e21, "?color=1e%2B21"),
    (
        {"name": "color", "in": "query", "content": {JSON: {"schema": {}}}},
        OBJECT,
        "?color=%7B%22R%22%3A100%2C%22G%22%3A200%7D",
    ),
)


async def test_f4_parameters_are_serialized_by_their_style(tmp_path: Path) -> None:
    document = pet_shop()
    for number, (one, _, _) in enumerate(GOLDEN):
        path = f"/echo{number}" + ("/{color}" if one["in"] == "path" else "")
        document["paths"][path] = {"get": operation(f"echo{number}", one)}
    # As in the documents of AWS and Box: a fragment or a fixed query distinguishes operations of one path.
    document["paths"]["/echo/{x}#Action=a"] = {"get": operation("fragment", parameter("x", "path"))}
    document["paths"]["/echo?a=b c"] = {"get": operation("query", parameter("y", "query"))}
    # Documents write parameters of the query into the path, as those of the path or of the query.
    document["paths"]["/echo/{x}?user={id}&a=b"] = {
        "get": operation("written", parameter("x", "path"), parameter("id", "path"))
    }
    document["paths"]["/echo?b={q}&a=b"] = {
        "get": operation("both", parameter("q", "query"), parameter("a", "query", required=True))
    }
    async with api_gateway(tmp_path, document, gateway=EAGER) as (_, gateway):
        tools = await gateway.until_listed("shop__echo0")
        assert tools["shop__written"]["inputSchema"]["required"] == ["x", "id"]
        assert tools["shop__both"]["inputSchema"]["required"] == ["a"]
        sent = await gateway.call("shop__written", {"x": "1/2", "id": "3&c=4"})
        assert sent["structuredContent"]["target"] == "/echo/1%2F2?a=b&user=3%26c%3D4"
        sent = await gateway.call("shop__both", {"a": "c"})
        assert sent["structuredContent"]["target"] == "/echo?a=c"
        sent = await gateway.call("shop__both", {"a": "c", "q": "d"})
        assert sorted(sent["structuredContent"]["target"].removeprefix("/echo?").split("&")) == ["a=c", "b=d"]
        sent = await gateway.call("shop__fragment", {"x": "#"})
        assert sent["structuredContent"]["target"] == "/echo/%23"
        sent = await gateway.call("shop__query", {"y": "z"})
        assert sent["structuredContent"]["target"] == "/echo?a=b%20c&y=z"
        for number, (_, value, expected) in enumerate(GOLDEN):
            result = await gateway.call(f"shop__echo{number}", {"color": value})
            target = result["structuredContent"]["target"]
            assert target == f"/echo{number}{expected.removeprefix('/echo')}"


async def test_f4_headers_cookies_and_bodies_are_sent_as_documented(tmp_path: Path) -> None:
    def body(kind: str, **media: Any) -> dict[str, Any]:
        return {"requestBody": {"required": True, "content": {kind: {"schema": {}, **media}}}}

    file = {"type": "object", "properties": {"file": {"type": "string", "format": "binary"}, "note": {}, "tags": {}}}
    document = pet_shop()
    tags, cookie = parameter("X-Tags", "header", {}), parameter("session", "cookie")
    document["paths"] |= {
        "/echo/a": {"get": operation("headers", tags, cookie, parameter("Authorization", "header"))},
        "/echo/b": {"post": operation("form", **body("application/x-www-form-urlencoded"))},
        "/echo/c": {"post": operation("parts", **body("multipart/form-data", schema=file))},
        "/echo/whole": {
            "post": operation("whole", **body("multipart/form-data", schema={"type": "string", "format": "binary"}))
        },
        "/echo/d": {"post": operation("text", **body("text/plain"))},
        "/echo/e": {"post": operation("octets", **body("application/octet-stream"))},
        "/echo/f": {"patch": operation("merge", **body("application/merge-patch+json"))},
        "/echo/g": {"post": operation("nothing")},
    }
    async with api_gateway(tmp_path, document, gateway=EAGER, headers={"X-Static": "s"}) as (_, gateway):
        tools = await gateway.until_listed("shop__headers")

        async def sent(name: str, value: Any) -> tuple[dict[str, str], bytes]:
            arguments = value if name == "headers" else {"body": value}
            found = (await gateway.call(f"shop__{name}", arguments if value is not None else {}))["structuredContent"]
            return found["headers"], base64.b64decode(found["body"])

        # `Authorization` belongs to the configuration.
        assert set(tools["shop__headers"]["inputSchema"]["properties"]) == {"X-Tags", "session"}
        headers, _ = await sent("headers", {"X-Tags": ["a", "b"], "session": "x y;z"})
        assert headers["x-tags"] == "a,b"
        assert headers["cookie"] == "session=x%20y%3Bz"
        assert headers["x-static"] == "s"
        assert "content-length" not in headers
        headers, content = await sent("form", {"a": "x y&z", "b": [1, 2], "c": {"d": True}})
        assert headers["content-type"] == "application/x-www-form-urlencoded"
        assert content == b"a=x%20y%26z&b=1&b=2&c=%7B%22d%22%3Atrue%7D"
        value = {"file": base64.b64encode(b"\0\r\n--\xff").decode(), "note": "hé", "tags": {"x": 1}}
        headers, content = await sent("parts", value)
        kind, _, boundary = headers["content-type"].partition("; boundary=")
        mark = f"--{boundary.strip(chr(34))}".encode()
        assert kind == "multipart/form-data"
        assert content == (
            mark + b'\r\nContent-Disposition: form-data; name="file"; filename="file"\r\n'
            b"Content-Type: application/octet-stream\r\n\r\n\0\r\n--\xff\r\n"
            + mark
            + b'\r\nContent-Disposition: form-data; name="note"\r\nContent-Type: text/plain\r\n\r\nh\xc3\xa9\r\n'
            + mark
            + b'\r\nContent-Disposition: form-data; name="tags"\r\nContent-Type: application/json\r\n\r\n{"x":1}\r\n'
            + mark
            + b"--\r\n"
        )
        headers, content = await sent("whole", value["file"])
        mark = b"--" + headers["content-type"].partition("boundary=")[2].strip('"').encode()
        assert content == (
            mark + b'\r\nContent-Disposition: form-data; name="file"; filename="file"\r\n'
            b"Content-Type: application/octet-stream\r\n\r\n\0\r\n--\xff\r\n" + mark + b"--\r\n"
        )
        headers, content = await sent("text", "hé")
        assert (headers["content-type"], content) == ("text/plain", "hé".encode())
        assert (await sent("octets", base64.b64encode(b"\0\1").decode()))[1] == b"\0\1"
        headers, content = await sent("merge", {"a": None})
        assert (headers["content-type"], content) == ("application/merge-patch+json", b'{"a":null}')
        headers, content = await sent("nothing", None)
        assert (headers["content-length"], content) == ("0", b"")


async def test_f5_values_cannot_leave_their_place_in_the_request(tmp_path: Path) -> None:
    document = pet_shop()
    document["paths"]["/echo/{name}/file"] = {"get": operation("echo", parameter("name", "path"))}
    document["paths"]["/echo/{a}{b}/x"] = {"get": operation("both", parameter("a", "path"), parameter("b", "path"))}
    document["paths"]["/echo"] = {"get": operation("header", parameter("X-A", "header"))}
    async with api_gateway(tmp_path, document, gateway=EAGER) as (_, gateway):
        await gateway.until_listed("shop__echo")
        for value in ("..", ".", "../../pets/1", "a/../..", "..\\x", "%2e%2e", "", "a\r\nb"):
            refused = await gateway.call("shop__echo", {"name": value})
            assert refused["isError"], value
            assert "Not sent: name" in text_of(refused), text_of(refused)
        assert "Not sent" in text_of(await gateway.call("shop__both", {"a": ".", "b": "."}))
        for value in ("a\r\nX-B: 1", "a\nb", "\0", "é"):
            refused = await gateway.call("shop__header", {"X-A": value})
            assert "Not sent: X-A has characters that a header cannot contain" in text_of(refused)
        sent = (await gateway.call("shop__echo", {"name": "a/b?c"}))["structuredContent"]
        assert sent["target"] == "/echo/a%2Fb%3Fc/file"


async def test_f5_credentials_are_sent_only_to_the_api_origin(tmp_path: Path) -> None:
    async with api_service(tmp_path) as service:
        elsewhere = service.origin.replace("127.0.0.1", "localhost")
        document = pet_shop()
        document["paths"]["/echo/there"] = {"get": operation("elsewhere"), "servers": [{"url": elsewhere}]}
        closed = f"http://localhost:{unused_port()}"
        document["paths"]["/closed"] = {"get": operation("closed"), "servers": [{"url": closed}]}
        service.write(document)
        entry = service.entry(headers={"Authorization": "Bearer right"})
        servers = {
            "shop": entry,
            "allowed": {**entry, "privateHosts": ["localhost"]},
            "trusting": {**entry, "privateHosts": ["localhost"], "trustedOrigins": [elsewhere]},
        }
        async with running_gateway(tmp_path, servers, gateway=EAGER) as gateway:
            await gateway.until_listed("shop__getSecret", "allowed__elsewhere", "trusting__elsewhere")
            assert (await gateway.call("shop__getSecret"))["structuredContent"] == {"secret": 42}
            # A redirect is reported, and not followed.
            away = await gateway.call("shop__away", {"to": f"{elsewhere}/echo"})
            assert "HTTP 302" in text_of(away)
            assert away["content"][1]["uri"] == f"{elsewhere}/echo"
            assert "Not sent: " in text_of(await gateway.call("shop__elsewhere"))
            sent = (await gateway.call("allowed__elsewhere"))["structuredContent"]
            assert "authorization" not in sent["headers"]
            sent = (await gateway.call("trusting__elsewhere"))["structuredContent"]
            assert sent["headers"]["authorization"] == "Bearer right"
            # Another server that fails does not keep calls from the main server.
            for _ in range(12):
                failed = await gateway.call("allowed__closed")
                assert f"Not sent: {closed}, which the document names" in text_of(failed)
            assert (await gateway.call("allowed__getSecret"))["structuredContent"] == {"secret": 42}


@pytest.mark.heavy
async def test_base_url_replaces_a_server_without_a_scheme(tmp_path: Path) -> None:
    async with api_service(tmp_path) as service:
        document = pet_shop()
        document["servers"] = [{"url": "//shop.invalid"}]
        document["paths"]["/echo/there"] = {"get": operation("there"), "servers": [{"url": "https://shop.invalid"}]}
        service.write(document)
        async with running_gateway(tmp_path, {"shop": service.entry()}, gateway=EAGER) as gateway:
            await gateway.until_listed("shop__there")
            assert (await gateway.call("shop__there"))["structuredContent"]["target"] == "/echo/there"


@pytest.mark.heavy
async def test_f6_results_of_every_media_type_reach_the_host(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, gateway=EAGER) as (service, gateway):
        await gateway.until_listed("shop__photo")
        [image] = (await gateway.call("shop__photo"))["content"]
        assert (image["type"], image["mimeType"]) == ("image", "image/png")
        assert base64.b64decode(image["data"]).startswith(b"\x89PNG")
        assert text_of(await gateway.call("shop__report")) == "name;age\nZoë;3\n"
        page = await gateway.call("shop__listPets", {"limit": 1})
        assert page["structuredContent"] == [{"id": 1, "name": "Rex", "parent": None}] or page["structuredContent"]
        assert page["_meta"][META]["links"]["next"].startswith(service.origin)
        assert page["_meta"][META]["headers"]["x-total-count"] == "2"
        made = await gateway.call("shop__createPet", {"body": {"name": "Bo"}})
        assert made["_meta"][META]["headers"]["location"] == f"/pets/{made['structuredContent']['id']}"
        gone = await gateway.call("shop__deletePet", {"id": made["structuredContent"]["id"]})
        assert text_of(gone) == "HTTP 204, without content."


@pytest.mark.heavy
async def test_f6_errors_are_readable_and_name_the_argument(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, gateway=EAGER) as (_, gateway):
        await gateway.until_listed("shop__createPet")
        for name, arguments, words in (
            ("createPet", {"body": {"name": "Rex"}}, ("HTTP 422", "body.name: this name is taken")),
            ("getPet", {"id": 9}, ("HTTP 404: there is no such pet",)),
            ("limited", {}, ("HTTP 429: slow down", "Try again after 7 s.")),
            ("broken", {}, ("HTTP 500: Oh no",)),
            ("cut", {}, ("not JSON",)),
            ("huge", {}, ("larger than",)),
        ):
            result = await gateway.call(f"shop__{name}", arguments)
            assert result["isError"], name
            assert all(word in text_of(result) for word in words), text_of(result)
        limited = await gateway.call("shop__limited")
        assert limited["_meta"][META] == {"status": 429, "headers": {"retry-after": "7"}}
        # An answer that differs from the document is forwarded, since the call has taken effect.
        lying = await gateway.call("shop__lying")
        assert json.loads(text_of(lying)) == {"id": "not a number"}
        # Arguments are checked before anything is sent.
        assert "Not called" in text_of(await gateway.call("shop__getPet", {"name": 1}))


async def test_f6_credentials_are_requested_and_never_shown(tmp_path: Path) -> None:
    async with api_service(tmp_path) as service:
        wrong = service.entry(headers={"Authorization": "Bearer mistaken-token"})
        program = [sys.executable, "-c", "print('Authorization: Bearer right')"]
        servers = {"shop": service.entry(), "wrong": wrong, "right": service.entry(headersCommand=program)}
        async with running_gateway(tmp_path, servers, gateway=EAGER) as gateway:
            await gateway.until_listed("shop__getSecret", "wrong__getSecret", "right__getSecret")
            refusal = text_of(await gateway.call("shop__getSecret"))
            assert "HTTP 401: no credentials are configured for this server" in refusal
            result = await gateway.call("wrong__getSecret")
            assert "HTTP 401: the credentials were refused" in text_of(result)
            assert (await gateway.call("right__getSecret"))["structuredContent"] == {"secret": 42}
            shown = json.dumps(result) + gateway.logged() + (await gateway.admin("servers")).text
            assert "mistaken-token" not in shown


@pytest.mark.heavy
async def test_f6_gateway_signs_in_to_an_api_with_client_credentials(tmp_path: Path) -> None:
    grants = {"grant_types": ["client_credentials"], "redirect_uris": [], "response_types": []}
    client = {"client_id": "gateway", "client_secret": "the secret of the client", **grants}
    document = pet_shop()
    document["paths"]["/echo"] = {"get": operation("echo")}
    async with running_issuer(opaque=True, clients=[client]) as issuer, api_service(tmp_path, document) as service:
        auth = {"type": "clientCredentials", "clientId": "gateway", "clientSecret": client["client_secret"]}
        entry = service.entry(auth={**auth, "issuer": issuer.url, "scopes": "mcp"})
        async with running_gateway(tmp_path, {"shop": entry}, gateway=EAGER) as gateway:
            await gateway.until_listed("shop__echo")
            sent = (await gateway.call("shop__echo"))["structuredContent"]
            token = sent["headers"]["authorization"].removeprefix("Bearer ")
            assert len(token) > 20
            # Another origin does not receive it.
            away = await gateway.call("shop__away", {"to": f"{service.origin}/echo"})
            shown = json.dumps(away) + gateway.logged() + (await gateway.admin("servers")).text
            assert token not in shown
            row = await gateway.server("shop")
            assert row["signIn"]["signedIn"] is True


@pytest.mark.heavy
async def test_f1_each_caller_calls_with_its_own_token(tmp_path: Path) -> None:
    document = pet_shop()
    document["paths"]["/echo"] = {"get": operation("echo")}
    async with running_issuer(opaque=True) as issuer, api_service(tmp_path, document) as service:
        entry = service.entry(auth={"perUser": True, "issuer": issuer.url, "scopes": "mcp"})
        async with running_gateway(tmp_path, {"shop": entry}, gateway={**EAGER, **AUTH}) as gateway:
            ann, bob = (User(name=name, gateway=gateway, issuer=issuer) for name in ("ann", "bob"))
            assert await ann.listed() == {"shop__sign_in"}
            await ann.sign_in()
            first = (await ann.call("shop__echo"))["structuredContent"]["headers"]["authorization"]
            assert await bob.listed() == {"shop__sign_in"}
            assert (await bob.call("shop__echo"))["isError"]
            await bob.sign_in()
            result = await bob.call("shop__echo")
            assert "structuredContent" in result, result
            second = result["structuredContent"]["headers"]["authorization"]
            assert first != second
            assert (await ann.call("shop__echo"))["structuredContent"]["headers"]["authorization"] == first
            # Neither key of the gateway reaches the API.
            assert not any(key in first + second for key in KEYS.values())


async def test_f8_policy_and_argument_settings_apply(tmp_path: Path) -> None:
    rules = {"policy": {"rules": [{"name": "keep", "deny": ["shop__delete*"]}]}}
    entry = {"tools": {"listPets": {"name": "pets"}}, "deny": {"tools": ["createPet"]}}
    async with api_gateway(tmp_path, gateway={**EAGER, **rules}, **entry) as (_, gateway):
        tools = await gateway.until_listed("shop__pets", "shop__getPet")
        assert not {"shop__deletePet", "shop__createPet"} & tools.keys()
        # A number as text is repaired.
        assert (await gateway.call("shop__getPet", {"id": "1"}))["structuredContent"]["name"] == "Rex"


@pytest.mark.heavy
async def test_f8_operation_moved_to_another_path_is_held_until_approved(tmp_path: Path) -> None:
    async with api_service(tmp_path) as service:
        servers = {"shop": service.entry(), "parts": service.entry(lock={"identity": "accept"})}
        async with running_gateway(tmp_path, servers, gateway={**EAGER, "lock": {"policy": "hold"}}) as gateway:
            before = (await gateway.until_listed("shop__getPet", "parts__getPet"))["parts__getPet"]
            document = pet_shop()
            document["paths"]["/echo/{id}"] = {"get": operation("getPet", parameter("id", "path", "integer"))}
            del document["paths"]["/pets/{id}"]["get"]
            service.write(document)
            await until_changed(gateway, 4)
            assert (await gateway.tools())["parts__getPet"] == before
            # The digest of the document identifies the server, so that all its operations wait for an approval.
            for name in ("shop__getPet", "shop__listPets", "parts__getPet"):
                refused = await gateway.call(name, {"id": 1} if "getPet" in name else {})
                assert refused["isError"]
                assert "is held" in text_of(refused)
            assert "isError" not in await gateway.call("parts__listPets")


async def test_changed_document_changes_the_list_at_once(tmp_path: Path) -> None:
    async with api_gateway(tmp_path, gateway=EAGER) as (service, gateway):
        await gateway.until_listed("shop__getPet")
        document = pet_shop()
        document["paths"]["/echo/new"] = {"get": operation("added")}
        del document["paths"]["/pets"]
        service.write(document)
        tools = await gateway.until_listed("shop__added")
        assert "shop__listPets" not in tools
        # A document that cannot be used leaves the list as it was.
        service.write('{"openapi": "3.0.3", ')
        await until_error(gateway, "openapi.json", "is not JSON")
        assert "shop__added" in await gateway.tools()
        service.write(pet_shop())
        await gateway.until_listed("shop__listPets")


@pytest.mark.heavy
async def test_document_may_be_at_a_url_and_in_yaml(tmp_path: Path) -> None:
    async with api_service(tmp_path) as service:
        entry = {"spec": f"{service.origin}/openapi.json"}
        (tmp_path / "shop.yaml").write_text(
            "openapi: 3.1.0\ninfo: {title: T, version: '1'}\npaths:\n  /echo/{day}:\n    get:\n"
            "      parameters:\n      - {name: day, in: path, required: true, schema: {type: string}, "
            "example: 2026-01-02}\n      responses:\n        200: {description: ok}\n"
        )
        other = {"spec": str(tmp_path / "shop.yaml"), "baseUrl": f"{service.origin}?key=1"}
        async with running_gateway(tmp_path, {"shop": entry, "yaml": other}, gateway=EAGER) as gateway:
            tools = await gateway.until_listed("shop__getPet", "yaml__get_echo_day")
            assert tools["yaml__get_echo_day"]["inputSchema"]["properties"]["day"]["examples"] == ["2026-01-02"]
            assert (await gateway.call("shop__getPet", {"id": 1}))["structuredContent"]["name"] == "Rex"
            sent = (await gateway.call("yaml__get_echo_day", {"day": "x"}))["structuredContent"]
            assert sent["target"] == "/echo/x?key=1"


@pytest.mark.heavy
async def test_unavailable_api_fails_only_the_call(tmp_path: Path) -> None:
    service = ApiService(origin=f"http://127.0.0.1:{unused_port()}", document=tmp_path / "openapi.json")
    service.write(pet_shop())
    async with running_gateway(tmp_path, {"shop": service.entry()}, gateway=EAGER) as gateway:
        await gateway.until_listed("shop__getPet")
        result = await gateway.call("shop__getPet", {"id": 1})
        assert result["isError"]
        assert "'shop'" in text_of(result)
