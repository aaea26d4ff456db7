"""The instructions of a profile: authored ones as they are, otherwise made from what the profile shows."""

from __future__ import annotations

from typing import Final

from registry.catalog.names import NAME_SEPARATOR
from registry.schema.display_text import listed
from registry.views.view import View

MAX_LENGTH: Final = 2_000
"""Hosts put instructions into every conversation, and one of five cuts them here."""
# Servers that are named; of more than that a model is told the number.
_MAX_NAMED: Final = 12
# The same of those that are missing, which stand first: the point of the text is in its first 250 characters.
_MAX_MISSING: Final = 5


def instructions(view: View) -> str:
    """What `initialize` and `server/discover` say: the point in the first 250 characters, at most 2,000 in all.

    Every typed name in it is one that is listed. Servers that have not listed anything yet are named first.
    """
    missing = [server for server in view.servers if server not in view.catalog.servers]
    told = f"Not connected yet: {listed(missing, _MAX_MISSING)}. Their tools are listed once they are. "
    told = told if missing else ""
    if view.profile.instructions is not None:
        return (told + view.profile.instructions)[:MAX_LENGTH]
    parts = [
        "A gateway to the tools of several servers. A typed tool is named by its server, two underscores and the "
        "tool, and takes its parameters at the top level: call it directly."
    ]
    if view.defers:
        parts.append(
            "Only some tools are listed: find_tools searches all of them, list_servers and get_server_details show "
            "what there is; a tool that is found can be called by its typed name at once."
        )
    parts.append(
        "If a typed name is refused in mid-conversation, use invoke_tool with server, tool and arguments, where "
        "every parameter goes inside arguments."
    )
    example = next(
        (entry.wrapper.name for entry in view.entries if entry.listed and NAME_SEPARATOR in entry.wrapper.name), ""
    )
    if example:
        parts.append(f"An example of a typed name: {example}.")
    if view.servers:
        shown = ", ".join(view.servers[:_MAX_NAMED])
        more = f" and {len(view.servers) - _MAX_NAMED} more" if len(view.servers) > _MAX_NAMED else ""
        parts.append(f"Servers: {shown}{more}.")
    return (told + " ".join(parts))[:MAX_LENGTH]
