"""Many workers' answers made one: each figure by one rule, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

# Of gauges that tell of one and the same thing at every worker; all others are summed, as counters are.
_OF_GAUGES: Final = {
    "typegate_info": max,
    "typegate_upstream_up": min,
    "typegate_upstream_epoch": max,
    "typegate_upstream_tools": max,
}
_SUMMED: Final = ("inFlight",)

Key = tuple[str, tuple[tuple[str, str], ...]]


def server_row(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One server at all workers: as at the one that is worst off; its calls are summed."""
    worst = max(rows, key=lambda row: (row.get("lastError") is not None, row.get("state") != "ready"))
    ready = all(row.get("state") == rows[0].get("state") for row in rows)
    shown = dict(rows[0] if ready else worst)
    shown["lastError"] = next((row["lastError"] for row in rows if row.get("lastError") is not None), None)
    for member in _SUMMED:
        shown[member] = sum(row.get(member) or 0 for row in rows)
    return shown


def server_rows(lists: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The servers of all workers, in the order of the first."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for rows in lists:
        for row in rows:
            by_name.setdefault(row["name"], []).append(row)
    return [server_row(rows) for rows in by_name.values()]


def repair_rows(lists: Iterable[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The repaired calls of all workers, summed for each tool."""
    found: dict[str, dict[str, Any]] = {}
    for rows in lists:
        for row in rows:
            kept = found.setdefault(row["wrapper"], {"wrapper": row["wrapper"], "calls": 0, "repairs": {}})
            kept["calls"] += row["calls"]
            for name, count in row["repairs"].items():
                kept["repairs"][name] = kept["repairs"].get(name, 0) + count
    return [found[name] for name in sorted(found)]


def hook_rows(lists: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The hooks of all workers, in the order of the first: what was counted is summed, an open breaker is told."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for rows in lists:
        for row in rows:
            by_name.setdefault(row["name"], []).append(row)
    return [
        {
            **rows[0],
            "breaker": "open" if any(row["breaker"] == "open" for row in rows) else "closed",
            "lastError": next((row["lastError"] for row in rows if row["lastError"] is not None), None),
            "seconds": round(sum(row["seconds"] for row in rows), 6),
            "counts": {key: sum(row["counts"].get(key, 0) for row in rows) for key in rows[0]["counts"]},
        }
        for rows in by_name.values()
    ]


class Ledger:
    """What workers have counted, those that have ended too: no counter goes back while this one lives."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[str, dict[Key, float]]] = {}
        self._gone: dict[Key, float] = {}

    def add(self, texts: Mapping[int, tuple[str, str]]) -> bytes:
        """Every metric of all workers, as the text of one.

        Args:
            texts: By worker: which process it is, and what that one says.
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
                    if family.type == "counter":
                        counted[key] = sample.value
            self._note(index, process, counted)
        # One that does not answer just now has not uncounted anything.
        kept = [self._gone, *(counted for index, (_, counted) in self._last.items() if index not in texts)]
        for family in families.values():
            merged = samples[family.name]
            if family.type == "counter":
                for key, value in ((key, value) for one in kept for key, value in one.items()):
                    if key[0] in (family.name, f"{family.name}_total"):
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


def _sum(one: float, other: float) -> float:
    return one + other
