"""The first list of a host: it waits for servers of which nothing is known, as long as that host does."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import anyio

from gateway.downstream.messages import STDIO_PEER, McpRequest
from gateway.protocol import CLIENT_INFO_KEY

# How long each host waits for tools at its start, in seconds, by the beginning of the name that it sends. Measured with
# claude-code 2.1, codex 0.169, opencode 1.18, gemini-cli 0.61 and qwen-code 0.15; Claude Desktop is `claude-ai`.
_HOSTS: Final = (
    ("claude-ai", 5.0),
    ("claude", 2.0),
    ("codex", 1.0),
    ("opencode", 30.0),
    ("gemini", 40.0),
    ("qwen", 40.0),
)
# Of what a host waits; the rest is for its own start, and for the list on its way.
_SHARE: Final = 0.85
# No known host gives up sooner than this but those above, and a person still takes it for a start.
_UNKNOWN_S: Final = 5.0
# With a snapshot the list is nearly whole: what is missing may take a moment, and two of five hosts wait for a second.
_WITH_SNAPSHOT_S: Final = 0.8
# Where the system does not say when this process began: an interpreter and the imports before this.
_USUAL_START_S: Final = 0.5
# Hosts that are remembered while servers start; further ones are not kept waiting.
_MAX_HOSTS: Final = 1_000


def patience_s(name: object) -> float:
    """Return how long the first list of a host may take.

    Args:
        name: The one that it sends as `clientInfo.name`, unchecked.
    """
    if isinstance(name, str):
        for begin, waits_s in _HOSTS:
            if name.casefold().startswith(begin):
                return waits_s * _SHARE if waits_s != _UNKNOWN_S else waits_s
    return _UNKNOWN_S


class FirstLists:
    """Has the first list of each host wait until every server was tried once, bounded by the patience of the host."""

    def __init__(
        self,
        *,
        is_settled: Callable[[], bool],
        settled: Callable[[float], Awaitable[None]],
        has_snapshot: Callable[[], bool],
    ) -> None:
        """Wait for these servers.

        Args:
            is_settled: Whether there is no server left to wait for.
            settled: Waits until there is none, for at most so many seconds.
            has_snapshot: Whether servers are listed as they were stored.
        """
        self._is_settled = is_settled
        self._settled = settled
        self._has_snapshot = has_snapshot
        self._began_s = anyio.current_time()
        self._started_s = self._began_s - _process_age_s()
        # Until when lists wait, by caller, host and machine.
        self._until_s: dict[tuple[str, str, str], float] = {}

    async def wait(self, request: McpRequest) -> None:
        """Wait for what a list can show, if it is the first one of its host."""
        if self._is_settled():
            self._until_s.clear()
            return
        await self._settled(self._deadline_s(request) - anyio.current_time())

    def _deadline_s(self, request: McpRequest) -> float:
        is_stdio = request.peer == STDIO_PEER
        if self._has_snapshot():
            return (self._started_s if is_stdio else self._began_s) + _WITH_SNAPSHOT_S
        name = _host_of(request)
        if is_stdio:
            # The host waits since it has started this process.
            return self._started_s + patience_s(name)
        key = request.principal.name, str(name), request.peer.rpartition(":")[0]
        if key not in self._until_s and len(self._until_s) >= _MAX_HOSTS:
            return 0.0
        return self._until_s.setdefault(key, anyio.current_time() + patience_s(name))


def _host_of(request: McpRequest) -> object:
    """Return the name that the host of a request has introduced itself with, unchecked."""
    if request.session is not None:
        return request.session.host.client_info.get("name")
    meta = request.params.get("_meta")
    info = meta.get(CLIENT_INFO_KEY) if isinstance(meta, dict) else None
    return info.get("name") if isinstance(info, dict) else None


def _process_age_s() -> float:
    """Return for how many seconds this process has been running.

    Source: proc_pid_stat(5): the start of the process in clock ticks since the boot of the system.
    """
    try:
        ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _USUAL_START_S
