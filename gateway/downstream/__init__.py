"""What callers connect to.

server              answers requests of both eras, whatever carries them
messages            a request and its response; `request_caller` is who sends one, `request_spans` what a span tells
sessions            the memory of the handshake era; `found_tools` is what a session has searched for
capabilities        what we say that we can do; `instructions` what a profile tells models
lists               results of the list methods, as bytes; `first_lists` wait for servers that are starting
changes             announces what has changed; `subscriptions` is what callers listen to
http/               Streamable HTTP
stdio_server        lines over `standard_streams`
"""
