"""Connect to upstreams, list what they offer, and send calls to them.

graphql/              GraphQL operations as tools.
oauth/                Sign in to upstreams that require OAuth, as an OAuth client.
openapi/              Operations of HTTP APIs as tools.
transport/            The transports to upstreams.
breaker               Backoff between connection attempts, and a circuit breaker.
call_sender           Send calls over a link, with limits, and start the process of a server when a call needs it.
link                  One owner task for each upstream: connect, list, watch, reconnect.
link_states           The states of a link, and its callbacks.
sandbox               Decide what a confined server may use, and find the files that it needs.
session               The interfaces that every type of upstream implements, and the deadline of a call.
upstream_credentials  The interface between a transport and the source of its credentials.
inbound_messages      Messages that an upstream sends unprompted: changes, log messages and requests to the client.
mcp_connectors        Open sessions with MCP servers, and detect the protocol version that a server speaks.
mcp_session           A session with an MCP server: fetch every page of its lists, and send calls.
caller_links          Connections that belong to one downstream session or one caller.
task_run              Run a tool call that its server executes as a task, and return its result.
watching              Watch an MCP server for changes, and decide when to request its lists again.
"""
