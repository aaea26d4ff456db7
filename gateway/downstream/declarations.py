"""Capabilities and instructions that the gateway declares, and how long list requests wait during startup."""

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

    An upstream may lack some of these capabilities. It receives only requests that name it, and rejects requests whose
    method it does not support.

    Args:
        extensions: The extensions that the gateway forwards. Other extensions are not declared.
        instance: The id of this gateway, for detecting an upstream that connects back to the gateway.
        modern: Whether the caller uses MCP 2026-07-28.
        pending: Whether some upstream has not listed anything yet. Its possible capabilities are declared in advance:
            hosts do not wait for the upstream, and before 2026-07-28 capabilities cannot be added later.

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
"""The maximum length of the instructions in characters. Hosts add the instructions to every conversation, and one of
five hosts truncates them at this length."""
# The number of servers that the instructions list by name; further servers are only counted.
_MAX_NAMED: Final = 12
# The number of servers that are listed as not connected yet. They come first in the instructions, but the main point
# has to be within the first 250 characters.
_MAX_MISSING: Final = 5


def instructions(view: View) -> str:
    """Return the instructions for `initialize` and `server/discover`, at most 2,000 characters.

    The text begins with the servers that have not listed anything yet. The main point is in the first 250 characters.
    The text names only tools that are listed.
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


# The seconds that a host waits for tools when it starts, by the beginning of the host's name. They were measured with
# claude-code 2.1, codex 0.169, copilot-cli 1.0 (which may wait longer: the test ended after this time), opencode 1.18,
# gemini-cli 0.61 and qwen-code 0.15; Claude Desktop is `claude-ai`.
_HOST_PATIENCE: Final = (
    ("claude-ai", 5.0),
    ("claude", 2.0),
    ("codex", 1.0),
    ("copilot", 20.0),
    ("opencode", 30.0),
    ("gemini", 40.0),
    ("qwen", 40.0),
)
# The share of a host's waiting time that the gateway uses. The host needs the rest to start and to receive the list.
_PATIENCE_SHARE: Final = 0.85
# The waiting time for other hosts, in seconds. None of them is known to give up earlier, and users accept this delay.
_UNKNOWN_S: Final = 5.0
# The waiting time if a snapshot (listings stored by an earlier run) makes the list nearly complete. It is short because
# two of five hosts give up after one second.
_WITH_SNAPSHOT_S: Final = 0.8
# The assumed age of this process if the system does not report its start time. It covers Python's start and imports.
_USUAL_START_S: Final = 0.5
# The maximum number of hosts whose deadlines are stored. List requests of further hosts do not wait for upstreams.
_MAX_HOSTS: Final = 1_000


def patience_s(name: object) -> float:
    """Return how long the gateway may delay the first list of a host, in seconds.

    Args:
        name: The host's `clientInfo.name`, which may be of any type.
    """
    if isinstance(name, str):
        for begin, waits_s in _HOST_PATIENCE:
            if name.casefold().startswith(begin):
                return waits_s * _PATIENCE_SHARE if waits_s != _UNKNOWN_S else waits_s
    return _UNKNOWN_S


class UpstreamStates(Protocol):
    """The combined connection state of all upstreams."""

    @property
    def tried(self) -> bool:
        """Return whether every upstream has been tried once, or has a listing from the snapshot."""

    @property
    def pending(self) -> bool:
        """Return whether some upstream has not listed anything yet."""

    @property
    def has_snapshot(self) -> bool:
        """Return whether some upstreams have a listing from the snapshot."""

    async def settled(self, timeout_s: float) -> None:
        """Wait until `tried` is true, or the timeout expires."""


# How long a list request waits for servers that the caller has signed in to. Two of five hosts give up after a second.
_OWN_LISTINGS_S: Final = 0.8


class FirstLists:
    """Delays list requests until every upstream has been tried once, but no longer than the host waits for tools."""

    def __init__(self, upstreams: UpstreamStates, users: UserLinks) -> None:
        """Initialize the deadlines.

        Args:
            users: The upstream connections that each belong to one caller, which has signed in to the server.
        """
        self._upstreams = upstreams
        self._users = users
        self._began_s = anyio.current_time()
        self._started_s = self._began_s - _process_age_s()
        # The deadline for each combination of caller, host name and IP address.
        self._until_s: dict[tuple[str, str, str], float] = {}

    @property
    def pending(self) -> bool:
        """Return whether some upstream has not listed anything yet."""
        return self._upstreams.pending

    async def wait(self, request: McpRequest) -> None:
        """Wait while upstreams start, but not beyond the host's deadline; then connect the caller's own upstreams."""
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
            # The host started this process, and has waited since the start.
            return self._started_s + patience_s(name)
        key = request.principal.name, str(name), request.peer.rpartition(":")[0]
        if key not in self._until_s and len(self._until_s) >= _MAX_HOSTS:
            return 0.0
        return self._until_s.setdefault(key, anyio.current_time() + patience_s(name))


def _host_name(request: McpRequest) -> object:
    """Return the `clientInfo.name` of a request's host, which may be of any type; None if absent."""
    if request.session is not None:
        return request.session.host.client_info.get("name")
    meta = request.params.get("_meta")
    info = meta.get(CLIENT_INFO_KEY) if isinstance(meta, dict) else None
    return info.get("name") if isinstance(info, dict) else None


def _process_age_s() -> float:
    """Return how long this process has been running, in seconds.

    Source: proc_pid_stat(5), whose field 22 is the start time of the process in clock ticks since boot.
    """
    try:
        ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _USUAL_START_S
