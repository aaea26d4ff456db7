"""The steps between two configurations."""

from __future__ import annotations

import json
from typing import Any

from gateway.config.load import parse
from gateway.config.model import Config
from gateway.fleet.reload import plan

A = {"command": "a"}


def config(gateway: dict[str, Any] | None = None, **servers: Any) -> Config:
    return parse(json.dumps({"mcpServers": servers, "gateway": gateway or {}}), environ={})


def test_equal_configurations_need_no_step() -> None:
    steps = plan(config(a=A), config(a=A))
    assert (steps.add, steps.remove, steps.replace, steps.adjust, steps.later) == ((), (), (), (), ())


def test_only_connection_settings_cause_a_new_connection() -> None:
    before = config(a=A, b=A, c=A, gone=A)
    after = config(a={**A, "args": ["x"]}, b={**A, "supplement": "s", "callTimeout": 1}, c=A, new=A)
    steps = plan(before, after)
    assert (steps.add, steps.remove) == (("new",), ("gone",))
    assert (steps.replace, steps.adjust) == (("a",), ("b",))


def test_every_connection_setting_counts() -> None:
    before = config(a=A, h={"url": "http://h/mcp"})
    for change in ({"env": {"X": "1"}}, {"cwd": "/"}, {"elicitation": True}):
        assert plan(before, config(a={**A, **change}, h={"url": "http://h/mcp"})).replace == ("a",)
    for changed in (
        {"url": "http://h/other"},
        {"url": "http://h/mcp", "headers": {"X": "1"}},
        {"type": "sse", "url": "http://h/mcp"},
    ):
        assert plan(before, config(a=A, h=changed)).replace == ("h",)


def test_changed_timeouts_do_not_restart_a_starting_process() -> None:
    steps = plan(config(a=A), config(a={**A, "connectTimeout": 60, "startTimeout": 600}))
    assert (steps.replace, steps.adjust) == ((), ("a",))


def test_settings_that_need_a_restart_are_named() -> None:
    steps = plan(config(a=A), config({"listen": {"port": 1}, "admin": {"token": "t"}}, a=A))
    assert steps.later == ("gateway.listen", "gateway.admin")


def test_graphql_connection_settings_reconnect_and_display_settings_do_not() -> None:
    hr = {"endpoint": "http://h/graphql", "operations": "/ops"}
    before = config(hr=hr)
    for change in (
        {"endpoint": "http://h/other"}, {"operations": "/other"}, {"schema": "/s.graphql"}, {"headers": {"X": "1"}},
        {"excludeMutations": True}, {"introspectionTools": True},
    ):  # fmt: skip
        assert plan(before, config(hr={**hr, **change})).replace == ("hr",), change
    assert plan(before, config(hr={**hr, "nullable": "union"})).adjust == ("hr",)


def test_added_removed_and_changed_hooks_are_named_and_servers_kept() -> None:
    one, two, three = ({"name": name, "use": "cache"} for name in ("one", "two", "three"))
    steps = plan(config({"hooks": [one, two]}, a=A), config({"hooks": [{**two, "priority": 1}, three]}, a=A))
    assert steps.hooks == ("one", "two", "three")
    assert (steps.add, steps.remove, steps.replace, steps.adjust, steps.later) == ((), (), (), (), ())
