"""An operator at the page of a fresh gateway, with a mouse or with nothing but a keyboard."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from support.browsers import SHOTS, Visit, running_browser, visiting
from support.gateways import TOKEN, RunningGateway, running_gateway
from support.hands import HANDS, Hand

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page


class Desk(NamedTuple):
    """An operator at work."""

    gateway: RunningGateway
    visit: Visit
    hand: Hand

    @property
    def page(self) -> Page:
        """The tab."""
        return self.visit.page

    def button(self, name: str, *, exact: bool = True) -> Locator:
        """Return a button by its name."""
        return self.page.get_by_role("button", name=name, exact=exact)

    def link(self, name: str, *, exact: bool = True) -> Locator:
        """Return a link by its name."""
        return self.page.get_by_role("link", name=name, exact=exact)

    def heading(self, name: str) -> Locator:
        """Return a heading by its text."""
        return self.page.get_by_role("heading", name=name, exact=True)

    async def room(self, name: str) -> None:
        """Go there by the links of the page."""
        await self.hand.press(self.page.get_by_role("navigation", name="Rooms").get_by_role("link", name=name))
        await self.page.get_by_role("heading", level=1, name=name).wait_for()
        await self.visit.settle()


@asynccontextmanager
async def at_desk(
    tmp_path: Path,
    how: str,
    servers: Mapping[str, Any],
    gateway: Mapping[str, Any] | None = None,
    *,
    token: str = TOKEN,
    workers: int = 1,
    **options: Any,
) -> AsyncIterator[Desk]:
    """Start a fresh gateway, and sign an administrator in to its page in this way.

    Args:
        workers: The number of processes; the browser's connections are spread over them.
        options: The options of the tab.
    """
    if workers > 1:
        servers = {name: {**one, "copies": True} if "command" in one else one for name, one in servers.items()}
    arguments = ("--workers", str(workers)) if workers > 1 else ()
    async with (
        running_gateway(tmp_path, servers, gateway=gateway, arguments=arguments) as running,
        running_browser() as browser,
        visiting(browser, running, signed_in=False, **options) as visit,
    ):
        hand = HANDS[how](visit.page)
        await visit.page.goto(f"{running.origin}/admin/")
        await hand.write(visit.page.get_by_label("Admin token"), token)
        await visit.page.keyboard.press("Enter")
        await visit.page.get_by_role("heading", level=1, name="Overview").wait_for()
        await visit.settle()
        signed_in, began_s = hand.actions, time.monotonic()
        yield Desk(running, visit, hand)
        visit.check_quiet()
        note_effort(hand.actions - signed_in, time.monotonic() - began_s)


def note_effort(actions: int, took_s: float) -> None:
    """Append what a task has cost to a table beside the screenshots, for the person who judges the page."""
    SHOTS.mkdir(exist_ok=True)
    name = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[2].removesuffix(" (call)")
    with (SHOTS / "tasks.tsv").open("a", encoding="utf-8") as table:
        table.write(f"{name}\t{actions}\t{took_s:.1f}\n")
