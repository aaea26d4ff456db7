"""What each command does: a function from parsed arguments to an exit code, imported only when chosen."""
