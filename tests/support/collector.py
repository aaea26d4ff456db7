"""A collector of OpenTelemetry on loopback: takes what is sent over OTLP/HTTP, and hands it out decoded."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
from support.waiting import brief_pause


@dataclass(slots=True, kw_only=True)
class ReceivedSpan:
    """One span as it was received."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    links: list[str]
    events: list[str]
    failed: bool


@dataclass(slots=True)
class Collector:
    """The received data.

    Attributes:
        metrics: The number of durations in the latest points of each metric.
        points: The points of each export, by metric.
        resources: The resource of each export, by path.
    """

    url: str
    spans: list[ReceivedSpan] = field(default_factory=list)
    metrics: dict[str, int] = field(default_factory=dict)
    points: dict[str, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))
    headers: list[dict[str, str]] = field(default_factory=list)
    resources: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    async def until(self, count: int, within_s: float = 25) -> list[ReceivedSpan]:
        """Return the spans as soon as there are enough."""
        with anyio.fail_after(within_s):
            while len(self.spans) < count:
                await brief_pause()
        return self.spans


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector on a separate port."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # as the base class calls it
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            received.headers.append({name.lower(): value for name, value in self.headers.items()})
            if self.path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    received.resources[self.path].append(_attributes(resource.resource))
                    for scope in resource.scope_spans:
                        received.spans.extend(map(_span, scope.spans))
            elif self.path == "/v1/metrics":
                for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    received.resources[self.path].append(_attributes(resource.resource))
                    for scope in resource.scope_metrics:
                        for metric in scope.metrics:
                            points = list(metric.histogram.data_points)
                            received.points[metric.name].append(points)
                            received.metrics[metric.name] = sum(point.count for point in points)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    def _attributes(resource: Any) -> dict[str, Any]:
        return {one.key: _value(one.value) for one in resource.attributes}

    def _span(span: Any) -> ReceivedSpan:
        return ReceivedSpan(
            name=span.name,
            kind=span.kind,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            attributes={one.key: _value(one.value) for one in span.attributes},
            links=[link.span_id.hex() for link in span.links],
            events=[event.name for event in span.events],
            failed=span.status.code == 2,
        )

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
