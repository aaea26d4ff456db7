"""Everything that happens to one HTTP request.

protocol            one connection: whose turn it is, and until when
request_reader      reads requests, within bounds; `known_heads` are read once, `upgrade` is ignored
repeated_heads      finds and learns known heads for one connection
request             the head of a request, and refusals that it alone decides
connections         all connections of a server: deadlines, what is left unread; `large_writes` what that keeps
                    in memory
router              chooses the `handler` of a request, after `host_check`; `cross_origin` is what pages may read
callers             who sends a request, and which profile it is for; `protected_resource` says where to get a token
endpoint            `/mcp`, with every rule of the protocol; `agreement` compares headers with the body
carried             requests that another process answers
responder           sends the response, as JSON or as an event stream (`sse`); a large result as a `result_stream`
session_streams     what a session hears beside its requests; `resumption` is an answer that its caller comes back for
asgi                runs an ASGI application for one request
"""
