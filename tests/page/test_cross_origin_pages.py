"""An MCP client of the official SDK in a cross-origin page, in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from support.browsers import running_browser
from support.clients.installed import heavy_package, page_client
from support.gateways import running_gateway
from support.upstreams.running import builtin_tools, scripted_stdio_server

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Route

pytestmark = pytest.mark.heavy

NAMED = "https://chat.example.test"
KEY = {"authorization": "Bearer key-of-the-page-0123"}
_CONNECT = "([target, headers, calls, credentials]) => connectAndCall(target, headers, calls, credentials)"


@asynccontextmanager
async def page_at(browser: Browser, origin: str, script: str) -> AsyncIterator[Page]:
    """Open an empty page of an origin that has this script."""

    async def serve(route: Route) -> None:
        await route.fulfill(content_type="text/html", body="<!doctype html><title>chat</title>")

    # Recent versions ask the user before a page of the network reaches this machine.
    context = await browser.new_context(permissions=["local-network-access"])
    try:
        page = await context.new_page()
        await page.route(f"{origin}/**", serve)
        await page.goto(f"{origin}/")
        await page.add_script_tag(content=script)
        yield page
    finally:
        await context.close()


async def test_sdk_lists_and_calls_only_from_pages_of_allowed_origins(tmp_path: Path) -> None:
    script = await anyio.to_thread.run_sync(page_client)
    upstream, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo", "progress"))
    section: dict[str, Any] = {
        "listen": {"allowedOrigins": [NAMED]},
        "auth": {"apiKeys": [{"name": "page", "key": KEY["authorization"].removeprefix("Bearer ")}]},
        "profiles": {"work": {}},
    }
    calls = [
        {"name": "up__echo", "arguments": {"text": "from a page"}},
        {"name": "up__progress", "arguments": {"count": 4}},
    ]
    async with running_gateway(tmp_path, {"up": upstream}, gateway=section) as gateway:
        async with running_browser() as browser:
            page_error = heavy_package("playwright.async_api").Error
            for origin, credentials in ((NAMED, "include"), ("http://localhost:6274", "same-origin")):
                async with page_at(browser, origin, script) as page:
                    for url in (gateway.url, f"{gateway.url}/", f"{gateway.url}/work"):
                        report = await page.evaluate(_CONNECT, [url, KEY, calls, credentials])
                        assert report["session"]
                        assert {"up__echo", "up__progress"} <= set(report["tools"])
                        assert "from a page" in report["calls"][0]["content"][0]["text"]
                        assert report["progress"] == 4
                    refused = await page.evaluate(
                        "async url => { const answer = await fetch(url, {method: 'POST', body: '{}', "
                        "headers: {'content-type': 'application/json'}}); "
                        "return [answer.status, answer.headers.get('www-authenticate')]; }",
                        gateway.url,
                    )
                    assert refused[0] == 401
                    assert refused[1].startswith("Bearer")
            before = len(record.calls())
            assert before == 12
            for origin in ("https://evil.example.test", "http://chat.example.test"):
                async with page_at(browser, origin, script) as page:
                    with pytest.raises(page_error, match="Failed to fetch"):
                        await page.evaluate(_CONNECT, [gateway.url, KEY, calls, "same-origin"])
            assert len(record.calls()) == before
