"""The published example servers of MCP Apps behind the gateway, rendered in Chromium by the package's own host code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from page.test_cross_origin_pages import page_at
from support.browsers import expect, running_browser
from support.clients.installed import app_server, apps_host
from support.gateways import MODERN, RunningGateway, running_gateway, text_of
from support.visitors import HANDSHAKE
from support.waiting import brief_pause

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = pytest.mark.heavy

ORIGIN = "http://localhost:5173"
MIME = "text/html;profile=mcp-app"
SHARED = "get-time/mcp-app.html"
# Three programs, a browser and two bundles start, on a machine that may do something else.
WAIT_MS = 60_000


async def connect(page: Page, url: str, era: str) -> dict[str, Any]:
    mode = "legacy" if era == HANDSHAKE else "auto"
    found: dict[str, Any] = await page.evaluate("([url, mode]) => connect(url, mode)", [url, mode])
    assert found["version"] in (None, era)
    return found


async def sent_by(page: Page, name: str) -> list[dict[str, Any]]:
    """Return the calls of one name that the host has sent, each with its result."""
    sent: list[dict[str, Any]] = await page.evaluate("() => window.sent")
    return [one for one in sent if one["method"] == "tools/call" and one["params"]["name"] == name]


def reached(gateway: RunningGateway) -> list[str]:
    """Return the wrappers that were called, in order, as the audit log has them."""
    lines = (gateway.state_dir / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry["wrapper"] for entry in map(json.loads, lines) if entry.get("wrapper")]


@pytest.mark.parametrize("era", [MODERN, HANDSHAKE])
async def test_apps_with_one_uri_are_rendered_and_call_their_own_servers(era: str, tmp_path: Path) -> None:
    script = await anyio.to_thread.run_sync(apps_host)
    servers = {name: app_server(name) for name in ("basic-vanillajs", "basic-react", "system-monitor")}
    section = {
        "profiles": {"default": {}, "vanilla": {"servers": ["basic-vanillajs"]}, "react": {"servers": ["basic-react"]}},
        "listen": {"allowedOrigins": [ORIGIN]},
    }
    async with running_gateway(tmp_path, servers, gateway=section) as gateway, running_browser() as browser:
        await gateway.until_listed("basic-vanillajs__get-time", "basic-react__get-time", within_s=60)
        async with page_at(browser, ORIGIN, script) as page:
            found = await connect(page, gateway.url, era)
            own = {f"{name}__get-time": f"ui://{name}/{SHARED}" for name in ("basic-vanillajs", "basic-react")}
            for wrapper, uri in own.items():
                tool = found["tools"][wrapper]
                assert (tool["uri"], tool["meta"]["ui"]["resourceUri"], tool["meta"]["ui/resourceUri"]) == (uri,) * 3
                assert {"uri": uri, "mimeType": MIME} in found["resources"]
                shown = await page.evaluate("name => render(name)", wrapper)
                assert shown["contents"] == [{"uri": uri, "mimeType": MIME}]
                app = page.frame_locator(f"iframe[id='{wrapper}']")
                await expect(app.locator("code")).to_have_text(text_of(shown["result"]), timeout=WAIT_MS)
            # Both servers have a tool of this name, and no host says which app calls: the answer names them.
            await app.get_by_role("button", name="Get Server Time").click()
            await expect(app.locator("code")).to_contain_text("basic-vanillajs__get-time", timeout=WAIT_MS)
            [refused] = await sent_by(page, "get-time")
            assert refused["result"]["isError"]
            assert all(wrapper in text_of(refused["result"]) for wrapper in own)

            # A tool that is only for apps, under the name that its server gave it.
            assert (await page.evaluate("name => render(name)", "system-monitor__get-system-info"))["uri"] == (
                "ui://system-monitor/mcp-app.html"
            )
            monitor = page.frame_locator("iframe[id='system-monitor__get-system-info']")
            await expect(monitor.locator("#memory-percent")).not_to_have_text("--%", timeout=WAIT_MS)
            assert not (await sent_by(page, "poll-system-stats"))[0]["result"].get("isError")
        for profile, server in (("vanilla", "basic-vanillajs"), ("react", "basic-react")):
            async with page_at(browser, ORIGIN, script) as page:
                await connect(page, f"{gateway.url}/{profile}", era)
                before = await page.evaluate("name => render(name)", f"{server}__get-time")
                app = page.frame_locator("iframe")
                time_shown = app.locator("code")
                await expect(time_shown).to_have_text(text_of(before["result"]), timeout=WAIT_MS)
                await app.get_by_role("button", name="Get Server Time").click()
                await expect(time_shown).not_to_have_text(text_of(before["result"]), timeout=WAIT_MS)
                [called] = await sent_by(page, "get-time")
                await expect(time_shown).to_have_text(text_of(called["result"]), timeout=WAIT_MS)
                with anyio.fail_after(60):
                    while reached(gateway)[-2:] != [f"{server}__get-time"] * 2:
                        await brief_pause()
