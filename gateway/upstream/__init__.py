"""Everything that reaches an upstream.

`link` owns one connection and its life, `private` those that belong to one downstream session each;
`connector` finds transport and era; `session` lists and calls, `hearing` takes what is said unasked,
`watching` asks for it, `waiting` is for the time between two connections; `sideband` is one request's
way back beside its answer, and `deadline` its end; `channel` finds each answer its request, `salvage`
those that are no strict JSON; `channels` and `sse` are the connections; `http` with `http_connection`,
`stdio` and `events` carry bytes; `backoff` and `breaker` are pure decisions. `graphql` is an upstream of
another kind behind the same seam.
"""
