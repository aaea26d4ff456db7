"""`/metrics`: what has been counted, as Prometheus text; nothing is measured that is not known anyway."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway import __version__
from gateway.audit.record import Audit
from gateway.calls.call_stats import CallStats
from gateway.calls.permission import Permission
from gateway.fleet import Fleet
from gateway.hooks.active import ActiveHooks
from gateway.instruments.conventions import BUCKETS_S
from gateway.instruments.durations import OTHER, Durations
from gateway.upstream.link_states import SignInNeeded
from gateway.upstream.private_links import PrivateLinks
from registry.catalog.store import Registry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Collector(Collector):
    def __init__(
        self,
        call_stats: CallStats,
        hooks: ActiveHooks,
        fleet: Fleet,
        registry: Registry,
        private_links: PrivateLinks,
        permission: Permission,
        audit: Audit,
    ) -> None:
        self._call_stats = call_stats
        self._hooks = hooks
        self._fleet = fleet
        self._registry = registry
        self._private_links = private_links
        self._permission = permission
        self._audit = audit

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
            "typegate_policy_decisions", "Calls that a rule has refused, or had a person decide.",
            labels=["rule", "effect"],
        )  # fmt: skip
        for (rule, effect), count in self._permission.decisions.items():
            decisions.add_metric([rule, effect], count)
        yield decisions
        yield from _hook_metrics(self._hooks)
        up = GaugeMetricFamily("typegate_upstream_up", "Whether an upstream is connected.", labels=["server"])
        epochs = GaugeMetricFamily("typegate_upstream_epoch", "The number of its connection.", labels=["server"])
        flight = GaugeMetricFamily("typegate_upstream_in_flight", "Calls that wait for it.", labels=["server"])
        tools = GaugeMetricFamily("typegate_upstream_tools", "Wrappers of its tools.", labels=["server"])
        for alias, link in self._fleet.links.items():
            up.add_metric([alias], float(link.session is not None))
            epochs.add_metric([alias], link.epoch)
            flight.add_metric([alias], link.in_flight)
            tools.add_metric([alias], len(self._registry.catalog.wrappers_of(alias)))
        yield from (up, epochs, flight, tools)
        held = GaugeMetricFamily(
            "typegate_held_changes", "Changes of a server that are not approved, and held.", labels=["server"]
        )  # fmt: skip
        for alias, count in self._fleet.lock.held_counts().items():
            held.add_metric([alias], count)
        yield held
        yield GaugeMetricFamily(
            "typegate_private_links", "Connections that sessions have of their own.", len(self._private_links)
        )
        yield CounterMetricFamily("typegate_audit_lines", "Lines of the record of calls.", self._audit.written)
        yield CounterMetricFamily("typegate_audit_lost", "Lines that could not be kept.", self._audit.lost)
        yield GaugeMetricFamily(
            "typegate_audit_failing", "Whether the record cannot be written.", float(self._audit.last_error is not None)
        )
        yield from _sign_in_metrics(self._fleet)


def families_of_calls(call_stats: CallStats) -> Iterator[Metric]:
    """How many calls there were, and how long they took; bounded to the tools that histograms have, too."""
    calls = CounterMetricFamily(
        "typegate_calls", "Calls of tools by how they came and how they ended; those of the 201st tool on as `other`.",
        labels=["server", "tool", "via", "outcome"],
    )  # fmt: skip
    seconds = CounterMetricFamily(
        "typegate_call_seconds", "Time that calls took, all together.", labels=["server", "tool", "via"]
    )  # fmt: skip
    named = call_stats.durations.named()
    counted: Counter[tuple[str, ...]] = Counter()
    for (server, tool, *way), count in call_stats.calls.items():
        counted[(*((server, tool) if (server, tool) in named else ("", OTHER)), *way)] += count
    took_s: dict[tuple[str, ...], float] = {}
    for (server, tool, via), total_s in call_stats.seconds.items():
        key = (*((server, tool) if (server, tool) in named else ("", OTHER)), via)
        took_s[key] = took_s.get(key, 0.0) + total_s
    for labels, count in counted.items():
        calls.add_metric(labels, count)
    for labels, total_s in took_s.items():
        seconds.add_metric(labels, total_s)
    yield from (calls, seconds)


def _durations(durations: Durations) -> Iterator[Metric]:
    """Histograms under the names that OpenTelemetry's metrics have in Prometheus, and the alias of the server."""
    labels = ["mcp_method_name", "server", "gen_ai_tool_name", "error_type"]
    families = {
        "server": HistogramMetricFamily(
            "mcp_server_operation_duration_seconds", "Time from a caller's request to its answer.", labels=labels
        ),
        "client": HistogramMetricFamily(
            "mcp_client_operation_duration_seconds", "Time from a request to an upstream to its answer.", labels=labels
        ),
    }
    for key, cell in durations.series():
        buckets = zip((*map(floatToGoString, BUCKETS_S), "+Inf"), accumulate(cell.counts), strict=True)
        families[key.side].add_metric([*key[1:]], [(bound, float(count)) for bound, count in buckets], cell.total_s)
    yield from families.values()


def _hook_metrics(hooks: ActiveHooks) -> Iterator[Metric]:
    events = CounterMetricFamily("typegate_hook_events", "What hooks did, by kind.", labels=["hook", "event"])
    seconds = CounterMetricFamily("typegate_hook_seconds", "Time that hooks took, all together.", labels=["hook"])
    opened = GaugeMetricFamily("typegate_hook_open", "Whether a hook is passed over for now.", labels=["hook"])
    for row in hooks.rows():
        for event, count in row["counts"].items():
            events.add_metric([row["name"], event], count)
        seconds.add_metric([row["name"]], row["seconds"])
        opened.add_metric([row["name"]], float(row["breaker"] == "open"))
    yield from (events, seconds, opened)


def _sign_in_metrics(fleet: Fleet) -> Iterator[Metric]:
    counts = fleet.sign_ins.counts
    refreshes = CounterMetricFamily(
        "typegate_token_refreshes", "Tokens that were fetched without a person, by outcome.",
        labels=["server", "outcome"],
    )  # fmt: skip
    sign_ins = CounterMetricFamily("typegate_sign_ins", "Sign-ins by outcome.", labels=["server", "outcome"])
    for family, counted in ((refreshes, counts.refreshes), (sign_ins, counts.sign_ins)):
        for (server, outcome), count in counted.items():
            family.add_metric([server, outcome], count)
    needed = GaugeMetricFamily(
        "typegate_upstream_sign_in_needed", "Whether somebody has to sign in.", labels=["server"]
    )
    for alias, link in fleet.links.items():
        needed.add_metric([alias], float(isinstance(link.state, SignInNeeded) and not link.per_user))
    yield from (refreshes, sign_ins, needed)


def render(
    *,
    call_stats: CallStats,
    hooks: ActiveHooks,
    fleet: Fleet,
    registry: Registry,
    private_links: PrivateLinks,
    permission: Permission,
    audit: Audit,
) -> bytes:
    """Everything that is counted, in the text format of Prometheus."""
    collectors = CollectorRegistry()
    collectors.register(_Collector(call_stats, hooks, fleet, registry, private_links, permission, audit))
    return generate_latest(collectors)
