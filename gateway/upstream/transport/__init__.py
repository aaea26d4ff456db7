"""The transports to upstreams.

streamable_http    The Streamable HTTP transport: one POST for each request.
http_answers       Resume event streams of Streamable HTTP, and interpret error statuses.
client_headers     The headers of requests to one server, and the cookies that this server sets.
http_sse           The HTTP+SSE transport of 2024-11-05.
jsonrpc_transport  The transport interface for upstreams that speak JSON-RPC, and the repair of malformed responses.
process_start      Start local servers, track their progress, and isolate the servers from each other.
stderr_log         Log the standard error of a child process, and find the line that explains why the process ended.
stdio_transport    The stdio transport: a child process that exchanges lines of limited length with the gateway.
stream_transport   A transport over one stream, on which responses may arrive in any order.
"""
