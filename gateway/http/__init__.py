"""HTTP/1.1 server and client, independent of MCP.

http_request         The parsed header block of a request, and the checks that need only the header block.
request_reader       Parse the requests of a connection and enforce size limits.
server_header_cache  Cache of parsed request header blocks, keyed by their bytes.
server_connection    One client connection: answer its requests in order.
server_connections   All connections of a server: limits of number, idle time and unread data.
responder            The response to one request: a JSON text, an event stream, or an ASGI application.
origins              Host and Origin checks (DNS rebinding) and CORS.
http_client          HTTP/1.1 client with a connection pool and limits per request.
client_connection    One connection to an HTTP/1.1 server, with one request at a time.
event_stream         Parser for server-sent events, with linear run time and bounded memory.
proxies              Forward proxies and additional certificate authorities.
"""
