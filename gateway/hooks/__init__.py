"""Hooks around every tool call, prompt, resource and completion.

builtin/        Hooks that ship with the gateway, selected by `use:` in the configuration.
adapters/       Hooks that run code outside this package: webhooks and plugins of other gateways.
hook_loading    Start the configured hooks, replace them while calls run, and close them.
chain_of_hooks  Select and order the hooks for a tool, prompt or resource.
payloads        Copy, check and bound the JSON values and settings of hooks.
hook_formats    Convert arguments to the formats of other gateways, and describe exceptions.
hook            The interface for hook authors, with the manual in its docstrings.
invocation      Run one call through its hooks.
runner          Run one configured hook with a timeout, circuit breaker, counters and checks of its result.
foreign_code    Run third-party functions and coroutines so that a hanging one does not block anything else.
"""

from gateway.hooks.hook import After, Answer, Before, Block, Call, Hook, Metadata, Result

__all__ = ["After", "Answer", "Before", "Block", "Call", "Hook", "Metadata", "Result"]
