"""Logs, metrics and traces.

trace_context  Read and forward the trace context of requests, and define the attribute names of OpenTelemetry for MCP.
tracing        Record spans for requests from callers and to upstreams, and export traces and metrics with OTLP.
logs           Write logs to standard error: one line for each event, with a message and fields.
"""
