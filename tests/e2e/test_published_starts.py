"""Published servers that are installed at start are all listed without extra options."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from differential.packages import SERVERS, PublishedServer
from support.clients import installed
from support.gateways import brief_pause, running_gateway

pytestmark = pytest.mark.heavy

# Small packages, so that the test takes minutes and not half an hour; each is a start of `npx` or `uvx` like any other.
_NPM = (
    *("context7", "filesystem", "thinking", "github", "memory", "everything", "maps", "tavily", "slack", "hello"),
    *("brave", "airtable", "perplexity", "open-meteo", "airbnb", "drawio", "chart"),
)
_PYPI = ("time", "git", "fetch")
# Twenty starts on two cores, with a cache that is empty; a busy machine takes twice as long.
_WITHIN_S = 600


def entry(server: PublishedServer, scratch: Path, shared: Path) -> dict[str, Any]:
    """Return what a host's file has for a server: its package is fetched when it starts."""
    place = scratch / server.alias
    place.mkdir()
    for name, text in server.files.items():
        (place / name).write_text(text)
    arguments = [one.replace("{scratch}", str(place)) for one in server.arguments]
    environment = {name: value.replace("{scratch}", str(place)) for name, value in server.environment.items()}
    if server.registry == "npm":
        npm = {"npm_config_cache": str(shared / "npm"), "PATH": path_of(installed.node22().parent)}
        return {"command": "npx", "args": ["-y", server.package, *arguments], "env": {**environment, **npm}}
    uv = {"UV_CACHE_DIR": str(shared / "uv"), "PATH": path_of(installed.venv("uv", ("uv==0.13.9",)).parent)}
    name = server.package.partition("==")[0]
    return {"command": "uvx", "args": ["--from", server.package, name, *arguments], "env": {**environment, **uv}}


def path_of(first: Path) -> str:
    return f"{first}{os.pathsep}{os.environ['PATH']}"


async def test_twenty_slow_published_servers_are_listed_without_an_option(tmp_path: Path) -> None:
    if shutil.which("npx") is None:
        installed.missing("there is no npx")
    by_alias = {server.alias: server for server in SERVERS}
    scratch, shared = tmp_path / "scratch", tmp_path / "shared"
    scratch.mkdir()
    servers = {
        alias: await anyio.to_thread.run_sync(entry, by_alias[alias], scratch, shared) for alias in (*_NPM, *_PYPI)
    }
    assert len(servers) == 20
    began_s = time.monotonic()
    listed: dict[str, float] = {}
    async with running_gateway(tmp_path, servers) as gateway:
        rows: list[dict[str, Any]] = []
        with anyio.move_on_after(_WITHIN_S):
            while len(listed) < len(servers):
                rows = (await gateway.admin("servers")).json()["servers"]
                for row in rows:
                    if row["tools"]:
                        listed.setdefault(row["name"], time.monotonic() - began_s)
                await brief_pause()
        for name, took_s in listed.items():
            print(f"{name}: {took_s:.0f} s")
        missing = {row["name"]: (row["state"], row["lastError"]) for row in rows if row["name"] not in listed}
        assert missing == {}
        # Started once each: none was ended because it took long.
        assert {row["name"]: row["epoch"] for row in rows} == dict.fromkeys(servers, 1)
        assert "not connected" not in gateway.logged()
        names = {name.partition("__")[0] for name in await gateway.tools()}
        assert names == set(servers)
    print(f"{len(listed)} servers were listed within {max(listed.values()):.0f} s")
