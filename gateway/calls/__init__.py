"""One call, from a wrapper's name to a result that its caller can read."""
