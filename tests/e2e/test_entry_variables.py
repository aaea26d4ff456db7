"""Variables in host files: an entry uses its own `env` first, in the notation of each host."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.gateways import serving
from support.upstreams.running import scripted_stdio_server, tool

Entry = dict[str, Any]
Form = Callable[[Entry, str, Path], Entry]


def with_args(entry: Entry, script: str, **more: Any) -> Entry:
    """Return the entry with another text for the path of its script."""
    args = list(entry["args"])
    args[args.index("--script") + 1] = script
    return {**entry, "args": args, **more}


def own(text: str, **env: Any) -> Form:
    """Return a form that writes `text` for the path; `@` in the variables stands for the path."""

    def form(entry: Entry, path: str, folder: Path) -> Entry:
        values = {name: value.replace("@", path) if isinstance(value, str) else value for name, value in env.items()}
        return with_args(entry, text, env=values)

    return form


def opencode(entry: Entry, path: str, folder: Path) -> Entry:
    command = [entry["command"], *with_args(entry, "{env:TG_SCRIPT}")["args"]]
    return {"type": "local", "command": command, "environment": {"TG_SCRIPT": path}}


def from_file(text: str) -> Form:
    def form(entry: Entry, path: str, folder: Path) -> Entry:
        (folder / "variables.env").write_text(text.replace("@", path))
        return with_args(entry, "${TG_SCRIPT}", envFile="${workspaceFolder}/variables.env")

    return form


def in_command(entry: Entry, path: str, folder: Path) -> Entry:
    return {**entry, "command": "${TG_PYTHON}", "env": {"TG_PYTHON": entry["command"]}}


def in_cwd(entry: Entry, path: str, folder: Path) -> Entry:
    return with_args(entry, Path(path).name, cwd="${TG_FOLDER}", env={"TG_FOLDER": str(folder)})


def in_workspace(entry: Entry, path: str, folder: Path) -> Entry:
    return with_args(entry, f"${{workspaceFolder}}/{Path(path).name}")


FORMS: dict[str, tuple[str, str, Form]] = {
    "braces": (".mcp.json", "mcpServers", own("${TG_SCRIPT}", TG_SCRIPT="@")),
    "default": (".mcp.json", "mcpServers", own("${TG_SCRIPT:-/nowhere}", TG_SCRIPT="@")),
    "default alone": (".mcp.json", "mcpServers", lambda entry, path, _: with_args(entry, f"${{TG_NONE:-{path}}}")),
    "chain": (".mcp.json", "mcpServers", own("${TG_A}", TG_A="${TG_B}", TG_B="@")),
    "part": (".mcp.json", "mcpServers", own("${TG_START}.script.json")),
    "over the environment": (".mcp.json", "mcpServers", own("${TG_OUTER}", TG_OUTER="@")),
    "the environment": (".mcp.json", "mcpServers", own("${TG_PATH}")),
    "its own name": (".mcp.json", "mcpServers", own("${TG_PATH}", TG_PATH="${TG_PATH}")),
    "cursor": (".cursor/mcp.json", "mcpServers", own("${env:TG_SCRIPT}", TG_SCRIPT="@")),
    "vscode": (".vscode/mcp.json", "servers", own("${env:TG_SCRIPT}", TG_SCRIPT="@")),
    "vscode file": (".vscode/mcp.json", "servers", from_file("# variables\nTG_SCRIPT=@\n")),
    "vscode quoted file": (".vscode/mcp.json", "servers", from_file('\ufeffexport TG_SCRIPT="@" # path\r\n')),
    "gemini": (".gemini/settings.json", "mcpServers", own("$TG_SCRIPT", TG_SCRIPT="@")),
    "gemini braces": (".gemini/settings.json", "mcpServers", own("${TG_SCRIPT}", TG_SCRIPT="@")),
    "opencode": ("opencode.json", "mcpServers", opencode),
    "command": (".mcp.json", "mcpServers", in_command),
    "folder": (".mcp.json", "mcpServers", in_cwd),
    "workspace": (".vscode/mcp.json", "servers", in_workspace),
}  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("kind", FORMS)
async def test_server_starts_with_the_variables_of_its_entry(tmp_path: Path, kind: str) -> None:
    name, key, form = FORMS[kind]
    entry, record = scripted_stdio_server(tmp_path, "up", tools=[tool("t")])
    path = str(tmp_path / "up.script.json")
    changed = form(entry, path, tmp_path)
    if kind == "part":
        changed["env"] = {"TG_START": path.removesuffix(".script.json")}
    config = tmp_path / name
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps({key: {"up": changed}}))
    environment = {"TG_OUTER": "/nowhere", "TG_PATH": path}
    async with serving(config, tmp_path, environment=environment) as gateway:
        await gateway.until_listed("up__t")
        assert "isError" not in await gateway.call("up__t")
    assert len(record.calls()) == 1
