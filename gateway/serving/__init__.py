"""Processes that stay until they are stopped: over HTTP, over stdio, and the bridge between the two."""
