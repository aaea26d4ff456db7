"""Every method of the audit log records its event with the members that administrators filter by."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.access.principal import Principal
from gateway.audit.audit_entries import UNREACHED, session_mark
from gateway.audit.recording import Audit
from gateway.calls.caller import Caller
from gateway.calls.profile_views import ProfileViews
from gateway.config.active_config import ConfigChange
from gateway.config.load import parse
from gateway.config.operation_config import AuditConfig
from gateway.telemetry.tracing import UnrecordedSpan
from registry.catalog.registry import Registry
from registry.catalog.shape import Shape

NOW_S = 1_800_000_000.0
ANN = {
    "principal": "ann", "profile": "default", "era": "2025-11-25", "transport": "http", "peer": "10.0.0.1:9",
    "session": session_mark("a session"), "client": "a-host",
}  # fmt: skip


def ann(peer: str = "10.0.0.1:9") -> Caller:
    return Caller(
        principal=Principal(name="ann"),
        view=ProfileViews(Registry(Shape()), {}).view(),
        version="2025-11-25",
        session_id="a session",
        client_info={"name": "a-host"},
        peer=peer,
    )


@dataclass(frozen=True)
class Echo:
    """The called tool."""

    name: str = "up__echo"
    server: str = "up"
    tool: str = "echo"


@dataclass(frozen=True)
class Given:
    """A decision for a session."""

    by: str = "host"
    lasts: str = "session"


Record = Callable[[Audit], object]

EVENTS: dict[str, tuple[Record, dict[str, Any]]] = {
    "call": (
        lambda audit: audit.call(ann(), Echo(), "invoke_tool", UNREACHED.answered({}), 0.5),
        {"event": "call", **ANN, "wrapper": "up__echo", "server": "up", "tool": "echo", "via": "invoke_tool",
         "outcome": {"transport": "ok", "jsonrpc": "ok", "tool": "ok"}, "ms": 500.0},
    ),
    "call of an own tool": (
        lambda audit: audit.call(ann("stdio"), None, "wrapper", UNREACHED, 0.5, name="find_tools"),
        {"event": "call", **ANN, "transport": "stdio", "peer": "stdio", "name": "find_tools", "via": "wrapper",
         "outcome": {"transport": None, "jsonrpc": None, "tool": None}, "ms": 500.0},
    ),
    "request": (
        lambda audit: audit.request(ann(), "prompts/get", "p", 0.012_345_6, reached=("up", "its p")),
        {"event": "request", **ANN, "method": "prompts/get", "name": "p", "server": "up", "original": "its p",
         "outcome": {"jsonrpc": "ok"}, "ms": 12.35},
    ),
    "failed request": (
        lambda audit: audit.request(ann("stdio"), "prompts/get", "p", 2, code=0),
        {"event": "request", **ANN, "transport": "stdio", "peer": "stdio", "method": "prompts/get", "name": "p",
         "outcome": {"jsonrpc": 0}, "ms": 2000},
    ),
    "refused": (
        lambda audit: audit.refused(ann(), "tools/call", "t", rule="r", reason="policy", server="up"),
        {"event": "refused", **ANN, "method": "tools/call", "name": "t", "rule": "r", "reason": "policy",
         "server": "up"},
    ),
    "refused, unknown": (
        lambda audit: audit.refused(ann(), "tools/call", "t", reason="unknown_tool"),
        {"event": "refused", **ANN, "method": "tools/call", "name": "t", "rule": None, "reason": "unknown_tool"},
    ),
    "flow": (
        lambda audit: audit.flow(ann(), "a", "b", argument="/x", size=0),
        {"event": "flow", **ANN, "from": "a", "to": "b", "argument": "/x", "bytes": 0, "allowed": True},
    ),
    "refused flow": (
        lambda audit: audit.flow(ann(), "a", "b", argument="/x", size=None),
        {"event": "flow", **ANN, "from": "a", "to": "b", "argument": "/x", "bytes": None, "allowed": False},
    ),
    "credentials_refused": (
        lambda audit: audit.credentials_refused("/mcp", "10.0.0.1:9", "expired", principal="ann"),
        {"event": "credentials_refused", "where": "/mcp", "peer": "10.0.0.1:9", "principal": "ann",
         "reason": "expired"},
    ),
    "changed": (
        lambda audit: audit.changed("POST /admin/servers", "up", status=201, peer="10.0.0.1:9", by="admin"),
        {"event": "changed", "action": "POST /admin/servers", "target": "up", "status": 201, "peer": "10.0.0.1:9",
         "by": "admin"},
    ),
    "changed, without an administrator": (
        lambda audit: audit.changed("reload"),
        {"event": "changed", "action": "reload", "target": None, "status": None, "peer": None},
    ),
    "sign_in": (
        lambda audit: audit.signed_in("up", "ann"),
        {"event": "sign_in", "server": "up", "principal": "ann", "action": "sign_in", "reason": None},
    ),
    "failed refresh": (
        lambda audit: audit.signed_in("up", None, "refresh", "x" * 201),
        {"event": "sign_in", "server": "up", "principal": None, "action": "refresh", "reason": "x" * 199 + "…"},
    ),
    "approval": (
        lambda audit: audit.approval("ann", "w", "allowed", rule="r", approval="7", approval_given=Given()),
        {"event": "approval", "principal": "ann", "wrapper": "w", "decision": "allowed", "rule": "r", "by": "host",
         "approval": "7", "for": "session"},
    ),
    "process": (
        lambda audit: audit.process("started", version="1", tools=3),
        {"event": "started", "version": "1", "tools": 3},
    ),
}  # fmt: skip


async def recorded(audit: Audit, state: Path) -> list[dict[str, Any]]:
    """Return the entries without the members that every line has."""
    await audit.flush()
    path = state / "audit.jsonl"
    rows = [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    for row in rows:
        assert row.pop("time") == "2027-01-15T08:00:00.000Z"
        del row["seq"], row["prev"]
    return rows


def audit_log(state: Path, *, is_on: bool = True, **options: Any) -> Audit:
    return Audit(AuditConfig(enabled=is_on), state, clock=lambda: NOW_S, **options)


@pytest.mark.parametrize("event", EVENTS)
async def test_event_is_recorded_with_its_members(event: str, tmp_path: Path) -> None:
    record, members = EVENTS[event]
    audit = audit_log(tmp_path)
    record(audit)
    [row] = await recorded(audit, tmp_path)
    assert row == members


@pytest.mark.parametrize("event", EVENTS)
async def test_nothing_is_recorded_when_the_log_is_off(event: str, tmp_path: Path) -> None:
    for audit in (audit_log(tmp_path, is_on=False), Audit(AuditConfig(), None)):
        EVENTS[event][0](audit)
        assert await recorded(audit, tmp_path) == []
        assert audit.lost == 0
    assert os.listdir(tmp_path) == []


async def test_trace_of_an_unrecorded_span_is_not_stated(tmp_path: Path) -> None:
    audit = audit_log(tmp_path)
    with UnrecordedSpan("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", {}):
        audit.call(ann(), Echo(), "wrapper", UNREACHED, 0.5)
    [row] = await recorded(audit, tmp_path)
    assert "trace" not in row


async def test_names_are_cut_at_200_characters(tmp_path: Path) -> None:
    audit = audit_log(tmp_path)
    for name in ("x" * 200, "x" * 201, ["x" * 300], 7):
        audit.refused(ann(), "tools/call", name)
    names = [row["name"] for row in await recorded(audit, tmp_path)]
    assert names == ["x" * 200, "x" * 199 + "…", "['" + "x" * 198, "7"]


async def test_entries_of_one_source_are_limited_per_minute(tmp_path: Path) -> None:
    now_s = NOW_S
    audit = Audit(AuditConfig(), tmp_path, clock=lambda: now_s)
    for _ in range(301):
        audit.request(ann(), "prompts/get", "p", 0.0, code=-1)
    for _ in range(11):
        audit.credentials_refused("/mcp", "a socket", "missing")
    assert len(audit._waiting) == 300 + 10
    now_s += 60
    audit.request(ann(), "prompts/get", "p", 0.0, code=-1)
    audit.credentials_refused("/mcp", "a socket", "missing")
    await audit.flush()
    lines = (tmp_path / "audit.jsonl").read_bytes().splitlines()
    assert [json.loads(line).get("more") for line in lines[-3:]] == [None, 1, 1]


@pytest.mark.parametrize(
    ("is_reload", "options", "path", "wanted"),
    [
        (True, {}, Path("gateway.yaml"), ["gateway.yaml"]),
        (True, {}, None, [None]),
        (False, {}, None, []),
        (True, {"records_reloads": False}, None, []),
    ],
    ids=["of a file", "without a file", "by an administrator", "recorded by another process"],
)
async def test_reload_is_recorded_before_it_turns_the_log_off(
    is_reload: bool, options: dict[str, Any], path: Path | None, wanted: list[str | None], tmp_path: Path
) -> None:
    audit = audit_log(tmp_path, **options)
    before = parse('{"mcpServers": {}}')
    after = parse('{"mcpServers": {}, "gateway": {"audit": false}}', path=path)
    apply = await audit.validate(ConfigChange(before=before, after=after, is_reload=is_reload))
    assert audit.on
    apply()
    assert not audit.on
    assert [row["target"] for row in await recorded(audit, tmp_path) if row["action"] == "reload"] == wanted
