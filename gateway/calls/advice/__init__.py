"""Text for the caller when a call fails, and what callers get wrong.

error_hints   Add a hint to an upstream's error about arguments, leaving the error itself unchanged.
mistakes      Collect what callers get wrong about each tool, without storing argument values.
unknown_tool  Answer calls of nonexistent tools, and suggest tools with similar names.
"""
