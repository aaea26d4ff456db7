"""Our capabilities: what at least one upstream has, and what we have ourselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.protocol import GATEWAYS
from registry.catalog.catalog import Catalog


def merged(catalog: Catalog, *, instance: str, modern: bool, pending: bool) -> dict[str, Any]:
    """The capabilities of every upstream joined into one.

    A request still reaches only the upstream that it names, and learns there what that one lacks.

    Args:
        catalog: Holds the capabilities of each upstream.
        instance: Our own id.
        modern: For 2026-07-28, which knows extensions.
        pending: Some upstream has not listed anything yet. No host waits for it, and in the handshake era nothing
            can be added later: what it may have is promised before it is known.

    Sources: MCP 2026-07-28, "Discovery"; MCP 2025-11-25, "Lifecycle", "Capability Negotiation".
    """
    declared = [listing.capabilities for listing in catalog.servers.values()]
    capabilities: dict[str, Any] = {"tools": {"listChanged": True}, "prompts": {"listChanged": True}, "completions": {}}
    if pending or any("resources" in each for each in declared):
        capabilities["resources"] = {"listChanged": True, "subscribe": pending or _subscribable(declared)}
    if pending or any("logging" in each for each in declared):
        capabilities["logging"] = {}
    own: dict[str, Any] = {GATEWAYS: {instance: {}}}
    capabilities["experimental"] = _joined([own, *(each.get("experimental") for each in declared)])
    if modern and (extensions := _joined(each.get("extensions") for each in declared)):
        capabilities["extensions"] = extensions
    return capabilities


def _subscribable(declared: Iterable[Mapping[str, Any]]) -> bool:
    resources = [each["resources"] for each in declared if isinstance(each.get("resources"), dict)]
    return any(each.get("subscribe") is True for each in resources)


def _joined(parts: Iterable[Any]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, dict):
            for key, value in part.items():
                known = joined.get(key)
                joined[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return joined
