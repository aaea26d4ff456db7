"""`/metrics`: what has been counted, as Prometheus text; nothing is measured that is not known anyway."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.calls.call_stats import CallStats
from gateway.fleet import Fleet
from gateway.hooks.active import ActiveHooks
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
    ) -> None:
        self._call_stats = call_stats
        self._hooks = hooks
        self._fleet = fleet
        self._registry = registry
        self._private_links = private_links

    def collect(self) -> Iterator[Metric]:
        call_stats = self._call_stats
        info = GaugeMetricFamily("typegate_info", "The running version.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        calls = CounterMetricFamily(
            "typegate_calls", "Calls of tools by the way they came and how they ended.",
            labels=["server", "tool", "via", "outcome"],
        )  # fmt: skip
        seconds = CounterMetricFamily(
            "typegate_call_seconds", "Time that calls took, all together.", labels=["server", "tool", "via"]
        )  # fmt: skip
        for key, count in call_stats.calls.items():
            calls.add_metric(list(key), count)
        for key_of_time, total_s in call_stats.seconds.items():
            seconds.add_metric(list(key_of_time), total_s)
        yield calls
        yield seconds
        repairs = CounterMetricFamily("typegate_repairs", "Repairs of arguments by kind.", labels=["wrapper", "repair"])
        for row in call_stats.repair_rows():
            for repair, count in row["repairs"].items():
                repairs.add_metric([row["wrapper"], repair], count)
        yield repairs
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
        yield GaugeMetricFamily(
            "typegate_private_links", "Connections that sessions have of their own.", len(self._private_links)
        )


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


def render(
    *, call_stats: CallStats, hooks: ActiveHooks, fleet: Fleet, registry: Registry, private_links: PrivateLinks
) -> bytes:
    """Everything that is counted, in the text format of Prometheus."""
    collectors = CollectorRegistry()
    collectors.register(_Collector(call_stats, hooks, fleet, registry, private_links))
    return generate_latest(collectors)
