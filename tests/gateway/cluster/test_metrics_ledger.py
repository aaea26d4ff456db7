"""Merged metrics of workers, worker session ids, and features that require one process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.cluster import roles
from gateway.cluster.administration import Ledger
from gateway.cluster.roles import WorkerConfig, owner_of, prefix_of
from gateway.config.model import Config, GatewayConfig
from gateway.config.upstream_types.http_config import HttpConfig
from gateway.config.upstream_types.stdio_config import StdioConfig
from gateway.protocol.gateway_errors import ConfigError

COUNTS = st.dictionaries(st.sampled_from(["a", 'b"\n\\', "ü"]), st.integers(0, 1000), max_size=3)


def text(calls: dict[str, int], up: int = 1, flight: int = 0) -> str:
    class Said:
        def collect(self) -> list[Metric]:
            counter = CounterMetricFamily("typegate_calls", "Calls.", labels=["server"])
            for name, count in calls.items():
                counter.add_metric([name], count)
            states = GaugeMetricFamily("typegate_upstream_up", "Up.", labels=["server"])
            states.add_metric(["a"], up)
            waiting = GaugeMetricFamily("typegate_upstream_in_flight", "Waiting.", labels=["server"])
            waiting.add_metric(["a"], flight)
            return [counter, states, waiting]

    registry = CollectorRegistry()
    registry.register(Said())
    return generate_latest(registry).decode()


def read(merged: bytes) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels["server"]): sample.value
        for family in text_string_to_metric_families(merged.decode())
        for sample in family.samples
    }


def total(read_back: dict[tuple[str, str], float]) -> float:
    return sum(value for (name, _), value in read_back.items() if name == "typegate_calls_total")


@given(st.lists(COUNTS, min_size=1, max_size=4))
def test_counters_are_summed_by_labels(workers: list[dict[str, int]]) -> None:
    merged = read(Ledger().add({index: (str(index), text(one)) for index, one in enumerate(workers)}))
    for name in {name for one in workers for name in one}:
        assert merged["typegate_calls_total", name] == sum(one.get(name, 0) for one in workers)


@given(st.lists(st.tuples(st.booleans(), COUNTS), min_size=1, max_size=6))
def test_counters_do_not_decrease_when_a_worker_restarts(scrapes: list[tuple[bool, dict[str, int]]]) -> None:
    ledger, process, counted, before = Ledger(), 0, dict.fromkeys(["a", 'b"\n\\', "ü"], 0), 0.0
    for starts_anew, more in scrapes:
        if starts_anew:
            process, counted = process + 1, dict.fromkeys(counted, 0)
        counted = {name: count + more.get(name, 0) for name, count in counted.items()}
        after = total(read(ledger.add({0: ("first", text({"a": 5})), 1: (str(process), text(counted))})))
        assert after >= before
        before = after
    assert before == 5 + sum(sum(more.values()) for _, more in scrapes)


def test_upstream_is_up_if_every_worker_is_connected_and_calls_are_summed() -> None:
    merged = read(Ledger().add({0: ("1", text({}, up=1, flight=2)), 1: ("2", text({}, up=0, flight=3))}))
    assert merged["typegate_upstream_up", "a"] == 0
    assert merged["typegate_upstream_in_flight", "a"] == 5


@given(st.integers(1, 64).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count - 1))), st.text())
def test_session_id_names_its_worker(place: tuple[int, int], rest: str) -> None:
    count, index = place
    assert owner_of(prefix_of(index) + rest, count) == index
    assert owner_of(prefix_of(count) + rest, count) is None


@given(st.text())
def test_other_text_names_a_worker_or_none(text: str) -> None:
    found = owner_of(text, 4)
    assert found is None or text.startswith(prefix_of(found))


def test_worker_config_round_trips() -> None:
    whole = WorkerConfig(
        index=1, count=2, listener=7, public_url="http://x/mcp", host="::1", sockets="/tmp/é",
        secret="s", signing_key="00", token='t"\n', text="{}\n\ud800"[:3], path=None, state_dir="/s", insecure=False,
        verbose=True,
    )  # fmt: skip
    assert WorkerConfig.read(whole.line()) == whole
    with pytest.raises(ValueError, match="not a worker configuration"):
        WorkerConfig.read(b'{"index": 1}')


def test_features_requiring_one_process_are_named_with_reasons() -> None:
    process = StdioConfig(command="x")
    network = HttpConfig(url="http://127.0.0.1:1/mcp")
    copied = StdioConfig(command="x", copies=True)
    roles.check_shareable(Config(servers={"a": network, "b": copied}), file="f")
    with pytest.raises(ConfigError, match=r"b, c are processes .*copies"):
        roles.check_shareable(Config(servers={"a": network, "b": process, "c": process}), file="f")


def test_hooks_with_per_process_state_are_named_with_reasons() -> None:
    def config(*hooks: dict[str, str]) -> Config:
        return Config(gateway=GatewayConfig.model_validate({"hooks": hooks}))

    roles.check_shareable(config({"name": "again", "use": "cache"}, {"name": "own", "path": "./h.py:Own"}), file="f")
    with pytest.raises(ConfigError, match=r"hook limit \(rate_limit\) counts per process"):
        roles.check_shareable(config({"name": "limit", "use": "rate_limit"}), file="f")
    with pytest.raises(ConfigError, match=r"hook log \(audit_log\) writes and rotates a file"):
        roles.check_shareable(config({"name": "log", "use": "audit_log"}), file="f")
