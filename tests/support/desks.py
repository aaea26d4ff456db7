"""An operator at the page of a fresh gateway, with a mouse or with nothing but a keyboard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from playwright.async_api import Locator, Page
from support.browsers import Visit, running_browser, visiting
from support.gateways import TOKEN, RunningGateway, running_gateway
from support.hands import HANDS, Hand


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
        """A button by its name."""
        return self.page.get_by_role("button", name=name, exact=exact)

    def link(self, name: str, *, exact: bool = True) -> Locator:
        """A link by its name."""
        return self.page.get_by_role("link", name=name, exact=exact)

    def heading(self, name: str) -> Locator:
        """A heading by its text."""
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
    **options: Any,
) -> AsyncIterator[Desk]:
    """A fresh gateway, and somebody who has signed in to its page in this way."""
    async with (
        running_gateway(tmp_path, servers, gateway=gateway) as running,
        running_browser() as browser,
        visiting(browser, running, signed_in=False, **options) as visit,
    ):
        hand = HANDS[how](visit.page)
        await visit.page.goto(f"{running.origin}/admin/")
        await hand.write(visit.page.get_by_label("Admin token"), token)
        await visit.page.keyboard.press("Enter")
        await visit.page.get_by_role("heading", level=1, name="Overview").wait_for()
        await visit.settle()
        yield Desk(running, visit, hand)
        visit.check_quiet()
