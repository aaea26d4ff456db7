"""The most expensive requests, by the processor time that each takes on the event loop; run it as a program.

    python tests/bench/bench_expensive.py [--rounds 3] [--only WORD] [--all] [--strict]

A real gateway serves a program with 2,000 tools. Each case is one request, or one answer of the program, close to the
bounds of its size. The kernel counts the time of the gateway's main thread, which runs the event loop; the total
includes its other threads. The least of the rounds is shown, for the 20 cases that take longest. `--strict` exits 1 if
a case takes more than 100 ms on the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from support.gateways import TOKEN, RunningGateway, envelope, running_gateway

MOST_MS: Final = 100.0
SHOWN: Final = 20
TOOLS: Final = 2_000
# A little less than the bounds: 4 MiB and 150,000 parts for callers, 8 MiB for upstreams.
REQUEST_BYTES: Final = 4_000_000
ANSWER_BYTES: Final = 8_000_000
PARTS: Final = 145_000
PROGRAM: Final = Path(__file__).parent / "expensive_upstream.py"


class Case(NamedTuple):
    """One HTTP request to the gateway."""

    name: str
    path: str
    body: bytes | None
    headers: dict[str, str]


class Cost(NamedTuple):
    """The cost of one request: processor time of the event loop, and of all threads, in milliseconds."""

    name: str
    loop_ms: float
    total_ms: float
    status: int


def mcp(name: str, method: str, params: dict[str, Any]) -> Case:
    """Return a request of 2026-07-28."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": envelope()}})
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    if isinstance(params.get("name"), str) and len(params["name"]) < 1_000:
        headers["mcp-name"] = params["name"]
    return raw(name, body.encode(), headers)


def raw(name: str, body: bytes, headers: dict[str, str] | None = None) -> Case:
    """Return a POST of any bytes."""
    both = {"content-type": "application/json", "accept": "application/json, text/event-stream", **(headers or {})}
    return Case(name, "/mcp", body, both)


def call(name: str, tool: str, arguments: Any) -> Case:
    """Return a call of a tool."""
    return mcp(f"call: {name}", "tools/call", {"name": tool, "arguments": arguments})


def admin(path: str, body: Any = None) -> Case:
    """Return a request of an administrator."""
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    return Case(f"admin: /{path}", f"/admin/{path}", None if body is None else json.dumps(body).encode(), headers)


def deep(levels: int, least_bytes: int) -> list[Any]:
    """Return a list of nested lists of a total size."""
    one: Any = []
    for _ in range(levels):
        one = [one]
    return [one] * (least_bytes // (2 * levels + 3))


def calls() -> Iterator[Case]:
    """Calls with large arguments, right and wrong."""
    text = "long text " * (REQUEST_BYTES // 10)
    rows = [{"id": n, "name": f"row {n}", "tags": ["a"]} for n in range(PARTS // 6)]
    wrong = [{"id": f"{n}", "nmae": n, "tags": "a"} for n in range(PARTS // 6)]
    yield call("a long string", "up__any", {"value": text})
    yield call("a long string of escapes", "up__any", {"value": '\u0001\\"é' * (REQUEST_BYTES // 16)})
    yield call("many numbers", "up__any", {"value": list(range(PARTS * 2))})
    yield call("many members", "up__any", {"value": {f"key {n}": n for n in range(PARTS)}})
    yield call("deep lists", "up__any", {"value": deep(150, 400_000)})
    yield call("right rows", "up__rows", {"rows": rows})
    yield call("wrong rows", "up__rows", {"rows": wrong})
    yield call("rows of wrong types that are repaired", "up__rows", {"rows": [{**row, "id": "7"} for row in rows]})
    yield call("rows as JSON text", "up__rows", {"rows": json.dumps(rows)})
    yield call("many unknown members", "up__closed", {f"key{n}": n for n in range(PARTS)})
    yield call("many misspelt members", "up__closed", {f"nmae{n}": n for n in range(PARTS)})
    yield call("rows that match no alternative", "up__alternatives", {"blocks": wrong})
    yield call("text against a pattern", "up__pattern", {"code": "a" * (REQUEST_BYTES - 500)})
    yield call("many texts against a pattern", "up__pattern", {"codes": ["aaaa-bbbb"] * PARTS})
    yield call("different items", "up__unique", {"items": [{"n": n} for n in range(PARTS // 2)]})
    yield call("arguments in a list", "up__any", rows)
    yield call("arguments as JSON text", "up__any", json.dumps({"value": rows}))
    yield call("invoke_tool", "invoke_tool", {"server": "up", "tool": "rows", "arguments": {"rows": rows}})
    yield call(
        "invoke_tool with JSON text",
        "invoke_tool",
        {"server": "up", "tool": "rows", "arguments": json.dumps({"rows": rows})},
    )
    yield call(
        "invoke_tool with wrong rows", "invoke_tool", {"server": "up", "tool": "rows", "arguments": {"rows": wrong}}
    )
    yield call("a name of 8 KiB", "up__" + "x" * 8_000, {})
    yield call("a name of megabytes", "x" * REQUEST_BYTES, {})
    yield call("a misspelt name among 2,000", "up__tool_1999_of_the_calender", {})
    yield call("search with a long query", "find_tools", {"query": "find the tools that create an event " * 100_000})
    yield call("search with many words", "find_tools", {"query": " ".join(f"word{n}" for n in range(900))})
    yield call("details of a server", "get_server_details", {"server": "up"})


def other_requests() -> Iterator[Case]:
    """Requests other than calls."""
    yield mcp("list: tools", "tools/list", {})
    yield mcp("list: a long cursor", "tools/list", {"cursor": "x" * REQUEST_BYTES})
    yield mcp("read: a URI of 8 KiB", "resources/read", {"uri": "file:///" + "%2e%2e/" * 1_100})
    yield mcp("read: a URI of megabytes", "resources/read", {"uri": "file:///" + "a/" * (REQUEST_BYTES // 2)})
    reference = {"type": "ref/resource", "uri": "file:///{path}" + "a" * 8_000}
    yield mcp(
        "complete: long values",
        "completion/complete",
        {"ref": reference, "argument": {"name": "path", "value": "a" * 8_000}},
    )
    yield mcp(
        "prompt: many arguments", "prompts/get", {"name": "up__p", "arguments": {f"a{n}": "x" for n in range(PARTS)}}
    )
    yield mcp("a method of megabytes", "tools/" + "x" * 8_000, {"name": "x" * REQUEST_BYTES})
    members = {f"key{n}": {} for n in range(PARTS)}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    hello = {
        "protocolVersion": "2025-11-25",
        "clientInfo": {"name": "c", "version": "1", **members},
        "capabilities": {},
    }
    yield raw("initialize: large client information", json.dumps({**body, "params": hello}).encode())
    hello = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "c", "version": "1"}, "capabilities": members}
    yield raw("initialize: many capabilities", json.dumps({**body, "params": hello}).encode())
    yield raw("not JSON: brackets", b"[" * REQUEST_BYTES)
    yield raw("not JSON: a long number", b'{"jsonrpc":"2.0","id":' + b"1" * REQUEST_BYTES + b"}")
    yield raw("a batch", b"[" + b",".join([b'{"jsonrpc":"2.0","method":"ping"}'] * 80_000) + b"]")
    yield raw("repeated members", b'{"jsonrpc":"2.0","id":1,' + b'"method":"tools/list",' * 150_000 + b'"params":{}}')
    yield mcp(
        "listen: many URIs",
        "subscriptions/listen",
        {"notifications": {"resourceSubscriptions": ["file:///" + "a" * 100] * 30_000}},
    )


def answers() -> Iterator[Case]:
    """Answers of the upstream, each prepared as a file."""
    for name in ANSWERS:
        yield call(f"answered with {name}", "up__answer", {"name": name})


def admin_requests() -> Iterator[Case]:
    """Requests of administrators."""
    for path in ("servers", "wrappers", "changes", "quarantine", "profiles", "audit", "activity", "openapi.json"):
        yield admin(path)
    yield admin("notes", {"tool": "up__any", "text": "x" * 900_000})


def text(value: str) -> dict[str, Any]:
    """Return a result with one text."""
    return {"content": [{"type": "text", "text": value}]}


ROWS: Final = [{"id": n, "name": f"row {n}", "tags": ["a"]} for n in range(PARTS // 4)]
WRONG: Final = [{**row, "id": "x"} for row in ROWS]
ANSWERS: Final[dict[str, Any]] = {
    "a long text": text("long text " * (ANSWER_BYTES // 10)),
    "text full of escapes": text("\u0001\\\"é" * (ANSWER_BYTES // 16)),
    "many texts": {"content": [{"type": "text", "text": f"line {n}"} for n in range(150_000)]},
    "a picture": {
        "content": [{"type": "image", "mimeType": "image/png", "data": "A" * (ANSWER_BYTES // 4 * 4)}],
    },
    "deep lists": {**text("deep"), "structuredContent": {"value": deep(150, ANSWER_BYTES - 10_000)}},
    "lists of ten levels": {**text("deep"), "structuredContent": {"rows": deep(10, 6_000_000)}},
    "rows": {**text("rows"), "structuredContent": {"rows": ROWS}},
    "rows that its schema forbids": {**text("rows"), "structuredContent": {"rows": WRONG}},
    "small objects": {**text("small"), "structuredContent": {"rows": [{}] * (ANSWER_BYTES // 4)}},
    "many links": {"content": [{"type": "resource_link", "uri": f"file:///{n}", "name": "n"} for n in range(100_000)]},
    "a long error": {"content": [{"type": "text", "text": "error " * (ANSWER_BYTES // 6)}], "isError": True},
    "large _meta": {**text("meta"), "_meta": {f"key{n}": n for n in range(400_000)}},
}  # fmt: skip


def tools() -> list[dict[str, Any]]:
    """Return the definitions of the program's tools."""

    def tool(name: str, /, **properties: Any) -> dict[str, Any]:
        return {"name": name, "description": f"{name}.", "inputSchema": {"type": "object", "properties": properties}}

    row = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "name": {"type": "string"}, "tags": {"type": "array"}},
        "required": ["id", "name"],
        "additionalProperties": False,
    }
    rows = {"type": "array", "items": row}
    kinds = [
        {
            "type": "object",
            "properties": {"kind": {"const": n}, f"text{n}": {"type": "string"}},
            "required": [f"text{n}"],
        }
        for n in range(60)
    ]
    closed = tool("closed", name={"type": "string"}, date={"type": "string"})
    closed["inputSchema"]["additionalProperties"] = False
    code = {"type": "string", "pattern": "^([a-z]{4})(-[a-z]{4})*$"}
    answer = tool("answer", name={"type": "string"})
    answer["outputSchema"] = {
        "type": "object",
        "properties": {"rows": {"type": "array", "items": {"type": "object", "properties": row["properties"]}}},
    }
    many = [tool(f"tool_{n}_of_the_calendar", event={"type": "string"}, date={"type": "string"}) for n in range(TOOLS)]
    return [
        tool("any", value={}), tool("rows", rows=rows), closed, answer,
        tool("alternatives", blocks={"type": "array", "items": {"anyOf": kinds}}),
        tool("pattern", code=code, codes={"type": "array", "items": code}),
        tool("unique", items={"type": "array", "uniqueItems": True}), *many,
    ]  # fmt: skip


def busy_ms(pid: int) -> tuple[float, float]:
    """Return the processor time so far: of the main thread, and of all threads."""
    times: dict[str, float] = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            times[thread.name] = int((thread / "schedstat").read_text(encoding="ascii").split()[0]) / 1e6
    return times[str(pid)], sum(times.values())


def measure(case: Case, port: int, pid: int) -> Cost:
    """Send one request."""
    loop_before, total_before = busy_ms(pid)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET" if case.body is None else "POST", case.path, case.body, case.headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    loop, total = busy_ms(pid)
    return Cost(case.name, loop - loop_before, total - total_before, response.status)


def run(gateway: RunningGateway, options: argparse.Namespace) -> list[Cost]:
    """Measure every case in each round, and return the least of each."""
    port, pid = int(gateway.origin.rpartition(":")[2]), gateway.process.pid
    cases = [case for cases in (calls, other_requests, answers, admin_requests) for case in cases()]
    cases = [case for case in cases if options.only in case.name]
    rounds = [[measure(case, port, pid) for case in cases] for _ in range(options.rounds)]
    best = [min(costs, key=lambda cost: cost.loop_ms) for costs in zip(*rounds, strict=True)]
    return sorted(best, key=lambda cost: -cost.loop_ms)


async def main() -> int:
    """Start the gateway, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "tools.json").write_text(json.dumps(tools()), encoding="utf-8")
        for name, result in ANSWERS.items():
            (place / f"{name}.json").write_text(json.dumps(result, separators=(",", ":")), encoding="utf-8")
        server = {"command": sys.executable, "args": [str(PROGRAM), folder]}
        rules = [{"name": f"rule {n}", "deny": [f"file:///secret{n}/*"]} for n in range(100)]
        settings = {"policy": {"rules": rules}}
        async with running_gateway(place, {"up": server}, gateway=settings, from_scratch=True) as gateway:
            await gateway.until_listed("up__any", within_s=60)
            costs = await asyncio.to_thread(run, gateway, options)
    print(f"{'event loop':>12}  {'total':>10}  status  case")
    for cost in costs if options.all else costs[:SHOWN]:
        print(f"{cost.loop_ms:9.1f} ms  {cost.total_ms:7.1f} ms  {cost.status}     {cost.name}")
    return int(options.strict and any(cost.loop_ms > MOST_MS for cost in costs))


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
