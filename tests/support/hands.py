"""Two ways to use a page: with a mouse, and with nothing but a keyboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

# More than the elements of any room; an element that was not reached by then is not reachable by keyboard.
_MOST_TABS = 160


class Mouse:
    """Clicks and types.

    Attributes:
        actions: The number of clicks, texts and choices.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.actions = 0

    async def press(self, target: Locator) -> None:
        """Press a button, follow a link, tick a box."""
        self.actions += 1
        await target.click()

    async def write(self, target: Locator, text: str) -> None:
        """Put a text into a field."""
        self.actions += 1
        await target.fill(text)

    async def choose(self, target: Locator, label: str) -> None:
        """Choose an option."""
        self.actions += 1
        await target.select_option(label=label)


class Keyboard:
    """Moves with the tab key and types; the mouse is never used.

    Attributes:
        actions: The number of presses, texts and choices, without those for moving the focus.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.actions = 0

    async def reach(self, target: Locator) -> None:
        """Move the focus there."""
        await target.wait_for()
        for _ in range(_MOST_TABS):
            if await target.evaluate("element => element === document.activeElement"):
                return
            await self.page.keyboard.press("Tab")
        raise AssertionError(f"{target} is not reached by the keyboard")

    async def press(self, target: Locator) -> None:
        """Press a button, follow a link, tick a box."""
        self.actions += 1
        await self.reach(target)
        box = await target.evaluate("element => ['checkbox', 'radio'].includes(element.type)")
        await self.page.keyboard.press("Space" if box else "Enter")

    async def write(self, target: Locator, text: str) -> None:
        """Put a text into a field."""
        self.actions += 1
        await self.reach(target)
        kind = await target.get_attribute("type")
        if kind == "date":
            year, month, day = text.split("-")
            await self.page.keyboard.type(f"{month}{day}{year}")
            return
        await self.page.keyboard.press("ControlOrMeta+a")
        await self.page.keyboard.type(text)

    async def choose(self, target: Locator, label: str) -> None:
        """Choose an option by its first letters."""
        self.actions += 1
        await self.reach(target)
        await self.page.keyboard.type(label)


Hand = Mouse | Keyboard
HANDS: dict[str, Any] = {"mouse": Mouse, "keyboard": Keyboard}
