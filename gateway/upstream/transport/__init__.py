"""The ways to carry JSON-RPC to an upstream.

`jsonrpc` is the seam: what a transport promises, and how responses are read. `stream_transport` matches requests
and answers on one stream, for `stdio` (a child process, which sees the `child_environment`) and for `http_sse`;
`streamable_http` sends each request on its own, with its `request_head`; `http_refusals` says what a status means.
`http_client` and `http_connection` send bounded HTTP requests, `event_stream` reads server-sent events, `invalid_json`
saves what it can of responses that are not strict JSON; a `large_answer` is passed on before all of it has arrived, as
`json_pieces`, and `bounds` says how much one message may hold. `known_heads`
of answers are read once. `issuer_fetch` asks authorization servers.
"""
