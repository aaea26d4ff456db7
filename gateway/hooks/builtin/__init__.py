"""Hooks that come with the gateway, chosen by `use:` in the configuration."""
