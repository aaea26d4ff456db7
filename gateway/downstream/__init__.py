"""What callers connect to.

`server` answers requests in both eras and knows no transport; `views` holds lists as bytes;
`changes` announces; `http`, `sessions` and `streams` carry Streamable HTTP; `stdio` carries lines.
"""
