"""Adding servers: a command with variables, a start on trial that exposes nothing, and all servers of a host's file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.browsers import expect
from support.desks import Desk, at_desk
from support.hands import Keyboard
from support.worker_groups import is_running, until

pytestmark = pytest.mark.heavy

# The mouse works at a gateway of two processes.
DESKS = [("mouse", 1440, 900, True, 2), ("keyboard", 390, 844, False, 1)]
SECRET = "k9f8e7d6c5b4a3928170"
PROGRAM = f"""
import os, pathlib, sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
folder = pathlib.Path(sys.argv[1])
(folder / "pid").write_text(str(os.getpid()))
print("fetching packages", file=sys.stderr, flush=True)
if "slow" in sys.argv:
    time.sleep(600)
(folder / "key").write_text(os.environ.get("BANK_KEY", ""))
from gateway.demo.bank import run, server
run(server())
"""


async def check(desk: Desk, name: str) -> None:
    await desk.visit.check_layout(name)
    await desk.visit.keep_picture(name)


async def has_ended(folder: Path) -> bool:
    return not is_running(int((folder / "pid").read_text()))


async def preview(desk: Desk, workers: int) -> None:
    await desk.hand.press(desk.button("Preview"))
    if workers > 1:
        await desk.hand.press(desk.button("Allow a copy in each process"))
        await expect(desk.button("Allow a copy in each process")).to_have_count(0)


@pytest.mark.parametrize(("how", "width", "height", "dark", "workers"), DESKS)
async def test_command_is_started_on_trial_before_it_is_added(
    tmp_path: Path, how: str, width: int, height: int, dark: bool, workers: int
) -> None:
    program = tmp_path / "bank.py"
    program.write_text(PROGRAM)
    size = {"width": width, "height": height, "dark": dark, "workers": workers}
    async with at_desk(tmp_path, how, {}, {"admin": {"allowCommands": True}}, **size) as desk:
        page = desk.page
        await desk.visit.go("servers/add")
        if isinstance(desk.hand, Keyboard):
            await desk.hand.reach(page.get_by_label("URL", exact=True))
            await page.keyboard.press("ArrowRight")
            await page.keyboard.press("ArrowRight")
        else:
            await desk.hand.press(page.get_by_label("Command", exact=True))
        await desk.hand.write(page.get_by_label("Program", exact=True), sys.executable)
        await page.get_by_label("Arguments", exact=True).fill(f"{program}\n{tmp_path}\nslow")
        await desk.hand.press(desk.button("Add a variable"))
        await desk.hand.write(page.get_by_label("Variable", exact=True), "BANK_KEY")
        value = page.get_by_label("Value", exact=True)
        await desk.hand.write(value, SECRET)
        await expect(value).to_have_attribute("type", "password")
        await desk.hand.write(page.get_by_label("Name", exact=True), "bank")
        await check(desk, f"add-command-{width}")
        shown = page.get_by_role("region", name="What will run")
        await preview(desk, workers)
        await expect(shown).to_contain_text("BANK_KEY")
        # A start that takes too long is cancelled, and its process ends.
        await desk.hand.press(desk.button("Start bank on trial"))
        await expect(shown).to_contain_text("Starting, not exposed")
        await expect(shown).to_contain_text("fetching packages", timeout=60_000)
        await desk.hand.press(desk.button("Cancel"))
        await expect(shown).to_contain_text("Cancelled and ended")
        await until(lambda: has_ended(tmp_path), within_s=60)
        await page.get_by_label("Arguments", exact=True).fill(f"{program}\n{tmp_path}")
        await preview(desk, workers)
        await desk.hand.press(desk.button("Start bank on trial"))
        await expect(shown).to_contain_text("1 tool after", timeout=60_000)
        await expect(shown).to_contain_text("get_bank_balance")
        await until(lambda: has_ended(tmp_path), within_s=60)
        assert (tmp_path / "key").read_text() == SECRET
        assert (await desk.gateway.admin("servers")).json()["servers"] == []
        assert SECRET not in await shown.inner_text()
        await check(desk, f"add-trial-{width}")
        await desk.hand.press(desk.button("Add bank"))
        await page.get_by_role("heading", level=1, name="bank").wait_for()
        await expect(page.get_by_role("region", name="State")).to_contain_text("Ready", timeout=60_000)


async def test_all_servers_of_a_host_file_are_added_at_once(tmp_path: Path) -> None:
    program = tmp_path / "bank.py"
    program.write_text(PROGRAM)
    entry = {"command": sys.executable, "args": [str(program), str(tmp_path)]}
    text = json.dumps({"mcpServers": {"one": entry, "two": entry, "bad": {"command": 7}}})
    async with at_desk(tmp_path, "mouse", {}, {"admin": {"allowCommands": True}}) as desk:
        await desk.visit.go("servers/add")
        await desk.hand.press(desk.page.get_by_label("Host file", exact=True))
        await desk.hand.write(desk.page.get_by_label("Or paste its text", exact=True), text)
        await desk.hand.press(desk.button("Preview"))
        shown = desk.page.get_by_role("region", name="What will run: 3 servers")
        await desk.hand.press(desk.button("Add all 2"))
        await expect(desk.page.get_by_text("2 servers added")).to_be_visible(timeout=60_000)
        await expect(shown.get_by_text("Added")).to_have_count(2)
        await check(desk, "add-all")
        await desk.gateway.until_listed("one__get_bank_balance", "two__get_bank_balance")
