"""The protocol layer that all parts share: errors, JSON-RPC, protocol versions and JSON bytes.

gateway_errors  Exceptions, and their conversion to JSON-RPC errors or to tool results that report an error.
jsonrpc         Classify JSON-RPC messages, independent of the transport.
versions        The handshake versions and the modern versions of MCP, and the metadata of modern requests.
extensions      The protocol extensions that the gateway forwards, and how to find the server of each request.
json_bytes      Convert between JSON text and values without changing any value.
"""
