"""A real Chromium on the page of administrators, and what every visit to it must keep to."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.clients.installed import heavy_package, missing
from support.gateways import TOKEN, RunningGateway

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page

ROOMS = ("overview", "servers", "tools", "try", "changes", "activity", "access", "connect", "settings")
SHOTS = Path(__file__).parents[1] / "page" / "screenshots"
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Most containers lack what the sandbox of the browser needs, and the pages are trusted.
_OPTIONS = ("--no-sandbox", "--disable-dev-shm-usage")


def chromium() -> str:
    """Return the path of the browser; without one, skip the test, or fail it where every program is required."""
    found = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if found is None:
        missing("chromium is not installed (apt-get install chromium)")
    return found


def expect(shown: Any) -> Any:
    """Return what Playwright asserts about a page or an element, waiting until it holds."""
    return heavy_package("playwright.async_api").expect(shown)


@asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """Start a browser."""
    program = chromium()
    async with heavy_package("playwright.async_api").async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=[*_OPTIONS])
        try:
            yield browser
        finally:
            await browser.close()


class Visit:
    """One tab at the page; it notes everything that a page must not do.

    Attributes:
        page: The tab.
        faults: Errors of scripts, refused by the content security policy or thrown.
        foreign: Addresses of other sites that were asked.
    """

    def __init__(self, page: Page, gateway: RunningGateway) -> None:
        self.page = page
        self.gateway = gateway
        self.faults: list[str] = []
        self.foreign: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._console)
        page.on("request", self._request)

    @property
    def origin(self) -> str:
        """Where the gateway is."""
        return self.gateway.origin

    def _console(self, message: Any) -> None:
        # The browser itself logs refused requests; each test decides whether they are right.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.origin, "data:", "blob:")):
            self.foreign.append(request.url)

    async def sign_in(self, token: str = TOKEN) -> None:
        """Open the page and paste the token."""
        await self.page.goto(f"{self.origin}/admin/")
        await self.page.get_by_label("Admin token").fill(token)
        await self.page.get_by_role("button", name="Sign in").click()
        await self.page.get_by_role("heading", level=1, name="Overview").wait_for()

    async def go(self, room: str) -> None:
        """Open a room, and wait until its content is shown."""
        await self.page.evaluate("room => { location.hash = `#/${room}`; }", room)
        shown = "room => document.querySelector('[aria-current=page]')?.dataset.room === room"
        await self.page.wait_for_function(shown, arg=re.split("[/?]", room)[0])
        await self.settle()

    async def settle(self) -> None:
        """Wait until the page has finished loading."""
        await self.page.wait_for_function(
            "() => document.querySelector('.room')?.childElementCount && !/Loading…/.test(document.body.innerText)"
        )

    async def check_access(self) -> None:
        """Check that the page has no serious accessibility violation."""
        found = await heavy_package("axe_core_python.async_playwright").Axe().run(self.page)
        serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        assert not serious, [(one["id"], [node["html"][:200] for node in one["nodes"]][:4]) for one in serious]

    async def check_layout(self, what: str = "the page") -> None:
        """Check that the page is accessible, and fits the width of the window."""
        await self.check_access()
        excess = await self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert excess <= 0, f"{what} is {excess} px too wide"

    async def keep_picture(self, name: str) -> None:
        """Store a picture of the whole page for the person who judges it."""
        SHOTS.mkdir(exist_ok=True)
        await self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    def check_quiet(self) -> None:
        """Check that no error was thrown, nothing was refused by the policy, and no other site was requested."""
        assert self.faults == []
        assert self.foreign == []


@asynccontextmanager
async def visiting(
    browser: Browser,
    gateway: RunningGateway,
    *,
    width: int = 1440,
    height: int = 900,
    dark: bool = False,
    signed_in: bool = True,
    **options: Any,
) -> AsyncIterator[Visit]:
    """Open a tab in a separate browser profile."""
    context: BrowserContext = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", **options
    )
    try:
        visit = Visit(await context.new_page(), gateway)
        if signed_in:
            await visit.sign_in()
        yield visit
    finally:
        await context.close()
