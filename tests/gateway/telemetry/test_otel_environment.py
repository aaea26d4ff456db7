"""The standard OpenTelemetry variables, as set by operators of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from support.collector import Collector, collector
from support.gateways import brief_pause, running_gateway
from support.upstreams.running import builtin_tools, scripted_stdio_server

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
# Settings that are missing here are not set anywhere else.
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_METRIC_EXPORT_INTERVAL": "200"}
BOTH = {"/v1/traces", "/v1/metrics"}


async def sent(
    tmp_path: Path, received: Collector, variables: dict[str, str], settings: dict[str, Any] | None, *wanted: str
) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Return what a gateway with these variables has sent to each wanted path, and its log."""
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    given = {} if settings is None else {"telemetry": settings}
    environment = {**QUICK, **{name: text.replace("@url", received.url) for name, text in variables.items()}}
    async with running_gateway(tmp_path, {"up": server}, gateway=given, environment=environment) as gateway:
        await gateway.until_listed("up__echo")
        await gateway.call("up__echo")
        with anyio.fail_after(25):
            while not received.resources.keys() >= set(wanted):
                await brief_pause()
    # It has ended, and sent what was left.
    return received.resources, gateway.logged()


@pytest.mark.parametrize(
    ("variables", "settings", "name"),
    [
        ({ENDPOINT: "@url"}, None, "typegate"),
        ({ENDPOINT: "@url"}, {}, "typegate"),
        ({ENDPOINT: "@url/", "OTEL_SERVICE_NAME": "tools-of-a"}, None, "tools-of-a"),
        ({ENDPOINT: "@url", "OTEL_RESOURCE_ATTRIBUTES": "service.name=tools-of-b,team=b"}, None, "tools-of-b"),
        ({"OTEL_SERVICE_NAME": "tools-of-a", ENDPOINT: "@url"}, {"serviceName": "of-the-file"}, "of-the-file"),
        ({"OTEL_SERVICE_NAME": " ", ENDPOINT: "@url"}, {}, "typegate"),
        ({ENDPOINT: "http://127.0.0.1:9"}, {"endpoint": "@url", "interval": 0.1, "metricsInterval": 0.2}, "typegate"),
    ],
)
async def test_environment_endpoint_and_name_are_used_below_those_of_the_file(
    tmp_path: Path, variables: dict[str, str], settings: dict[str, Any] | None, name: str
) -> None:
    with collector() as received:
        if settings is not None and "endpoint" in settings:
            settings = {**settings, "endpoint": received.url}
        resources, _ = await sent(tmp_path, received, variables, settings, *BOTH)
    for path in BOTH:
        assert {one["service.name"] for one in resources[path]} == {name}
        assert all(one["service.version"] for one in resources[path])
        assert all(
            one.get("team") == "b" for one in resources[path] if "team" in variables.get("OTEL_RESOURCE_ATTRIBUTES", "")
        )


async def test_headers_from_the_environment_are_sent(tmp_path: Path) -> None:
    variables = {ENDPOINT: "@url", "OTEL_EXPORTER_OTLP_HEADERS": "x-scope-orgid=team-a"}
    with collector() as received:
        await sent(tmp_path, received, variables, None, *BOTH)
    assert {one.get("x-scope-orgid") for one in received.headers} == {"team-a"}


@pytest.mark.parametrize(
    ("variables", "paths"),
    [
        ({"OTEL_TRACES_EXPORTER": "none"}, {"/v1/metrics"}),
        ({"OTEL_METRICS_EXPORTER": "none"}, {"/v1/traces"}),
        ({"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_TRACES_EXPORTER": "console, otlp"}, {"/v1/traces"}),
        ({ENDPOINT: "", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "@url/v1/traces"}, {"/v1/traces"}),
        ({ENDPOINT: "", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "@url/v1/metrics"}, {"/v1/metrics"}),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf"},
            {"/v1/metrics"},
        ),
    ],
)
async def test_disabled_or_unsupported_signal_does_not_affect_the_other(
    tmp_path: Path, variables: dict[str, str], paths: set[str]
) -> None:
    with collector() as received:
        resources, logged = await sent(tmp_path, received, {ENDPOINT: "@url", **variables}, None, *paths)
    assert resources.keys() == paths
    assert ("telemetry export disabled" in logged) == ("grpc" in variables.values())


@pytest.mark.parametrize("settings", [None, {}, {"endpoint": "@url"}])
async def test_disabled_sdk_sends_nothing(tmp_path: Path, settings: dict[str, Any] | None) -> None:
    with collector() as received:
        if settings:
            settings = {"endpoint": received.url}
        resources, _ = await sent(tmp_path, received, {ENDPOINT: "@url", "OTEL_SDK_DISABLED": "True"}, settings)
    assert resources == {}
