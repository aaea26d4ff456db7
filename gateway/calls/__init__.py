"""One request, from a name of ours to a result that its caller can read.

`pipeline` is the path of every tool call, `offerings` that of prompts, resources, completions and tasks;
both send through `forwarding`, which picks the connection and asks the caller what an upstream asks;
`subscriptions` joins callers to what they watch; `results` words an answer for the caller's version.
"""
