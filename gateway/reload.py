"""Apply a changed configuration to a running gateway: whole, or not at all."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread

from gateway.config.include import watched_by
from gateway.config.load import loaded
from gateway.config.model import Config
from gateway.config.overlay import Admits, Change, Edit, Overlay, added_names, with_changes
from gateway.config.plan import Steps
from gateway.config.source import read
from gateway.config.watch import OtherFiles, digest_of, digests_of, follow
from gateway.errors import ConfigError
from gateway.files import try_lock
from gateway.hooks.loading import hook_files
from gateway.lock.listing_lock import lock_files

log = logging.getLogger(__name__)

# To apply a change takes a second at most, with thousands of tools.
_LOCK_S: Final = 5.0
_LOCK_POLL_S: Final = 0.02

OnReloaded = Callable[[], Awaitable[None]]


class Reloadable(Protocol):
    """What runs by a configuration and can take another."""

    @property
    def config(self) -> Config:
        """What it runs by at present."""

    async def reconfigure(self, config: Config, *, reloaded: bool = True) -> Steps:
        """Take another configuration; `reloaded` where it was read from a file.

        Raises:
            ConfigError: It cannot be used; nothing has changed.
        """


class Reloader:
    """Keeps a gateway as its file says; a bad file keeps the running configuration, and the reason is shown.

    Attributes:
        error: Why the file as it is now is not used.
        count: How many times it was read anew.
        text: What the running configuration was read from; None where nobody wrote it.
        stamp: Differs where other files than the main one differ.
        base: The configuration as the file says it, without what administrators have changed.
        overlay: What they have changed.
    """

    def __init__(
        self,
        running: Reloadable,
        *,
        check: Callable[[Config], None],
        strict: bool = False,
        base: Config | None = None,
        overlay: Overlay | None = None,
        admits: Admits = lambda alias, config: None,
    ) -> None:
        """Reload this gateway.

        Args:
            running: The one that runs.
            check: Raises `ConfigError` for what this way of serving cannot take.
            strict: Whether a fault in the entry of one server keeps the whole file from being used.
            base: The configuration without what administrators have changed; None where that is nothing.
            overlay: What they have changed; None for nothing, which is kept nowhere.
            admits: Raises `ConfigError` for a server that cannot be added here.
        """
        self._strict = strict
        self.base = base if base is not None else running.config
        self.overlay = overlay if overlay is not None else Overlay()
        self._admits = admits
        # A change and a reload at the same time would each undo the other.
        self._changing = anyio.Lock()
        self._running = running
        self._check = check
        self._loaded_at_s = time.time()
        # What was read last, used or not: its files are what an operator is about to mend.
        self._latest = running.config
        self.error: str | None = None
        self.count = 0
        self.stamp = _stamp(self._other_files())
        self._looking = False

    @property
    def text(self) -> str | None:
        """See the attribute."""
        return self.base.text

    @property
    def path(self) -> Path | None:
        """The file; None where the configuration is from none."""
        return self._running.config.path

    @property
    def config(self) -> Config:
        """The configuration that runs."""
        return self._running.config

    def row(self) -> dict[str, Any]:
        """The state of the file, as `/admin/config` shows it."""
        return {
            "file": str(self.path) if self.path is not None else None,
            "loadedAt": round(self._loaded_at_s, 3),
            "reloads": self.count,
            "error": self.error,
            "warnings": list(self._running.config.warnings),
            "overlay": {
                "file": str(self.overlay.path) if self.overlay.path is not None else None,
                "changes": len(self.overlay.changes),
                "lasts": self.overlay.lasts,
                "error": self.overlay.error,
            },
        }

    async def run(self, *, hangups: bool, reloaded: OnReloaded | None = None) -> None:
        """Reload whenever the file changes, or at SIGHUP, until cancelled; `reloaded` is awaited after each time."""
        if self.path is not None:
            changed = partial(self.reload, self.path, reloaded=reloaded)
            overlay = self.overlay
            # They were read before the gateway was opened, which takes a moment in which somebody may change them.
            seen = {self.path: await anyio.to_thread.run_sync(_digest_as_read, self.path, self.text)}
            if overlay.follows and overlay.path is not None:
                seen[overlay.path] = overlay.digest
            await follow(self.path, changed, hangups=hangups, others=self._find_other_files, seen=seen)

    async def _find_other_files(self) -> OtherFiles:
        # In a thread: the main file is read for it.
        return await anyio.to_thread.run_sync(self._other_files)

    def _other_files(self) -> OtherFiles:
        included = watched_by(self.path) if self.path is not None else OtherFiles()
        files = (*included.files, *hook_files(self._latest), *self._latest.files, *lock_files(self._latest))
        if self.overlay.follows and self.overlay.path is not None:
            files = (*files, self.overlay.path)
        return replace(included, files=files)

    async def reload(self, path: Path, *, reloaded: OnReloaded | None = None) -> None:
        """Read the file and apply it, or show why not."""
        try:
            async with self._changing:
                # Not before: of two reloads at the same time the later one would undo the other with what it once read.
                text = await anyio.to_thread.run_sync(read, path)
                follows = self.overlay.follows
                changes = await anyio.to_thread.run_sync(self.overlay.latest) if follows else self.overlay.changes
                await self._take(text, path, quiet=False, changes=changes)
            if reloaded is not None:
                await reloaded()
        except ConfigError as error:
            self.error = str(error)
            log.error("the changed configuration is not used: %s", error)
        except Exception as error:  # boundary: no file may end a running gateway
            self.error = f"unexpected {type(error).__name__}"
            log.exception("the changed configuration is not used")

    async def look(self) -> None:
        """Reload if a file that counts beside the main one differs, whatever the watch on it has noticed."""
        path = self.path
        if path is not None and not self._looking:
            self._looking = True
            try:
                if _stamp(await self._find_other_files()) != self.stamp:
                    await self.reload(path)
            finally:
                self._looking = False

    async def change(self, edit: Edit, check: Callable[[Config], None] = lambda config: None) -> None:
        """Add to the changes of administrators, and take some of them back.

        Args:
            edit: Which.
            check: Raises `ConfigError` for a configuration that is not wanted.

        Raises:
            ConfigError: They cannot be used; nothing has changed.
        """
        async with self._changing, self._alone():
            # Another gateway with the same state directory may have added to them.
            changes = await anyio.to_thread.run_sync(self.overlay.to_edit)
            await self._change(edit.of(changes), check)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Keep other gateways with the same state directory from changing anything meanwhile.

        Raises:
            ConfigError: Another process is changing something, and does not end.
        """
        descriptor = self.overlay.open_lock()
        try:
            end_s = anyio.current_time() + _LOCK_S
            # Polled here and not in a thread, which would take the lock after its caller has left.
            while descriptor is not None and not try_lock(descriptor, write=True):
                if anyio.current_time() > end_s:
                    what = f"another process has been changing {self.overlay.path} for {_LOCK_S:g} s; try again"
                    raise ConfigError(what, file=str(self.path or "overlay"))
                await anyio.sleep(_LOCK_POLL_S)
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)  # which unlocks it

    async def _change(self, changes: Sequence[Change], check: Callable[[Config], None]) -> None:
        config = with_changes(self.base, changes, self._admits)
        check(config)
        self._check(config)
        await self._running.reconfigure(config, reloaded=False)
        self.overlay.replace(changes)

    async def take(
        self, text: str, path: Path | None, *, quiet: bool = False, changes: Sequence[Change] | None = None
    ) -> None:
        """Apply the configuration that this text stands for.

        Args:
            text: The text.
            path: Where it is from.
            quiet: Another process logs it already.
            changes: Those of administrators from now on; None for those in use.

        Raises:
            ConfigError: It cannot be used; nothing has changed.
        """
        async with self._changing:
            await self._take(text, path, quiet=quiet, changes=self.overlay.changes if changes is None else changes)

    async def _take(self, text: str, path: Path | None, *, quiet: bool, changes: Sequence[Change]) -> None:
        # Before they are read: what changes in between then differs from the stamp, and is taken once more.
        stamp = _stamp(await self._find_other_files())
        # In a thread: a file that references others, or a large one, must not hold up calls.
        base = await anyio.to_thread.run_sync(
            partial(loaded, text, path=path, strict=self._strict, added=added_names(changes))
        )
        self._latest = base
        config = with_changes(base, changes, self._admits)
        self._check_still_sound(config, path)
        self._check(config)
        steps = await self._running.reconfigure(config)
        self.base = base
        if tuple(changes) != self.overlay.changes:
            self.overlay.replace(changes)
        self.stamp = stamp
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
        for alias, left_out in config.left_out.items():
            log.log(logging.ERROR if left_out.faulty else logging.INFO, "%s", left_out.reason, extra={"server": alias})
        for key in steps.later:
            log.warning("%s takes effect at the next start", key)

    def _check_still_sound(self, config: Config, path: Path | None) -> None:
        # Whoever edits the entry of a server that is in use has not meant to end it by a slip.
        broken = [
            f"{alias}: {one.reason}"
            for alias, one in config.left_out.items()
            if one.faulty and alias in self._running.config.servers
        ]
        if broken:
            raise ConfigError("; ".join(broken), file=str(path or "configuration"))


def _digest_as_read(path: Path, text: str | None) -> bytes | None:
    """The digest of a file that still holds this text; None for one that does not."""
    digest = digest_of(path)  # before it is read: what changes in between differs from it
    try:
        # What a pipe held can be read once.
        return digest if not path.is_file() or read(path) == text else None
    except ConfigError:
        return None  # what is wrong with it is told when it is read to be used


def _stamp(others: OtherFiles) -> str:
    if not others.files:
        return ""
    found = digests_of(sorted(others.files))
    return hashlib.sha256(b"".join(digest or b"-" for digest in found.values())).hexdigest()
