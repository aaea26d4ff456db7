"""The number of files and folders that a call and a list pass through."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread
import pytest
from support.gateways import RunningGateway, running_gateway
from support.upstreams.full_running import full_http


class Bounds(NamedTuple):
    """How much one request may run through. Folder changes are counted in the order in which the files first appear."""

    files: int
    folders: int
    folder_changes: int
    files_of_a_list: int


MOST = Bounds(files=30, folders=10, folder_changes=20, files_of_a_list=16)
ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/support/tracing_program.py"


async def traced(gateway: RunningGateway, fifo: Path, method: str, params: dict[str, object]) -> list[str]:
    """Send one request while its gateway records the functions that run; return their files, in order."""
    for _ in range(3):  # caches are warm, connections open
        await gateway.rpc(method, params)
    recordings: list[list[str]] = []
    for _ in range(8):
        assert await signalled(gateway, fifo) == ""
        await gateway.rpc(method, params)
        recordings.append(json.loads(await signalled(gateway, fifo)))
    # Tasks in the background also run at times. Only files that are in every recording belong to the request.
    in_all = set.intersection(*map(set, recordings))
    return [file for file in min(recordings, key=len) if file in in_all]


async def signalled(gateway: RunningGateway, fifo: Path) -> str:
    """Send SIGUSR2 to the gateway, and return what the recorder answers."""
    os.kill(gateway.process.pid, signal.SIGUSR2)
    with anyio.fail_after(30):
        return await anyio.to_thread.run_sync(fifo.read_text, abandon_on_cancel=True)


@pytest.mark.skipif(sys.gettrace() is not None, reason="another tool traces this process")
async def test_call_and_list_pass_through_few_files_and_folders(tmp_path: Path) -> None:
    fifo = tmp_path / "calls"
    os.mkfifo(fifo)
    tracer = (sys.executable, str(PROGRAM), str(fifo))
    async with (
        full_http(tmp_path, "up", modern=True) as upstream,
        running_gateway(tmp_path, {"up": upstream.config}, through=tracer) as gateway,
    ):
        await gateway.until_listed("up__echo", within_s=30)
        call = await traced(gateway, fifo, "tools/call", {"name": "up__echo", "arguments": {"text": "hello"}})
        listed = await traced(gateway, fifo, "tools/list", {})
    folders = [str(Path(file).parent) for file in dict.fromkeys(call)]
    changes = sum(before != after for before, after in pairwise(folders))
    print(*dict.fromkeys(call), sep="\n")
    assert len(set(call)) <= MOST.files
    assert len(set(folders)) <= MOST.folders
    assert changes <= MOST.folder_changes
    assert len(set(listed)) <= MOST.files_of_a_list
    page = (ROOT / "deploy/guide/life-of-a-request.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^\| `([\w/]+\.py)` \|", page, re.MULTILINE)} == set(call)
    # No request passes through the composition root.
    assert not {file for file in (*call, *listed) if file.startswith("gateway/serving/")}
