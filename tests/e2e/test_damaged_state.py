"""Untrusted state: disabled items stay disabled, or the gateway refuses to start."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.gateways import running_gateway, serving
from support.upstreams.running import builtin_tools, scripted_http_server


def as_root(change: Callable[[Path], None]) -> Callable[[Path], None]:
    def changed(path: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        change(path)

    return changed


def replaced(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


# Changes that a volume makes to a file. The file is still trusted, because no other user can have written it.
HARMLESS: dict[str, Callable[[Path], object]] = {
    "group": lambda path: path.chmod(0o660),
    "group reads": lambda path: path.chmod(0o640),
    "folder of everybody": lambda path: path.parent.chmod(0o777),
    "another group": as_root(lambda path: os.chown(path, -1, 2000)),
    "folder of another user": as_root(lambda path: os.chown(path.parent, 12_345, 2000)),
}
HARMFUL: dict[str, Callable[[Path], object]] = {
    "everybody reads": lambda path: path.chmod(0o644),
    "everybody writes": lambda path: path.chmod(0o666),
    "everybody does anything": lambda path: path.chmod(0o777),
    "another user": as_root(lambda path: os.chown(path, 12_345, -1)),
    "another user and group": as_root(lambda path: (os.chown(path, 12_345, 2000), path.chmod(0o660))[1]),
    "half": lambda path: path.write_text(path.read_text()[: len(path.read_text()) // 2]),
    "empty": replaced(""),
    "null": replaced("null"),
    "a list": replaced("[]"),
    "bytes": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "a link": linked,
    "a folder": made_a_folder,
}


@asynccontextmanager
async def changed_state(tmp_path: Path, change: Callable[[Path], object]) -> AsyncIterator[Path]:
    """Disable a tool, stop, and change the file that says so; yields the configuration."""
    async with scripted_http_server(tmp_path, "up", tools=builtin_tools("echo", "sleep")) as up:
        async with running_gateway(tmp_path, {"up": up.config}) as gateway:
            await gateway.until_listed("up__echo")
            assert (await gateway.admin("wrappers/up__echo/disable", "POST", {})).status_code == 200
        [path] = (gateway.state_dir / "overlays").iterdir()
        change(path)
        yield gateway.config


@pytest.mark.heavy
@pytest.mark.parametrize("kind", HARMLESS)
async def test_disabled_tool_stays_disabled_after_harmless_state_changes(tmp_path: Path, kind: str) -> None:
    async with changed_state(tmp_path, HARMLESS[kind]) as config, serving(config, tmp_path) as again:
        await again.until_listed("up__sleep")
        assert "up__echo" not in await again.tools()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", HARMFUL)
async def test_gateway_refuses_to_start_with_untrusted_state(tmp_path: Path, kind: str) -> None:
    async with changed_state(tmp_path, HARMFUL[kind]) as config:
        with pytest.raises(AssertionError, match="repair it, or remove it to serve without the changes of admin"):
            async with serving(config, tmp_path):
                pass
