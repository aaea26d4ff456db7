"""Concurrent reloads are applied one after another."""

from __future__ import annotations

import ast
import asyncio
import gc
import importlib
import inspect
import json
import os
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from pkgutil import walk_packages
from types import CoroutineType, FrameType, FunctionType, ModuleType
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from pydantic import BaseModel

import gateway
from gateway.access.credentials import Credentials
from gateway.access.quotas import Quotas
from gateway.calls.approval_store import ApprovalStore
from gateway.calls.builtin_tools import SearchTools
from gateway.calls.item_requests import PromptsAndResources
from gateway.calls.profile_views import ProfileViews
from gateway.calls.result_parts import StoredValues
from gateway.calls.result_store import ResultStore
from gateway.config.active_config import ActiveConfig, Reconfigurable
from gateway.config.load import load, parse
from gateway.config.model import Config
from gateway.fleet.fleet import Fleet
from gateway.fleet.reload import Reloader
from gateway.serving import app
from gateway.serving.app import open_gateway
from gateway.serving.over_http import ServedHosts
from gateway.telemetry.tracing import Tracing


def document(alias: str) -> str:
    return json.dumps({"mcpServers": {alias: {"command": "true"}}})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a pipe with a name is what is read slowly")
async def test_slow_earlier_reload_is_not_applied_after_a_later_one(tmp_path: Path) -> None:
    path, pipe, newest = (tmp_path / name for name in ("typegate.json", "pipe", "newest.json"))
    path.write_text(document("first"))
    newest.write_text(document("newest"))
    active = ActiveConfig(load(path))
    reloader = Reloader(active, check=lambda config: None)
    path.unlink()
    os.mkfifo(path)
    os.link(path, pipe)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(reloader.reload, path)
            # Once the first one reads.
            stream = await anyio.to_thread.run_sync(partial(pipe.open, "w"))
            newest.replace(path)
            group.start_soon(reloader.reload, path)
            await anyio.wait_all_tasks_blocked()
            with stream:
                stream.write(document("older"))
    assert (reloader.error, reloader.count) == (None, 2)
    assert list(active.current.servers) == ["newest"]


# Each section of `gateway` that a part copies from, except hooks: an unchanged hook stays, with its section.
SETTINGS: dict[str, Any] = {
    "names": {"maxLength": 40},
    "auth": {"apiKeys": [{"name": "ci", "key": "k" * 40}]},
    "policy": {"rules": [{"name": "none", "deny": ["*"]}]},
    "profiles": {"dev": {"servers": ["first"]}},
    "quotas": {"default": {"callsPerMinute": 10}},
    "audit": {"enabled": True},
    "approvals": {"timeout": 60},
    "search": {"synonyms": {"mail": ["message"]}},
    "lock": {"policy": "warn"},
    "extensions": {"com.example/notes": {"methods": {"notes/open": {"owner": "uri"}}}},
    "telemetry": {"endpoint": "http://127.0.0.1:9", "metrics": False},
}
# Constructors in the composition root that receive a part of the configuration, and the part that reconfigures the
# object. `ActiveConfig` and the paths of state files are not parts.
RECONFIGURED_BY = {
    "ActiveConfig": ActiveConfig,
    "ApiKeys": Credentials,
    "Tokens": Credentials,
    "Fleet": Fleet,
    "ListingLock": Fleet,
    "Shape": Fleet,
    "ProfileViews": ProfileViews,
    "profiles_of": ProfileViews,
    "policy_of": ProfileViews,
    "ApprovalStore": ApprovalStore,
    "SearchTools": SearchTools,
    "ToolVectors": SearchTools,
    "extensions_of": PromptsAndResources,
    "Quotas": Quotas,
    "ResultStore": ResultStore,
    "StoredValues": StoredValues,
    "Tracing": Tracing,
    "resolve_telemetry": Tracing,
}


def configured(settings: dict[str, Any]) -> Config:
    return parse(json.dumps({"mcpServers": {"first": {"command": "true", "disabled": True}}, "gateway": settings}))


def sections_of(section: BaseModel) -> Iterator[BaseModel]:
    yield section
    for name in type(section).model_fields:
        value = getattr(section, name)
        values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        for each in values:
            if isinstance(each, BaseModel):
                yield from sections_of(each)


async def test_every_reconfigurable_part_is_registered_and_drops_old_settings(
    tmp_path: Path,
) -> None:
    for module in walk_packages(gateway.__path__, "gateway."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    async with open_gateway(configured(SETTINGS), state_dir=tmp_path) as running:
        running.active.add(ServedHosts(running.config, "127.0.0.1"))  # as `serve` does
        parts = {type(part) for part in running.active.parts}
        assert set(Reconfigurable.__subclasses__()) == parts
        earlier = {id(section): section for section in sections_of(running.config.gateway)}
        await running.active.change(configured(SETTINGS))
        held = [object_id for part in running.active.parts for object_id in reachable(part, earlier.keys())]
        assert [repr(earlier[object_id]) for object_id in held] == []


CODE = (type, ModuleType, FrameType, CoroutineType, asyncio.AbstractEventLoop)


def reachable(part: object, wanted: Collection[int]) -> set[int]:
    """Return the ids of the wanted objects that a part refers to, other than through code and running tasks."""
    seen: set[int] = set()
    pending = [part]
    while pending:
        each = pending.pop()
        if id(each) in seen or isinstance(
            each, type | ModuleType | FrameType | CoroutineType | asyncio.AbstractEventLoop
        ):
            continue
        seen.add(id(each))
        pending += (each.__closure__ or ()) if isinstance(each, FunctionType) else gc.get_referents(each)
    return seen.intersection(wanted)


def test_every_value_derived_from_the_configuration_is_reconfigured() -> None:
    tree = ast.parse(inspect.getsource(app))
    (constructor,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    derived = {"config"}
    for node in ast.walk(constructor):
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call) and derived & _names(node.value):
            derived = derived.union(*map(_names, node.targets))
    for call in (node for node in ast.walk(constructor) if isinstance(node, ast.Call)):
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(_reads(value, derived - {"self"}) for value in given):
            name = ast.unparse(call.func)
            assert name in RECONFIGURED_BY, f"{name} receives a part of the configuration, but nothing reconfigures it"
    assert {*RECONFIGURED_BY.values()} - {ActiveConfig} <= {*Reconfigurable.__subclasses__()}


def _names(value: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}


def _reads(value: ast.expr, names: set[str]) -> bool:
    """Return whether an expression reads one of these variables, other than in a call."""
    if isinstance(value, ast.Call):
        return False
    if isinstance(value, ast.Name):
        return value.id in names
    return any(_reads(child, names) for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr))
