"""From two configurations to the steps between them."""

from __future__ import annotations

import json
from typing import Any

from gateway.config.load import parse
from gateway.config.model import Config
from gateway.config.plan import plan

A = {"command": "a"}


def config(gateway: dict[str, Any] | None = None, **servers: Any) -> Config:
    return parse(json.dumps({"mcpServers": servers, "gateway": gateway or {}}), environ={})


def test_the_same_needs_no_step() -> None:
    steps = plan(config(a=A), config(a=A))
    assert (steps.add, steps.remove, steps.replace, steps.adjust, steps.later) == ((), (), (), (), ())


def test_only_what_concerns_the_connection_makes_a_new_one() -> None:
    before = config(a=A, b=A, c=A, gone=A)
    after = config(a={**A, "args": ["x"]}, b={**A, "supplement": "s", "callTimeout": 1}, c=A, new=A)
    steps = plan(before, after)
    assert (steps.add, steps.remove) == (("new",), ("gone",))
    assert (steps.replace, steps.adjust) == (("a",), ("b",))


def test_every_way_to_reach_a_server_counts() -> None:
    before = config(a=A, h={"url": "http://h/mcp"})
    for change in ({"env": {"X": "1"}}, {"cwd": "/"}, {"elicitation": True}):
        assert plan(before, config(a={**A, **change}, h={"url": "http://h/mcp"})).replace == ("a",)
    for changed in (
        {"url": "http://h/other"},
        {"url": "http://h/mcp", "headers": {"X": "1"}},
        {"type": "sse", "url": "http://h/mcp"},
    ):
        assert plan(before, config(a=A, h=changed)).replace == ("h",)


def test_a_process_that_is_starting_goes_on_while_its_patience_is_configured() -> None:
    steps = plan(config(a=A), config(a={**A, "connectTimeout": 60, "startTimeout": 600}))
    assert (steps.replace, steps.adjust) == ((), ("a",))


def test_what_waits_for_the_next_start_is_named() -> None:
    steps = plan(config(a=A), config({"listen": {"port": 1}, "admin": {"token": "t"}}, a=A))
    assert steps.later == ("gateway.listen", "gateway.admin")


def test_how_a_graphql_server_is_reached_counts_and_how_it_is_shown_does_not() -> None:
    hr = {"endpoint": "http://h/graphql", "operations": "/ops"}
    before = config(hr=hr)
    for change in (
        {"endpoint": "http://h/other"}, {"operations": "/other"}, {"schema": "/s.graphql"}, {"headers": {"X": "1"}},
        {"excludeMutations": True}, {"introspectionTools": True},
    ):  # fmt: skip
        assert plan(before, config(hr={**hr, **change})).replace == ("hr",), change
    assert plan(before, config(hr={**hr, "nullable": "union"})).adjust == ("hr",)


def test_hooks_that_are_new_gone_or_another_are_named_and_servers_stay() -> None:
    one, two, three = ({"name": name, "use": "cache"} for name in ("one", "two", "three"))
    steps = plan(config({"hooks": [one, two]}, a=A), config({"hooks": [{**two, "priority": 1}, three]}, a=A))
    assert steps.hooks == ("one", "two", "three")
    assert (steps.add, steps.remove, steps.replace, steps.adjust, steps.later) == ((), (), (), (), ())
