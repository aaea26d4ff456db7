"""Hooks that ship with the gateway, selected by `use:` in the configuration.

`audit_log`, `cache`, `rate_limit`, `redact` and `size_guard`.
"""
