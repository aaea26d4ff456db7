"""The builtin tools that find what a list leaves out: search, the list of servers, one server's details."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio.to_thread
from cachetools import LRUCache

from gateway import wire
from gateway.calls.builtin_tools import FIND_TOOLS, GET_SERVER_DETAILS, LIST_SERVERS
from gateway.calls.context import Caller
from gateway.calls.near_names import named_servers, no_such_server
from gateway.embeddings.tool_vectors import ToolVectors
from gateway.errors import error_result
from gateway.protocol import MAX_IDENTIFIER_CHARS
from gateway.upstream.user_links import UserLinks
from gateway.worker_thread import run_in_thread
from registry.arguments.diagnosis import describe_type
from registry.catalog.listing import WHOLE_SERVER, ServerListing
from registry.catalog.names import ServerName, normalized_name
from registry.catalog.store import Registry
from registry.policy.grant import EVERYTHING
from registry.schema.display_text import excerpt
from registry.schema.packed_definition import members_of
from registry.search.index import SearchHit, SearchIndex
from registry.views.view import View, ViewEntry

SEARCH_TOOL_NAMES: Final = frozenset({FIND_TOOLS["name"], LIST_SERVERS["name"], GET_SERVER_DETAILS["name"]})
# Five tools with their schemas are what a model reads with attention; the right one is nearly always among them.
DEFAULT_LIMIT: Final = 5
# As the schema of `find_tools` says: more would be the list that the search is there to replace.
MAX_LIMIT: Final = 50
# About 10,000 tokens: hosts cut or refuse larger results of a tool.
MAX_ANSWER_BYTES: Final = 40_000
# One line for each tool in the details of a server: its first sentence or two.
_MAX_LINE_CHARS: Final = 160
# Indexing so many takes some milliseconds, which other requests can wait.
_MAX_INDEXED_INLINE: Final = 50
# Searched within two milliseconds or so.
_MAX_SEARCHED_INLINE: Final = 1_000
# Definitions that are read within some milliseconds.
_MAX_READ_INLINE: Final = 200
# Servers that one answer names; at a start all of them may be missing.
_MAX_MISSING: Final = 20
# One for each profile, and for callers with limited rights; each takes about four MiB for a thousand tools.
_MAX_INDEXES: Final = 32


class SearchTools:
    """Answers `find_tools`, `list_servers` and `get_server_details` from the caller's view."""

    def __init__(
        self,
        *,
        registry: Registry,
        users: UserLinks,
        synonyms: Mapping[str, Sequence[str]],
        tool_vectors: ToolVectors,
    ) -> None:
        self._registry = registry
        self._users = users
        self._synonyms = synonyms
        self._tool_vectors = tool_vectors
        self._indexes: LRUCache[object, tuple[View, SearchIndex]] = LRUCache(_MAX_INDEXES)

    def replace(self, synonyms: Mapping[str, Sequence[str]]) -> None:
        """Use other synonyms."""
        self._synonyms = synonyms
        self._indexes.clear()

    async def call(self, name: str, arguments: object, caller: Caller) -> dict[str, Any]:
        """Answer a call of one of these tools; tools that are found are added to the list of the caller's session."""
        given = arguments if isinstance(arguments, dict) else {}
        if name == LIST_SERVERS["name"]:
            return _result({"servers": [self._server_line(server, caller) for server in sorted(caller.view.servers)]})
        if name == GET_SERVER_DETAILS["name"]:
            return await self._details(given, caller)
        query = given.get("query")
        if not isinstance(query, str) or not query.strip():
            return error_result('Not searched: find_tools needs `query` as text, as in {"query": "send an email"}.')
        limit = given.get("limit")
        limit = DEFAULT_LIMIT if limit is None else limit
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
            return error_result(f"Not searched: `limit` is a whole number from 1 to {MAX_LIMIT}.")
        hits = [caller.view.entry(hit.name) for hit in await self._hits(query, limit, caller.view)]
        found = _fitting([entry for entry in hits if entry is not None])
        _activate(found, caller)
        nothing = "No tool fits; try other words."
        if not found and (missing := self._not_listed(caller.view)):
            nothing = f"No tool fits. Not connected yet: {', '.join(missing[:_MAX_MISSING])}; try again in a moment."
        return _result({"tools": [_tool(entry) for entry in found]}, nothing=nothing)

    async def _hits(self, query: str, limit: int, view: View) -> list[SearchHit]:
        # To take a text apart costs time with its length, and what is looked for stands at its beginning.
        query = query[:MAX_IDENTIFIER_CHARS]
        index = await self._index(view)
        search = partial(index.search, query, limit, similarities=await self._tool_vectors.similarities(view, query))
        # A query takes some milliseconds for a thousand tools, and more of them would hold up other requests.
        return search() if len(view.entries) <= _MAX_SEARCHED_INLINE else await run_in_thread(search)

    async def _index(self, view: View) -> SearchIndex:
        # Views are replaced whole, so a view that is the same object has the same tools.
        known = self._indexes.get(view.key)
        if known is not None and known[0] is view:
            return known[1]
        names = {server: self._registry.shape.of(ServerName(server)).display_name for server in view.servers}
        aliases: dict[str, str] = {server: name for server, name in names.items() if name}
        build = partial(SearchIndex, view.entries, synonyms=self._synonyms, aliases=aliases)
        # Indexing a thousand definitions takes a tenth of a second, in which the event loop has to serve others.
        index = build() if len(view.entries) <= _MAX_INDEXED_INLINE else await anyio.to_thread.run_sync(build)
        self._indexes[view.key] = (view, index)
        return index

    def _not_listed(self, view: View) -> list[str]:
        """The servers whose tools are not known: they have not been connected so far."""
        listed = self._registry.catalog.servers
        return [server for server in sorted(view.servers) if server not in listed]

    def _server_line(self, server: str, caller: Caller) -> dict[str, Any]:
        shape = self._registry.shape.of(ServerName(server))
        link = self._users.present(server, caller.principal.name)
        return {
            "server": server,
            "displayName": shape.display_name or server,
            "tools": len(caller.view.catalog.wrappers_of(server)),
            "reachable": link is not None and link.session is not None,
        }

    def _problem(self, server: str, caller: Caller) -> str | None:
        """Why a server is not reachable, as a refused call of its tools is told, too."""
        link = self._users.present(server, caller.principal.name)
        return link.last_error if link is not None and link.session is None else None

    async def _details(self, given: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
        server, view = given.get("server"), caller.view
        if isinstance(server, str) and server not in view.servers and view.profile.repair != "off":
            # A model may write an alias as it would a name.
            alike = [alias for alias in view.servers if normalized_name(alias) == normalized_name(server)]
            server = alike[0] if len(alike) == 1 else server
        if not isinstance(server, str) or server not in view.servers:
            if isinstance(server, str):
                return error_result(f"Not found: {no_such_server(view, server)}")
            wrong = "`server` is missing" if server is None else f"`server` is a text, you sent {describe_type(server)}"
            return error_result(f"Not found: {wrong}. {named_servers(view)}")
        with_schemas = given.get("schemas")
        if with_schemas is not None and not isinstance(with_schemas, bool):
            return error_result("Not looked up: `schemas` is true or false.")
        shape = self._registry.shape.of(ServerName(server))
        listing = self._registry.catalog_of(view.owner).servers.get(ServerName(server))
        entries = [entry for entry in view.entries if entry.server == server]
        defined = _fitting(entries) if with_schemas else []
        _activate(defined if with_schemas else entries, caller)
        lines = _lines(entries) if len(entries) <= _MAX_READ_INLINE else await run_in_thread(partial(_lines, entries))
        details = {
            **self._server_line(server, caller),
            "about": listing.instructions if listing is not None else None,
            "problem": self._problem(server, caller),
            "held": _held(listing, server, view),
            "supplement": shape.supplement,
            "siblings": list(view.siblings(server)),
            "toolNames": lines,
            "definitions": [_tool(entry) for entry in defined],
            # More would be cut or refused by hosts; `find_tools` shows any of them.
            "definitionsLeftOut": [entry.name for entry in entries[len(defined) :]] if with_schemas else [],
        }
        return _result({key: value for key, value in details.items() if value not in (None, [], "")})


def _held(listing: ServerListing | None, server: str, view: View) -> str | None:
    """Say how much of a server is held; None where nothing is."""
    if listing is None or not listing.held:
        return None
    whole = listing.held.get(WHOLE_SERVER, {}).get("")
    count = sum(len(names) for kind, names in listing.held.items() if kind != WHOLE_SERVER)
    if view.grant is not EVERYTHING:
        # What such a caller may not use is not there for it.
        items = view.catalog.prompts_and_resources
        count = sum(tool.held is not None for tool in view.catalog.wrappers_of(server))
        count += sum(one.server == server and one.held is not None for one in (*items.prompts, *items.templates))
    told = f"{count} of its tools, prompts and templates wait for the approval of an administrator" if count else ""
    return "; ".join(text for text in (f"all of it is {whole}" if whole else "", told) if text)


def _lines(entries: Iterable[ViewEntry]) -> dict[str, str]:
    """Each tool with the beginning of its description."""
    return {
        entry.name: excerpt(str(members_of(entry.definition).get("description", "")), _MAX_LINE_CHARS)
        for entry in entries
    }


def _fitting(entries: Iterable[ViewEntry]) -> list[ViewEntry]:
    """The first entries whose definitions fit into one answer."""
    found: list[ViewEntry] = []
    left_bytes = MAX_ANSWER_BYTES
    for entry in entries:
        left_bytes -= len(wire.dumps(_tool(entry)))
        # The best match is shown whatever its size: an empty answer would say that there is none.
        if left_bytes < 0 and found:
            break
        found.append(entry)
    return found


def _activate(entries: Sequence[ViewEntry], caller: Caller) -> None:
    """Add tools to the list of the caller's session; where there is room for some only, for the first ones."""
    if caller.found is not None:
        caller.found([entry.name for entry in reversed(entries) if not entry.listed], caller.view)


def _tool(entry: ViewEntry) -> dict[str, Any]:
    kept = ("name", "title", "description", "inputSchema", "annotations")
    return {member: entry.definition[member] for member in kept if member in entry.definition}


def _result(found: dict[str, Any], *, nothing: str = "") -> dict[str, Any]:
    empty = nothing if nothing and not any(found.values()) else ""
    text = empty or wire.dumps(found).decode()
    return {"content": [{"type": "text", "text": text}], "structuredContent": found}
