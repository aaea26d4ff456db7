"""From the arguments that a caller sent to those that are forwarded.

`prepare` is the one path: repair, defaults, check. `repair` reads a wrong call as it was surely meant: `unwrapping`
takes off envelopes, `attempt` answers each validation error by the one edit that mends it, `coercion` knows what a
single value may mean. `problems` says what is wrong, `diagnosis` puts it into words, `example` makes a ready call.
"""
