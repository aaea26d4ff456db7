"""Schemas of further real servers, for measuring only: many tools, and many of them alike.

They are not in `corpus.servers`, because every test over those would wait for these as well.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from corpus import servers
from corpus.packages import Commands, Listings, described, kept_listings, node_program
from support.clients import installed

NODE: Mapping[str, str] = {
    "airbnb": "@openbnb/mcp-server-airbnb@0.3.0",
    "airtable": "airtable-mcp-server@1.14.0",
    "asana": "@roychri/mcp-server-asana@1.8.0",
    "brave": "@modelcontextprotocol/server-brave-search@0.6.2",
    "chart": "@antv/mcp-server-chart@0.9.10",
    "datadog": "@winor30/mcp-server-datadog@1.8.0",
    "desktop": "@wonderwhy-er/desktop-commander@0.2.52",
    "devtools": "chrome-devtools-mcp@1.11.0",
    "email": "@codefuturist/email-mcp@0.2.0",
    "firecrawl": "firecrawl-mcp@3.26.0",
    "kubernetes": "mcp-server-kubernetes@4.1.7",
    "lunchmoney": "@akutishevsky/lunchmoney-mcp@3.0.0",
    "ms365": "@softeria/ms-365-mcp-server@0.155.0",
    "postgres": "@modelcontextprotocol/server-postgres@0.6.2",
    "puppeteer": "@modelcontextprotocol/server-puppeteer@2025.5.12",
    "shopify": "shopify-mcp@1.0.8",
    "tavily": "tavily-mcp@0.2.22",
    "todoist": "todoist-mcp@1.3.4",
    "trello": "@delorenj/mcp-server-trello@1.8.1",
    "weather": "@dangahagan/weather-mcp@1.23.0",
    "xero": "@xeroapi/xero-mcp-server@0.0.17",
}
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "email": ("stdio",),
    "ms365": ("--preset", "calendar"),
    "postgres": ("postgresql://localhost/none",),
    "shopify": ("--accessToken", "none", "--domain", "none.example"),
}
# No tool is called, so the credentials are never used.
_CREDENTIALS = {
    "AIRTABLE_API_KEY": "none",
    "API_KEY": "none",
    "ASANA_ACCESS_TOKEN": "none",
    "BRAVE_API_KEY": "none",
    "DATADOG_API_KEY": "none",
    "DATADOG_APP_KEY": "none",
    "FIRECRAWL_API_KEY": "none",
    "LUNCHMONEY_API_KEY": "none",
    "LUNCHMONEY_API_TOKEN": "none",
    "MCP_EMAIL_ADDRESS": "a@example.test",
    "MCP_EMAIL_IMAP_HOST": "127.0.0.1",
    "MCP_EMAIL_PASSWORD": "none",
    "MCP_EMAIL_SMTP_HOST": "127.0.0.1",
    "MCP_EMAIL_USERNAME": "none",
    "TAVILY_API_KEY": "none",
    "TODOIST_API_KEY": "none",
    "TODOIST_API_TOKEN": "none",
    "TRELLO_API_KEY": "none",
    "TRELLO_TOKEN": "none",
    "XERO_CLIENT_ID": "none",
    "XERO_CLIENT_SECRET": "none",
}


def commands(scratch: Path) -> Commands:
    """Return what starts each server, with a directory that is thrown away to work in."""
    # Packages that would download a browser at installation are asked for their tools without one.
    node, modules = str(installed.node22()), installed.npm("further", tuple(NODE.values()), scripts=False)
    lines: dict[str, list[str]] = {}
    for server, package in NODE.items():
        lines[server] = [node, str(node_program(modules, package)), *_ARGUMENTS.get(server, ())]
    return described(lines, _CREDENTIALS, scratch)


@functools.cache
def all_listings() -> Listings:
    """Return the tools of these servers and of those in `corpus.servers`, as they gave them."""
    loaded = kept_listings("further-listings", (*NODE.values(), *installed.NODE22), commands)
    return dict(sorted({**servers.listings(), **loaded}.items()))
