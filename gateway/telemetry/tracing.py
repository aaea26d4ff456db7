"""Record spans for requests from callers and to upstreams, and export them and durations with OTLP.

The decision whether to record a trace is made once, at the beginning of the trace. For a trace that is not recorded,
only the ids that are forwarded to upstreams are generated.

The configuration file takes precedence over the environment variables of OpenTelemetry. Its exporters themselves read
the variables for endpoints, headers, timeouts and certificates.

Source: OpenTelemetry specification, "Environment Variables" and "OTLP Exporter Configuration".
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.config.operation_config import EXTRA, TelemetryConfig
from gateway.process.extras import install_command
from gateway.protocol.gateway_errors import ConfigError
from gateway.telemetry import trace_context
from gateway.telemetry.trace_context import CURRENT, PARENT, SAMPLED, STATE, Parent
from gateway.telemetry.trace_context import Span as CurrentSpan

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
import importlib
import logging
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

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


# Maximum length of arguments or a result in an attribute. Collectors commonly cut attributes at this length.
_MAX_CONTENT_CHARS: Final = 4_096
# Maximum length of a URI in an attribute. Longer URIs are usually data URLs.
_MAX_URI_CHARS: Final = 200
# The lower 64 bits of a trace id decide whether the trace is recorded, as in the samplers of other services
# (OpenTelemetry, "TraceIdRatioBased").
_RATIO_BITS: Final = 64
_SPAN_BITS: Final = 64
_IDS_BITS: Final = 128 + _SPAN_BITS
_RATIO_MASK: Final = (1 << _RATIO_BITS) - 1
# Seconds for the final export: less than the two seconds that a host waits for its servers to exit.
_CLOSE_S: Final = 1.5
_NOTHING: Final[Mapping[str, str]] = {}


class UnrecordedSpan:
    """The span of a request whose trace is not recorded. It provides ids for log lines and for requests to upstreams.

    Attributes:
        fields: The trace context to send to upstreams; empty if the caller's trace context is forwarded unchanged.
    """

    __slots__ = ("_parent", "_token", "fields")
    recorded: Final = False

    def __init__(self, parent: str, fields: Mapping[str, str]) -> None:
        """Create the span.

        Args:
            parent: The trace id and the span id, in the format of `traceparent`.
            fields: The trace context to send to upstreams.
        """
        self._parent = parent
        self.fields = fields
        self._token: Token[CurrentSpan | None] | None = None

    @property
    def trace_id(self) -> str:
        return self._parent[3:35]

    @property
    def span_id(self) -> str:
        return self._parent[36:52]

    def add_event(self, name: str, **attributes: str | int | float | bool) -> None:
        """Do nothing."""

    def set_attribute(self, name: str, value: str | int | float | bool) -> None:
        """Do nothing."""

    def mark_failed(self, kind: str) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        self._token = CURRENT.set(self)
        return self

    def __exit__(self, kind: object, error: object, stack: object) -> None:
        if self._token is not None:
            CURRENT.reset(self._token)


class Span:
    """A recorded span. Inside its `with` block, the span is the current span of the task. It ends with the block.

    Attributes:
        inner: The OpenTelemetry span.
    """

    __slots__ = ("_token", "inner")
    recorded: Final = True

    def __init__(self, span: trace.Span) -> None:
        self.inner = span
        self._token: Token[CurrentSpan | None] | None = None

    @property
    def trace_id(self) -> str:
        return format(self.inner.get_span_context().trace_id, "032x")

    @property
    def span_id(self) -> str:
        return format(self.inner.get_span_context().span_id, "016x")

    @property
    def fields(self) -> Mapping[str, str]:
        return _fields_of(self.inner.get_span_context())

    def add_event(self, name: str, **attributes: str | int | float | bool) -> None:
        self.inner.add_event(name, attributes)

    def set_attribute(self, name: str, value: str | int | float | bool) -> None:
        self.inner.set_attribute(name, value)

    def mark_failed(self, kind: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self.inner.set_attribute(trace_context.ERROR_TYPE, kind)
        self.inner.set_status(Status(StatusCode.ERROR))

    def __enter__(self) -> Self:
        self._token = CURRENT.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if self._token is not None:
            CURRENT.reset(self._token)
        if kind is not None and issubclass(kind, Exception):
            code = getattr(error, "code", None)
            self.mark_failed(str(code) if code is not None else kind.__name__)
        self.inner.end()


class Tracing(Reconfigurable):
    """Creates spans, and exports spans and duration metrics.

    Attributes:
        content: Whether spans include the arguments and results of tools.
        duration_export: Exports durations as metrics; None if metrics are not exported.
    """

    def __init__(self, settings: TelemetryConfig, *, instance: str) -> None:
        """Create the exporters, which run in threads of the OpenTelemetry SDK.

        Args:
            settings: The telemetry section of the configuration.
            instance: The id that distinguishes this process from other processes of the same service.

        Raises:
            ConfigError: The OpenTelemetry packages are not installed.
        """
        self.content = settings.content
        ratio = _ratio_of(settings)
        # A trace is recorded if the lower part of its id is less than `_bound`. `_bound` is None if the environment
        # configures a sampler, which then decides.
        self._bound = round(ratio * (_RATIO_MASK + 1)) if ratio is not None else None
        # The id of the next trace, if `unrecorded` has already decided to record that trace; 0 to generate an id.
        self._trace_id = 0
        try:
            span_exporter = create_exporter(settings, "traces")
            metric_exporter = create_exporter(settings, "metrics") if settings.metrics else None
            self._sends_traces = span_exporter is not None
            self._tracers, resource = self._create_provider(settings, instance, span_exporter)
            self.duration_export = (
                DurationExport(metric_exporter, resource, interval_ms=interval_ms_of(settings, "metrics"))
                if metric_exporter is not None
                else None
            )
        except ImportError as error:
            raise ConfigError(
                f"needs packages that are not installed ({error.name}); expected {install_command(EXTRA)}",
                file="configuration",
                key="gateway.telemetry",
            ) from None
        self._tracer = self._tracers.get_tracer("typegate")

    async def validate(self, change: ConfigChange) -> Apply:
        # Do nothing: running exporters cannot be changed. `plan` reports that changes take effect at the next start.
        return lambda: None

    def close(self) -> None:
        """Export the remaining data within `_CLOSE_S` and shut down."""
        closing = [self._tracers.shutdown, *([self.duration_export.close] if self.duration_export else [])]
        # If the collector does not respond, each exporter retries for ten seconds. Use daemon threads, which do not
        # delay the exit.
        threads = [threading.Thread(target=close, daemon=True) for close in closing]
        for thread in threads:
            thread.start()
        until_s = time.monotonic() + _CLOSE_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def unrecorded(self, parents: Sequence[Parent]) -> UnrecordedSpan | None:
        """Decide whether to record the trace of a request from a caller.

        Args:
            parents: The parent spans that the request names; the first one decides.

        Returns:
            The span of the request if its trace is not recorded. None if the trace is recorded: the caller of this
            method then has to call `start_server_span`.
        """
        if not self._sends_traces:
            return (
                UnrecordedSpan(parents[0].text, _NOTHING)
                if parents
                else _create_unrecorded(random.getrandbits(_IDS_BITS))
            )
        if self._bound is None:
            return None
        if parents:
            parent = parents[0]
            return None if parent.sampled else UnrecordedSpan(parent.text, _NOTHING)
        # A trace id followed by a span id.
        ids = random.getrandbits(_IDS_BITS)
        trace_id = ids >> _SPAN_BITS
        if trace_id & _RATIO_MASK < self._bound:
            self._trace_id = trace_id
            return None
        return _create_unrecorded(ids)

    def start_server_span(
        self, method: str, parents: Sequence[Parent], attributes: dict[str, Any]
    ) -> Span | UnrecordedSpan:
        """Start the span of a caller's request, after `unrecorded` has returned None for the request.

        Args:
            method: The MCP method.
            parents: The parent spans that the request names. The first becomes the parent, and the second a link.
            attributes: The attributes of the span. Attributes that are None are left out.
        """
        from opentelemetry import trace

        contexts = [_context_of(parent) for parent in parents]
        links = [trace.Link(context) for context in contexts[1:] if context.span_id != contexts[0].span_id]
        parent_context = trace.set_span_in_context(trace.NonRecordingSpan(contexts[0])) if contexts else None
        return self._start(method, parent_context, trace.SpanKind.SERVER, attributes, links)

    def start_client_span(self, parent: Span, method: str, attributes: dict[str, Any]) -> Span | UnrecordedSpan:
        """Start the span of a request to an upstream, as a child of the span `parent`."""
        from opentelemetry import trace

        return self._start(method, trace.set_span_in_context(parent.inner), trace.SpanKind.CLIENT, attributes, [])

    def _start(
        self, method: str, context: Any, kind: trace.SpanKind, attributes: dict[str, Any], links: list[trace.Link]
    ) -> Span | UnrecordedSpan:
        target = attributes.get(trace_context.TOOL) or attributes.get(trace_context.PROMPT)
        span = self._tracer.start_span(
            f"{method} {target}" if target else method,
            context=context,
            kind=kind,
            attributes={trace_context.METHOD: method, **{k: v for k, v in attributes.items() if v is not None}},
            links=links,
        )
        if span.is_recording():
            return Span(span)
        # The sampler that the environment configures has rejected the trace, or the SDK is disabled. A disabled SDK
        # does not generate ids.
        span_context = span.get_span_context()
        return (
            UnrecordedSpan((fields := _fields_of(span_context))[PARENT], fields)
            if span_context.is_valid
            else _create_unrecorded(random.getrandbits(128) or 1)
        )

    def _create_provider(
        self, settings: TelemetryConfig, instance: str, exporter: SpanExporter | None
    ) -> tuple[TracerProvider, Resource]:
        # Imported lazily, because importing the SDK takes a tenth of a second and about 40 MiB.
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        from gateway import __version__

        class Ids(RandomIdGenerator):
            def generate_trace_id(ids) -> int:
                chosen, self._trace_id = self._trace_id, 0
                return chosen or super().generate_trace_id()

        # `create` adds the attributes of OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES.
        name = service_name_of(settings)
        own = {"service.version": __version__, "service.instance.id": instance}
        resource = Resource.create({**own, **({} if name is None else {"service.name": name})})
        tracers = TracerProvider(
            resource=resource,
            # If `unrecorded` decides, record every span that is started. None lets the SDK use the sampler that the
            # environment configures.
            sampler=ALWAYS_ON if self._bound is not None else None,
            id_generator=Ids(),
            shutdown_on_exit=False,
        )
        if exporter is not None:
            delay_ms = interval_ms_of(settings, "traces")
            tracers.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay_ms))
        return tracers, resource


def content_of(value: Any) -> str:
    """Serialize arguments or a result for an attribute, cut to `_MAX_CONTENT_CHARS`."""
    from gateway.protocol import json_bytes

    try:
        return json_bytes.dumps(value)[: _MAX_CONTENT_CHARS * 4].decode("utf-8", "replace")[:_MAX_CONTENT_CHARS]
    except json_bytes.MalformedJson:
        return ""


def uri_of(params: Mapping[str, Any]) -> str | None:
    """Return the URI in the params of a request, if any, without user, password and query, which may be secret."""
    uri = params.get("uri")
    if not isinstance(uri, str):
        return None
    scheme, colon, after_scheme = uri[:_MAX_URI_CHARS].partition("?")[0].partition("://")
    authority, slash, path = after_scheme.partition("/")
    return f"{scheme}{colon}{authority.rpartition('@')[2]}{slash}{path}"


def _ratio_of(settings: TelemetryConfig) -> float | None:
    """Return the fraction of new traces to record; None if the SDK has to create the sampler in OTEL_TRACES_SAMPLER."""
    sampler = os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    if "sample_ratio" in settings.model_fields_set or sampler in ("", "parentbased_always_on"):
        return settings.sample_ratio
    if sampler == "parentbased_always_off":
        return 0.0
    if sampler == "parentbased_traceidratio":
        try:
            return min(1.0, max(0.0, float(os.environ.get("OTEL_TRACES_SAMPLER_ARG", "1"))))
        except ValueError:
            return 1.0  # as in the SDK
    return None


def _create_unrecorded(ids: int) -> UnrecordedSpan:
    text = f"{ids:048x}"
    parent = f"00-{text[:32]}-{text[32:]}-00"
    return UnrecordedSpan(parent, {PARENT: parent})


def _fields_of(context: trace.SpanContext) -> dict[str, str]:
    fields = {PARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & SAMPLED:02x}"}
    if context.trace_state:
        fields[STATE] = context.trace_state.to_header()
    return fields


def _context_of(parent: Parent) -> trace.SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState

    return SpanContext(
        trace_id=int(parent.trace_id, 16),
        span_id=int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(parent.flags),
        trace_state=TraceState.from_header([parent.state]) if parent.state is not None else None,
    )
