"""Hooks whose code is elsewhere.

It is behind a `webhook`, or in plugins of the ContextForge framework (`cpex`), under the names by which they import it
(`framework_names`).
"""
