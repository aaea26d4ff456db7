"""Apply a changed configuration to a running gateway: whole, or not at all."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from gateway.config.load import loaded
from gateway.config.model import Config
from gateway.config.plan import plan
from gateway.config.source import read
from gateway.config.watch import follow
from gateway.errors import ConfigError
from gateway.hooks.loading import load_hooks

if TYPE_CHECKING:
    from gateway.app import Gateway

log = logging.getLogger(__name__)


class Reloader:
    """Keeps a gateway as its file says; a bad file keeps the running configuration, and the reason is told.

    Attributes:
        error: Why the file as it is now is not used.
        count: How many times it was read anew.
        text: What the running configuration was read from, once that is known.
        on_reload: Awaited after each reload from the file.
    """

    def __init__(self, gateway: Gateway, *, check: Callable[[Config], None], applied: Callable[[Config], None]) -> None:
        """Reload this gateway.

        Args:
            gateway: The one that runs.
            check: Raises `ConfigError` for what this way of serving cannot take.
            applied: Hears of each configuration that holds from now on.
        """
        self._gateway = gateway
        self._check = check
        self._applied = applied
        self._loaded_at_s = time.time()
        self.error: str | None = None
        self.count = 0
        self.text: str | None = None
        self.on_reload: Callable[[], Awaitable[None]] | None = None

    def row(self) -> dict[str, Any]:
        """The state of the file, as `/admin/config` shows it."""
        config = self._gateway.config
        return {
            "file": str(config.path) if config.path is not None else None,
            "loadedAt": round(self._loaded_at_s, 3),
            "reloads": self.count,
            "error": self.error,
            "warnings": list(config.warnings),
        }

    async def run(self, *, hangups: bool) -> None:
        """Reload whenever the file changes, or at SIGHUP, until cancelled."""
        path = self._gateway.config.path
        if path is not None:
            await follow(path, partial(self.reload, path), hangups=hangups)

    async def reload(self, path: Path) -> None:
        """Read the file and apply it, or say why not."""
        try:
            text = await anyio.to_thread.run_sync(read, path)
            await self.take(text, path)
            if self.on_reload is not None:
                await self.on_reload()
        except ConfigError as error:
            self.error = str(error)
            log.error("the changed configuration is not used: %s", error)
            return
        except Exception as error:  # boundary: no file may end a running gateway
            self.error = f"unexpected {type(error).__name__}"
            log.exception("the changed configuration is not used")

    async def take(self, text: str, path: Path | None, *, quiet: bool = False) -> None:
        """Apply the configuration that this text stands for.

        Args:
            text: The text.
            path: Where it is from.
            quiet: Another process tells of it already.

        Raises:
            ConfigError: It cannot be used; nothing has changed.
        """
        config = await anyio.to_thread.run_sync(partial(loaded, text, path=path))
        self._check(config)
        self._gateway.fleet.check(config.servers, self._gateway.config.servers)
        runners = await load_hooks(config, self._gateway.hooks.runners)
        steps = plan(self._gateway.config, config)
        self._gateway.apply(config, steps, runners)
        self.text = text
        self._applied(config)
        self.error, self._loaded_at_s, self.count = None, time.time(), self.count + 1
        if quiet:
            return
        log.info(
            "configuration reloaded: %d added, %d removed, %d replaced, %d adjusted",
            len(steps.add), len(steps.remove), len(steps.replace), len(steps.adjust),
        )  # fmt: skip
        if steps.hooks:
            log.info("hooks changed: %s", ", ".join(steps.hooks))
        for warning in config.warnings:
            log.warning("%s", warning)
        for key in steps.later:
            log.warning("%s takes effect at the next start", key)
