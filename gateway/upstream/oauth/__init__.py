"""Sign in to upstreams that want OAuth, as their client.

Pure functions, each about one thing: `challenges` (what a refusal says), `discovery` (where metadata is, and what of it
is believed), `scopes`, `authorization` (the browser's way there and back), `tokens` (what a token endpoint answers),
`clients` (how we are known to an authorization server, and prove it).

`proof` signs requests with a key that tokens are bound to, where a server wants that; `addresses` says where we are.

What does I/O: `address_guard` decides which addresses may be dialled, `guarded_requests` sends requests through it;
`store` keeps what was obtained (`kept_sign_in`, `registered_clients`), for one at a time (`keyed_locks`), `encryption`
keeps it from readers; `grants` asks for tokens, `obtaining` goes from a refusal to one; `sign_in` is the state of one
upstream for one principal, over what is kept of it (`stored_sign_in`), and what its transports take credentials from;
`sign_ins` are all of them, with the browser's return; `connecting` makes links for single callers and finds out who
follows them, by `identity_login` where an issuer tells; `signed_in_users` lists who is signed in, for administrators;
`counts` is for metrics.

Sources: MCP 2025-11-25 and 2026-07-28, "Authorization"; RFC 6749, 7591, 7009, 8414, 8693, 8707, 9207, 9449,
9728; OpenID Connect Core 1.0.
"""
