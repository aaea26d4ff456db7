"""MCP server: the side of the gateway that callers connect to.

A caller is an MCP client, usually a host such as Cursor or Claude Code. MCP versions form two eras: versions of the
handshake era, up to 2025-11-25, begin with an `initialize` request and have sessions; the modern version, 2026-07-28,
has neither, and each request contains the client's version and capabilities in `_meta`.

endpoint       The `/mcp` endpoint: Streamable HTTP for both protocol eras.
resumption     Responses that a disconnected caller can resume, as event streams.
declarations   Capabilities and instructions, and how long a list request waits for upstreams during startup.
messages       A caller's request and its response, and the serialized results of list methods.
mcp_server     Answer MCP requests in both protocol eras.
sessions       Sessions of the handshake era, and notifications of changed lists, coalesced and rate-limited.
stdio_server   Serve one host over standard input and output.
subscriptions  Subscriptions to list changes, resources and tasks, in both protocol eras.
admission      Check Host and Origin, route requests by path, and authenticate their sender.
"""
