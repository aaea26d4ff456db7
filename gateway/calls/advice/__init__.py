"""Text for the caller when a call fails, and statistics of failures.

call_stats    Count the outcomes of calls by tool, and cluster similar failures.
error_hints   Add a hint to an upstream's error about arguments, leaving the error itself unchanged.
mistakes      What callers get wrong about each tool, without values.
unknown_tool  Answer calls of nonexistent tools with similar names.
"""
