"""Create OTLP exporters from the configuration and the standard OpenTelemetry variables, and export durations.

The configuration file takes precedence over the environment variables. The OpenTelemetry exporters themselves read the
variables for endpoints, headers, timeouts and certificates.

Source: OpenTelemetry specification, "Environment Variables" and "OTLP Exporter Configuration".
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal

from gateway.config.operation_config import EXTRA, TelemetryConfig
from gateway.process.extras import install_command
from gateway.telemetry import trace_context
from gateway.telemetry.trace_context import MAX_NAMED_TOOLS, OTHER, Key, Side

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource

log = logging.getLogger(__name__)

Signal = Literal["traces", "metrics"]
_SIGNALS: Final[tuple[Signal, ...]] = ("traces", "metrics")
# The exporter of each signal: the name of its module in the package for HTTP or gRPC, and the name of its class.
_EXPORTERS: Final[dict[Signal, tuple[str, str]]] = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
}
_PACKAGE: Final = "opentelemetry.exporter.otlp.proto"
_GRPC: Final = "opentelemetry-exporter-otlp-proto-grpc"


def resolve_telemetry(settings: TelemetryConfig | None) -> TelemetryConfig | None:
    """Return the effective telemetry settings; None if nothing is exported.

    Without settings in the configuration, data is exported if an environment variable names a collector and the
    packages are installed.
    """
    if _variable("OTEL_SDK_DISABLED").lower() == "true":
        return None
    if settings is not None:
        return settings
    if not any(_names_collector(signal) for signal in _SIGNALS):
        return None
    if not _is_installed(f"{_PACKAGE}.http"):
        log.info("telemetry export disabled", extra={"reason": f"packages are missing: {install_command(EXTRA)}"})
        return None
    return TelemetryConfig()


def create_exporter(settings: TelemetryConfig, signal: Signal) -> Any:
    """Return the exporter of a signal; None if the signal is not exported.

    Raises:
        ImportError: The packages of the extra are not installed.
    """
    chosen = [name.strip().lower() for name in _variable(f"OTEL_{signal.upper()}_EXPORTER").split(",")]
    if chosen != [""] and "otlp" not in chosen:
        return None
    if settings.endpoint is None and not _names_collector(signal) and any(map(_names_collector, _SIGNALS)):
        return None  # the environment variables name a collector for the other signal only
    endpoint = f"{settings.endpoint.rstrip('/')}/v1/{signal}" if settings.endpoint is not None else None
    protocol = _variable(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL") or _variable("OTEL_EXPORTER_OTLP_PROTOCOL")
    is_grpc = endpoint is None and protocol == "grpc"
    if is_grpc and not _is_installed(f"{_PACKAGE}.grpc"):
        reason = f"{signal}: OTEL_EXPORTER_OTLP_PROTOCOL=grpc requires the package {_GRPC}"
        log.warning("telemetry export disabled", extra={"reason": reason})
        return None
    module, name = _EXPORTERS[signal]
    exporter = getattr(importlib.import_module(f"{_PACKAGE}.{'grpc' if is_grpc else 'http'}.{module}"), name)
    headers = {name: value.get_secret_value() for name, value in settings.headers.items()} or None
    return exporter(endpoint=endpoint, headers=headers)


def service_name_of(settings: TelemetryConfig) -> str | None:
    """Return the service name from the configuration; None if only an environment variable sets the name."""
    if "service_name" in settings.model_fields_set:
        return settings.service_name
    pairs = [pair.partition("=") for pair in _variable("OTEL_RESOURCE_ATTRIBUTES").split(",")]
    is_named = _variable("OTEL_SERVICE_NAME") or any(
        name.strip() == "service.name" and value for name, _, value in pairs
    )
    return None if is_named else settings.service_name


def interval_ms_of(settings: TelemetryConfig, signal: Signal) -> float:
    """Return the interval between exports of a signal in milliseconds."""
    member, variable, given_s = (
        ("interval", "OTEL_BSP_SCHEDULE_DELAY", settings.interval)
        if signal == "traces"
        else ("metrics_interval", "OTEL_METRIC_EXPORT_INTERVAL", settings.metrics_interval)
    )
    text = _variable(variable)
    if member not in settings.model_fields_set and text.isdecimal() and int(text) > 0:
        return int(text)
    return given_s * 1000


def _names_collector(signal: Signal) -> bool:
    return bool(_variable("OTEL_EXPORTER_OTLP_ENDPOINT") or _variable(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"))


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _variable(name: str) -> str:
    # An empty variable counts as unset.
    return os.environ.get(name, "").strip()


_NAMES: Final[dict[Side, str]] = {"server": trace_context.SERVER_DURATION, "client": trace_context.CLIENT_DURATION}


class DurationExport:
    """Records durations in histograms of the OpenTelemetry SDK, which exports them periodically from its own thread."""

    def __init__(self, exporter: MetricExporter, resource: Resource, *, interval_ms: float) -> None:
        """Start the export.

        Args:
            exporter: The OTLP exporter.
            resource: The attributes that identify this process.
            interval_ms: Milliseconds between exports.
        """
        # Imported lazily, because the packages are optional.
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=interval_ms)
        self._meters = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._meters.get_meter("typegate")
        self._histograms = {
            side: meter.create_histogram(name, unit="s", explicit_bucket_boundaries_advisory=trace_context.BUCKETS_S)
            for side, name in _NAMES.items()
        }
        self._tools: set[tuple[str, str]] = set()

    def exporter_of(self, key: Key) -> Callable[[float], None]:
        """Return a function that records the duration of a request with this key, in seconds.

        The first `MAX_NAMED_TOOLS` tools have separate time series; all later tools are counted together as `other`.
        """
        if key.tool:
            tool = (key.server, key.tool)
            if tool in self._tools or len(self._tools) < MAX_NAMED_TOOLS:
                self._tools.add(tool)
            else:
                key = key._replace(server="", tool=OTHER)
        return partial(self._histograms[key.side].record, attributes=_attributes_of(key))

    def close(self) -> None:
        """Export the remaining data and shut down the exporter. The exporter limits the time."""
        self._meters.shutdown()


def _attributes_of(key: Key) -> dict[str, str]:
    attributes = {
        trace_context.METHOD: key.method,
        trace_context.SERVER: key.server,
        trace_context.TOOL: key.tool,
        trace_context.ERROR_TYPE: key.error,
    }
    return {name: value for name, value in attributes.items() if value}
