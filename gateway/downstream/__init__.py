"""What callers connect to.

`server` answers requests in both eras and knows no transport; `capabilities` says what we can do;
`views` holds lists as bytes; `changes` announces, `listening` is what callers listen to; `sessions` is
the handshake era's memory; `http` and `streams` carry Streamable HTTP; `stdio` and `pipes` carry lines.
"""
