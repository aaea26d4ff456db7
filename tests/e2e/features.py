"""Features: what a host has of a server, whichever mix of eras and transports lies between them.

Each feature is one sentence of behaviour as a function of a lane; `FEATURES` lists the lanes of each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from e2e.lanes import Lane

Feature = Callable[[Lane], Awaitable[None]]
FEATURES: list[tuple[Feature, Callable[[Lane], bool]]] = []


def feature(when: Callable[[Lane], bool] = lambda lane: True) -> Callable[[Feature], Feature]:
    """Register a feature for the lanes where it holds."""

    def register(function: Feature) -> Feature:
        FEATURES.append((function, when))
        return function

    return register


def asks(lane: Lane) -> bool:
    """Return whether questions of the server can reach the host."""
    return lane.server.modern or (not lane.host.modern and (lane.server.asking or not lane.through))


def announces(lane: Lane) -> bool:
    """Return whether a change during one call affects all connections."""
    return not lane.server.asking


async def failures_on(lane: Lane) -> dict[str, BaseException]:
    """Test every feature of a lane, and return the failures."""
    failed: dict[str, BaseException] = {}
    for function, holds in FEATURES:
        if not holds(lane):
            continue
        try:
            with anyio.fail_after(25):
                await function(lane)
        except Exception as broken:  # noqa: BLE001 - one that fails must not hide the others
            failed[f"{function.__name__} on {lane}"] = broken
    return failed
