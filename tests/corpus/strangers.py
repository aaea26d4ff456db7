"""Schemas of servers that were unknown when the thesaurus was written; word vectors are trained with them as well."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

from corpus import wider
from corpus.packages import Commands, Listings, described, kept_listings, lines_apart
from support.clients import installed

NODE: Mapping[str, str] = {
    "gcal": "@cocal/google-calendar-mcp@2.6.3",
    "mapbox": "@mapbox/mcp-server@0.14.0",
}
PYTHON: Mapping[str, str] = {
    "atlassian": "mcp-atlassian==0.23.1",
    "excel": "excel-mcp-server==2.2.2",
}
_PROGRAMS = {"atlassian": "mcp-atlassian", "excel": "excel-mcp-server"}
# No tool is called, so the credentials are never used.
_CREDENTIALS = {
    "CONFLUENCE_API_TOKEN": "none",
    "CONFLUENCE_URL": "https://none.example/wiki",
    "CONFLUENCE_USERNAME": "a@example.test",
    "JIRA_API_TOKEN": "none",
    "JIRA_URL": "https://none.example",
    "JIRA_USERNAME": "a@example.test",
    "MAPBOX_ACCESS_TOKEN": "pk.eyJ1IjoiYSIsImEiOiJiIn0.c",
}
_CLIENT = {"installed": {"client_id": "none", "client_secret": "none", "redirect_uris": ["http://127.0.0.1"]}}


def commands(scratch: Path) -> Commands:
    """Return what starts each server, with a directory that is thrown away to work in."""
    client = scratch / "client.json"
    client.write_text(json.dumps(_CLIENT), encoding="utf-8")
    lines = lines_apart("strangers", NODE, PYTHON, _PROGRAMS)
    lines["excel"].append("stdio")
    environment = {**_CREDENTIALS, "GOOGLE_OAUTH_CREDENTIALS": str(client), "HOME": str(scratch)}
    return described(lines, environment, scratch)


@functools.cache
def strangers_listings() -> Listings:
    """Return the tools of these servers and of those in `corpus.wider`, as they gave them."""
    versions = (*NODE.values(), *PYTHON.values(), *installed.NODE22)
    return dict(sorted({**wider.wider_listings(), **kept_listings("strangers-listings", versions, commands)}.items()))
