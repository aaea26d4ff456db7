"""Everything that happens to one HTTP request.

`protocol` reads requests from a connection and bounds what a caller may cost. `fast_path` recognises the usual calls
and answers them without ASGI, through a `responder`. All others go to `endpoint`, which knows every rule: `request`
checks headers and body, `response` sends JSON or an event stream.
"""
