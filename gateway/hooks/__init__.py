"""Hooks around every tool call, prompt, resource and completion.

A hook is an object whose methods run before and after a call is sent to an upstream. Each method is called a phase.

builtin/        Hooks that ship with the gateway, selected by `use:` in the configuration.
adapters/       Hooks that run code outside this package: webhooks and plugins of other gateways.
hook_loading    Start the configured hooks, replace them while calls run, and close them.
chain_of_hooks  Select and order the hooks for a tool, prompt or resource.
payloads        Copy and check the JSON values that hooks return, limit their size, and read the settings of hooks.
hook_formats    Convert arguments to the formats of other gateways, and describe exceptions.
hook            The interface for hook authors; its docstrings are the manual.
invocation      Run the hooks of one call, send the call, and apply what the hooks return.
runner          Run a hook with a timeout, a circuit breaker and counters, and check the values that it returns.
foreign_code    Run third-party functions and coroutines so that hanging code does not block anything else.
"""

from gateway.hooks.hook import After, Answer, Before, Block, Call, Hook, Metadata, Result

__all__ = ["After", "Answer", "Before", "Block", "Call", "Hook", "Metadata", "Result"]
