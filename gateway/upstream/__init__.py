"""Everything that reaches an upstream.

graphql/              GraphQL operations as tools.
oauth/                Sign in to upstreams that require OAuth, as their client.
openapi/              Operations of HTTP APIs as tools.
transport/            The transports to upstreams.
breaker               Backoff between attempts, and a circuit breaker.
call_sender           Send calls over a link, with a concurrency limit and a circuit breaker.
demand                Decide when the process of a server has to run.
link                  One owner task for each upstream: connect, list, watch, reconnect.
link_states           The states of a link, and its callbacks.
sandbox               Decide what a confined server may use.
sandbox_rules         Find the files that a confined server needs.
session               The interfaces that every type of upstream implements: sessions and connectors.
upstream_credentials  The interface between a transport and the source of its credentials.
inbound_messages      Messages that an upstream sends unprompted: changes, log messages and requests to the client.
mcp_connectors        Open sessions to MCP servers, and detect the protocol version that a server speaks.
mcp_session           The session of an MCP server: list every page, and send calls.
caller_links          Connections of one downstream session or one caller.
task_run              Run a tool call that its server executes as a task, and return its result.
watching              Watch an MCP server for changes, and decide when to list it again.
"""
