"""Text for the caller when a call fails, and statistics of failures.

call_stats    Count the outcomes of calls by tool, and cluster similar failures.
error_hints   Add a hint to an upstream's error about arguments, leaving the error itself unchanged.
mistakes      Collect what callers get wrong about each tool, without storing argument values.
unknown_tool  Answer calls of nonexistent tools, and suggest tools with similar names.
"""
