"""Counters, clusters of failures and repairs: what is flagged, what is forgotten, and what is bounded."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from gateway.access.principal import LOCAL, Principal
from gateway.admin.metrics import families_of_calls
from gateway.calls.call_stats import FLAG_FAILURES, MAX_COUNTED_TOOLS, WINDOW_S, CallStats, Failure
from gateway.calls.caller import Caller
from gateway.protocol.gateway_errors import (
    RpcError,
    UpstreamError,
    UpstreamLost,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.telemetry.trace_context import MAX_NAMED_TOOLS, OTHER
from registry.arguments.coercion import Repair
from registry.arguments.diagnosis import ArgumentProblem
from registry.catalog.catalog import ToolWrapper
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName, ToolName
from registry.catalog.registry import build_catalog
from registry.catalog.shape import Shape
from registry.views.profile import Profile
from registry.views.view import build_view

TOOL = {"name": "send", "description": "Sends.", "inputSchema": {"type": "object"}}
LISTING = ServerListing(server=ServerName("up"), epoch=1, tools=(TOOL,))
CATALOG = build_catalog({LISTING.server: LISTING}, Shape(), version=1)
VIEW = build_view(CATALOG, Shape(), Profile())
LOST = Failure(kind="lost")


class Clock:
    """Stands until it is set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def wrapper() -> ToolWrapper:
    return CATALOG.wrappers[0]


def caller(session: str | None = None, **more: Any) -> Caller:
    return Caller(principal=LOCAL, view=VIEW, session_id=session, **more)


def flags(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.message.startswith("calls keep failing") for record in caplog.records)


def test_third_failure_with_a_second_session_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    stats = CallStats(clock=Clock())
    with caplog.at_level(logging.WARNING):
        for session in ("a", "a", "b", "b", "c"):
            stats.record_failure(wrapper(), LOST, caller(session))
    assert flags(caplog) == 1
    [row] = stats.failure_rows()
    assert (row["recent"], row["sessions"], row["flagged"], row["tool"]) == (5, 3, True, "send")


def test_failures_of_a_single_session_are_not_flagged(caplog: pytest.LogCaptureFixture) -> None:
    stats = CallStats(clock=Clock())
    for _ in range(3 * FLAG_FAILURES):
        stats.record_failure(wrapper(), LOST, caller("a"))
    assert flags(caplog) == 0
    assert stats.failure_rows()[0]["flagged"] is False


def test_callers_without_sessions_are_distinguished_by_principal_and_address() -> None:
    stats = CallStats(clock=Clock())
    for peer in ("10.0.0.1", "10.0.0.2"):
        stats.record_failure(wrapper(), LOST, caller(peer=peer))
    stats.record_failure(wrapper(), LOST, structs.replace(caller(peer="10.0.0.1"), principal=Principal(name="ann")))
    assert stats.failure_rows()[0]["sessions"] == 3


def test_failures_of_different_kinds_are_not_summed(caplog: pytest.LogCaptureFixture) -> None:
    stats = CallStats(clock=Clock())
    for number, kind in enumerate(("lost", "timeout", "unavailable")):
        stats.record_failure(wrapper(), Failure(kind=kind), caller(str(number)))
    assert flags(caplog) == 0
    assert len(stats.failure_rows()) == 3


def test_failures_expire_after_a_day_and_may_be_flagged_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    stats = CallStats(clock=clock)
    for day in range(2):
        clock.now_s = day * (WINDOW_S + 1)
        assert stats.failure_rows() == []
        for session in ("a", "b", "c"):
            stats.record_failure(wrapper(), LOST, caller(session))
    assert flags(caplog) == 2
    assert (stats.failure_rows()[0]["recent"], stats.failure_rows()[0]["total"]) == (3, 6)


def test_failures_are_sent_to_the_process_that_keeps_the_clusters() -> None:
    there = CallStats(clock=Clock())
    here = CallStats(clock=Clock(), on_failure=there.add_failure)
    here.record_failure(wrapper(), LOST, caller("a"))
    assert here.failure_rows() == []
    assert len(there.failure_rows()) == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UpstreamUnavailable, "unavailable"),
        (UpstreamTimeout, "timeout"),
        (UpstreamLost, "lost"),
        (UpstreamProtocolError, "malformed_answer"),
        (UpstreamError, "refused_input"),
    ],
)
def test_upstream_failure_is_counted_by_kind(error: type[UpstreamError], kind: str) -> None:
    assert Failure.from_error(error("up", "text")) == Failure(kind=kind)


def test_wrong_argument_is_counted_by_name_and_never_by_value() -> None:
    problem = ArgumentProblem(path=("to", 0), kind="type", message="'s3cr3t' is no number")
    failure = Failure.from_problem(problem)
    assert failure.kind == "argument_type"
    assert "to" in failure.detail
    assert "s3cr3t" not in str(failure)


def test_error_result_counts_as_failure_and_any_other_as_success() -> None:
    succeeded: list[str] = []
    stats = CallStats(on_success=lambda tool: succeeded.append(tool.name), clock=Clock())
    stats.record_result(wrapper(), {"content": [], "isError": True}, caller())
    assert (succeeded, stats.failure_rows()[0]["kind"]) == ([], "error_result")
    stats.record_result(wrapper(), {"content": []}, caller())
    assert succeeded == ["up__send"]


def test_calls_and_durations_are_summed_by_tool_route_and_outcome() -> None:
    stats = CallStats(clock=Clock())
    for outcome in ("ok", "ok", "error"):
        stats.count_call(wrapper(), "wrapper", outcome, 0.5)
    assert dict(stats.calls) == {("up", "send", "wrapper", "ok"): 2, ("up", "send", "wrapper", "error"): 1}
    assert stats.seconds["up", "send", "wrapper"] == 1.5


def test_tools_beyond_the_bound_are_not_counted() -> None:
    stats = CallStats(clock=Clock())
    for number in (*range(MAX_COUNTED_TOOLS + 1), 0):
        stats.count_call(replace(wrapper(), tool=ToolName(str(number))), "wrapper", "ok", 0.1)
    assert len(stats.calls) == MAX_COUNTED_TOOLS
    assert stats.calls["up", "0", "wrapper", "ok"] == 2


def test_counters_have_series_for_as_many_tools_as_histograms() -> None:
    stats = CallStats(clock=Clock())
    for number in range(MAX_NAMED_TOOLS + 50):
        for _ in range(2 if number else 1):
            stats.count_call(replace(wrapper(), tool=ToolName(str(number))), "wrapper", "ok", 0.5)
    calls, seconds = families_of_calls(stats)
    counted = {sample.labels["tool"]: sample.value for sample in calls.samples}
    assert len(counted) == len(seconds.samples) == MAX_NAMED_TOOLS + 1
    assert sum(counted.values()) == 2 * (MAX_NAMED_TOOLS + 50) - 1
    assert "0" not in counted
    assert next(one.labels for one in calls.samples if one.labels["tool"] == OTHER)["server"] == ""
    named = {key.tool for key, _ in stats.durations.series()}
    assert named == set(counted), "a tool has all its series or none"


def test_repairs_are_counted_by_call_and_kind() -> None:
    stats = CallStats(clock=Clock())
    stats.record_repairs(wrapper(), [Repair(name="renamed"), Repair(name="renamed"), Repair(name="parsed")])
    stats.record_repairs(wrapper(), [Repair(name="parsed")])
    [row] = stats.repair_rows()
    assert (row["calls"], row["repairs"]) == (2, {"renamed": 1, "parsed": 2})


def test_caller_is_identified_across_connections_and_by_client_name() -> None:
    stats = CallStats(clock=Clock())
    agent = {"name": "agent", "version": "1"}
    for port in (4000, 4001, 4002):
        stats.record_failure(wrapper(), LOST, structs.replace(caller(peer=f"127.0.0.1:{port}"), client_info=agent))
    assert (stats.failure_rows()[0]["sessions"], stats.failure_rows()[0]["flagged"]) == (1, False)
    stats.record_failure(wrapper(), LOST, structs.replace(caller(peer="127.0.0.1:4003"), client_info={"name": "other"}))
    assert (stats.failure_rows()[0]["sessions"], stats.failure_rows()[0]["flagged"]) == (2, True)


def test_error_results_are_classified_without_keeping_their_text() -> None:
    stats = CallStats(clock=Clock())
    for text in (
        "SMTP down",
        "mailbox 'ann' is full",
        "mailbox 'bob' is full",
        "order 17 is closed",
        "order 18 is closed",
    ):
        stats.record_result(wrapper(), {"content": [{"type": "text", "text": text}], "isError": True}, caller("a"))
        stats.record_failure(wrapper(), Failure.from_protocol_error(RpcError(-32000, text)), caller("a"))
    for kind in ("error_result", "protocol_error"):
        rows = [row for row in stats.failure_rows() if row["kind"] == kind]
        assert sorted(row["total"] for row in rows) == [1, 2, 2]
        assert not any(word in row["detail"] for row in rows for word in ("SMTP", "mailbox", "ann", "order"))
