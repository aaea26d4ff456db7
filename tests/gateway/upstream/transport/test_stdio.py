"""Children that start during shutdown."""

from __future__ import annotations

import json
import os
from pathlib import Path

from anyio.lowlevel import checkpoint
from support.upstreams.running import builtin_tools, scripted_stdio_server

from gateway.config.load import parse
from gateway.serving.app import open_gateway


def children() -> set[str]:
    """Return the child processes of this process that were not waited for."""
    ours = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if words[1] == str(os.getpid()):
            ours.add(stat.parent.name)
    return ours


async def test_child_started_during_shutdown_is_terminated_and_reaped(tmp_path: Path) -> None:
    config, _ = scripted_stdio_server(tmp_path, "s", tools=builtin_tools("echo"), modern=False)
    parsed = parse(json.dumps({"mcpServers": {"s": config}}), environ={})
    before = children()
    for steps in range(12):
        async with open_gateway(parsed, state_dir=None):
            for _ in range(steps):
                await checkpoint()
        assert children() <= before, f"after {steps} steps"
