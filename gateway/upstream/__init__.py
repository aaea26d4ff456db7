"""Everything that reaches an upstream.

The seams: `session` is what a link needs of a connection, whatever the upstream's type, and `connector` is how one is
opened; each type names its connector beside its configuration, in `gateway.config.upstream_types`.

`link` keeps one upstream connected and listed, and reports to `link_ports`; `link_states` are its states, `relisting`
decides when it is listed again, `call_sender` sends calls over it, with `breaker` and `backoff` as pure decisions and
`reachability` to see whether a port is back. `private_links` are those that belong to one downstream session each,
`user_links` those of one caller.

What proves to an upstream who we are: `credentials` is the seam, `credential_sources` chooses what is behind it, as
what a `headers_command` prints or a sign-in (`oauth`).

MCP servers: `mcp_connectors` open a transport and negotiate, `mcp_session` lists and calls, `task_run` runs a call as a
task, `inbound_messages` takes what arrives unasked, `watching` asks for it. `request_callbacks` is the way of one
request back to its caller before its result, `deadline` its end, `watch_list` what somebody subscribed to. `transport`
carries the messages. `graphql` is an upstream of another kind behind the same seam.
"""
