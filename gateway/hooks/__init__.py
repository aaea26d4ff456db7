"""Hooks around every tool call, prompt, resource and completion.

`hook` is the public interface for authors of hooks, and its manual. The rest of the room is the machinery:

    loading         configuration -> started `HookRunner`s; unchanged hooks are kept over a reload
    active          the hooks that run now; gives each call its `Invocation`
    chain           which hooks concern a tool, prompt or resource, and in which order
    unmatched       conditions that match nothing
    hooked_request  what a request and its hooks know of each other; `PASS_THROUGH` for a request without any
    invocation      one call on its way through its hooks
    runner          one hook with its time-out, circuit breakers, counters and checks of what it returns
    fault_text      what is told of an exception that a hook has raised
    timeout         awaits a foreign coroutine, bounded in time
    threads         daemon threads for blocking hooks
    audit_queue     events for audit hooks, delivered later and in order
    payloads        JSON values into and out of hooks: copied, checked, bounded
    settings        checks of the `config` object of a hook
    formats         argument formats that hooks of other gateways were written for
    builtin/        hooks that ship with the gateway
    carriers/       hooks that run elsewhere: webhooks, ContextForge plugins
"""

from gateway.hooks.hook import After, Answer, Before, Block, Call, Hook, Metadata, Result

__all__ = ["After", "Answer", "Before", "Block", "Call", "Hook", "Metadata", "Result"]
