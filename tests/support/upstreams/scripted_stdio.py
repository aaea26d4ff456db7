"""A scripted upstream over stdio: `python scripted_stdio.py --script FILE.json --record FILE.jsonl`.

SIGUSR1 makes it read the script file again and announce the tools found there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from typing import Any

from scripted import Record, Upstream, Wreck, acknowledged, notification, subscribed

BANNER = b'\x1b[32mscripted upstream 1.0\x1b[0m listening on stdio...\n\n{not json}\n[1, 2]\n"text"\n'


cut: list[bytes] = []  # the rest of a line that was cut


def put(data: bytes) -> None:
    """Write the data to stdout, or exit if the reader has gone."""
    view = memoryview(b"".join(cut) + data)
    cut.clear()
    try:
        while view:
            view = view[os.write(1, view) :]
    except BlockingIOError:
        os.set_blocking(1, True)
        put(bytes(view))
    except BrokenPipeError:
        os._exit(0)


def line(message: dict[str, Any]) -> bytes:
    """Return a message as one line."""
    return json.dumps(message, ensure_ascii=False).encode() + b"\n"


def commit(wreck: Wreck) -> None:
    """Spoil an answer the way the script asks for."""
    whole, given = line(wreck.message), wreck.given
    match wreck.kind:
        case "raw":
            put(str(given.get("line", "")).encode() + b"\n")
        case "wrong_ids":
            for unknown in (987_654, "nobody", None, [1]):
                put(line({**wreck.message, "id": unknown}))
            put(whole * 2 if given.get("right", True) else b"")
        case "half_line":
            put(whole[: len(whole) // 2])
            cut.append(b"" if given.get("glue") else b"\n")
        case "invalid_utf8":
            put(b'{"jsonrpc": "2.0", "method": "\xff\xfe\xc3"}\n' + whole)
        case "garbage":
            put(BANNER + whole)
        case "endless_line":
            left = given.get("bytes", 64 * 2**20)
            while left > 0:
                put(b"x" * min(left, 2**20))
                left -= 2**20
            put(b"\n" + whole)
        case _:
            put(whole)


async def serve(script_path: str, record: Record) -> None:
    """Answer lines until stdin ends."""
    listening: dict[Any, bool] = {}  # the ids of subscriptions/listen requests
    calls: dict[Any, asyncio.Task[None]] = {}
    handshaken = False

    async def emit(message: dict[str, Any]) -> None:
        put(line(message))
        await asyncio.sleep(0)

    async def broadcast(method: str) -> None:
        for listen_id in listening:
            put(line(subscribed(method, listen_id)))
        if handshaken:
            put(line(notification(method)))

    script = read(script_path)
    upstream = Upstream(script=script, record=record, broadcast=broadcast)
    faults = upstream.faults
    flood = faults.get("stderr_flood", 0)
    for _ in range(0, flood, 4096):
        os.write(2, b"e" * 4095 + b"\n")
    if faults.get("garbage_at_start"):
        put(BANNER)

    async def handle(message: dict[str, Any]) -> None:
        try:
            answer = await upstream.answer(message, emit)
        except asyncio.CancelledError:
            return
        if isinstance(answer, Wreck):
            commit(answer)
        elif answer is not None:
            put((BANNER if faults.get("garbage_at_start") else b"") + line(answer))

    async def reread() -> None:
        await upstream.retool(read(script_path).get("tools", []))

    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**28)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with asyncio.TaskGroup() as tasks:
        loop.add_signal_handler(signal.SIGUSR1, lambda: tasks.create_task(reread()))
        while received := await reader.readline():
            try:
                message = json.loads(received)
            except ValueError:
                record.write("unreadable", line=received[:1000].decode(errors="replace"))
                continue
            if not isinstance(message, dict):
                record.write("unreadable", line=received[:1000].decode(errors="replace"))
                continue
            method, params = message.get("method"), message.get("params") or {}
            if method == "notifications/initialized":
                handshaken = True
            if method == "notifications/cancelled":
                cancelled = params.get("requestId")
                record.write("cancelled", cancelled=cancelled, reason=params.get("reason"))
                listening.pop(cancelled, None)
                if cancelled in calls:
                    calls.pop(cancelled).cancel()
            if method == "subscriptions/listen" and script.get("modern"):
                record.write("request", id=message["id"], method=method, params=params)
                listening[message["id"]] = True
                upstream.opening()
                put(line(acknowledged(message)))
                continue
            task = tasks.create_task(handle(message))
            if method == "tools/call" and "id" in message:
                calls[message["id"]] = task
                task.add_done_callback(lambda _, key=message["id"]: calls.pop(key, None))
        record.write("eof")
        if faults.get("ignore_eof"):
            await asyncio.Event().wait()
        os._exit(0)


def read(path: str) -> dict[str, Any]:
    """Read the script file."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main() -> None:
    """Run until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--script", required=True)
    parser.add_argument("--record", required=True)
    options = parser.parse_args()
    if read(options.script).get("faults", {}).get("ignore_eof"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    asyncio.run(serve(options.script, Record(options.record)))


if __name__ == "__main__":
    main()
