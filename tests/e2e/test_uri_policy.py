"""A denied resource of real servers of both SDKs is not readable in any spelling of its URI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import HandshakeSession, handshake
from support.clients.installed import SDK1, TYPESCRIPT_SDK, node, npm, venv
from support.gateways import brief_pause, running_gateway

PYTHON = """
from mcp.server{module} import {server}
app = {server}("files")

@app.resource("file:///etc/shadow")
def shadow() -> str:
    return "root:secret-of-the-file"

@app.resource("file:///vault/{{name}}")
def vault(name: str) -> str:
    return f"secret-of-the-file {{name}}"

@app.resource("https://example.com/private/a")
def page() -> str:
    return "secret-of-the-file"

@app.resource("file:///public/readme")
def readme() -> str:
    return "for everybody"

app.run()
"""
TYPESCRIPT = """
import { McpServer, ResourceTemplate } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
const app = new McpServer({ name: "files", version: "1" });
const say = text => async uri => ({ contents: [{ uri: uri.href, text }] });
app.tool("ping", async () => ({ content: [] }));
app.resource("shadow", "file:///etc/shadow", say("root:secret-of-the-file"));
app.resource("vault", new ResourceTemplate("file:///vault/{name}", { list: undefined,
  complete: { name: () => ["secret-of-the-file"] } }), say("secret-of-the-file"));
app.resource("page", "https://example.com/private/a", say("secret-of-the-file"));
app.resource("readme", "file:///public/readme", say("for everybody"));
await app.connect(new StdioServerTransport());
"""
SPELLED = [
    *(
        uri.replace("/etc/shadow", path)
        for path in ("/etc/shadow", "/vault/x")
        for uri in (
            "file:///etc/shadow", "file://localhost/etc/shadow", "file://LOCALHOST/etc/shadow", "file:/etc/shadow",
            "file:\\\\\\etc/shadow", " file:///etc/shadow", "file:///etc/shadow\n", "fi\tle:///etc/shadow",
            "file:///etc/shadow".replace("t", "t\t"), "FILE:///etc/shadow", "file:///x/../etc/shadow",
            "file:///x/%2e%2e/etc/shadow", "file:///./etc/shadow", "file://loc%61lhost/etc/shadow",
            "file://ｌocalhost/etc/shadow", "\x00file:///etc/shadow\x1f", "file:////etc/shadow",
        )
    ),
    "https://example.com/private/a", "https://example.com:443/private/a", "https://EXAMPLE.com/private/a",
    "https:example.com/private/a", "https:/example.com/private/a", "https:\\\\example.com/private/a",
    "https://@example.com/private/a", "https://:@example.com/private/a", "https://ｅxample.com/private/a",
    "https://example。com/private/a", "https://example.com/x/../private/a", "https://ex\nample.com/private/a",
]  # fmt: skip
FURTHER = [
    *(
        uri.replace("/etc/shadow", path)
        for path in ("/etc/shadow", "/vault/x")
        for uri in (
            "file:etc/shadow", "file:../etc/shadow", "file:/../../etc/shadow", "file:///etc/shadow#f", "file:///etc/shadow?q",
            "file://user@localhost/etc/shadow", "file://local\thost/etc/shadow", "file:\r\n///etc/shadow",
            "file:/\\/etc/shadow", "file:///x/.%2E/etc/shadow", "file:///x/%2E./etc/shadow", "file:///etc/shadow/.",
            "file:///etc/shadow/x/..", "file://l\u00adocalhost/etc/shadow", "file://localhost.:/etc/shadow",
            "\ufefffile:///etc/shadow", "\u2003file:///etc/shadow", "file:///C|/../etc/shadow", "file:///./././etc/shadow",
        )
    ),
    "file:///%65tc/shadow", "file:///etc/%73hadow", "file:///etc%2fshadow", "file:///vault/%78", "file:///%76ault/x",
    "https://example.com./private/a", "https://example.com:0443/private/a", "https://example.com:/private/a",
    "https://example.com/private/a#f", "https://example.com/private/a?", "https://exa%6dple.com/private/a",
    "https://ex\u00adample.com/private/a", "https://example.com\\private\\a", "https://example.com/%70rivate/a",
    "https:\t//example.com/private/a", "https://example\uff0ecom/private/a", "https://ex\u200bample.com/private/a",
    "https://u:p@example.com/private/a", "https://example.com/private/./a", "https://\U0001d41axample.com/private/a",
]  # fmt: skip
SECRET = "secret-of-the-file"
DENY = ["file:///etc/*", "file:///vault/{name}", "https://example.com/private/*"]


def server_of(kind: str, tmp_path: Path) -> dict[str, Any]:
    if kind == "typescript":
        modules = npm("typescript", TYPESCRIPT_SDK)
        program = modules.parent / "files-of-the-policy-test.mjs"
        program.write_text(TYPESCRIPT)
        return {"command": str(node()), "args": [str(program)]}
    program = tmp_path / f"{kind}.py"
    if kind == "python-1":
        program.write_text(PYTHON.format(module=".fastmcp", server="FastMCP"))
        return {"command": str(venv("sdk1", SDK1)), "args": [str(program)]}
    program.write_text(PYTHON.format(module="", server="MCPServer"))
    return {"command": sys.executable, "args": [str(program)]}


async def response_text(session: HandshakeSession, method: str, **params: Any) -> str:
    """Return the whole response as text."""
    return (await session.post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})).text


KINDS = [
    "python-2",
    pytest.param("python-1", marks=pytest.mark.heavy),
    pytest.param("typescript", marks=pytest.mark.heavy),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["rule", "server"])
@pytest.mark.heavy
async def test_denied_uri_cannot_be_read_completed_or_watched_in_any_spelling(
    tmp_path: Path, kind: str, place: str
) -> None:
    server = server_of(kind, tmp_path)
    rule = {"name": "no secrets", "deny": DENY}
    settings = {"policy": {"rules": [rule]}} if place == "rule" else {}
    denied = server if place == "rule" else {**server, "deny": DENY}
    servers = {"closed": denied, **({"open": server} if place == "server" else {})}
    async with running_gateway(tmp_path, servers, gateway=settings) as gateway:
        session = await handshake(gateway)
        with anyio.fail_after(20):
            while any([(await gateway.server(alias))["state"] != "ready" for alias in servers]):
                await brief_pause()
        if place == "server":
            # The same server returns the content where nothing is denied, which shows that the spellings work.
            opened = 0
            for uri in SPELLED:
                opened += SECRET in await response_text(session, "resources/read", uri=f"typegate://open/{uri}")
            assert opened >= (3 if kind == "python-2" else 25)
        prefix = "typegate://closed/" if place == "server" else ""
        for uri in SPELLED:
            for shown in {f"{prefix}{uri}", f"typegate://closed/{uri}"}:
                assert SECRET not in await response_text(session, "resources/read", uri=shown), shown
                ref, argument = {"type": "ref/resource", "uri": shown}, {"name": "name", "value": ""}
                completed = await response_text(session, "completion/complete", ref=ref, argument=argument)
                assert "Unknown resource" in completed, shown
                assert "Resource not found" in await response_text(session, "resources/subscribe", uri=shown), shown
        listed = await gateway.rpc("resources/list")
        own = [one["uri"] for one in listed["result"]["resources"] if "open/" not in one["uri"]]
        assert [uri.removeprefix("typegate://closed/") for uri in own if "closed" in uri or place == "rule"] == [
            "file:///public/readme"
        ]


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["python-2", "python-1", "typescript"])
async def test_denied_uri_cannot_be_read_or_completed_in_further_spellings(tmp_path: Path, kind: str) -> None:
    server = server_of(kind, tmp_path)
    servers = {"closed": {**server, "deny": DENY}, "open": server}
    async with running_gateway(tmp_path, servers) as gateway:
        session = await handshake(gateway)
        with anyio.fail_after(20):
            while any([(await gateway.server(alias))["state"] != "ready" for alias in servers]):
                await brief_pause()
        opened, found = 0, []
        for uri in FURTHER:
            opened += SECRET in await response_text(session, "resources/read", uri=f"typegate://open/{uri}")
            shown = f"typegate://closed/{uri}"
            ref, argument = {"type": "ref/resource", "uri": shown}, {"name": "name", "value": ""}
            text = await response_text(session, "resources/read", uri=shown)
            text += await response_text(session, "completion/complete", ref=ref, argument=argument)
            found += [uri] if SECRET in text else []
        assert found == []
        assert opened >= (1 if kind == "python-2" else 25), "the spellings are good ones"


@pytest.mark.heavy
async def test_hook_applies_to_every_spelling_of_a_uri(tmp_path: Path) -> None:
    (tmp_path / "stamp.py").write_text(
        "from gateway.hooks import Hook, Block\n"
        "class Closed(Hook):\n"
        "    async def before_resource(self, call):\n"
        "        return Block(reason='closed by the hook')\n"
    )
    hook = {"name": "closed", "path": "./stamp.py:Closed", "conditions": {"wrappers": ["file:///etc/*"]}}
    server = server_of("python-2", tmp_path)
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    async with running_gateway(
        tmp_path, {"files": server}, gateway={"hooks": [hook]}, environment=environment
    ) as gateway:
        session = await handshake(gateway)
        with anyio.fail_after(20):
            while "for everybody" not in await response_text(session, "resources/read", uri="file:///public/readme"):
                await brief_pause()
        for uri in (uri for uri in SPELLED if "shadow" in uri or "hadow" in uri):
            assert "closed by the hook" in await response_text(session, "resources/read", uri=uri), uri
