"""The ways to carry JSON-RPC to an upstream.

`jsonrpc` is the seam: what a transport promises, and how responses are read. `stream_transport` matches requests
and answers on one stream, for `stdio` (a child process) and for `http_sse`; `streamable_http` sends each request
on its own. `http_client` and `http_connection` send bounded HTTP requests, `event_stream` reads server-sent
events, `invalid_json` saves what it can of responses that are not strict JSON, and `bounds` says how much one
message may hold.
"""
