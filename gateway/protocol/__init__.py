"""The protocol layer that all parts share: errors, JSON-RPC, protocol versions and JSON bytes.

gateway_errors  Errors, named by which side broke the rule, and their form as JSON-RPC errors or error results.
jsonrpc         Classify JSON-RPC messages, independent of the transport.
versions        The two protocol eras: their versions, and the envelope and headers of the modern one.
extensions      The protocol extensions that the gateway forwards, and how each request finds its server.
json_bytes      Convert between JSON bytes and values without changing any value.
"""
