"""The ways to carry JSON-RPC to an upstream.

`jsonrpc` is the seam: what a transport promises, and how responses are read. `stream_transport` matches requests
and answers on one stream, for `stdio` (a child process, which sees the `child_environment`) and for `http_sse`;
the `process_start` of such a process is bounded and waits for its turn, its `separation` keeps it apart from
other processes, and its `stderr_log` knows why it ended;
`streamable_http` sends each request on its own, with its `request_head` and the `cookies` of its server;
`http_refusals` says what a status means.
`http_client` and `http_connection` send bounded HTTP requests, and read the `known_heads` of answers once; what
follows a head is of a `media_type`. `proxies` says which forward proxy a host is reached through, and opens a `tunnel`
in it for TLS.
`event_stream` reads server-sent events, of which an `answer_stream` makes messages. `invalid_json` saves what it can
of responses that are not strict JSON; a `large_answer` is passed on before all of it has arrived, as `json_pieces`.
`bounds` says how much one message may hold, and `issuer_fetch` asks authorization servers.
"""
