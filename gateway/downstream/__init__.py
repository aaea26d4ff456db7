"""MCP server: the side of the gateway that callers connect to.

endpoint            The `/mcp` endpoint: Streamable HTTP for both protocol eras.
http_callers        Authenticate the sender of a request from its header block, and compare headers with the body.
router              Check Host and Origin, then route a request by its path or forward it to the owner of its session.
protected_resource  Protected resource metadata (RFC 9728) and challenges for callers without a token.
resumption          Event streams of a session that a caller may leave and resume.
declarations        Capabilities, instructions, and how long the first list of a host may take.
list_changes        Announce changes of the catalog to subscribers, coalesced and rate-limited.
lists               Serialized results of the list methods.
messages            One request of a caller and its response, independent of the transport.
mcp_server          Answer MCP requests in both protocol eras.
sessions            Sessions of the handshake era, limited in number and idle time.
stdio_server        Serve one host over standard input and output.
subscriptions       Subscriptions of callers in both eras.
"""
