"""Processes that stay until they are stopped: over HTTP, over stdio, and the bridge between the two.

`http` binds, serves and drains; `connections` are those of callers, bounded in every way; `direct` answers
the usual requests on them without ASGI; `stdio` and `bridge` are for hosts that only start processes.
"""
