"""Measure what a model sees of large results, and which tasks it completes, with and without results in parts.

    python tests/bench/bench_results.py [--selection]

Published servers for files, SQLite and GitHub run behind two gateways that differ only in `results`. The API behind the
GitHub server is scripted. A scripted model works on five tasks. Without `results`, its host cuts each
result at 25,000 tokens, as Claude Code does. Tokens are the mean of four tokenizers, over the texts of results and the
arguments that the model writes. A task is complete if the model's answer, or the file that it had written, is right.

Then calls select from a result of 1 MB. Row B1 demands less than 20 ms on the event loop, which the processor time of
the gateway's process bounds; the rest is done in its other processes. `--selection` measures only this.
"""

from __future__ import annotations

import functools
import json
import os
import random
import re
import sqlite3
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import anyio

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from bench_tokens import counted
from differential.packages import SERVERS
from support.certificates import authority
from support.clients.installed import node, npm
from support.gateways import RunningGateway, running_gateway
from support.results import serving_results, text

RESULTS = {"results": {"select": True, "maxBytes": 20_000}}
HOST_TOKENS = 25_000
_WORDS = (
    *("cache", "retry", "socket", "index", "token", "layout", "parser", "schema"),
    *("worker", "deploy", "login", "upload", "search", "export", "invoice"),
)
_CALL_S = 120
GITHUB_SERVER = ("github-enterprise-mcp-server@1.1.2",)
_LIST = "github__github-issue-list"
_REPOSITORY = {"owner": "o", "repo": "r", "state": "all", "per_page": 100}
_SELECTIONS = 30
# Some tokenizers take quadratic time. Shorter pieces would change the counts by more than 1 %.
_PIECE_CHARS = 1_000


def sentence(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(_WORDS, k=words))


def issue_list(chance: random.Random) -> list[dict[str, Any]]:
    """Return a page of issues, with members that GitHub returns."""
    api = "https://api.example.test/repos/o/r/issues"
    return [
        {
            "url": f"{api}/{number}",
            "comments_url": f"{api}/{number}/comments",
            "id": 1_000_000 + number,
            "number": number,
            "title": f"{sentence(chance, 5)} ({number})",
            "user": {"login": f"user-{number % 17}", "id": number % 17, "type": "User", "site_admin": False},
            "labels": [{"id": number % 5, "name": ["bug", "docs", "feature", "question", "security"][number % 5]}],
            "state": "open" if number % 3 else "closed",
            "comments": number % 11,
            "created_at": f"2026-10-{number % 28 + 1:02}T08:00:00Z",
            "body": sentence(chance, 300),
        }
        for number in range(100)
    ]


@dataclass(slots=True, kw_only=True)
class World:
    """The data behind the servers."""

    folder: Path
    issues: list[dict[str, Any]]
    log: list[str]
    orders: list[tuple[int, str, str]]

    def servers(self, github: dict[str, str]) -> dict[str, Any]:
        """Return the entries of the servers.

        Args:
            github: The environment of the GitHub server.
        """
        by_alias = {server.alias: server for server in SERVERS}
        files, database = by_alias["filesystem"].command(), by_alias["sqlite"].command()
        program = npm("github-server", GITHUB_SERVER) / "github-enterprise-mcp-server/dist/index.js"
        return {
            "files": {"command": files[0], "args": [*files[1:], str(self.folder)]},
            "sql": {"command": database[0], "args": [*database[1:], "--db-path", str(self.folder / "orders.db")]},
            "github": {"command": str(node()), "args": [str(program)], "env": github},
        }


@contextmanager
def github_api(folder: Path, issues: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Serve the parts of the GitHub API that the server needs, and yield the environment of the server."""

    class Api(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            found = {"/api/v3/user": {"login": "model", "id": 1}, "/api/v3/repos/o/r/issues": issues}.get(path)
            body = json.dumps({"message": "Not Found"} if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *about: object) -> None:
            pass

    trusted = authority(folder / "authority.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        server.socket = trusted.server("localhost").wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        yield {
            "GITHUB_ENTERPRISE_ENDPOINT": f"https://localhost:{server.server_port}/api/v3",
            "GITHUB_ENTERPRISE_TOKEN": "ghp_" + "a" * 36,  # the server checks only its form
            "NODE_EXTRA_CA_CERTS": str(trusted.file),
        }
        server.shutdown()


def new_world(folder: Path) -> World:
    chance = random.Random(20261126)
    log = [
        f"2026-11-26T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}Z INFO worker-{n % 7} {sentence(chance, 8)}"
        for n in range(3_000)
    ]
    log[2_990] = "2026-11-26T00:49:50Z ERROR worker-5 disk quota of tenant 4711 exceeded"
    (folder / "app.log").write_text("\n".join(log) + "\n")
    orders = [(n, f"customer {chance.randrange(500)}", sentence(chance, 10)) for n in range(3_000)]
    with sqlite3.connect(folder / "orders.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, note TEXT)")
        database.executemany("INSERT INTO orders VALUES (?, ?, ?)", orders)
    return World(folder=folder, issues=issue_list(chance), log=log, orders=orders)


@dataclass(slots=True, kw_only=True)
class Model:
    """A scripted model: calls tools, and remembers what it has seen and written.

    Attributes:
        is_cut: Whether the host cuts its results.
        whole: The results as the host received them.
        seen: The results as the model sees them, and the arguments that it has written.
    """

    gateway: RunningGateway
    is_cut: bool
    whole: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    async def call(self, name: str, **arguments: Any) -> str:
        answer = await self.gateway.call(name, arguments, timeout_s=_CALL_S)
        shown = "\n".join(item.get("text", "") for item in answer["content"])
        if answer.get("isError"):
            print(f"{name} failed: {shown[:200]}", flush=True)
        self.whole.append(shown)
        if self.is_cut:
            shown = cut_by_host(shown)
        self.seen += [json.dumps(arguments), shown]
        return shown

    async def read_on(self, shown: str, **arguments: Any) -> str:
        """Follow the notice at the end of a result that the gateway has cut."""
        return await self.call("read_result", **{**notice_in(shown), **arguments})


def cut_by_host(shown: str) -> str:
    tokens = count(shown)["claude"]
    return shown if tokens <= HOST_TOKENS else shown[: len(shown) * HOST_TOKENS // tokens]


def notice_in(shown: str) -> dict[str, Any]:
    """Return the arguments of `read_result` in a notice, without the offset."""
    [written] = re.findall(r"read_result (\{.*?\})\.\]", shown)
    found: dict[str, Any] = json.loads(written)
    return {name: value for name, value in found.items() if name != "offset"}


def length_in(shown: str) -> int:
    """Return the number of all items or lines in a notice."""
    [count] = re.findall(r"\[Cut: .* of (\d+) (?:items|lines)", shown)
    return int(count)


# Each task returns whether it is complete. Its model reads in parts only if the gateway offers that.


async def open_bugs(model: Model, world: World) -> bool:
    """Name all open issues with the label bug."""
    if model.is_cut:
        shown = re.sub(r"\s+", " ", await model.call(_LIST, **_REPOSITORY))
        found = re.findall(r'"number": (\d+)(?:(?!"number").)*?"name": "bug" } \], "state": "open"', shown)
    else:
        wanted = "issues[?state=='open' && labels[?name=='bug']].number"
        found = json.loads(await model.call(_LIST, **_REPOSITORY, _select=wanted))
    right = [row["number"] for row in world.issues if row["state"] == "open" and row["labels"][0]["name"] == "bug"]
    return [*map(int, found)] == right


async def last_issue(model: Model, world: World) -> bool:
    """Read the text of the last issue, after a first look at the list."""
    shown = await model.call(_LIST, **_REPOSITORY)
    if not model.is_cut:
        shown = await model.read_on(shown, select="[-1].body")
    return world.issues[-1]["body"] in shown


async def last_error(model: Model, world: World) -> bool:
    """Find the error near the end of a log."""
    shown = await model.call("files__read_text_file", path=str(world.folder / "app.log"))
    if not model.is_cut:
        shown = await model.read_on(shown, offset=length_in(shown) - 50)
    return "tenant 4711" in shown


async def last_order(model: Model, world: World) -> bool:
    """Name the customer of the last row of a query."""
    shown = await model.call("sql__read_query", query="SELECT * FROM orders ORDER BY id")
    if not model.is_cut:
        shown = await model.read_on(shown, offset=length_in(shown) - 2)
    number, customer, note = world.orders[-1]
    return all(value in shown for value in (str(number), customer, note))


async def copied_log(model: Model, world: World) -> bool:
    """Write the content of one file to another file."""
    source, target = world.folder / "app.log", world.folder / "copy.log"
    target.unlink(missing_ok=True)
    shown = await model.call("files__read_text_file", path=str(source))
    content = shown
    if not model.is_cut:
        notice = notice_in(shown)
        content = f"{notice['handle']}#{notice.get('pointer', '')}"
    await model.call("files__write_file", path=str(target), content=content)
    return target.read_text() == source.read_text()


TASKS: tuple[Callable[[Model, World], Awaitable[bool]], ...] = (
    open_bugs,
    last_issue,
    last_error,
    last_order,
    copied_log,
)


@functools.cache
def count(shown: str) -> Counter[str]:
    """Return the tokens of a text by tokenizer."""
    pieces = [shown[start : start + _PIECE_CHARS] for start in range(0, len(shown), _PIECE_CHARS)]
    total: Counter[str] = Counter()
    for counts in counted(pieces):
        total.update(counts)
    return total


def tokens_of(texts: list[str]) -> int:
    return round(sum(statistics.mean(count(each).values()) for each in texts if each))


async def run_tasks(
    folder: Path, world: World, servers: dict[str, Any], *, in_parts: bool
) -> list[tuple[int, int, bool]]:
    """Return tokens of the whole results, tokens that the model sees and writes, and the outcome of each task."""
    configured = {alias: {**server, **(RESULTS if in_parts else {})} for alias, server in servers.items()}
    outcomes: list[tuple[int, int, bool]] = []
    async with running_gateway(folder, configured) as gateway:
        listed = await gateway.until_listed("files__write_file", "sql__read_query", _LIST)
        definitions = tokens_of([json.dumps(list(listed.values()))])
        print(
            f"{'with' if in_parts else 'without'} results: definitions of {len(listed)} tools, {definitions:,} tokens"
        )
        for task in TASKS:
            model = Model(gateway=gateway, is_cut=not in_parts)
            is_complete = await task(model, world)
            print(f"{task.__name__}: {'complete' if is_complete else 'not complete'}", flush=True)
            outcomes.append((tokens_of(model.whole), tokens_of(model.seen), is_complete))
    return outcomes


def processor_s(pid: int) -> float:
    """Return the processor time of a process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def measure_selection() -> None:
    """Print the processor time of calls that select from a result of 1 MB."""
    rows = {"rows": [{"id": n, "name": f"row {n}", "note": "x" * 70} for n in range(9_000)]}
    whole = {"content": [text(rows)], "structuredContent": rows}
    with tempfile.TemporaryDirectory() as place:
        async with serving_results(Path(place), {"rows": whole}) as (gateway, _):
            pid = gateway.process.pid
            for what, arguments in {
                "whole": {},
                "rows[-1].name": {"_select": "rows[-1].name"},
                "rows[?id > `8990`].name": {"_select": "rows[?id > `8990`].name"},
                "/rows/5/name": {"_select": ["/rows/5/name"]},
            }.items():
                await gateway.call("up__rows", arguments, timeout_s=_CALL_S)  # starts the check process
                children = children_of(pid)
                before_s, others_s = processor_s(pid), sum(map(processor_s, children))
                for _ in range(_SELECTIONS):
                    answer = await gateway.call("up__rows", arguments, timeout_s=_CALL_S)
                    assert "isError" not in answer, answer
                own = (processor_s(pid) - before_s) * 1_000 / _SELECTIONS
                others = (sum(map(processor_s, children)) - others_s) * 1_000 / _SELECTIONS
                size = len(json.dumps(whole)) / 1e6
                print(f"{size:.1f} MB, {what}: {own:.1f} ms in the gateway, {others:.1f} ms in its other processes")


async def main() -> None:
    """Measure and print."""
    if "--selection" not in sys.argv:
        await compare_tasks()
    await measure_selection()


async def compare_tasks() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        world = new_world(folder)
        with github_api(folder, world.issues) as github:
            servers = world.servers(github)
            for name in ("without", "with"):
                (folder / name).mkdir()
            without = await run_tasks(folder / "without", world, servers, in_parts=False)
            parted = await run_tasks(folder / "with", world, servers, in_parts=True)
    print(f"{'tokens':<12} {'whole results':>14} {'cut by host':>12} {'done':>5} {'in parts':>9} {'done':>5}")
    for task, (whole, cut, cut_done), (_, seen, done) in zip(TASKS, without, parted, strict=True):
        marks = ["yes" if each else "no" for each in (cut_done, done)]
        print(f"{task.__name__:<12} {whole:>14,} {cut:>12,} {marks[0]:>5} {seen:>9,} {marks[1]:>5}")


if __name__ == "__main__":
    anyio.run(main)
