"""Hooks whose code is elsewhere: behind a webhook, or in plugins of the ContextForge framework."""
