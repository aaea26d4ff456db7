"""What an operator and an orchestrator ask over HTTP.

`api` answers `/admin/*`, and `probes` what stands beside it. Routes are in `operations`, by what they are about, and
declared with `routes`: beside the handler stands how the answers of several processes become one, by a rule of
`merging`, which role may ask, how `queries` choose among its rows, and what `openapi` says of it. `documents` are the
answers, refusals included. `rows` turns what runs into rows, for the command line too.

What administrators change goes through `changing` into the overlay (`gateway.config.overlay`). `event_feed` and
`activity` take the lines of the record for the routes about events. `policy_explained` says why a caller sees or lacks
something. `page/` is the web page: static modules over these routes; `sign_in_pages` are those that a browser sees of a
sign-in, made by `pages`.
"""
