"""Hooks that ship with the gateway, selected by `use:` in the configuration.

audit_log          `audit_log`: write one line of JSON for each call.
cache              `cache`: store results of read-only tools for the principal that received them.
instruction_guard  `instruction_guard`: flag or block results that instruct a model.
rate_limit         `rate_limit`: limit the rate at which one principal may call a tool.
redact             `redact`: replace secrets and personal data in results and arguments.
size_guard         `size_guard`: shorten results that are too large.
"""
