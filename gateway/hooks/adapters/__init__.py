"""Hooks that run code outside this package.

cpex     Run unmodified plugins of the ContextForge framework.
webhook  Post a signed request to an HTTP endpoint, and apply its response.
"""
