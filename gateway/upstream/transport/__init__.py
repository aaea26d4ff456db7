"""The transports to upstreams.

streamable_http    The Streamable HTTP transport: one POST for each request.
http_answers       Responses of Streamable HTTP: event streams that are resumed, and the meaning of error statuses.
client_headers     Header blocks of requests to one server, and the cookies of one connection.
http_sse           The HTTP+SSE transport of 2024-11-05.
jsonrpc_transport  The seam to upstreams that speak JSON-RPC, and responses that are not strict JSON.
process_start      Start local servers: environment, progress, limits, and separation from each other.
stderr_log         The standard error of a child process, and the line that explains why it ended.
stdio_transport    The stdio transport: a child process with bounded lines.
stream_transport   A transport with one stream: requests wait for answers that arrive in any order.
"""
