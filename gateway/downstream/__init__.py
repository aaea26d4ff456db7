"""What callers connect to.

`server` answers requests in both eras and knows no transport; `capabilities` says what we can do;
`views` holds lists as bytes; `changes` announces, `listening` is what callers listen to; `sessions` is
the handshake era's memory; `http`, `arrival` and `streams` carry Streamable HTTP, and `fastpath` what is usual
of it; `stdio` and `pipes` carry lines.
"""
