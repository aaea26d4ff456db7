"""What is measured while requests run, and told by `telemetry` and to collectors.

conventions      the names that OpenTelemetry gives to spans, attributes and metrics of MCP
durations        how long operations took, counted in buckets
duration_export  sends them to a collector
current          the span of the request that is running
trace_context    whose trace a request belongs to
otel_environment what the standard variables of OpenTelemetry say
tracing          spans: of a request that a caller sent, and of one that we send to an upstream
"""
