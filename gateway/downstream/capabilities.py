"""What we say we can do: what at least one upstream can, and what we can by ourselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from registry.catalog.catalog import Catalog


def merged(catalog: Catalog, *, modern: bool, pending: bool) -> dict[str, Any]:
    """The capabilities of every upstream joined into one.

    A call still meets only the upstream that it names, and is told there what that one lacks.

    Args:
        catalog: Holds what each upstream said of itself.
        modern: For 2026-07-28, which knows extensions.
        pending: Some upstream has not said anything yet. No host waits for it, and in the handshake era nothing
            can be added later: what it may have is promised before it is known to be nothing.

    Sources: MCP 2026-07-28, "Discovery"; MCP 2025-11-25, "Lifecycle", "Capability Negotiation".
    """
    said = [one.capabilities for one in catalog.servers.values()]
    capabilities: dict[str, Any] = {"tools": {"listChanged": True}, "prompts": {"listChanged": True}, "completions": {}}
    if pending or any("resources" in one for one in said):
        capabilities["resources"] = {"listChanged": True, "subscribe": pending or _subscribable(said)}
    if pending or any("logging" in one for one in said):
        capabilities["logging"] = {}
    for name in ("experimental", "extensions") if modern else ("experimental",):
        joined = _joined(one.get(name) for one in said)
        if joined:
            capabilities[name] = joined
    return capabilities


def _subscribable(said: Iterable[Mapping[str, Any]]) -> bool:
    offered = [one["resources"] for one in said if isinstance(one.get("resources"), dict)]
    return any(one.get("subscribe") is True for one in offered)


def _joined(parts: Iterable[Any]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, dict):
            for key, value in part.items():
                known = joined.get(key)
                joined[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return joined
