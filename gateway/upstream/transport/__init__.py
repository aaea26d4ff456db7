"""The ways to carry JSON-RPC to an upstream.

`jsonrpc` is the seam: what a transport promises, and the table of pending requests. `child_process` runs a stdio
server; `http_client` and `http_connection` send bounded HTTP requests; `streamable_http` and `http_sse` carry the two
HTTP transports of MCP, reading server-sent events with `event_stream`. `invalid_json` rescues what it can of answers
that are not strict JSON.
"""
