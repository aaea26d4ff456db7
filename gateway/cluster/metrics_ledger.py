"""The metrics of many workers made one: each figure by one rule, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

# Gauges that describe the same thing at every worker; all others are summed, as counters are.
_OF_GAUGES: Final = {
    "typegate_info": max,
    "typegate_upstream_up": min,
    "typegate_upstream_epoch": max,
    "typegate_upstream_tools": max,
    "typegate_upstream_sign_in_needed": max,
    "typegate_held_changes": max,
}
# What only grows; the samples of a family of these are named with one of the suffixes.
_COUNTED: Final = frozenset({"counter", "histogram"})
_SUFFIXES: Final = ("_total", "_bucket", "_sum", "_count")
Key = tuple[str, tuple[tuple[str, str], ...]]


class Ledger:
    """What workers have counted, those that have ended included: no counter decreases while this object lives."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[str, dict[Key, float]]] = {}
        self._gone: dict[Key, float] = {}

    def add(self, texts: Mapping[int, tuple[str, str]]) -> bytes:
        """Every metric of all workers, as the text of one.

        Args:
            texts: By worker: the id of its process, and its metrics.
        """
        families: dict[str, Metric] = {}
        samples: dict[str, dict[Key, float]] = {}
        for index, (process, text) in texts.items():
            counted: dict[Key, float] = {}
            for family in text_string_to_metric_families(text):
                families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                rule = _OF_GAUGES.get(family.name, _sum)
                merged = samples.setdefault(family.name, {})
                for sample in family.samples:
                    key = (sample.name, tuple(sample.labels.items()))
                    merged[key] = rule(merged[key], sample.value) if key in merged else sample.value
                    if family.type in _COUNTED:
                        counted[key] = sample.value
            self._note(index, process, counted)
        # A worker that does not answer just now has still counted what it had.
        kept = [self._gone, *(counted for index, (_, counted) in self._last.items() if index not in texts)]
        for family in families.values():
            merged = samples[family.name]
            if family.type in _COUNTED:
                names = {family.name, *(family.name + suffix for suffix in _SUFFIXES)}
                for key, value in ((key, value) for counted in kept for key, value in counted.items()):
                    if key[0] in names:
                        merged[key] = merged.get(key, 0.0) + value
            family.samples = [Sample(name, dict(labels), value) for (name, labels), value in merged.items()]
        registry = CollectorRegistry()
        registry.register(_Families(list(families.values())))
        return generate_latest(registry)

    def _note(self, index: int, process: str, counted: dict[Key, float]) -> None:
        before = self._last.get(index)
        if before is not None and before[0] != process:
            for key, value in before[1].items():
                self._gone[key] = self._gone.get(key, 0.0) + value
        self._last[index] = (process, counted)


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _sum(first: float, second: float) -> float:
    return first + second
