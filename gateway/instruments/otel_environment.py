"""The variables that operators set for every workload: which signals are sent, as what, and by which protocol.

The configuration has precedence; exporters read endpoints, headers, timeouts and certificates themselves.

Source: OpenTelemetry specification, "Environment Variables" and "OTLP Exporter Configuration".
"""

from __future__ import annotations

import importlib
import logging
import os
from importlib.util import find_spec
from typing import Any, Final, Literal

from gateway.config.telemetry import EXTRA, TelemetryConfig
from gateway.extras import install_command

log = logging.getLogger(__name__)

Signal = Literal["traces", "metrics"]
_SIGNALS: Final[tuple[Signal, ...]] = ("traces", "metrics")
# By signal: the module of its exporter below that of the protocol, and its class.
_EXPORTERS: Final[dict[Signal, tuple[str, str]]] = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
}
_PACKAGE: Final = "opentelemetry.exporter.otlp.proto"
_GRPC: Final = "opentelemetry-exporter-otlp-proto-grpc"


def telemetry_of(settings: TelemetryConfig | None) -> TelemetryConfig | None:
    """Return what to send and where to; None where nothing is sent.

    Without settings, a collector that the environment names is enough, if the packages are installed.
    """
    if _variable("OTEL_SDK_DISABLED").lower() == "true":
        return None
    if settings is not None:
        return settings
    if not any(_names_collector(signal) for signal in _SIGNALS):
        return None
    if not _is_installed(f"{_PACKAGE}.http"):
        log.info("nothing is sent to the collector of the environment: %s", install_command(EXTRA))
        return None
    return TelemetryConfig()


def exporter_of(settings: TelemetryConfig, signal: Signal) -> Any:
    """Return the exporter of a signal; None where the signal is not sent.

    Raises:
        ImportError: The packages of the extra are not installed.
    """
    chosen = [name.strip().lower() for name in _variable(f"OTEL_{signal.upper()}_EXPORTER").split(",")]
    if chosen != [""] and "otlp" not in chosen:
        return None
    if settings.endpoint is None and not _names_collector(signal) and any(map(_names_collector, _SIGNALS)):
        return None  # the environment names a collector for the other signal alone
    endpoint = f"{settings.endpoint.rstrip('/')}/v1/{signal}" if settings.endpoint is not None else None
    protocol = _variable(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL") or _variable("OTEL_EXPORTER_OTLP_PROTOCOL")
    is_grpc = endpoint is None and protocol == "grpc"
    if is_grpc and not _is_installed(f"{_PACKAGE}.grpc"):
        log.warning("%s are not sent: OTEL_EXPORTER_OTLP_PROTOCOL=grpc needs the package %s", signal, _GRPC)
        return None
    module, name = _EXPORTERS[signal]
    exporter = getattr(importlib.import_module(f"{_PACKAGE}.{'grpc' if is_grpc else 'http'}.{module}"), name)
    headers = {name: value.get_secret_value() for name, value in settings.headers.items()} or None
    return exporter(endpoint=endpoint, headers=headers)


def service_name_of(settings: TelemetryConfig) -> str | None:
    """Return the name of the service; None where a variable names it and the configuration does not."""
    if "service_name" in settings.model_fields_set:
        return settings.service_name
    pairs = [pair.partition("=") for pair in _variable("OTEL_RESOURCE_ATTRIBUTES").split(",")]
    is_named = _variable("OTEL_SERVICE_NAME") or any(
        name.strip() == "service.name" and value for name, _, value in pairs
    )
    return None if is_named else settings.service_name


def interval_ms_of(settings: TelemetryConfig, signal: Signal) -> float:
    """Return after how many milliseconds a signal is sent."""
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
    # An empty value is as none.
    return os.environ.get(name, "").strip()
