"""`typegate admin`: the web page of a running gateway, by a link that is good once."""

from __future__ import annotations

import sys
from argparse import Namespace
from urllib.parse import urlsplit

from gateway.commands import output
from gateway.commands.admin_client import admin_change
from gateway.commands.locations import NotReached
from gateway.commands.running import from_running


def admin(args: Namespace) -> int:
    """Print a link to the page, and open it on a terminal.

    Raises:
        NotReached: No gateway answers, or no browser can reach it.
    """

    def link(url: str, token: str) -> str:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if url.startswith("unix:"):
            raise NotReached(f"{url} is a socket, which no browser opens; expected gateway.admin.listen with a port")
        made = admin_change(url, "/admin/session/links", token, {})
        return f"{parts.scheme}://{parts.netloc}{made['path']}"

    found = from_running(args, link)
    print(found, flush=True)
    output.say("the link is good once, within a minute")
    if not args.no_browser and sys.stdout.isatty():
        import webbrowser

        webbrowser.open(found)
    return 0
