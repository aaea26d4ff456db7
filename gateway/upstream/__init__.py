"""Everything that reaches an upstream.

`link` owns one connection and its life; `mcp` speaks the protocol over a channel; `channel` finds
each answer its request and `salvage` does so for answers that are no strict JSON; `channels` and
`sse` are the connections; `http`, `stdio` and `events` carry bytes; `backoff` and `breaker` are pure
decisions.
"""
