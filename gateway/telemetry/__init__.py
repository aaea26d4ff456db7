"""Logs, metrics and traces.

trace_context  Read and forward the trace context of requests, and define the attribute names of OpenTelemetry for MCP.
tracing        Record spans for requests from callers and for requests to upstreams.
durations      Count the durations of requests in histograms, by method, server, tool and kind of error.
otel_export    Create OTLP exporters from configuration and the standard OpenTelemetry variables, and export durations.
logs           Write logs to standard error: one line for each event, with a message and fields.
"""
