"""Hooks that run somewhere else: behind a webhook, or as plugins of the ContextForge framework."""
