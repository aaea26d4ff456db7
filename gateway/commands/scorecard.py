"""`typegate scorecard`: measure overhead, token cost and start-up time of a configuration.

The latency that the gateway adds to a call is measured in this process, with the configured policy and hooks, against
the bundled demo server. No tool of a configured server is called.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import date, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from gateway.commands import output
from gateway.commands.admin_client import load_added_names

if TYPE_CHECKING:
    from gateway.serving.app import Gateway

_PROBE: Final = "typegate-probe"
_TOOL: Final = "get_bank_balance"
# Batches with and without the gateway alternate, so that a busy moment of the machine affects both measurements.
_BATCHES: Final = 20
_CALLS: Final = 20
_CONCURRENCY: Final = 16
# Time limit of all measured calls: the demo server answers within a millisecond, but a hook may take seconds.
_LIMIT_S: Final = 60.0
_DIALECTS: Final = ("mcp", "openai", "gemini")
_SERVERS: Final = ("name", "type", "state", "tools", "quarantined", "repaired")
_PROFILES: Final = ("profile", "dialect", "tools", "listed", "tokens")


def scorecard(args: Namespace) -> int:
    """Measure a configuration and show the result; 0 if every server is connected, 1 otherwise.

    Raises:
        ConfigError: The configuration cannot be used.
    """
    import anyio

    from gateway.config.load import load
    from gateway.config.upstream_types.stdio_config import StdioConfig
    from gateway.telemetry import logs

    config = load(args.config, added=load_added_names(args.config))
    logs.start(logging.ERROR)
    logging.getLogger("gateway.fleet").setLevel(logging.CRITICAL)
    probe = StdioConfig(command=sys.executable, args=["-m", "gateway.demo.bank"])
    probed = replace(config, servers={**config.servers, _PROBE: probe})

    async def measured() -> dict[str, Any]:
        from gateway.commands.first_contact import wait_until_settled
        from gateway.serving.app import open_gateway

        began_s = time.perf_counter()
        async with open_gateway(probed, state_dir=None) as gateway:
            await wait_until_settled(gateway, say=output.say if not args.json else lambda text: None)
            cold_s = time.perf_counter() - began_s
            return {"coldStartSeconds": round(cold_s, 2), **_surface(gateway), "calls": await _calls(gateway)}

    card = anyio.run(measured, backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})
    if args.json:
        output.print_json(card)
    else:
        _show(card)
    return int(any(row["state"] not in ("ready", "idle", "disabled") for row in card["servers"]))


def _surface(gateway: Gateway) -> dict[str, Any]:
    from gateway.admin import rows
    from registry.views.view import build_view

    catalog, shape = gateway.registry.catalog, gateway.registry.shape
    servers = [row for row in rows.server_rows(gateway.fleet, catalog) if row["name"] != _PROBE]
    profiles: list[dict[str, Any]] = []
    for name, profile in gateway.views.profiles.items():
        for dialect in dict.fromkeys((profile.dialect, *_DIALECTS)):
            view = build_view(catalog, shape, replace(profile, dialect=dialect))
            listed = [entry for entry in view.entries if entry.listed and entry.server != _PROBE]
            profiles.append(
                {
                    "profile": name,
                    "dialect": dialect,
                    "configured": dialect == profile.dialect,
                    "tools": sum(entry.server != _PROBE for entry in view.entries),
                    "listed": len(listed),
                    "tokens": sum(rows.tokens_of(entry.definition) for entry in listed),
                }
            )
    held = [row for row in gateway.fleet.lock.rows() if row["state"] == "held" and row["server"] != _PROBE]
    # Only names and counts, because the report is shared: addresses, errors and texts may be confidential.
    shared_keys = ("name", "type", "state", "protocol", "tools", "prompts", "resources", "quarantined", "repaired")
    return {
        "servers": [{key: row.get(key) for key in shared_keys} for row in servers],
        "profiles": profiles,
        "lock": {"file": gateway.fleet.lock.lockfile is not None, "held": len(held)},
        "hooks": len(gateway.config.gateway.hooks),
        "rules": len(gateway.config.gateway.policy.rules),
    }


async def _calls(gateway: Gateway) -> dict[str, Any] | None:
    """Measure the added latency and the throughput with calls to the demo server, the probe.

    Returns:
        The measured values; None if the probe is not connected, a call to it fails or is refused, or the time limit is
        exceeded.
    """
    import anyio

    from gateway.protocol.gateway_errors import RpcError
    from gateway.upstream.session import UpstreamCall

    link = gateway.fleet.links[_PROBE]

    # Use a new date for each call. Otherwise, a hook that caches results would answer all calls after the first.
    days = (date(2026, 1, 2) + timedelta(days=number) for number in count())

    def arguments() -> dict[str, Any]:
        return {"account_id": "1", "date": next(days).isoformat()}

    async def alone() -> Any:
        return await link.call(UpstreamCall(method="tools/call", params={"name": _TOOL, "arguments": arguments()}))

    async def through() -> Any:
        return await gateway.call(f"{_PROBE}__{_TOOL}", arguments())

    with anyio.move_on_after(_LIMIT_S):
        try:
            if link.session is None or (await through()).get("isError"):
                return None
        except RpcError:
            return None
        direct_ms: list[float] = []
        gateway_ms: list[float] = []
        for _ in range(_BATCHES):
            for call, times_ms in ((alone, direct_ms), (through, gateway_ms)):
                times_ms.append(await _mean_ms(call))
        began_s, done = time.perf_counter(), 0

        async def caller() -> None:
            nonlocal done
            for _ in range(_CALLS):
                await through()
                done += 1

        async with anyio.create_task_group() as group:
            for _ in range(_CONCURRENCY):
                group.start_soon(caller)
        direct, own = statistics.median(direct_ms), statistics.median(gateway_ms)
        return {
            "directMs": round(direct, 3),
            "throughMs": round(own, 3),
            "addedMs": round(max(own - direct, 0.0), 3),
            "perSecond": round(done / (time.perf_counter() - began_s)),
        }
    return None


async def _mean_ms(call: Callable[[], Awaitable[Any]]) -> float:
    began_s = time.perf_counter()
    for _ in range(_CALLS):
        await call()
    return (time.perf_counter() - began_s) / _CALLS * 1000


def _show(card: dict[str, Any]) -> None:
    output.print_table("servers", _SERVERS, card["servers"])
    output.print_table("cost of tool lists", _PROFILES, card["profiles"])
    calls = card["calls"]
    lines = [f"cold start: {card['coldStartSeconds']} s until every server had listed or failed"]
    if calls is None:
        lines.append("calls: not measured: the policy or a hook refuses the probe, or it did not answer in time")
    else:
        lines.append(
            f"calls: {calls['addedMs']} ms added ({calls['throughMs']} with the gateway, {calls['directMs']} without), "
            f"{calls['perSecond']} per second with {_CONCURRENCY} concurrent callers; "
            f"{card['hooks']} hooks, {card['rules']} rules"
        )
    held = card["lock"]["held"]
    lines.append(
        f"lock: {'none' if not card['lock']['file'] else f'{held} changes held' if held else 'no changes held'}"
    )
    output.print_text("\n".join(lines))
