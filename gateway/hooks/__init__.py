"""Hooks around every call of a tool, every prompt and every resource.

`hook` is what an author of hooks needs, and its manual. A configured hook is guarded by a `guard`: its time-out,
its breaker, its counters, copies in, checked values out; `driving` bounds a coroutine, `threads` a blocking
function, `queue` an audit. `chain` orders the guards that concern a wrapper; a `Passage` is the way of one call
through them. `loading` makes guards from the configuration; `formats` are shapes that hooks were written for.
Carriers of hooks written elsewhere: `webhook`, `cpex`. Hooks of our own: `redact`, `size_guard`, `cache`,
`audit_log`, `rate_limit`.
"""

from gateway.hooks.hook import After, Answer, Before, Block, Call, Hook, Metadata, Result

__all__ = ["After", "Answer", "Before", "Block", "Call", "Hook", "Metadata", "Result"]
