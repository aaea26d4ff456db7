"""What an operator and an orchestrator ask over HTTP.

`api` answers `/admin/*`, the probes and `/metrics`. Each of its routes is declared with `routes`: beside the handler
stands how the answers of several processes become one, by a rule of `merging`, and what `openapi` says of it.
`rows` turns what runs into rows, for the command line too.
"""
