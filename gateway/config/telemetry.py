"""Traces and metrics, sent to a collector of OpenTelemetry."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BeforeValidator, Field, SecretStr, field_validator

from gateway.config.section import Section, fault, is_http_url, not_boolean

EXTRA: Final = "otel"


class TelemetryConfig(Section):
    """Spans of every request, and how long requests took, sent over OTLP/HTTP; needs the extra otel.

    Without this section OTEL_EXPORTER_OTLP_ENDPOINT is enough. OTEL_SDK_DISABLED=true switches everything off."""

    endpoint: str | None = None
    """The collector, as http://collector:4318. Absent means OTEL_EXPORTER_OTLP_ENDPOINT, or port 4318 of this
    machine."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Sent to the collector with everything."""
    service_name: str = Field(default="typegate", min_length=1)
    """The name under which it appears. Absent means OTEL_SERVICE_NAME, or service.name of
    OTEL_RESOURCE_ATTRIBUTES."""
    sample_ratio: Annotated[float, BeforeValidator(not_boolean), Field(ge=0, le=1)] = 1.0
    """Which part of the requests without a trace is traced, from 0 to 1; those with one follow it. Absent means
    OTEL_TRACES_SAMPLER, or all of them."""
    metrics: bool = True
    """Whether durations are sent too; /metrics has them in any case."""
    content: bool = False
    """Whether spans have the arguments and results of tools: they may be secrets."""
    interval: Annotated[float, BeforeValidator(not_boolean), Field(gt=0, le=60)] = 5.0
    """Seconds after which spans are sent."""
    metrics_interval: Annotated[float, BeforeValidator(not_boolean), Field(gt=0, le=3_600)] = 60.0
    """Seconds after which metrics are sent."""

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None and not is_http_url(value):
            raise fault("is no address", "an http or https URL, as http://collector:4318")
        return value
