"""Metrics count calls by route and outcome, and contain no arguments or results (row R28)."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from support.gateways import RunningGateway, running_gateway
from support.upstreams.running import scripted_stdio_server, tool
from support.visitors import Visitor, in_both_eras


async def samples(gateway: RunningGateway) -> dict[tuple[str, ...], float]:
    response = await gateway.client.get(f"{gateway.origin}/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (one.name, *(f"{key}={value}" for key, value in sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(response.text)
        for one in family.samples
    }


@in_both_eras
async def test_calls_are_counted_by_route_and_outcome_without_values(era: str, tmp_path: Path) -> None:
    secret, answered = "hunter2-secret", "answered-secret"
    result = {"content": [{"type": "text", "text": answered}], "structuredContent": {"text": answered}}
    config, _ = scripted_stdio_server(
        tmp_path,
        "up",
        tools=[tool("echo", "text"), tool("error"), tool("tell")],
        behaviours={"tell": {"kind": "result", "with": {"result": result}}},
    )
    async with running_gateway(tmp_path, {"up": config}, arguments=("--verbose",)) as gateway:
        await gateway.until_listed("up__echo")
        visitor = Visitor(gateway=gateway, era=era)
        await visitor.called("up__echo", {"text": secret})
        await visitor.called("up__echo", {"Text": secret})
        await visitor.called("up__echo", {})
        await visitor.called("up__error", {})
        assert answered in str(await visitor.called("up__tell", {}))
        for _ in range(3):
            await visitor.called("invoke_tool", {"server": "up", "tool": "echo", "arguments": {"text": secret}})
        seen = await samples(gateway)

        def calls(name: str, via: str, outcome: str) -> float:
            labels = (f"outcome={outcome}", "server=up", f"tool={name}", f"via={via}")
            return seen.get(("typegate_calls_total", *labels), 0)

        assert calls("echo", "wrapper", "ok") == 2
        assert calls("echo", "wrapper", "error_result") == 1
        assert calls("error", "wrapper", "error_result") == 1
        assert calls("echo", "invoke_tool", "ok") == 3
        assert seen["typegate_repairs_total", "repair=renamed", "wrapper=up__echo"] == 1
        assert seen["typegate_upstream_up", "server=up"] == 1
        assert seen["typegate_call_seconds_total", "server=up", "tool=echo", "via=wrapper"] > 0
        assert secret not in str(seen)
        assert secret not in gateway.logged()
        assert answered not in gateway.logged() + str(seen)
        assert gateway.logged().count("via='invoke_tool'") == 3
        assert gateway.logged().count("via='wrapper'") == 5
