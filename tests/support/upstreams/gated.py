"""Servers that do not answer until a test lets them continue."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
from support.gateways import brief_pause

# A whole server in a few lines: what it does before it answers is the case.
SERVER = """
import json, os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
def note(word):
    with open(folder / "notes", "a") as file:
        file.write(word + "\\n")
def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.02)
note("started")
{before}
for line in sys.stdin:
    message = json.loads(line)
    method, answer = message.get("method"), {{"jsonrpc": "2.0", "id": message.get("id")}}
    if method == "initialize":
        note("asked")
        version, named = message["params"]["protocolVersion"], {{"name": "s", "version": "1"}}
        answer["result"] = {{"protocolVersion": version, "capabilities": {{"tools": {{}}}}, "serverInfo": named}}
    elif method == "tools/list":
        {listing}
        answer["result"] = {{"tools": [{{"name": "t", "inputSchema": {{"type": "object"}}}}]}}
    elif method == "tools/call":
        answer["result"] = {{"content": [{{"type": "text", "text": "done"}}]}}
    elif "id" in message:
        answer["error"] = {{"code": -32601, "message": "unknown method"}}
    else:
        continue
    print(json.dumps(answer), flush=True)
"""
TIDY = """
def tidy_up(*_):
    note("asked to end")
    time.sleep({seconds})
    note("tidied up")
    os._exit(0)
signal.signal(signal.SIGTERM, tidy_up)
"""


class Upstream:
    """A program with a separate folder for its notes and for the permission to continue."""

    def __init__(self, tmp_path: Path, name: str, before: str = "", listing: str = "pass", **entry: Any) -> None:
        self.name = name
        self.folder = tmp_path / f"upstream-{name}"
        self.folder.mkdir()
        program = self.folder / "server.py"
        program.write_text(SERVER.format(before=before, listing=listing))
        self.entry = {"command": sys.executable, "args": [str(program), str(self.folder)], **entry}

    def notes(self) -> list[str]:
        path = self.folder / "notes"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def go_on(self) -> None:
        (self.folder / "go").touch()

    async def until_noted(self, word: str, within_s: float = 20) -> None:
        with anyio.fail_after(within_s):
            while word not in self.notes():
                await brief_pause()


def entries(*upstreams: Upstream) -> dict[str, Any]:
    return {one.name: one.entry for one in upstreams}
