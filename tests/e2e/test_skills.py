"""Skills of several servers: one list, digests that hold, and each file from its own server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.test_extensions import EAGER, hosts_of, received, server, tool
from support.clients import installed
from support.gateways import running_gateway
from support.hosts_connected import HttpHost, http_host
from support.waiting import brief_pause

SKILLS = "io.modelcontextprotocol/skills"
FASTMCP = ("fastmcp==4.2.3",)


def digest(text: str) -> str:
    """The digest of a file, as entries carry it."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def skill(path: str, files: dict[str, str] | None) -> dict[str, Any]:
    """The entry of a skill with these files below its directory; without files it is dynamic."""
    named = path.rpartition("/")[2]
    listed = [
        {"uri": f"skill://{path}/{file}", "digest": digest(text), "size": len(text.encode())}
        for file, text in (files or {}).items()
    ]
    about = {"name": named, "description": f"Do {named}.", "license": "MIT", "uri": f"skill://{path}/SKILL.md"}
    return {"uri": f"skill://{path}/SKILL.md", "frontmatter": about, "resources": listed if files else "dynamic"}


def serving(tmp_path: Path, name: str, *, change: str = "", **more: Any) -> dict[str, Any]:
    """A server with three skills on two pages; `plan` is also a skill of every other such server."""
    plan = {"SKILL.md": f"Plan with {name}{change}.", "templates/day.md": f"The day of {name}"}
    own = {"SKILL.md": f"Only {name}"}
    entries = [skill("team/plan", plan), skill(f"of-{name}", own), skill("live", None)]
    texts = {f"skill://team/plan/{file}": text for file, text in plan.items()}
    texts |= {f"skill://of-{name}/SKILL.md": own["SKILL.md"], "skill://live/SKILL.md": f"Live at {name}"}
    texts |= {"skill://live/now.md": f"Now at {name}"}
    children = [{"uri": "skill://team/plan/templates/day.md", "name": "day.md"}]
    results = {
        "skills/list": [{"skills": entries[:1]}, {"skills": [*entries[1:], {"uri": "skill://bad/SKILL.md"}]}],
        "skills/get": {"byUri": {one["uri"]: {"skill": one} for one in entries}},
        "resources/directory/read": {"byUri": {"skill://team/plan/templates": {"resources": children}}},
    }
    spec = {"modern": True, "extensions": {SKILLS: {"directoryRead": True}}, "results": results, "tools": [tool("say")]}
    return server(tmp_path, name, resources=texts, listed=[], **spec, **more)


async def text_at(host: HttpHost, uri: str) -> str:
    """The text of a file, which comes under the URI that was asked for."""
    [content] = (await host.result("resources/read", {"uri": uri}))["contents"]
    assert content["uri"] == uri
    text: str = content["text"]
    return text


async def test_host_of_the_extension_reads_skills_of_every_server(tmp_path: Path) -> None:
    servers = {name: serving(tmp_path, name) for name in ("one", "two")}
    servers["plain"] = server(tmp_path, "plain", tools=[tool("say")])
    async with hosts_of(tmp_path, servers, "one__say", "two__say", "plain__say") as (hosts, running):
        for host in hosts:
            assert host.hello["capabilities"]["extensions"] == {SKILLS: {"directoryRead": True}}
            page = await host.result("skills/list")
            assert "nextCursor" not in page
            if host.modern:
                assert (page["resultType"], page["ttlMs"], page["cacheScope"]) == ("complete", 1000, "private")
            skills = {one["uri"]: one for one in page["skills"]}
            assert set(skills) == {
                *(f"skill://{name}/team/plan/SKILL.md" for name in ("one", "two")),
                *(f"skill://{name}/live/SKILL.md" for name in ("one", "two")),
                *(f"skill://of-{name}/SKILL.md" for name in ("one", "two")),
            }
            for uri, entry in skills.items():
                assert entry["frontmatter"]["uri"].endswith("/SKILL.md")
                assert entry["frontmatter"]["name"] == uri.split("/")[-2]
                assert "skill://one/" not in entry["frontmatter"]["uri"]
                got = await host.result("skills/get", {"uri": uri})
                assert got["skill"] == entry
                assert not host.modern or {"ttlMs", "cacheScope"} <= set(got)
                if entry["resources"] == "dynamic":
                    continue
                for file in entry["resources"]:
                    text = await text_at(host, file["uri"])
                    assert (digest(text), len(text.encode())) == (file["digest"], file["size"])
            for name in ("one", "two"):
                # As a host resolves what the texts refer to, and what no entry names.
                root = f"skill://{name}/team/plan"
                params = {"uri": f"{root}/templates"}
                children = (await host.result("resources/directory/read", params))["resources"]
                assert [one["uri"] for one in children] == [f"{root}/templates/day.md"]
                assert await text_at(host, f"{root}/templates/day.md") == f"The day of {name}"
                assert await text_at(host, f"skill://{name}/live/now.md") == f"Now at {name}"
            unknown = (await host.ask("skills/get", {"uri": "skill://none/SKILL.md"}))["error"]
            assert unknown["code"] in (-32602, -32002)
        quarantined = (await running.admin("quarantine")).json()
        assert "skill://bad/SKILL.md" in json.dumps(quarantined)
        assert (await running.server("one"))["skills"] == 3
    entries = [json.loads(line) for line in (running.state_dir / "audit.jsonl").read_text().splitlines()]
    asked_for = {(one.get("method"), one.get("server"), one.get("original")) for one in entries}
    assert ("skills/get", "two", "skill://team/plan/SKILL.md") in asked_for
    assert ("resources/directory/read", "one", "skill://team/plan/templates") in asked_for
    assert not received(tmp_path, "plain", "skills/list")


async def test_denied_skills_are_neither_listed_nor_readable(tmp_path: Path) -> None:
    servers = {"one": {**serving(tmp_path, "one"), "deny": ["skill://team/*"]}, "two": serving(tmp_path, "two")}
    rules = [
        {"name": "reads", "allow": ["*"]},
        {"name": "no live", "deny": ["skill://live/*"]},
    ]
    gateway = {"policy": {"rules": rules}}
    async with hosts_of(tmp_path, servers, "one__say", "two__say", gateway=gateway) as (hosts, _):
        for host in hosts:
            uris = {one["uri"] for one in (await host.result("skills/list"))["skills"]}
            assert uris == {"skill://team/plan/SKILL.md", "skill://of-one/SKILL.md", "skill://of-two/SKILL.md"}
            for method in ("skills/get", "resources/read"):
                for hidden in ("skill://one/team/plan/SKILL.md", "skill://live/SKILL.md", "skill://two/live/SKILL.md"):
                    assert "error" in await host.ask(method, {"uri": hidden}), (method, hidden)
    for request in received(tmp_path, "one", "resources/read"):
        assert "team" not in request["uri"]


@pytest.mark.heavy
async def test_changed_skill_waits_for_approval(tmp_path: Path) -> None:
    locked = {"lock": {"file": str(tmp_path / "typegate.lock"), "policy": "hold"}}
    uri, new = "skill://team/plan/SKILL.md", {"uri": "skill://of-one/SKILL.md"}
    command = [sys.executable, "-m", "gateway"]
    servers = {"one": serving(tmp_path, "one")}
    config = tmp_path / "before.json"
    config.write_text(json.dumps({"mcpServers": servers, "gateway": locked}))
    await run(*command, "lock", "--config", str(config), cwd=tmp_path)
    servers = {"one": serving(tmp_path, "one", change=" again")}
    async with (
        running_gateway(tmp_path, servers, gateway={**EAGER, **locked}) as running,
        http_host(running.url, "2026-07-28", running.client) as host,
    ):
        await running.until_listed("one__say")
        listed = {one["uri"]: one for one in (await host.result("skills/list"))["skills"]}
        assert listed[uri]["resources"][0]["digest"] == digest("Plan with one.")
        for method in ("skills/get", "resources/read"):
            refused = (await host.ask(method, {"uri": uri}))["error"]
            assert "held" in refused["message"]
        assert (await host.result("skills/get", new))["skill"]["uri"] == new["uri"]
        changes = (await running.admin("changes")).json()
        assert uri in json.dumps(changes)
        approved = await running.admin("changes", "POST", {"server": "one"})
        assert approved.status_code == 200, approved.text
        listed = {one["uri"]: one for one in (await host.result("skills/list"))["skills"]}
        assert listed[uri]["resources"][0]["digest"] == digest("Plan with one again.")
        assert await text_at(host, uri) == "Plan with one again."


_FASTMCP_SERVER = (
    "import sys; from fastmcp import FastMCP; from fastmcp.skills.provider import SkillsDirectoryProvider; "
    "server = FastMCP(sys.argv[1]); server.add_provider(SkillsDirectoryProvider(sys.argv[2])); "
    "server.run(show_banner=False)"
)
_FASTMCP_CLIENT = """
import asyncio, base64, json, sys
from fastmcp import Client
from fastmcp.skills.client import SkillsClientExtension

async def main():
    async with Client(sys.argv[1], mode="auto", extensions=[SkillsClientExtension()]) as client:
        found = {entry.uri: await client.read_skill(entry.uri) for entry in await client.list_skills()}
        print(json.dumps({
            uri: {path: base64.b64encode(content).decode() for path, content in skill.files.items()}
            for uri, skill in found.items()
        }))

asyncio.run(main())
"""


@pytest.mark.heavy
async def test_published_clients_read_and_verify_the_skills_of_published_servers(tmp_path: Path) -> None:
    python = await asyncio.to_thread(installed.venv, "fastmcp", FASTMCP)
    client = await asyncio.to_thread(installed.skills_client)
    pixel = bytes(range(256))
    written: dict[str, dict[str, bytes]] = {}
    servers = {}
    for name in ("one", "two"):
        root = tmp_path / f"skills-of-{name}"
        for path in ("team/plan", f"only-{name}"):
            title = path.rpartition("/")[2]
            files = {
                "SKILL.md": f"---\nname: {title}\ndescription: Do {title}.\n---\n{path} of {name}: references/day.md\n",
                "references/day.md": f"The day of {name} — überall\r\n",
            }
            qualified = f"skill://{name}/{path}" if path == "team/plan" else f"skill://{path}"
            contents = {file: text.encode() for file, text in files.items()} | {"assets/pixel.bin": pixel}
            written[f"{qualified}/SKILL.md"] = {f"{qualified}/{file}": content for file, content in contents.items()}
            for file, content in contents.items():
                (root / path / file).parent.mkdir(parents=True, exist_ok=True)
                (root / path / file).write_bytes(content)
        servers[name] = {"command": str(python), "args": ["-c", _FASTMCP_SERVER, name, str(root)]}
    async with running_gateway(tmp_path, servers, gateway=EAGER) as running:
        with anyio.fail_after(60):
            for name in servers:
                while (await running.server(name))["skills"] != 2:
                    await brief_pause()
        report = json.loads(await output_of(*client, running.url))
        assert report["supported"]
        assert set(report["skills"]) == set(written)
        for uri, skill in report["skills"].items():
            assert skill["same"], uri
            assert all(file["verified"] for file in skill["files"].values()), uri
            assert {file: b64decode(read["base64"]) for file, read in skill["files"].items()} == written[uri]
            assert skill["relative"].encode() == written[uri][uri.removesuffix("SKILL.md") + "references/day.md"]
        seen = json.loads(await output_of(str(python), "-c", _FASTMCP_CLIENT, running.url))
        assert {
            uri: {uri.removesuffix("SKILL.md") + path: b64decode(content) for path, content in files.items()}
            for uri, files in seen.items()
        } == written


@pytest.mark.heavy
async def test_directories_of_published_servers_are_read_by_a_published_client(tmp_path: Path) -> None:
    client = await asyncio.to_thread(installed.skills_client)
    servers = {}
    for name in ("one", "two"):
        root = tmp_path / f"skills-of-{name}"
        folder = root / "plan"
        (folder / "references" / "old").mkdir(parents=True)
        (folder / "SKILL.md").write_text("---\nname: plan\ndescription: Do plan.\n---\nSee references/day.md\n")
        # More than one page of the server.
        for file in ("day.md", f"{name}.md", "week.md", "old/year.md"):
            (folder / "references" / file).write_text(f"{file} of {name}\n")
        servers[name] = await asyncio.to_thread(installed.skills_server, name, root)
    async with running_gateway(tmp_path, servers, gateway=EAGER) as running:
        with anyio.fail_after(60):
            for name in servers:
                while (await running.server(name))["skills"] != 1:
                    await brief_pause()
        for name in servers:
            root_uri = f"skill://{name}/plan"
            report = json.loads(await output_of(*client, running.url, f"{root_uri}/references"))
            assert set(report["skills"]) == {"skill://one/plan/SKILL.md", "skill://two/plan/SKILL.md"}
            skill = report["skills"][f"{root_uri}/SKILL.md"]
            assert skill["same"]
            assert skill["relative"] == f"day.md of {name}\n"
            assert all(file["verified"] for file in skill["files"].values())
            children = {child["uri"]: child.get("mimeType") for child in report["directory"]}
            assert set(children) == {
                f"{root_uri}/references/{child}" for child in ("day.md", f"{name}.md", "week.md", "old")
            }
            assert children[f"{root_uri}/references/old"] == "inode/directory"


async def output_of(*command: str) -> str:
    """Return what a program prints that has to succeed."""
    with anyio.fail_after(120):
        done = await anyio.run_process(command, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return done.stdout.decode()


async def run(*command: str, cwd: Path) -> None:
    """Run a program that has to succeed."""
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd, stderr=asyncio.subprocess.PIPE)
    _, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
