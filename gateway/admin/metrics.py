"""`/metrics` in the Prometheus text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway import __version__
from gateway.audit.recording import Audit
from gateway.calls.call_stats import CallStats, Durations
from gateway.calls.call_targets import Permission
from gateway.calls.result_store import ResultStore
from gateway.fleet.fleet import Fleet
from gateway.hooks.hook_loading import ActiveHooks
from gateway.telemetry.trace_context import BUCKETS_S, OTHER
from gateway.upstream.caller_links import PrivateLinks
from gateway.upstream.link_states import Idle, SignInNeeded
from registry.catalog.registry import Registry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSources:
    """The parts of a gateway that metrics describe."""

    call_stats: CallStats
    hooks: ActiveHooks
    fleet: Fleet
    registry: Registry
    private_links: PrivateLinks
    permission: Permission
    audit: Audit
    results: ResultStore


class _Collector(Collector):
    def __init__(self, measured: MetricSources) -> None:
        self._call_stats = measured.call_stats
        self._hooks = measured.hooks
        self._fleet = measured.fleet
        self._registry = measured.registry
        self._private_links = measured.private_links
        self._permission = measured.permission
        self._audit = measured.audit
        self._results = measured.results

    def collect(self) -> Iterator[Metric]:
        call_stats = self._call_stats
        info = GaugeMetricFamily("typegate_info", "The running version.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        yield from families_of_calls(call_stats)
        yield from _durations(call_stats.durations)
        repairs = CounterMetricFamily("typegate_repairs", "Repairs of arguments by kind.", labels=["wrapper", "repair"])
        for row in call_stats.repair_rows():
            for repair, count in row["repairs"].items():
                repairs.add_metric([row["wrapper"], repair], count)
        yield repairs
        decisions = CounterMetricFamily(
            "typegate_policy_decisions",
            "Calls that a rule has denied or submitted for approval.",
            labels=["rule", "effect"],
        )
        for (rule, effect), count in self._permission.decisions.items():
            decisions.add_metric([rule, effect], count)
        yield decisions
        yield from _hook_metrics(self._hooks)
        up = GaugeMetricFamily(
            "typegate_upstream_up",
            "Whether an upstream is connected, or its process can be started by a call.",
            labels=["server"],
        )
        idle = GaugeMetricFamily(
            "typegate_upstream_idle",
            "Whether the process of an upstream is not running, because no call needs it.",
            labels=["server"],
        )
        epochs = GaugeMetricFamily(
            "typegate_upstream_epoch", "Connections made to the upstream so far.", labels=["server"]
        )
        flight = GaugeMetricFamily("typegate_upstream_in_flight", "Calls in flight.", labels=["server"])
        tools = GaugeMetricFamily("typegate_upstream_tools", "Wrappers of an upstream's tools.", labels=["server"])
        for alias, link in self._fleet.links.items():
            up.add_metric([alias], float(link.is_available))
            idle.add_metric([alias], float(isinstance(link.state, Idle)))
            epochs.add_metric([alias], link.epoch)
            flight.add_metric([alias], link.in_flight)
            tools.add_metric([alias], len(self._registry.catalog.wrappers_of(alias)))
        yield from (up, idle, epochs, flight, tools)
        held = GaugeMetricFamily(
            "typegate_held_changes", "Changes of an upstream held for approval.", labels=["server"]
        )
        for alias, count in self._fleet.lock.held_counts().items():
            held.add_metric([alias], count)
        yield held
        yield GaugeMetricFamily(
            "typegate_private_links",
            "Upstream connections that belong to a session or caller.",
            len(self._private_links),
        )
        yield GaugeMetricFamily(
            "typegate_stored_results", "Results stored for later calls of read_result.", self._results.count
        )
        yield GaugeMetricFamily(
            "typegate_stored_result_bytes", "Memory of the stored results.", self._results.total_bytes
        )
        yield CounterMetricFamily("typegate_audit_lines", "Entries written to the audit log.", self._audit.written)
        yield CounterMetricFamily("typegate_audit_lost", "Audit entries that could not be written.", self._audit.lost)
        yield GaugeMetricFamily(
            "typegate_audit_failing", "Whether writing the audit log fails.", float(self._audit.last_error is not None)
        )
        yield from _sign_in_metrics(self._fleet)


def families_of_calls(call_stats: CallStats) -> Iterator[Metric]:
    """Yield the number and the total duration of calls, for the same bounded set of tools as the histograms."""
    calls = CounterMetricFamily(
        "typegate_calls",
        "Tool calls by origin and outcome; tools above the limit of 200 are summed as `other`.",
        labels=["server", "tool", "via", "outcome"],
    )
    seconds = CounterMetricFamily(
        "typegate_call_seconds", "Total duration of tool calls.", labels=["server", "tool", "via"]
    )
    named_tools = call_stats.durations.named_tools()
    counted: Counter[tuple[str, ...]] = Counter()
    for (server, tool, *way), count in call_stats.calls.items():
        counted[(*((server, tool) if (server, tool) in named_tools else ("", OTHER)), *way)] += count
    took_s: dict[tuple[str, ...], float] = {}
    for (server, tool, via), total_s in call_stats.seconds.items():
        key = (*((server, tool) if (server, tool) in named_tools else ("", OTHER)), via)
        took_s[key] = took_s.get(key, 0.0) + total_s
    for labels, count in counted.items():
        calls.add_metric(labels, count)
    for labels, total_s in took_s.items():
        seconds.add_metric(labels, total_s)
    yield from (calls, seconds)


def _durations(durations: Durations) -> Iterator[Metric]:
    """Yield the histograms of durations, with the Prometheus names of OpenTelemetry's MCP metrics.

    The label `server`, the alias of the upstream, is an addition to the labels of OpenTelemetry.
    """
    labels = ["mcp_method_name", "server", "gen_ai_tool_name", "error_type"]
    families = {
        "server": HistogramMetricFamily(
            "mcp_server_operation_duration_seconds", "Time from a caller's request to the response.", labels=labels
        ),
        "client": HistogramMetricFamily(
            "mcp_client_operation_duration_seconds",
            "Time from an upstream request to the response.",
            labels=labels,
        ),
    }
    for key, cell in durations.series():
        buckets = zip((*map(floatToGoString, BUCKETS_S), "+Inf"), accumulate(cell.counts), strict=True)
        families[key.side].add_metric([*key[1:]], [(bound, float(count)) for bound, count in buckets], cell.total_s)
    yield from families.values()


def _hook_metrics(hooks: ActiveHooks) -> Iterator[Metric]:
    events = CounterMetricFamily("typegate_hook_events", "Hook events by kind.", labels=["hook", "event"])
    seconds = CounterMetricFamily("typegate_hook_seconds", "Total duration of hooks.", labels=["hook"])
    opened = GaugeMetricFamily("typegate_hook_open", "Whether the circuit breaker of a hook is open.", labels=["hook"])
    for row in hooks.rows():
        for event, count in row["counts"].items():
            events.add_metric([row["name"], event], count)
        seconds.add_metric([row["name"]], row["seconds"])
        opened.add_metric([row["name"]], float(row["breaker"] == "open"))
    yield from (events, seconds, opened)


def _sign_in_metrics(fleet: Fleet) -> Iterator[Metric]:
    counts = fleet.sign_ins.counts
    refreshes = CounterMetricFamily(
        "typegate_token_refreshes",
        "Token requests without user interaction, by outcome.",
        labels=["server", "outcome"],
    )
    sign_ins = CounterMetricFamily("typegate_sign_ins", "Sign-ins by outcome.", labels=["server", "outcome"])
    for family, counted in ((refreshes, counts.refreshes), (sign_ins, counts.sign_ins)):
        for (server, outcome), count in counted.items():
            family.add_metric([server, outcome], count)
    needed = GaugeMetricFamily(
        "typegate_upstream_sign_in_needed", "Whether an upstream waits for a sign-in.", labels=["server"]
    )
    for alias, link in fleet.links.items():
        needed.add_metric([alias], float(isinstance(link.state, SignInNeeded) and not link.per_user))
    yield from (refreshes, sign_ins, needed)


def render(measured: MetricSources) -> bytes:
    """Return all metrics in the Prometheus text format."""
    collectors = CollectorRegistry()
    collectors.register(_Collector(measured))
    return generate_latest(collectors)
