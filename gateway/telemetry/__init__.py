"""Logs, metrics and traces.

trace_context  Trace context of requests, and attribute names of the OpenTelemetry conventions for MCP.
tracing        Spans of requests from callers and of requests to upstreams.
durations      Histograms of durations by method, server, tool and kind of error.
otel_export    Export durations over OTLP, configured by the standard OpenTelemetry variables.
logs           Write logs to standard error: a message and fields, one line for each event.
"""
