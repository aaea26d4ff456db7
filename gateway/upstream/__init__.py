"""Everything that reaches an upstream.

`link` owns one connection and its life; `mcp` speaks the protocol over a channel;
`http`, `stdio` and `events` carry bytes; `backoff` and `breaker` are pure decisions.
"""
