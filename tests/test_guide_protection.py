"""Manual pages about access, sign-in and locks: their examples work as described."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
import httpx2
import pytest
from ruamel.yaml import YAML
from support.gateways import TOKEN, RunningGateway, brief_pause, serving, text_of
from support.guide_pages import code_blocks, local_config, run, section, shown_outputs, symptoms, table
from support.rotating import Rotating, rotating_server, sign_in_to

from gateway.config.load import parse
from registry.lock.review import CHANGE_CLASSES, default_decision

KEY = "a-key-of-the-tests-of-the-manual"


async def until_state(gateway: RunningGateway, name: str, state: str) -> dict[str, Any]:
    with anyio.fail_after(25):
        while (row := await gateway.server(name))["state"] != state:
            await brief_pause()
    return row


async def test_calls_are_allowed_approved_and_explained_as_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TYPEGATE_API_KEY", KEY)
    monkeypatch.setenv("TYPEGATE_ADMIN_TOKEN", TOKEN)
    head = {"authorization": f"Bearer {KEY}"}
    [(explain, explained)] = shown_outputs("access-and-policy")
    config = local_config(code_blocks("access-and-policy", "yaml")[0], tmp_path)
    mail = {"to": ["robin@example.com"], "subject": "Hello", "body": "Hi"}
    results: list[dict[str, Any]] = []
    async with serving(config, tmp_path) as gateway, anyio.create_task_group() as group:
        assert await run("call", "calendar__list_accounts", "{}", "--url", gateway.url) == 0
        assert "robin@example.com" in capsys.readouterr().out
        assert await run(*explain, "--url", gateway.origin) == 1
        assert capsys.readouterr().out == explained

        async def call() -> None:
            results.append(await gateway.call("calendar__send_email", mail, headers=head))

        group.start_soon(call)
        with anyio.fail_after(25):
            while not (rows := (await gateway.admin("approvals")).json()["approvals"]):
                await brief_pause()
        assert await run("approvals", "list", "--url", gateway.origin) == 0
        approval = capsys.readouterr().out.split("\t")[0]
        assert approval == rows[0]["id"]
        assert results == []
        assert await run("approvals", "allow", approval, "--url", gateway.origin) == 0
        with anyio.fail_after(25):
            while not results:
                await brief_pause()
        assert results[0]["structuredContent"]["subject"] == "Hello"
        refused = await gateway.rpc("tools/list")
        assert refused["error"]["message"] in symptoms("access-and-policy")
        expected = tmp_path / "expected.txt"
        expected.write_text(code_blocks("access-and-policy", "text")[1])
        assert await run("policy", "test", str(expected), "--url", gateway.origin) == 0
        assert "3 of 3 as expected" in capsys.readouterr().err


async def test_conditions_decide_as_the_page_says(tmp_path: Path) -> None:
    config = local_config(code_blocks("access-and-policy", "yaml")[2], tmp_path)
    async with serving(config, tmp_path) as gateway:
        await gateway.until_listed("calendar__send_email")
        for subject, to, expected in (
            ("Sale", "robin@example.com", "deny"),
            ("Hello", "robin@example.org", "ask"),
            ("Hello", "robin@example.com", "allow"),
        ):
            arguments = json.dumps({"subject": subject, "to": [to], "body": ""})
            query = urlencode({"principal": "local", "name": "calendar__send_email", "arguments": arguments})
            assert (await gateway.admin(f"policy/explain?{query}")).json()["decision"] == expected
        result = await gateway.call("calendar__send_email", {"subject": "Sale", "to": ["a@example.com"], "body": ""})
        assert any(symptom in result["content"][0]["text"] for symptom in symptoms("access-and-policy"))


async def test_unsafe_access_is_refused_as_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = "mcpServers: {bank: {command: python}}\ngateway:\n"
    keys = "  auth: {apiKeys: [{name: ci, key: tg_abc, groups: [robots]}]}\n"
    rule = "  policy: {rules: [{name: none, groups: [robbots], deny: true}]}\n"
    monkeypatch.setenv("TYPEGATE_API_KEY", "another")
    path = tmp_path / "mcp.yaml"
    options = ["--config", str(path), "--state-dir", str(tmp_path / "state")]
    network = ["serve", "--host", "0.0.0.0", "--port", "0", *options]
    for settings, arguments in (
        ("  listen: {port: 0}\n", network),
        (keys, network),
        (keys, ["stdio", *options]),
        (keys + rule, ["check", *options]),
    ):
        path.write_text(servers + settings)
        assert await run(*arguments) == 2
        printed = capsys.readouterr().err
        assert any(symptom in printed for symptom in symptoms("access-and-policy")), printed


async def test_changed_tool_is_held_until_approved_as_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TYPEGATE_ADMIN_TOKEN", TOKEN)
    (tmp_path / "recipes.py").write_text(code_blocks("lock", "python")[0])
    config = local_config(code_blocks("lock", "yaml")[0], tmp_path)
    [(diff, shown)] = shown_outputs("lock")
    assert await run("lock", "--config", str(config), "--state-dir", str(tmp_path / "state")) == 0
    was, now = re.findall(r"^    [-+] (.*)$", shown, re.MULTILINE)
    (tmp_path / "recipes.py").write_text(code_blocks("lock", "python")[0].replace(was, now))
    async with serving(config, tmp_path) as gateway:
        with anyio.fail_after(25):
            while not (await gateway.admin("changes")).json()["changes"]:
                await brief_pause()
        assert await run(diff[0], "--url", gateway.origin) == 0
        assert capsys.readouterr().out == shown
        assert (await gateway.tools())["recipes__find_recipe"]["description"] == was
        refusal = text_of(await gateway.call("recipes__find_recipe", {"dish": "soup"}))
        assert refusal == " ".join(code_blocks("lock", "text")[1].split())
        assert await run("approve", "recipes__find_recipe", "--url", gateway.origin) == 0
        assert text_of(await gateway.call("recipes__find_recipe", {"dish": "soup"})).startswith("There is no recipe")
        assert (await gateway.tools())["recipes__find_recipe"]["description"] == now


def test_tables_of_classes_and_identities_match_the_program(tmp_path: Path) -> None:
    assert [(row[0], row[2]) for row in table(section("lock", "Classes of changes"))] == [
        (f"`{one}`", default_decision(one, locked=True)) for one in CHANGE_CLASSES
    ]
    for server, identity in table(section("lock", "Contents of the lock file").partition("The *identity*")[2]):
        command, *arguments = server.strip("`").split()
        entry = {"command": command, "args": arguments} if arguments else {"url": command}
        config = parse(json.dumps({"mcpServers": {"one": entry}}), environ={})
        assert f"`{config.servers['one'].launch_identity(tmp_path)}`" == identity.partition(",")[0]


@pytest.fixture
async def wiki() -> AsyncIterator[Rotating]:
    """A server that requires a sign-in, at the authorization server that it names."""
    async with rotating_server() as server:
        server.release.set()
        yield server


def entry(example: int, server: Rotating, tmp_path: Path) -> Path:
    """Write a configuration of the page about signing in, with the server `wiki` alone and at its real address."""
    config = YAML(typ="safe").load(code_blocks("sign-in", "yaml")[example])
    return local_config(
        json.dumps({**config, "mcpServers": {"wiki": {**config["mcpServers"]["wiki"], "url": server.lying.url}}}),
        tmp_path,
    )


async def test_server_is_used_after_one_sign_in_as_the_page_says(
    wiki: Rotating, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TYPEGATE_ADMIN_TOKEN", TOKEN)
    async with serving(entry(0, wiki, tmp_path), tmp_path) as gateway:
        await until_state(gateway, "wiki", "signInNeeded")
        refused = text_of(await gateway.call("wiki__look"))
        assert refused.startswith(" ".join(code_blocks("sign-in", "text")[0].split()))
        status = ["login", "wiki", "--status", "--url", gateway.origin]
        assert await run(*status) == 1
        await sign_in_to(gateway, "wiki")
        assert text_of(await gateway.call("wiki__look")) == "seen"
        assert await run(*status) == 0
        assert wiki.lying.origin in capsys.readouterr().out
        assert await run("logout", "wiki", "--url", gateway.origin) == 0
        assert "signed out of wiki" in capsys.readouterr().err
        await until_state(gateway, "wiki", "signInNeeded")


async def test_caller_signs_in_for_itself_as_the_page_says(
    wiki: Rotating, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TYPEGATE_API_KEY", KEY)
    monkeypatch.setenv("TYPEGATE_ADMIN_TOKEN", TOKEN)
    head = {"authorization": f"Bearer {KEY}"}
    async with serving(entry(2, wiki, tmp_path), tmp_path) as gateway:
        await until_state(gateway, "wiki", "signInNeeded")
        listed = [tool["name"] for tool in (await gateway.rpc("tools/list", headers=head))["result"]["tools"]]
        assert [name for name in listed if name.startswith("wiki__")] == ["wiki__sign_in"]
        assert await run("login", "wiki", "--url", gateway.origin) == 1
        printed = capsys.readouterr().err
        assert any(symptom in printed for symptom in symptoms("sign-in")), printed
        link = text_of(await gateway.call("wiki__sign_in", headers=head)).rpartition(" ")[2]
        async with httpx2.AsyncClient(timeout=30) as browser:
            page = await browser.get(link)
            assert "Enter the API key" in page.text
            ticket = {"ticket": link.rpartition("=")[2]}
            page = await browser.post(link.partition("?")[0], data={**ticket, "key": KEY})
            [state] = parse_qs(urlsplit(page.headers["location"]).query)["state"]
            page = await browser.get(f"{gateway.origin}/oauth/callback?code=abc&state={state}")
            assert page.status_code == 200, page.text
            page = await browser.get(f"{gateway.origin}/oauth/callback?code=abc&state={state}")
            assert any(symptom in page.text for symptom in symptoms("sign-in"))
        assert text_of(await gateway.call("wiki__look", headers=head)) == "seen"


async def test_non_interactive_credentials_are_sent_as_the_page_says(
    wiki: Rotating, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIKI_SECRET", "the-secret-of-this-client")
    monkeypatch.setenv("WIKI_TOKEN", "a-fixed-token-of-the-test")
    wiki.lying.paths["/token"] = {"access_token": "granted", "token_type": "Bearer", "expires_in": 300}
    program = f"{sys.executable} -c 'print(\"Authorization: Bearer printed\")'"
    files = {name: tmp_path / name for name in ("granted", "fixed", "printed", "wrong")}
    for folder in files.values():
        folder.mkdir()
    granted, fixed = entry(3, wiki, files["granted"]), entry(4, wiki, files["fixed"])
    servers = {"url": wiki.lying.url, "headersCommand": program}
    printed = files["printed"] / "mcp.yaml"
    printed.write_text(json.dumps({"mcpServers": {"wiki": servers, "failed": {**servers, "headersCommand": "false"}}}))
    for config, token in ((granted, "granted"), (fixed, "a-fixed-token-of-the-test"), (printed, "printed")):
        wiki.good = token
        async with serving(config, config.parent) as gateway:
            await until_state(gateway, "wiki", "ready")
            if config is printed:
                row = await until_state(gateway, "failed", "waiting")
                assert any(symptom in row["lastError"] for symptom in symptoms("sign-in"))
    assert "grant_type=client_credentials" in wiki.lying.forms[0]
