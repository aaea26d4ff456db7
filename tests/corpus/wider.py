"""Schemas of more real servers, for which others wrote queries: they make the bench of the search wider."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from corpus import further
from corpus.packages import Commands, Listings, described, kept_listings, lines_apart
from support.clients import installed

# `brave` takes the place of its predecessor in `corpus.further`.
NODE: Mapping[str, str] = {
    "brave": "@brave/brave-search-mcp-server@2.1.4",
    "mongodb": "mongodb-mcp-server@3.0.4",
    "sentry": "@sentry/mcp-server@0.39.0",
}
PYTHON: Mapping[str, str] = {
    "arxiv": "arxiv-mcp-server==0.8.2",
    "word": "office-word-mcp-server==1.1.11",
}
_PROGRAMS = {"arxiv": "arxiv-mcp-server", "word": "word_mcp_server"}
# No tool is called, so the credentials are never used. With those of Atlas, more tools are listed.
_CREDENTIALS = {
    "BRAVE_API_KEY": "none",
    "BRAVE_MCP_TRANSPORT": "stdio",
    "MDB_MCP_API_CLIENT_ID": "none",
    "MDB_MCP_API_CLIENT_SECRET": "none",
    "MDB_MCP_CONNECTION_STRING": "mongodb://127.0.0.1:1/none",
    "MDB_MCP_TELEMETRY": "disabled",
}


def commands(scratch: Path) -> Commands:
    """Return what starts each server, with a directory that is thrown away to work in."""
    lines = lines_apart("wider", NODE, PYTHON, _PROGRAMS)
    lines["sentry"].append("--access-token=none")
    # The server reports its start on its standard output, between the messages.
    lines["word"] = ["/bin/sh", "-c", "\"$0\" | grep --line-buffered '^{'", *lines["word"]]
    return described(lines, {**_CREDENTIALS, "HOME": str(scratch)}, scratch)


@functools.cache
def wider_listings() -> Listings:
    """Return the tools of these servers and of those in `corpus.further`, as they gave them."""
    versions = (*NODE.values(), *PYTHON.values(), *installed.NODE22)
    return dict(sorted({**further.all_listings(), **kept_listings("wider-listings", versions, commands)}.items()))
