"""The approved definitions of each server, and their differences from a new listing.

lockfile        The lock file: approved definitions and their digests, in a text that can be reviewed in git.
review          Compare a listing with the approved definitions: find changes, and hold those that policy says.
schema_changes  Decide whether a change of a schema narrows or widens it.
"""
