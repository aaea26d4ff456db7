"""Apply a changed configuration to a running gateway, completely or not at all.

The configuration in effect is the configuration file (the base), plus the changes that administrators have made on the
admin page (the overlay).
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from gateway.config.active_config import ActiveConfig
from gateway.config.load import OtherFiles, digest_of, digests_of, follow, loaded, watched_by
from gateway.config.model import Config
from gateway.config.overlay import Admits, Change, Edit, Overlay, added_names, with_changes
from gateway.config.source import read
from gateway.fleet.lock_file import lock_files
from gateway.hooks.hook_loading import hook_files
from gateway.process.files import try_lock
from gateway.protocol.gateway_errors import ConfigError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadSteps:
    """The steps from one configuration to another.

    Attributes:
        add, remove: New and removed servers.
        replace: Servers that need a new connection; calls on the old connection finish first.
        adjust: Servers that keep their connection, because only limits, names or descriptions change.
        hooks: Names of hooks that were added, removed or changed.
        later: Changed keys that take effect only at the next start.
    """

    add: tuple[str, ...]
    remove: tuple[str, ...]
    replace: tuple[str, ...]
    adjust: tuple[str, ...]
    later: tuple[str, ...]
    hooks: tuple[str, ...] = ()


def plan(before: Config, after: Config) -> ReloadSteps:
    """Return the steps from one configuration to another."""
    old, new = before.servers, after.servers
    # Servers that exist in both configurations and differ. Unchanged servers are not touched at all.
    both = [alias for alias in new if alias in old and new[alias] != old[alias]]
    # These keys are read only at startup: for example, sockets cannot be rebound while clients use them.
    later = [
        key
        for key, was, now in (
            ("gateway.listen", before.gateway.listen, after.gateway.listen),
            ("gateway.admin", before.gateway.admin.at_start, after.gateway.admin.at_start),
            ("gateway.drainDelay", before.gateway.drain_delay, after.gateway.drain_delay),
            ("gateway.cluster", before.gateway.cluster, after.gateway.cluster),
            ("gateway.telemetry", before.gateway.telemetry, after.gateway.telemetry),
        )
        if was != now
    ]
    return ReloadSteps(
        add=tuple(alias for alias in new if alias not in old),
        remove=tuple(alias for alias in old if alias not in new),
        replace=tuple(alias for alias in both if new[alias].connection_key() != old[alias].connection_key()),
        adjust=tuple(alias for alias in both if new[alias].connection_key() == old[alias].connection_key()),
        later=tuple(later),
        hooks=_hooks(before, after),
    )


def _hooks(before: Config, after: Config) -> tuple[str, ...]:
    old = {hook.name: hook for hook in before.gateway.hooks}
    new = {hook.name: hook for hook in after.gateway.hooks}
    return tuple(name for name in {**old, **new} if old.get(name) != new.get(name))


# How long to wait while another process changes the overlay. A change takes at most a second, even with thousands of
# tools.
_LOCK_S: Final = 5.0
_LOCK_POLL_S: Final = 0.02

OnReloaded = Callable[[], Awaitable[None]]


class Reloader:
    """Keeps a gateway in sync with its configuration file; an invalid file leaves the running configuration unchanged.

    Attributes:
        error: Why the current content of the file is not in effect; None if it is in effect.
        count: The number of successful reloads.
        stamp: A digest of all files that the configuration consists of or uses, except for the main file.
        base: The configuration in the file, without the overlay.
        overlay: The changes that administrators have made.
    """

    def __init__(
        self,
        active: ActiveConfig,
        *,
        check: Callable[[Config], None],
        strict: bool = False,
        base: Config | None = None,
        overlay: Overlay | None = None,
        admits: Admits = lambda alias, config: None,
    ) -> None:
        """Initialize the reloader.

        Args:
            active: The configuration in effect.
            check: Raises `ConfigError` for a configuration that this gateway cannot run with.
            strict: Whether an error in one server's entry rejects the whole file.
            base: The configuration without the overlay; None if they are equal.
            overlay: The changes that administrators have made; None to start without changes and store none.
            admits: Raises `ConfigError` for a server that this gateway cannot run.
        """
        self._strict = strict
        self.base = base if base is not None else active.current
        self.overlay = overlay if overlay is not None else Overlay()
        self._admits = admits
        # Changes and reloads are applied one at a time, because concurrent ones would undo each other.
        self._changing = anyio.Lock()
        self._active = active
        self._check = check
        self._loaded_at_s = time.time()
        # The configuration that was read last. Its files are watched even if it was rejected, because the operator is
        # going to correct these files.
        self._latest = active.current
        self.error: str | None = None
        self.count = 0
        self.stamp = _stamp(self._other_files())
        self._is_checking = False

    @property
    def text(self) -> str | None:
        """Return the text of the configuration file that is in effect; None without a file."""
        return self.base.text

    @property
    def path(self) -> Path | None:
        """Return the path of the configuration file; None without a file."""
        return self._active.current.path

    @property
    def config(self) -> Config:
        """Return the running configuration."""
        return self._active.current

    def row(self) -> dict[str, Any]:
        """Return the state of the configuration as a row for `/admin/config`."""
        telemetry = self.config.gateway.telemetry
        return {
            "file": str(self.path) if self.path is not None else None,
            "loadedAt": round(self._loaded_at_s, 3),
            "reloads": self.count,
            "error": self.error,
            "warnings": list(self.config.warnings),
            "traceUrl": telemetry.trace_url if telemetry is not None else None,
            "overlay": {
                "file": str(self.overlay.path) if self.overlay.path is not None else None,
                "changes": len(self.overlay.changes),
                "lasts": self.overlay.lasts,
                "error": self.overlay.error,
            },
        }

    async def run(self, *, hangups: bool, reloaded: OnReloaded | None = None) -> None:
        """Until cancelled, reload when a file changes.

        Args:
            hangups: Whether to reload at SIGHUP, too.
            reloaded: Awaited after each successful reload.
        """
        if self.path is not None:
            changed = partial(self.reload, self.path, reloaded=reloaded)
            overlay = self.overlay
            # Compare with the content that was read at startup, because the files may have changed since then.
            seen = {self.path: await anyio.to_thread.run_sync(_digest_as_read, self.path, self.text)}
            if overlay.follows and overlay.path is not None:
                seen[overlay.path] = overlay.digest
            await follow(self.path, changed, hangups=hangups, other_files=self._find_other_files, seen=seen)

    async def _find_other_files(self) -> OtherFiles:
        # Use a thread, because the main file has to be read to find the files that it includes.
        return await anyio.to_thread.run_sync(self._other_files)

    def _other_files(self) -> OtherFiles:
        included = watched_by(self.path) if self.path is not None else OtherFiles()
        files = (*included.files, *hook_files(self._latest), *self._latest.files, *lock_files(self._latest))
        if self.overlay.follows and self.overlay.path is not None:
            files = (*files, self.overlay.path)
        return replace(included, files=files)

    async def reload(self, path: Path, *, reloaded: OnReloaded | None = None) -> None:
        """Read the file and apply it; on failure, record the error."""
        try:
            async with self._changing:
                # Read the file under the lock. Otherwise, older content could replace that of a concurrent reload.
                text = await anyio.to_thread.run_sync(read, path)
                follows = self.overlay.follows
                changes = await anyio.to_thread.run_sync(self.overlay.latest) if follows else self.overlay.changes
                await self._apply(text, path, quiet=False, changes=changes)
            if reloaded is not None:
                await reloaded()
        except ConfigError as error:
            self.error = str(error)
            log.error("configuration rejected: %s", error)
        except Exception as error:  # boundary: a configuration file must not end a running gateway
            self.error = f"unexpected {type(error).__name__}"
            log.exception("configuration rejected")

    async def reload_if_changed(self) -> None:
        """Reload if a file other than the main file has changed, even if `run` has not noticed the change yet."""
        path = self.path
        if path is not None and not self._is_checking:
            self._is_checking = True
            try:
                if _stamp(await self._find_other_files()) != self.stamp:
                    await self.reload(path)
            finally:
                self._is_checking = False

    async def reload_when_suspected(self) -> None:
        """Until cancelled, call `reload_if_changed` after each call of `ActiveConfig.suspect`."""
        while True:
            await self._active.wait_suspected()
            await self.reload_if_changed()

    async def change(self, edit: Edit, check: Callable[[Config], None] = lambda config: None) -> None:
        """Change the overlay.

        Args:
            edit: The changes to add to the overlay and to remove from it.
            check: Raises `ConfigError` to reject the resulting configuration.

        Raises:
            ConfigError: The changes cannot be used; nothing has changed.
        """
        async with self._changing, self._locked_overlay():
            # Another gateway with the same state directory may have changed the overlay.
            changes = await anyio.to_thread.run_sync(self.overlay.to_edit)
            await self._change(edit.apply_to(changes), check)

    @asynccontextmanager
    async def _locked_overlay(self) -> AsyncIterator[None]:
        """Lock the overlay against other gateways with the same state directory.

        Raises:
            ConfigError: Another process holds the lock for too long.
        """
        descriptor = self.overlay.open_lock()
        try:
            end_s = anyio.current_time() + _LOCK_S
            # Poll the lock: a thread that waits for it could acquire it after the waiting task was cancelled.
            while descriptor is not None and not try_lock(descriptor, write=True):
                if anyio.current_time() > end_s:
                    what = f"another process has been changing {self.overlay.path} for {_LOCK_S:g} s; try again"
                    raise ConfigError(what, file=str(self.path or "overlay"))
                await anyio.sleep(_LOCK_POLL_S)
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)  # releases the lock

    async def _change(self, changes: Sequence[Change], check: Callable[[Config], None]) -> None:
        config = with_changes(self.base, changes, self._admits)
        check(config)
        self._check(config)
        await self._active.change(config, is_reload=False)
        self.overlay.replace(changes)

    async def apply_text(
        self, text: str, path: Path | None, *, quiet: bool = False, changes: Sequence[Change] | None = None
    ) -> None:
        """Apply the configuration in a text.

        Args:
            path: The file that the text is from.
            quiet: If true, do not log the reload, because another process logs it.
            changes: The overlay to apply; None for the current overlay.

        Raises:
            ConfigError: The configuration cannot be used; nothing has changed.
        """
        async with self._changing:
            await self._apply(text, path, quiet=quiet, changes=self.overlay.changes if changes is None else changes)

    async def _apply(self, text: str, path: Path | None, *, quiet: bool, changes: Sequence[Change]) -> None:
        # Computed before the files are read, so that a change in between causes another reload.
        stamp = _stamp(await self._find_other_files())
        # Use a thread, because reading a large file or its references to other files must not block calls.
        base = await anyio.to_thread.run_sync(
            partial(loaded, text, path=path, strict=self._strict, added=added_names(changes))
        )
        self._latest = base
        config = with_changes(base, changes, self._admits)
        self._check_still_sound(config, path)
        self._check(config)
        steps = plan(self.config, config)
        await self._active.change(config)
        self.base = base
        if tuple(changes) != self.overlay.changes:
            self.overlay.replace(changes)
        self.stamp = stamp
        self.error, self._loaded_at_s, self.count = None, time.time(), self.count + 1
        if quiet:
            return
        log.info(
            "configuration reloaded: %d added, %d removed, %d replaced, %d adjusted",
            len(steps.add),
            len(steps.remove),
            len(steps.replace),
            len(steps.adjust),
        )
        if steps.hooks:
            log.info("hooks changed: %s", ", ".join(steps.hooks))
        for warning in config.warnings:
            log.warning("%s", warning)
        for alias, left_out in config.left_out.items():
            log.log(logging.ERROR if left_out.faulty else logging.INFO, "%s", left_out.reason, extra={"server": alias})
        for key in steps.later:
            log.warning("%s takes effect at the next start", key)

    def _check_still_sound(self, config: Config, path: Path | None) -> None:
        # Reject the configuration if the entry of a running server has an error. The error is probably a mistake, and
        # must not stop the server.
        broken = [
            f"{alias}: {entry.reason}"
            for alias, entry in config.left_out.items()
            if entry.faulty and alias in self.config.servers
        ]
        if broken:
            raise ConfigError("; ".join(broken), file=str(path or "configuration"))


def _digest_as_read(path: Path, text: str | None) -> bytes | None:
    """Return the digest of a file if it still contains this text; otherwise None."""
    digest = digest_of(path)  # computed before reading, so that a later change is detected
    try:
        # Do not compare the text of a pipe, because a pipe can be read only once.
        return digest if not path.is_file() or read(path) == text else None
    except ConfigError:
        return None  # the error is reported when the file is loaded


def _stamp(other_files: OtherFiles) -> str:
    if not other_files.files:
        return ""
    digests = digests_of(sorted(other_files.files))
    return hashlib.sha256(b"".join(digest or b"-" for digest in digests.values())).hexdigest()
