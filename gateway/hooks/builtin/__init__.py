"""Hooks that ship with the gateway, selected by `use:` in the configuration."""
