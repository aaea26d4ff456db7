"""The picture of the admin page in the README: the page still shows what the picture shows.

To take the picture again: `TYPEGATE_PICTURE=1 pytest -n 0 -m heavy tests/page/test_screenshot.py`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.browsers import running_browser, visiting
from support.gateways import running_gateway, text_of
from support.upstreams.running import demo_config, scripted_stdio_server, tool

PICTURE = Path(__file__).parents[2] / "deploy/guide/images/admin.png"
# Readers of the README load the picture each time; a screen of text and lines is well below this.
MAX_BYTES = 200 * 1024
SETTINGS: dict[str, Any] = {
    "auth": {"apiKeys": [{"name": "ci", "key": "tg_" + "c" * 40, "groups": ["robots"]}]},
}


def test_screenshot_is_a_small_png() -> None:
    content = PICTURE.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(content) <= MAX_BYTES


@pytest.mark.heavy
async def test_page_shows_what_the_screenshot_shows(tmp_path: Path) -> None:
    broken, _ = scripted_stdio_server(tmp_path, "crm", faults={"exit_at_start": 3})
    odd, _ = scripted_stdio_server(tmp_path, "wiki", tools=[tool("search"), tool("page")])
    servers = {"calendar": demo_config("calendar"), "bank": demo_config("bank"), "crm": broken, "wiki": odd}
    key = {"authorization": "Bearer " + SETTINGS["auth"]["apiKeys"][0]["key"]}
    async with running_gateway(tmp_path, servers, gateway=SETTINGS) as gateway, running_browser() as browser:
        for _ in range(5):
            await gateway.call("calendar__list_accounts", {}, headers=key)
        text_of(await gateway.call("calendar__send_email", {}, headers=key))
        async with visiting(browser, gateway, width=1200, height=720) as visit:
            await visit.go("overview")
            await visit.page.get_by_text("Live", exact=True).wait_for()
            await visit.page.get_by_text("Not reached").first.wait_for()  # between two attempts to start it
            shown = await visit.page.locator("body").inner_text()
            for word in ("Overview", "Changes", "Activity", "Access", "crm", "Not reached", "calendar", "Ready"):
                assert word in shown, word
            if os.environ.get("TYPEGATE_PICTURE"):
                await visit.page.screenshot(path=PICTURE)
            visit.check_quiet()
