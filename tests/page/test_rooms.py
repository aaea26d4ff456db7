"""Every room in every size and color scheme: readable, accessible, without errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.browsers import ROOMS, SHOTS, running_browser, visiting
from support.gateways import RunningGateway, running_gateway, text_of
from support.upstreams.running import demo_config, scripted_stdio_server, tool

pytestmark = pytest.mark.heavy

SETTINGS: dict[str, Any] = {
    "auth": {"apiKeys": [{"name": "ci", "key": "tg_" + "c" * 40, "groups": ["robots"]}]},
    "policy": {"rules": [{"name": "transfers ask", "wrappers": ["bank__wire*"], "ask": True}]},
    "profiles": {"small": {"servers": ["calendar"], "disclosure": "lazy"}},
}


async def busy_gateway_calls(gateway: RunningGateway) -> None:
    """Some calls of each kind, so that there is something to see."""
    key = {"authorization": "Bearer tg_" + "c" * 40}
    for _ in range(5):
        await gateway.call("calendar__list_accounts", {}, headers=key)
    text_of(await gateway.call("calendar__send_email", {}, headers=key))


@pytest.mark.parametrize(("width", "height"), [(360, 740), (1440, 900), (2560, 1440)])
async def test_each_room_is_accessible_and_fits(tmp_path: Path, width: int, height: int) -> None:
    broken, _ = scripted_stdio_server(tmp_path, "broken", faults={"exit_at_start": 3})
    odd, _ = scripted_stdio_server(tmp_path, "odd", tools=[tool("fine"), {"name": "bad", "inputSchema": 7}])
    servers = {"calendar": demo_config("calendar"), "bank": demo_config("bank"), "broken": broken, "odd": odd}
    SHOTS.mkdir(exist_ok=True)
    async with running_gateway(tmp_path, servers, gateway=SETTINGS) as gateway, running_browser() as browser:
        await gateway.admin("servers/bank/disable", "POST", {})
        await busy_gateway_calls(gateway)
        for dark in (False, True):
            name = f"{width}-{'dark' if dark else 'light'}"
            async with visiting(browser, gateway, width=width, height=height, dark=dark, signed_in=False) as visit:
                await visit.page.goto(f"{gateway.origin}/admin/")
                await visit.page.get_by_label("Admin token").wait_for()
                await visit.check_access()
                await visit.page.screenshot(path=SHOTS / f"sign-in-{name}.png")
                await visit.sign_in()
                for room in (*ROOMS, "servers/broken", "servers/add", "try/calendar__send_email", "activity/slowest"):
                    await visit.go(room)
                    await visit.check_layout(room)
                    await visit.keep_picture(f"{room.replace('/', '-')}-{name}")
                visit.check_quiet()


def test_page_files_are_part_of_the_wheel() -> None:
    # Hatch takes every file of a package, unless an ignore file of the repository names it.
    root = Path(__file__).parents[2]
    page = root / "gateway" / "admin" / "page"
    assert {"index.html", "app.js", "style.css"} <= {each.name for each in page.iterdir()}
    assert (
        json.dumps([each.suffix for each in page.iterdir() if each.suffix not in (".js", ".css", ".html", ".svg")])
        == "[]"
    )
