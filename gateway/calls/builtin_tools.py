"""The gateway's own tools and prompt: `invoke_tool`, the search tools, `read_result`, and a manual of all tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

import anyio.to_thread
from cachetools import LRUCache

from gateway.calls.advice.unknown_tool import named_servers, no_such_server
from gateway.calls.caller import Caller
from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.config.model import SearchConfig
from gateway.embeddings.tool_vectors import ToolVectors
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import error_result
from gateway.protocol.versions import MAX_IDENTIFIER_CHARS
from gateway.upstream.caller_links import UserLinks
from registry.arguments.coercion import Repair, normalized_parameter, parse_container, unwrap
from registry.arguments.diagnosis import describe_type
from registry.arguments.repair import RepairTarget, repair
from registry.catalog.catalog import Catalog
from registry.catalog.listing import WHOLE_SERVER, ServerListing
from registry.catalog.names import ServerName, normalized_name
from registry.catalog.overrides import usage_text
from registry.catalog.registry import Registry
from registry.dialects.client_profiles import DIALECTS
from registry.errors import NotChecked
from registry.policy.policy import EVERYTHING
from registry.schema import schemas
from registry.schema.display_text import excerpt
from registry.schema.packed_definition import members_of
from registry.schema.validators import Validator
from registry.search.index import SearchHit, SearchIndex
from registry.views.view import View, ViewEntry

INVOKE_TOOL: Final[dict[str, Any]] = {
    "name": "invoke_tool",
    "title": "Invoke a tool by server and name",
    "description": (
        "Fallback that calls any tool of any server behind this gateway. Prefer the typed tool "
        "`server__tool` where it is listed: it takes its parameters at the top level. Here they all go "
        "inside `arguments`, as in "
        '{"server": "calendar", "tool": "send_email", "arguments": {"to": ["a@example.test"]}}.'
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "server": {
                "type": "string",
                "description": "The server's alias: the part before `__` in a typed name.",
            },
            "tool": {"type": "string", "description": "The tool's name, without the alias."},
            "arguments": {
                "type": "object",
                "description": "All parameters of the tool, by name. Leave out only for a tool without parameters.",
            },
        },
        "required": ["server", "tool"],
    },
}

FIND_TOOLS: Final[dict[str, Any]] = {
    "name": "find_tools",
    "title": "Find tools",
    "description": (
        "Searches the tools behind this gateway, of which only some are listed here. Say in a few words what you "
        "want to do, as in `send an email`. Returns the typed names, descriptions and full schemas of the best "
        "matches; call one directly by its typed name, or through invoke_tool where a new name is refused."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What you want to do, in a few words."},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": 50,
                "description": "The maximum number of tools (default 5).",
            },
        },
        "required": ["query"],
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}
LIST_SERVERS: Final[dict[str, Any]] = {
    "name": "list_servers",
    "title": "List servers",
    "description": "Lists the servers behind this gateway with the number of their tools, listed here or not.",
    "inputSchema": {"type": "object", "properties": {}},
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}
GET_SERVER_DETAILS: Final[dict[str, Any]] = {
    "name": "get_server_details",
    "title": "Get details of a server",
    "description": (
        "Describes a server behind this gateway, and names its tools with a line about each; with `schemas` "
        "also how to call each of them."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "server": {"type": "string", "description": "The alias: the part before `__` in a typed name."},
            "schemas": {"type": "boolean", "description": "Whether to show full definitions (default false)."},
        },
        "required": ["server"],
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}

READ_RESULT: Final[dict[str, Any]] = {
    "name": "read_result",
    "title": "Read more of a result",
    "description": (
        "Reads a part of an earlier result that was cut or left out, by the handle in that result. To pass a value to "
        "another tool without reading it, give `typegate:result/ID#/pointer` as an argument: text there, or any JSON "
        "value with `@` in front."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "handle": {"type": "string", "description": "The handle, `typegate:result/…`, copied exactly."},
            "pointer": {"type": "string", "description": "JSON pointer of a part of the result, such as `/items/3`."},
            "select": {
                "type": "string",
                "description": "JMESPath expression for what to return of it, such as `items[].{id: id}`.",
            },
            "offset": {"type": "integer", "minimum": 0, "description": "Items, or lines of text, to skip."},
            "limit": {"type": "integer", "minimum": 1, "description": "The most items, or lines of text, to return."},
        },
        "required": ["handle"],
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}

BUILTIN_TOOLS: Final = (INVOKE_TOOL, GET_SERVER_DETAILS)
# The schema of `arguments` of `invoke_tool` in dialects that do not support objects with arbitrary members.
_ARGUMENTS_AS_TEXT: Final = {
    "type": "string",
    "description": (
        "All parameters of the tool, by name, as the text of one JSON object. Null only for a tool without parameters."
    ),
}
SEARCH_TOOLS: Final = (FIND_TOOLS, LIST_SERVERS)

GATEWAY_TOOLS: Final[dict[str, Any]] = {
    "name": "gateway_tools",
    "title": "Tools behind this gateway",
    "description": "Every tool behind this gateway with its arguments, as text for a model.",
    "arguments": [{"name": "server", "description": "Only the tools of this server.", "required": False}],
}

BUILTIN_PROMPTS: Final = (GATEWAY_TOOLS,)
# MCP 2025-11-25 and 2026-07-28, "Completion": at most 100 values in a response.
_MAX_COMPLETIONS: Final = 100


def always_listed(dialect: str) -> tuple[dict[str, Any], ...]:
    """Return the builtin tools that every tool list includes, with schemas in a client's JSON Schema dialect.

    Strict dialects do not support objects with arbitrary members. In a strict dialect, the arguments of `invoke_tool`
    are a JSON text, which `parse_text_arguments` parses.
    """
    if not DIALECTS[dialect].strict:
        return BUILTIN_TOOLS
    schema = INVOKE_TOOL["inputSchema"]
    properties = {**schema["properties"], "arguments": _ARGUMENTS_AS_TEXT}
    return ({**INVOKE_TOOL, "inputSchema": {**schema, "properties": properties}}, GET_SERVER_DETAILS)


def parse_text_arguments(sent: object, dialect: str) -> object:
    """Parse the arguments of `invoke_tool` if the dialect passes them as a JSON text."""
    text = sent.get("arguments") if isinstance(sent, dict) and DIALECTS[dialect].strict else None
    if not isinstance(sent, dict) or not isinstance(text, str):
        return sent
    try:
        read = parse_container(text)
    except NotChecked:  # the text is too long to parse here, and will be parsed when the arguments are checked
        return sent
    return {**sent, "arguments": read} if isinstance(read, dict) else sent


def tool_manual(view: View, arguments: object) -> dict[str, Any]:
    """Return the result of `prompts/get` for the gateway's prompt: a manual of the tools in the view.

    The manual includes tools that the caller's tool list does not show but that the search can find.
    """
    server = arguments.get("server") if isinstance(arguments, dict) else None
    chosen = server if isinstance(server, str) and server else None
    definitions = [entry.definition for entry in view.for_models if chosen in (None, entry.server)]
    text = "\n\n".join(map(usage_text, definitions)) or "There is no such tool."
    return {
        "description": GATEWAY_TOOLS["description"],
        "messages": [{"role": "user", "content": {"type": "text", "text": text}}],
    }


def complete_server(catalog: Catalog, argument: object) -> dict[str, Any]:
    """Return the result of `completion/complete` for the argument of the gateway's prompt."""
    typed = argument.get("value") if isinstance(argument, dict) else None
    begun = typed if isinstance(typed, str) else ""
    values = sorted(server for server in catalog.servers if server.startswith(begun))
    listed: list[str] = [*values[:_MAX_COMPLETIONS]]
    return {"completion": {"values": listed, "total": len(values), "hasMore": len(values) > len(listed)}}


# Names that models use instead of the parameters of the gateway's own tools, in the form of `normalized_parameter`. For
# an upstream's tool, such a mapping would be a guess.
_OTHER_NAMES: Final[Mapping[str, str]] = {
    "q": "query",
    "search": "query",
    "searchquery": "query",
    "text": "query",
    "term": "query",
    "keywords": "query",
    "description": "query",
    "task": "query",
    "n": "limit",
    "k": "limit",
    "topk": "limit",
    "count": "limit",
    "max": "limit",
    "maxresults": "limit",
    "size": "limit",
    "queries": "query",
    "name": "server",
    "alias": "server",
    "servername": "server",
    "servers": "server",
    "servernames": "server",
    "serverid": "server",
    "id": "server",
    "uri": "handle",
    "resulthandle": "handle",
    "path": "pointer",
    "jsonpointer": "pointer",
    "expression": "select",
    "jmespath": "select",
    "start": "offset",
    "skip": "offset",
}
_SCHEMAS: Final[Mapping[str, dict[str, Any]]] = {
    tool["name"]: tool["inputSchema"] for tool in (*SEARCH_TOOLS, GET_SERVER_DETAILS, READ_RESULT)
}
# A call with more arguments than this is probably not meant for one of the gateway's tools, so it is not repaired.
_MAX_MEMBERS: Final = 16


@cache
def _validator(name: str) -> Validator:
    return schemas.compile_schema(_SCHEMAS[name])


def repair_builtin(name: str, arguments: object) -> tuple[object, tuple[Repair, ...]]:
    """Repair the arguments of one of the gateway's own tools; return the arguments and the repairs.

    Args:
        name: The name of the tool.
        arguments: The arguments that were sent: any JSON value.
    """
    schema = _SCHEMAS[name]
    declared = schema["properties"]
    try:
        inner, unwrapped = unwrap(arguments, declared, None, until=lambda value: not declared.keys().isdisjoint(value))
    except NotChecked:  # the arguments are too long for any of these tools
        return arguments, ()
    if not isinstance(inner, dict) or len(inner) > _MAX_MEMBERS:
        return arguments, ()
    repairs = [*unwrapped]
    renamed_arguments: dict[str, Any] = {}
    for key, value in inner.items():
        declared_name = _OTHER_NAMES.get(normalized_parameter(key), key)
        # If two keys could refer to the same parameter, choosing one would be a guess.
        if (
            key not in declared
            and declared_name in declared
            and declared_name not in inner
            and declared_name not in renamed_arguments
        ):
            repairs.append(Repair(name="renamed", path=(declared_name,), was=key))
            renamed_arguments[declared_name] = value
        else:
            renamed_arguments[key] = value
    done = repair(RepairTarget(schema=schema, validator=_validator(name)), renamed_arguments, "full")
    return (done.arguments, (*repairs, *done.repairs)) if done.valid else (renamed_arguments, tuple(repairs))


SEARCH_TOOL_NAMES: Final = frozenset({FIND_TOOLS["name"], LIST_SERVERS["name"], GET_SERVER_DETAILS["name"]})
# Default number of search results: as many as a model reads attentively. They nearly always include the right tool.
DEFAULT_LIMIT: Final = 5
# The schema of `find_tools` contains the same number. More results would fill as much space as a complete tool list.
MAX_LIMIT: Final = 50
# Maximum size of an answer: about 10,000 tokens. Hosts truncate or reject larger tool results.
MAX_ANSWER_BYTES: Final = 40_000
# Maximum characters of a tool's description in the details of a server: enough for a sentence or two.
_MAX_LINE_CHARS: Final = 160
# Number of tools up to which an index is built on the event loop, in a few milliseconds.
_MAX_INDEXED_INLINE: Final = 50
# Number of tools up to which a search runs on the event loop, in about two milliseconds.
_MAX_SEARCHED_INLINE: Final = 1_000
# Number of definitions up to which descriptions are read on the event loop, in a few milliseconds.
_MAX_READ_INLINE: Final = 200
# Maximum number of unconnected servers to name in one answer. At startup, all servers are unconnected.
_MAX_MISSING: Final = 20
# Maximum number of search indexes. Each profile and set of rights has an index, of about 4 MiB per thousand tools.
_MAX_INDEXES: Final = 32


class SearchTools(Reconfigurable):
    """Answers `find_tools`, `list_servers` and `get_server_details` from the caller's view."""

    def __init__(
        self,
        *,
        registry: Registry,
        users: UserLinks,
        id_of: Callable[[str], str | None],
        synonyms: Mapping[str, Sequence[str]],
        tool_vectors: ToolVectors,
    ) -> None:
        self._registry = registry
        self._users = users
        self._id_of = id_of
        self._synonyms = synonyms
        self._tool_vectors = tool_vectors
        self._indexes: LRUCache[object, tuple[View, SearchIndex]] = LRUCache(_MAX_INDEXES)

    async def validate(self, change: ConfigChange) -> Apply:
        return partial(self._replace, change.after.gateway.search)

    def _replace(self, config: SearchConfig) -> None:
        self._synonyms = config.synonyms
        self._indexes.clear()
        self._tool_vectors.replace(enabled=config.embeddings)

    async def call(self, name: str, arguments: object, caller: Caller) -> dict[str, Any]:
        """Answer a call of one of these tools, and add the tools in the answer to the tool list of the session."""
        fields = arguments if isinstance(arguments, dict) else {}
        if name == LIST_SERVERS["name"]:
            return _result({"servers": [self._server_line(server, caller) for server in sorted(caller.view.servers)]})
        if name == GET_SERVER_DETAILS["name"]:
            return await self._details(fields, caller)
        query = fields.get("query")
        if not isinstance(query, str) or not query.strip():
            return error_result('Not searched: find_tools needs `query` as text, as in {"query": "send an email"}.')
        limit = fields.get("limit")
        limit = DEFAULT_LIMIT if limit is None else limit
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
            return error_result(f"Not searched: `limit` is a whole number from 1 to {MAX_LIMIT}.")
        hits = [caller.view.entry(hit.name) for hit in await self._hits(query, limit, caller.view)]
        matches = _fitting([entry for entry in hits if entry is not None])
        _activate(matches, caller)
        nothing = "No tool fits; try other words."
        if not matches and (missing := self._not_listed(caller.view)):
            nothing = f"No tool fits. Not connected yet: {', '.join(missing[:_MAX_MISSING])}; try again in a moment."
        tools = [{**_tool(entry), "serverId": self._id_of(entry.server)} for entry in matches]
        return _result({"tools": tools}, nothing=nothing)

    def alias_of(self, server: str, view: View) -> str:
        """Return the alias of the caller's server with the id `server`; `server` itself if there is none."""
        if server in view.servers:
            return server
        return next((alias for alias in view.servers if self._id_of(alias) == server), server)

    async def _hits(self, query: str, limit: int, view: View) -> list[SearchHit]:
        # Tokenizing takes linear time, and the relevant words are at the beginning of a query.
        query = query[:MAX_IDENTIFIER_CHARS]
        index = await self._index(view)
        search = partial(index.search, query, limit, similarities=await self._tool_vectors.similarities(view, query))
        # A query takes several milliseconds per thousand tools, so larger views are searched in a thread.
        return search() if len(view.entries) <= _MAX_SEARCHED_INLINE else await run_in_thread(search)

    async def _index(self, view: View) -> SearchIndex:
        # Views are replaced as a whole, so an index remains valid as long as the view is the same object.
        cached = self._indexes.get(view.key)
        if cached is not None and cached[0] is view:
            return cached[1]
        names = {server: self._registry.shape.for_server(ServerName(server)).display_name for server in view.servers}
        aliases: dict[str, str] = {server: name for server, name in names.items() if name}
        build = partial(SearchIndex, view.for_models, synonyms=self._synonyms, aliases=aliases)
        # Indexing a thousand definitions takes 0.1 s, which would block the event loop.
        index = build() if len(view.entries) <= _MAX_INDEXED_INLINE else await anyio.to_thread.run_sync(build)
        self._indexes[view.key] = (view, index)
        return index

    def _not_listed(self, view: View) -> list[str]:
        """Return the servers whose tools are unknown because they have never been connected."""
        listed = self._registry.catalog.servers
        return [server for server in sorted(view.servers) if server not in listed]

    def _server_line(self, server: str, caller: Caller) -> dict[str, Any]:
        shape = self._registry.shape.for_server(ServerName(server))
        link = self._users.current_link(server, caller.principal.name)
        return {
            "server": server,
            "id": self._id_of(server),
            "displayName": shape.display_name or server,
            "tools": sum(wrapper.app.by_models for wrapper in caller.view.catalog.wrappers_of(server)),
            "reachable": link is not None and link.is_available,
        }

    def _problem(self, server: str, caller: Caller) -> str | None:
        """Return the server's last connection error; None if the server is reachable."""
        link = self._users.current_link(server, caller.principal.name)
        return link.last_error if link is not None and not link.is_available else None

    async def _details(self, fields: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
        server, view = fields.get("server"), caller.view
        if isinstance(server, str) and server not in view.servers and view.profile.repair != "off":
            # A model may change the case or separators of an alias.
            alike = [alias for alias in view.servers if normalized_name(alias) == normalized_name(server)]
            server = alike[0] if len(alike) == 1 else server
        if isinstance(server, str):
            server = self.alias_of(server, view)
        if not isinstance(server, str) or server not in view.servers:
            if isinstance(server, str):
                return error_result(f"Not found: {no_such_server(view, server)}")
            wrong = "`server` is missing" if server is None else f"`server` is a text, you sent {describe_type(server)}"
            return error_result(f"Not found: {wrong}. {named_servers(view)}")
        with_schemas = fields.get("schemas")
        if with_schemas is not None and not isinstance(with_schemas, bool):
            return error_result("Not looked up: `schemas` is true or false.")
        shape = self._registry.shape.for_server(ServerName(server))
        listing = self._registry.catalog_of(view.owner).servers.get(ServerName(server))
        entries = [entry for entry in view.for_models if entry.server == server]
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
            # Hosts would truncate or reject a larger answer; `find_tools` can return each definition left out here.
            "definitionsLeftOut": [entry.name for entry in entries[len(defined) :]] if with_schemas else [],
        }
        return _result({key: value for key, value in details.items() if value not in (None, [], "")})


def _held(listing: ServerListing | None, server: str, view: View) -> str | None:
    """Describe which items of a server are held, waiting for an administrator's approval; None if there are none."""
    if listing is None or not listing.held:
        return None
    whole_server = listing.held.get(WHOLE_SERVER, {}).get("")
    count = sum(len(names) for kind, names in listing.held.items() if kind != WHOLE_SERVER)
    if view.grant is not EVERYTHING:
        # This caller has limited rights, so count only items that the caller may use.
        items = view.catalog.prompts_and_resources
        count = sum(tool.held is not None for tool in view.catalog.wrappers_of(server))
        count += sum(item.server == server and item.held is not None for item in (*items.prompts, *items.templates))
    waiting = f"{count} of its tools, prompts and templates wait for the approval of an administrator" if count else ""
    return "; ".join(text for text in (f"the whole server is {whole_server}" if whole_server else "", waiting) if text)


def _lines(entries: Iterable[ViewEntry]) -> dict[str, str]:
    """Return the beginning of each tool's description by name."""
    return {
        entry.name: excerpt(str(members_of(entry.definition).get("description", "")), _MAX_LINE_CHARS)
        for entry in entries
    }


def _fitting(entries: Iterable[ViewEntry]) -> list[ViewEntry]:
    """Return the leading entries whose definitions fit into one answer."""
    fitting: list[ViewEntry] = []
    left_bytes = MAX_ANSWER_BYTES
    for entry in entries:
        left_bytes -= len(json_bytes.dumps(_tool(entry)))
        # The first entry is always included, because an empty answer would suggest that no tool was found.
        if left_bytes < 0 and fitting:
            break
        fitting.append(entry)
    return fitting


def _activate(entries: Sequence[ViewEntry], caller: Caller) -> None:
    """Add tools to the tool list of the caller's session; if the list has a limit, the first tools take precedence."""
    if caller.found is not None:
        caller.found([entry.name for entry in reversed(entries) if not entry.listed], caller.view)


def _tool(entry: ViewEntry) -> dict[str, Any]:
    members = ("name", "title", "description", "inputSchema", "annotations")
    return {member: entry.definition[member] for member in members if member in entry.definition}


def _result(structured: dict[str, Any], *, nothing: str = "") -> dict[str, Any]:
    empty = nothing if nothing and not any(structured.values()) else ""
    text = empty or json_bytes.dumps(structured).decode()
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured}
