"""The types of upstreams: one file for each, with the keys of its entry in the configuration.

`stdio_config`, `http_config`, `sse_config` and `graphql_config`; those over HTTP have `headers_config` and `sign_in`.

To add a type: a subclass of `gateway.config.server.ServerConfig` in a file of its own here, its connector (a class
that `gateway.upstream.connector` describes) where its transport or client lives, and one line in `registration`.
Everything else is derived: the JSON Schema, the type of an entry that does not say it, warnings of foreign keys,
whether a change needs a new connection (`gateway.config.plan`), and whether a saved listing is of the same server
(`gateway.snapshot`).
"""
