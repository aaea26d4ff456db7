"""Starts the whole server of `full.py`: a configuration for a gateway or a host, and its record."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.upstreams.running import Recording, kill_and_wait, listening

_PROGRAM = Path(__file__).parent / "full_serve.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class FullServer:
    """One whole server: its name, its era, how to reach it and what it was asked."""

    name: str
    modern: bool
    config: dict[str, Any]
    recording: Recording

    @property
    def over_http(self) -> bool:
        """Return whether the server is reached over HTTP."""
        return "url" in self.config

    @property
    def asking(self) -> bool:
        """Return whether the server may ask the user, through a connection for each downstream session."""
        return bool(self.config.get("elicitation"))


def _arguments(name: str, modern: bool, recording: Recording, options: tuple[str, ...]) -> list[str]:
    era = "modern" if modern else "handshake"
    # Without site-packages and the environment, the program starts faster and cannot use an SDK.
    return ["-S", "-E", str(_PROGRAM), "--era", era, "--name", name, "--record", str(recording.path), *options]


def full_stdio(tmp_path: Path, name: str, *options: str, modern: bool, **entry: Any) -> FullServer:
    """Return a complete server over stdio; `entry` is added to its configuration."""
    recording = Recording(tmp_path / f"{name}.record.jsonl")
    config = {"command": sys.executable, "args": _arguments(name, modern, recording, options), **entry}
    return FullServer(name=name, modern=modern, config=config, recording=recording)


@asynccontextmanager
async def full_http(tmp_path: Path, name: str, *options: str, modern: bool, **entry: Any) -> AsyncIterator[FullServer]:
    """Run a complete server over HTTP until the block ends; `entry` is added to its configuration."""
    recording = Recording(tmp_path / f"{name}.record.jsonl")
    program = [sys.executable, *_arguments(name, modern, recording, (*options, "--port", "0"))]
    process, port = await listening(program)
    try:
        config = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp", **entry}
        yield FullServer(name=name, modern=modern, config=config, recording=recording)
    finally:
        await kill_and_wait(process)
