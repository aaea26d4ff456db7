"""Capabilities, instructions, and how long the first list of a host may take."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import anyio

from gateway.downstream.messages import STDIO_PEER, McpRequest
from gateway.protocol.extensions import Extensions
from gateway.protocol.versions import CLIENT_INFO_KEY, GATEWAYS
from gateway.upstream.caller_links import UserLinks
from registry.catalog.catalog import Catalog
from registry.catalog.names import NAME_SEPARATOR
from registry.schema.display_text import join_names
from registry.views.view import View


def merge_capabilities(
    catalog: Catalog, extensions: Extensions, *, instance: str, modern: bool, pending: bool
) -> dict[str, Any]:
    """Return the merged capabilities of all upstreams.

    A request still reaches only the upstream that it names, which rejects the methods that it does not support.

    Args:
        extensions: The extensions that the gateway forwards; no other is declared.
        instance: The id of this gateway.
        modern: Whether the caller uses 2026-07-28.
        pending: Whether some upstream has not listed anything yet. Hosts do not wait for it, and before 2026-07-28
            capabilities cannot be added later, so its possible capabilities are declared in advance.

    Sources: MCP 2026-07-28, "Discovery"; MCP 2025-11-25, "Lifecycle", "Capability Negotiation".
    """
    declared = [listing.capabilities for listing in catalog.servers.values()]
    capabilities: dict[str, Any] = {"tools": {"listChanged": True}, "prompts": {"listChanged": True}, "completions": {}}
    if pending or any("resources" in each for each in declared):
        capabilities["resources"] = {"listChanged": True, "subscribe": pending or _is_subscribable(declared)}
    if pending or any("logging" in each for each in declared):
        capabilities["logging"] = {}
    own: dict[str, Any] = {GATEWAYS: {instance: {}}}
    capabilities["experimental"] = _merge([own, *(each.get("experimental") for each in declared)])
    if merged := extensions.merged(declared, modern=modern, pending=pending):
        capabilities["extensions"] = merged
    return capabilities


def _is_subscribable(declared: Iterable[Mapping[str, Any]]) -> bool:
    resources = [each["resources"] for each in declared if isinstance(each.get("resources"), dict)]
    return any(each.get("subscribe") is True for each in resources)


def _merge(parts: Iterable[Any]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, dict):
            for key, value in part.items():
                earlier = joined.get(key)
                joined[key] = {**earlier, **value} if isinstance(earlier, dict) and isinstance(value, dict) else value
    return joined


MAX_LENGTH: Final = 2_000
"""Hosts add instructions to every conversation, and one of five hosts truncates them at this length."""
# The number of servers that are listed by name; further ones are only counted.
_MAX_NAMED: Final = 12
# The number of missing servers that are listed by name. They come first in the text, and the main point has to follow
# within the first 250 characters.
_MAX_MISSING: Final = 5


def instructions(view: View) -> str:
    """Return the instructions for `initialize` and `server/discover`, at most 2,000 characters.

    The main point is in the first 250 characters. Servers that have not listed anything yet come first. If the text
    names a tool, the tool is listed.
    """
    missing = [server for server in view.servers if server not in view.catalog.servers]
    prefix = f"Not connected yet: {join_names(missing, _MAX_MISSING)}. Their tools are listed once they are. "
    prefix = prefix if missing else ""
    if view.profile.instructions is not None:
        return (prefix + view.profile.instructions)[:MAX_LENGTH]
    parts = [
        "A gateway to the tools of several servers. A typed tool is named by its server, two underscores and the "
        "tool, and takes its parameters at the top level: call it directly."
    ]
    if view.defers:
        parts.append(
            "Only some tools are listed: find_tools searches all of them, list_servers and get_server_details show "
            "what there is; a tool that is found can be called by its typed name at once."
        )
    parts.append(
        "If a typed name is refused in mid-conversation, use invoke_tool with server, tool and arguments, where "
        "every parameter goes inside arguments."
    )
    example = next(
        (entry.wrapper.name for entry in view.for_models if entry.listed and NAME_SEPARATOR in entry.wrapper.name), ""
    )
    if example:
        parts.append(f"An example of a typed name: {example}.")
    if view.servers:
        first_servers = ", ".join(view.servers[:_MAX_NAMED])
        more = f" and {len(view.servers) - _MAX_NAMED} more" if len(view.servers) > _MAX_NAMED else ""
        parts.append(f"Servers: {first_servers}{more}.")
    return (prefix + " ".join(parts))[:MAX_LENGTH]


# How long each host waits for tools when it starts, in seconds, by the beginning of its name. Measured with
# claude-code 2.1, codex 0.169, copilot-cli 1.0 (no longer wait was tried), opencode 1.18, gemini-cli 0.61 and
# qwen-code 0.15; Claude Desktop is `claude-ai`.
_HOST_PATIENCE: Final = (
    ("claude-ai", 5.0),
    ("claude", 2.0),
    ("codex", 1.0),
    ("copilot", 20.0),
    ("opencode", 30.0),
    ("gemini", 40.0),
    ("qwen", 40.0),
)
# The share of a host's time that the gateway may use. The host needs the rest to start and to receive the list.
_PATIENCE_SHARE: Final = 0.85
# For other hosts: none is known to give up sooner, and users accept it as start-up time.
_UNKNOWN_S: Final = 5.0
# With a snapshot, the list is nearly complete, so wait only briefly: two of five hosts give up after a second.
_WITH_SNAPSHOT_S: Final = 0.8
# The start-up time of interpreter and imports, used if the system does not report when this process started.
_USUAL_START_S: Final = 0.5
# The number of hosts tracked while servers start; further hosts do not have to wait.
_MAX_HOSTS: Final = 1_000


def patience_s(name: object) -> float:
    """Return how long the first list of a host may take, in seconds.

    Args:
        name: The host's `clientInfo.name`, unchecked.
    """
    if isinstance(name, str):
        for begin, waits_s in _HOST_PATIENCE:
            if name.casefold().startswith(begin):
                return waits_s * _PATIENCE_SHARE if waits_s != _UNKNOWN_S else waits_s
    return _UNKNOWN_S


class UpstreamStates(Protocol):
    """What lists depend on in the states of all upstreams."""

    @property
    def tried(self) -> bool:
        """Return whether every upstream was tried once or is listed from the snapshot."""

    @property
    def pending(self) -> bool:
        """Return whether some upstream has not listed anything yet."""

    @property
    def has_snapshot(self) -> bool:
        """Return whether some upstreams are listed from the snapshot."""

    async def settled(self, timeout_s: float) -> None:
        """Wait until every upstream was tried once, or the timeout expires."""


# How long a list request waits for servers with a sign-in of the caller. Two of five hosts give up after one second.
_OWN_LISTINGS_S: Final = 0.8


class FirstLists:
    """Delays the first list of each host until every server was tried once, limited by the patience of the host."""

    def __init__(self, upstreams: UpstreamStates, users: UserLinks) -> None:
        """Initialize the deadlines.

        Args:
            users: The links of callers, whose lists take part once the caller has signed in.
        """
        self._upstreams = upstreams
        self._users = users
        self._began_s = anyio.current_time()
        self._started_s = self._began_s - _process_age_s()
        # The deadline of each caller, host and machine.
        self._until_s: dict[tuple[str, str, str], float] = {}

    @property
    def pending(self) -> bool:
        """Return whether some upstream has not listed anything yet."""
        return self._upstreams.pending

    async def wait(self, request: McpRequest) -> None:
        """Wait for the servers if this is the first list of its host, and for the caller's own lists."""
        if self._upstreams.tried:
            self._until_s.clear()
        else:
            await self._upstreams.settled(self._deadline_s(request) - anyio.current_time())
        if self._users.are_used:
            await self._users.connect_signed_in(request.principal, _OWN_LISTINGS_S)

    def _deadline_s(self, request: McpRequest) -> float:
        is_stdio = request.peer == STDIO_PEER
        if self._upstreams.has_snapshot:
            return (self._started_s if is_stdio else self._began_s) + _WITH_SNAPSHOT_S
        name = _host_name(request)
        if is_stdio:
            # The host has been waiting since it started this process.
            return self._started_s + patience_s(name)
        key = request.principal.name, str(name), request.peer.rpartition(":")[0]
        if key not in self._until_s and len(self._until_s) >= _MAX_HOSTS:
            return 0.0
        return self._until_s.setdefault(key, anyio.current_time() + patience_s(name))


def _host_name(request: McpRequest) -> object:
    """Return the name of a request's host, unchecked."""
    if request.session is not None:
        return request.session.host.client_info.get("name")
    meta = request.params.get("_meta")
    info = meta.get(CLIENT_INFO_KEY) if isinstance(meta, dict) else None
    return info.get("name") if isinstance(info, dict) else None


def _process_age_s() -> float:
    """Return how long this process has been running, in seconds.

    Source: proc_pid_stat(5), the start time of the process in clock ticks since boot.
    """
    try:
        ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _USUAL_START_S
