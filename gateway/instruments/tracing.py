"""Spans of requests: those that callers send, and those that we send to upstreams, in one trace.

Whether a trace is recorded is decided once, where it begins; what is not recorded costs the ids that are passed on.
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

from gateway.config.telemetry import EXTRA, TelemetryConfig
from gateway.errors import ConfigError
from gateway.extras import install_command
from gateway.instruments import conventions
from gateway.instruments.current import CURRENT
from gateway.instruments.current import Span as CurrentSpan
from gateway.instruments.duration_export import DurationExport
from gateway.instruments.durations import Durations
from gateway.instruments.otel_environment import exporter_of, interval_ms_of, service_name_of
from gateway.instruments.trace_context import PARENT, SAMPLED, STATE, Parent

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

# Of arguments and results, where they are asked for: what collectors take of one attribute.
_MAX_CONTENT_CHARS: Final = 4_096
# A line of a trace; what is longer holds data.
_MAX_URI_CHARS: Final = 200
# Samplers of every service decide by the same part of the id (OpenTelemetry SDK, "TraceIdRatioBased").
_RATIO_BITS: Final = 64
_SPAN_BITS: Final = 64
_IDS_BITS: Final = 128 + _SPAN_BITS
_RATIO_MASK: Final = (1 << _RATIO_BITS) - 1
# What is left is sent within this time: a host gives its servers two seconds to end.
_CLOSE_S: Final = 1.5
_NOTHING: Final[Mapping[str, str]] = {}


class UnrecordedSpan:
    """Stands for the span of a request whose trace is not recorded, so that its ids are known.

    Attributes:
        fields: What whoever is called gets to continue the trace; empty where the caller's own is passed on as it came.
    """

    __slots__ = ("_parent", "_token", "fields")
    recorded: Final = False

    def __init__(self, parent: str, fields: Mapping[str, str]) -> None:
        """Make one.

        Args:
            parent: As a `traceparent` has it.
            fields: See above.
        """
        self._parent = parent
        self.fields = fields
        self._token: Token[CurrentSpan | None] | None = None

    @property
    def trace_id(self) -> str:
        """See `current.Span`."""
        return self._parent[3:35]

    @property
    def span_id(self) -> str:
        """See `current.Span`."""
        return self._parent[36:52]

    def event(self, name: str, **attributes: str | int | float | bool) -> None:
        """Drop it."""

    def set(self, name: str, value: str | int | float | bool) -> None:
        """Drop it."""

    def failed(self, kind: str) -> None:
        """Drop it."""

    def __enter__(self) -> Self:
        self._token = CURRENT.set(self)
        return self

    def __exit__(self, kind: object, error: object, stack: object) -> None:
        if self._token is not None:
            CURRENT.reset(self._token)


class Span:
    """One span; while it is entered it is the current one of its task, and leaving it ends it.

    Attributes:
        inner: OpenTelemetry's.
    """

    __slots__ = ("_token", "inner")
    recorded: Final = True

    def __init__(self, span: trace.Span) -> None:
        self.inner = span
        self._token: Token[CurrentSpan | None] | None = None

    @property
    def trace_id(self) -> str:
        """See `current.Span`."""
        return format(self.inner.get_span_context().trace_id, "032x")

    @property
    def span_id(self) -> str:
        """See `current.Span`."""
        return format(self.inner.get_span_context().span_id, "016x")

    @property
    def fields(self) -> Mapping[str, str]:
        """What whoever is called gets to continue the trace."""
        return _fields_of(self.inner.get_span_context())

    def event(self, name: str, **attributes: str | int | float | bool) -> None:
        """See `current.Span`."""
        self.inner.add_event(name, attributes)

    def set(self, name: str, value: str | int | float | bool) -> None:
        """See `current.Span`."""
        self.inner.set_attribute(name, value)

    def failed(self, kind: str) -> None:
        """See `current.Span`."""
        from opentelemetry.trace import Status, StatusCode

        self.inner.set_attribute(conventions.ERROR_TYPE, kind)
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
            self.failed(str(code) if code is not None else kind.__name__)
        self.inner.end()


class Tracing:
    """Makes spans, and sends them and metrics to a collector.

    Attributes:
        content: Arguments and results of tools are attributes too.
    """

    def __init__(self, settings: TelemetryConfig, durations: Durations, *, instance: str) -> None:
        """Send to the collector that is configured.

        Args:
            settings: Where to, and how much.
            durations: What is measured in any case, sent as metrics too.
            instance: Tells this process from others of the same service.

        Raises:
            ConfigError: The packages are not installed.
        """
        self.content = settings.content
        ratio = _ratio_of(settings)
        # Trace ids whose lower part is less are recorded; None where a sampler of the environment is to be asked.
        self._bound = round(ratio * (_RATIO_MASK + 1)) if ratio is not None else None
        # Of the trace that begins next.
        self._trace_id = 0
        try:
            span_exporter = exporter_of(settings, "traces")
            metric_exporter = exporter_of(settings, "metrics") if settings.metrics else None
            self._sends_traces = span_exporter is not None
            self._tracers, resource = self._provider(settings, instance, span_exporter)
        except ImportError as error:
            raise ConfigError(
                f"needs packages that are not installed ({error.name}); expected {install_command(EXTRA)}",
                file="configuration",
                key="gateway.telemetry",
            ) from None
        self._export: DurationExport | None = None
        if metric_exporter is not None:
            interval_s = interval_ms_of(settings, "metrics") / 1000
            self._export = DurationExport(durations, metric_exporter, resource, interval_s=interval_s)
        self._tracer = self._tracers.get_tracer("typegate")

    async def run(self) -> None:
        """Send metrics until cancelled; spans are sent in any case."""
        if self._export is not None:
            await self._export.run()

    def close(self) -> None:
        """Send what is left, bounded, and stop."""
        closing = [self._tracers.shutdown, *([self._export.close] if self._export is not None else [])]
        # Each tries again for ten seconds where there is no collector; daemons, which end with the process.
        threads = [threading.Thread(target=close, daemon=True) for close in closing]
        for thread in threads:
            thread.start()
        until_s = time.monotonic() + _CLOSE_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def unrecorded(self, parents: Sequence[Parent]) -> UnrecordedSpan | None:
        """Decide about a request that a caller has sent; None where its trace is to be recorded.

        Args:
            parents: The spans above it, the nearest first.
        """
        if not self._sends_traces:
            return UnrecordedSpan(parents[0].text, _NOTHING) if parents else _unrecorded(random.getrandbits(_IDS_BITS))
        if self._bound is None:
            return None
        if parents:
            parent = parents[0]
            return None if parent.sampled else UnrecordedSpan(parent.text, _NOTHING)
        # A trace id and, behind it, a span id.
        ids = random.getrandbits(_IDS_BITS)
        trace_id = ids >> _SPAN_BITS
        if trace_id & _RATIO_MASK < self._bound:
            self._trace_id = trace_id
            return None
        return _unrecorded(ids)

    def of_caller(self, method: str, parents: Sequence[Parent], attributes: dict[str, Any]) -> Span | UnrecordedSpan:
        """Return the span of a request that a caller has sent, once `unrecorded` has decided that.

        Args:
            method: Of MCP.
            parents: The spans above it, the nearest first.
            attributes: Of the span.
        """
        from opentelemetry import trace

        contexts = [_context_of(parent) for parent in parents]
        links = [trace.Link(context) for context in contexts[1:] if context.span_id != contexts[0].span_id]
        above = trace.set_span_in_context(trace.NonRecordingSpan(contexts[0])) if contexts else None
        return self._start(method, above, trace.SpanKind.SERVER, attributes, links)

    def of_upstream(self, above: Span, method: str, attributes: dict[str, Any]) -> Span | UnrecordedSpan:
        """Return the span of a request to an upstream, below another one."""
        from opentelemetry import trace

        return self._start(method, trace.set_span_in_context(above.inner), trace.SpanKind.CLIENT, attributes, [])

    def _start(
        self, method: str, context: Any, kind: trace.SpanKind, attributes: dict[str, Any], links: list[trace.Link]
    ) -> Span | UnrecordedSpan:
        target = attributes.get(conventions.TOOL) or attributes.get(conventions.PROMPT)
        span = self._tracer.start_span(
            f"{method} {target}" if target else method,
            context=context,
            kind=kind,
            attributes={conventions.METHOD: method, **{k: v for k, v in attributes.items() if v is not None}},
            links=links,
        )
        if span.is_recording():
            return Span(span)
        # A sampler of the environment was asked; without any (OTEL_SDK_DISABLED) there are no ids either.
        own = span.get_span_context()
        return (
            UnrecordedSpan((fields := _fields_of(own))[PARENT], fields)
            if own.is_valid
            else _unrecorded(random.getrandbits(128) or 1)
        )

    def _provider(
        self, settings: TelemetryConfig, instance: str, exporter: SpanExporter | None
    ) -> tuple[TracerProvider, Resource]:
        # Late, and only where it is configured: a tenth of a second, and some 40 MiB.
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

        # `create` adds those of OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES.
        name = service_name_of(settings)
        own = {"service.version": __version__, "service.instance.id": instance}
        resource = Resource.create({**own, **({} if name is None else {"service.name": name})})
        tracers = TracerProvider(
            resource=resource,
            # What is not to be sampled never gets there; without one it reads the environment.
            sampler=ALWAYS_ON if self._bound is not None else None,
            id_generator=Ids(),
            shutdown_on_exit=False,
        )
        if exporter is not None:
            delay_ms = interval_ms_of(settings, "traces")
            tracers.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay_ms))
        return tracers, resource


def content_of(value: Any) -> str:
    """Arguments or a result as an attribute has it."""
    from gateway import wire

    try:
        return wire.dumps(value)[: _MAX_CONTENT_CHARS * 4].decode("utf-8", "replace")[:_MAX_CONTENT_CHARS]
    except wire.MalformedJson:
        return ""


def uri_of(params: Mapping[str, Any]) -> str | None:
    """The URI that a request asks for, as an attribute has it: without what of it may be a secret; None without one."""
    uri = params.get("uri")
    if not isinstance(uri, str):
        return None
    scheme, colon, rest = uri[:_MAX_URI_CHARS].partition("?")[0].partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{colon}{authority.rpartition('@')[2]}{slash}{path}"


def _ratio_of(settings: TelemetryConfig) -> float | None:
    """Which part of the traces that begin here is recorded; None where a sampler of the environment decides."""
    sampler = os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    if "sample_ratio" in settings.model_fields_set or sampler in ("", "parentbased_always_on"):
        return settings.sample_ratio
    if sampler == "parentbased_always_off":
        return 0.0
    if sampler == "parentbased_traceidratio":
        try:
            return min(1.0, max(0.0, float(os.environ.get("OTEL_TRACES_SAMPLER_ARG", "1"))))
        except ValueError:
            return 1.0  # as the SDK takes what is no number
    return None


def _unrecorded(ids: int) -> UnrecordedSpan:
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
