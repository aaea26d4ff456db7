"""The approved definitions of each server, and how a new listing differs from them.

lockfile        The lock file: approved definitions and their digests, as a text that can be reviewed in git.
review          Compare a listing with the approved definitions, and hold changes until an operator approves them.
schema_changes  Decide whether a change of a schema narrows or widens it.
"""
