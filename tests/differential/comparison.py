"""Compare published servers with what a gateway makes of them: the same clients, lists and calls, both ways."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from differential.examples import objects_for
from differential.packages import PublishedServer
from differential.surveys import CLIENTS, Call, Survey, Tally, compare_calls, compare_lists, survey
from e2e.processes import raw_stdio
from support.gateways import RunningGateway, brief_pause, running_gateway

_CALLS_PER_TOOL = 3
# Servers on npm and PyPI that run side by side, in a gateway of two cores.
_BATCH = 8
_STARTED_S = 300
_EAGER = {"profiles": {"default": {"disclosure": "eager", "maxTools": 5_000, "maxTokens": 5_000_000}}}
_REPLAY = Path(__file__).with_name("replay.py")


@dataclass(slots=True, kw_only=True)
class ServerReport:
    """The results for one server: a tally for each client."""

    package: str
    real_calls: bool
    tallies: dict[str, Tally] = field(default_factory=dict)

    def add(self, client: str, tally: Tally) -> None:
        """Add what a client saw."""
        self.tallies.setdefault(client, Tally()).add(tally)


Reports = dict[str, ServerReport]


async def compare(servers: Sequence[PublishedServer], folder: Path, clients: Sequence[str] = CLIENTS) -> Reports:
    """Compare these servers in batches, then the replayed calls of all of them at once."""
    reports = {one.alias: ServerReport(package=one.package, real_calls=one.real_calls) for one in servers}
    definitions: dict[str, list[dict[str, Any]]] = {}
    for start in range(0, len(servers), _BATCH):
        batch = servers[start : start + _BATCH]
        for one in batch:  # installs one after another: each takes both cores
            await anyio.to_thread.run_sync(one.command)
        async with anyio.create_task_group() as group:
            for one in batch:
                group.start_soon(_record, one, folder, definitions)
        calls = await _calls({one.alias: definitions[one.alias] for one in batch if one.real_calls})
        for client in clients:
            tallies = await _compare_batch(client, batch, definitions, calls, folder)
            # Some servers answer differently, or too late, once in a while. What the gateway changes, it changes again.
            doubtful = [one for one in batch if tallies[one.alias].differences]
            if doubtful:
                tallies |= await _compare_batch(client, doubtful, definitions, calls, folder)
            for alias, tally in tallies.items():
                reports[alias].add(client, tally)
    replayed = {one.alias: definitions[one.alias] for one in servers if not one.real_calls}
    # Generated once for all clients: it takes minutes.
    calls = await _calls(replayed)
    entries = {alias: await _replay(alias, tools, folder) for alias, tools in replayed.items()}
    for client in clients if replayed else ():
        tallies = await _compare_replayed(client, entries, calls, folder)
        doubtful_entries = {alias: entries[alias] for alias, tally in tallies.items() if tally.differences}
        if doubtful_entries:
            tallies |= await _compare_replayed(client, doubtful_entries, calls, folder)
        for alias, tally in tallies.items():
            reports[alias].add(client, tally)
    return reports


def report_text(reports: Reports) -> str:
    """Return the report as Markdown: a row for each server, the sum, then each difference."""
    lines = [
        "| server | package | calls made on | tools | calls | too slow | adapted | differences |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    whole = Tally()
    for alias, report in reports.items():
        tally = Tally()
        for one in report.tallies.values():
            tally.add(one)
        whole.add(tally)
        made_on = "the server" if report.real_calls else "its definitions"
        lines.append(f"| {alias} | `{report.package}` | {made_on} | {_figures(tally)} |")
    lines.append(f"| {len(reports)} servers | | | {_figures(whole)} |")
    return "\n".join([*lines, "", *(f"- {one}" for one in [*whole.differences, *whole.adapted])])


def _figures(tally: Tally) -> str:
    tools = tally.tools // len(CLIENTS)  # each client lists the same tools
    return f"{tools} | {tally.calls} | {tally.late} | {len(tally.adapted)} | {len(tally.differences)}"


def _scratch(folder: Path, alias: str) -> Path:
    """Return the empty directory that a server runs in, the same for each run, since texts of servers name it."""
    scratch = folder / alias
    shutil.rmtree(scratch, ignore_errors=True)
    return scratch


async def _record(one: PublishedServer, folder: Path, definitions: dict[str, list[dict[str, Any]]]) -> None:
    async with raw_stdio(one.entry(_scratch(folder, one.alias)), skips_noise=True) as process:
        await process.initialize("2025-06-18")
        definitions[one.alias] = await process.tools()


async def _calls(definitions: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Call]]:
    schemas = [tool["inputSchema"] for tools in definitions.values() for tool in tools]
    found = iter(await anyio.to_thread.run_sync(objects_for, schemas, _CALLS_PER_TOOL) if schemas else ())
    return {
        alias: [(tool["name"], arguments) for tool in tools for arguments in next(found)]
        for alias, tools in definitions.items()
    }


async def _compare_batch(
    client: str,
    batch: Sequence[PublishedServer],
    definitions: Mapping[str, Sequence[Mapping[str, Any]]],
    calls: Mapping[str, Sequence[Call]],
    folder: Path,
) -> dict[str, Tally]:
    calls = {one.alias: calls[one.alias] for one in batch if one.real_calls}
    direct: dict[str, list[Survey]] = {}
    turns = anyio.CapacityLimiter(2)

    async def ask(one: PublishedServer) -> None:
        # Twice where calls are made: a result that is different each time is not expected to be the same.
        for _ in range(2 if one.real_calls else 1):
            entry = one.entry(_scratch(folder, one.alias))
            seen = await anyio.to_thread.run_sync(survey, client, entry, calls.get(one.alias, ()), limiter=turns)
            direct.setdefault(one.alias, []).append(seen)

    async with anyio.create_task_group() as group:
        for one in batch:
            group.start_soon(ask, one)
    entries = {one.alias: one.entry(_scratch(folder, one.alias)) for one in batch}
    place = Path(tempfile.mkdtemp(prefix=f"gateway-{client}-", dir=folder))
    async with running_gateway(place, entries, gateway=_EAGER) as gateway:
        through = await _through(client, gateway, entries, calls)
        reasons = await _reasons(gateway)
        wrappers = await _wrappers(gateway)
    tallies: dict[str, Tally] = {}
    for one in batch:
        seen = direct[one.alias]
        names = wrappers.get(one.alias, {})
        lists = compare_lists(
            definitions[one.alias],
            seen[0],
            through[one.alias],
            one.alias,
            names.get,
            reasons.get(one.alias, {}),
        )
        if one.real_calls:
            lists.add(compare_calls(calls[one.alias], seen[0], seen[1], through[one.alias], one.alias))
        tallies[one.alias] = lists
    return tallies


async def _compare_replayed(
    client: str, entries: Mapping[str, dict[str, Any]], calls: Mapping[str, Sequence[Call]], folder: Path
) -> dict[str, Tally]:
    calls = {alias: calls[alias] for alias in entries}
    direct: dict[str, Survey] = {}
    turns = anyio.CapacityLimiter(2)

    async def ask(alias: str) -> None:
        direct[alias] = await anyio.to_thread.run_sync(survey, client, entries[alias], calls[alias], limiter=turns)

    async with anyio.create_task_group() as group:
        for alias in entries:
            group.start_soon(ask, alias)
    place = Path(tempfile.mkdtemp(prefix=f"gateway-{client}-", dir=folder))
    async with running_gateway(place, entries, gateway=_EAGER) as gateway:
        through = await _through(client, gateway, entries, calls)
    return {alias: compare_calls(calls[alias], direct[alias], None, through[alias], alias) for alias in entries}


async def _replay(alias: str, tools: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    declared = [tool for tool in tools if isinstance(tool.get("outputSchema"), dict)]
    results = await anyio.to_thread.run_sync(objects_for, [tool["outputSchema"] for tool in declared], 1)
    structured = {tool["name"]: found[0] for tool, found in zip(declared, results, strict=True) if found}
    recording = anyio.Path(folder / f"{alias}.json")
    await recording.write_text(json.dumps({"tools": tools, "structured": structured}))
    return {"command": sys.executable, "args": [str(_REPLAY), str(recording)], "env": {}, "cwd": str(folder)}


async def _through(
    client: str, gateway: RunningGateway, entries: Mapping[str, Any], calls: Mapping[str, Sequence[Call]]
) -> dict[str, Survey]:
    """Let a client survey the whole gateway; return what it saw for each server."""
    with anyio.fail_after(_STARTED_S):
        while {row["state"] for row in (await gateway.admin("servers")).json()["servers"]} != {"ready"}:
            await brief_pause()
    wrappers = await _wrappers(gateway)
    # A tool without a wrapper is called by a name that nothing has, and its failure is reported as a difference.
    named = [
        (wrappers.get(alias, {}).get(name, f"{alias}__{name}"), arguments)
        for alias, made in calls.items()
        for name, arguments in made
    ]
    whole = await anyio.to_thread.run_sync(lambda: survey(client, gateway.url, named, deadline_s=15))
    surveys, start = {}, 0
    for alias in entries:
        surveys[alias] = Survey(lists=whole.lists, calls=())
    for alias, made in calls.items():
        surveys[alias] = Survey(lists=whole.lists, calls=whole.calls[start : start + len(made)])
        start += len(made)
    return surveys


async def _wrappers(gateway: RunningGateway) -> dict[str, dict[str, str]]:
    """Return the names of the wrappers, by server and tool."""
    found: dict[str, dict[str, str]] = {}
    cursor = ""
    while True:
        page = (await gateway.admin(f"wrappers?limit=500{cursor}")).json()
        for row in page["wrappers"]:
            found.setdefault(row["server"], {})[row["tool"]] = row["name"]
        if not page.get("nextCursor"):
            return found
        cursor = f"&cursor={page['nextCursor']}"


async def _reasons(gateway: RunningGateway) -> dict[str, dict[str, str]]:
    """Return what the gateway reports of definitions that it has changed or cannot show, by server and tool."""
    found: dict[str, dict[str, str]] = {}
    for row in (await gateway.admin("quarantine")).json()["quarantine"]:
        if row["status"] in ("quarantined", "repaired"):
            found.setdefault(row["server"], {})[row["tool"]] = f"{row['status']} ({row['code']}): {row['detail']}"
    return found
