"""Rows of several processes become the rows of one gateway."""

from __future__ import annotations

from gateway.admin.merging import all_failures, all_hooks, all_servers, one_server


def test_a_server_is_shown_as_at_the_worker_that_is_worst_off() -> None:
    good = {"name": "s", "state": "ready", "lastError": None, "inFlight": 1, "tools": 3}
    bad = {"name": "s", "state": "waiting", "lastError": "refused", "inFlight": 2, "tools": 0}
    for rows in ([good, bad], [bad, good]):
        assert one_server(rows) == {**bad, "inFlight": 3}
    assert one_server([good, good]) == {**good, "inFlight": 2}
    only = {**good, "name": "t"}
    both = all_servers([{"servers": [good]}, {"servers": [bad, only]}])
    assert [row["name"] for row in both["servers"]] == ["s", "t"]


def test_repairs_are_summed_for_each_tool() -> None:
    one = [{"wrapper": "b", "calls": 2, "repairs": {"x": 1, "y": 1}}]
    two = [{"wrapper": "b", "calls": 1, "repairs": {"x": 1}}, {"wrapper": "a", "calls": 1, "repairs": {"z": 1}}]
    assert all_failures([{"failures": [], "repaired": rows} for rows in (one, two)])["repaired"] == [
        {"wrapper": "a", "calls": 1, "repairs": {"z": 1}},
        {"wrapper": "b", "calls": 3, "repairs": {"x": 2, "y": 1}},
    ]


def test_what_hooks_have_counted_is_summed_and_any_trouble_is_told() -> None:
    def row(runs: int, breaker: str = "closed", error: str | None = None) -> dict[str, object]:
        counts = {"runs": runs, "failed": 0 if error is None else 1}
        return {
            "name": "h",
            "mode": "transform",
            "breaker": breaker,
            "lastError": error,
            "seconds": 0.5,
            "counts": counts,
        }

    documents = [{"wrappers": [], "hooks": [each]} for each in (row(2), row(3, "open", "it hangs"))]
    [merged] = all_hooks(documents)["hooks"]
    assert merged == {**row(5, "open", "it hangs"), "seconds": 1.0}
    assert all_hooks([{"hooks": []}, {"hooks": []}]) == {"hooks": []}
