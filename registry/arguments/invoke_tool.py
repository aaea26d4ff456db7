"""Resolve the tool and the arguments of an `invoke_tool` call.

`invoke_tool` is the gateway's generic tool. It takes `server`, `tool` and `arguments`, and calls that upstream tool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from registry.arguments import coercion
from registry.arguments.coercion import ADDRESS_KEYS, SERVER_KEYS, TOOL_KEYS, WRAPPER_KEYS, Repair, unwrap
from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.names import NAME_SEPARATOR, normalized_name
from registry.errors import NotChecked
from registry.schema.json_paths import MISSING
from registry.schema.json_values import without_keys

# `arguments`: the value sent is not an object. `server`, `tool`: missing or unknown. `mixture`: parameters in two
# places. `form`: resolvable only by a repair that is turned off.
Fault = Literal["arguments", "server", "tool", "mixture", "form"]

# Maximum number of members that are searched for the server and the tool. A real call has at most five members, but a
# client may send any number.
_MAX_MEMBERS: Final = 64
# Longer keys are skipped. The longest known key is `server_name`; the limit leaves room for more separators.
_MAX_KEY_LENGTH: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedCall:
    """An `invoke_tool` call with its tool and arguments."""

    wrapper: ToolWrapper
    arguments: Any
    repairs: tuple[Repair, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnresolvedCall:
    """An `invoke_tool` call that cannot be resolved.

    Attributes:
        faults: What is wrong with the call.
        server: The server that the call names, in its configured spelling if known.
        tool: The tool that the call names.
        known_server: True if the server is configured.
        wrapper: The tool, if it was found and the fault is `mixture` or `form`.
    """

    faults: tuple[Fault, ...]
    server: str | None = None
    tool: str | None = None
    known_server: bool = False
    wrapper: ToolWrapper | None = None


def resolve_invoke_tool(
    sent: Any,
    catalog: Catalog,
    servers: Iterable[str],
    *,
    repairs_for: Callable[[str], bool] = lambda server: True,
    retired: Callable[[str, str], bool] = lambda server, tool: False,
) -> ResolvedCall | UnresolvedCall:
    """Resolve an `invoke_tool` call.

    The function repairs misnamed members (`toolName`, `name`, `params`), a wrapper name as `tool`, names in another
    case, parameters next to `server` and `tool`, an additional object around the call, and JSON text. The arguments
    themselves are repaired later, by `registry.arguments.repair`.

    Args:
        sent: The argument object of `invoke_tool` as sent.
        catalog: The tools.
        servers: All configured servers, including servers that have no tools at the moment.
        repairs_for: Returns whether calls to a server may be repaired.
        retired: Returns whether a tool of this name was removed from a server. A tool with a similar name does not
            replace a removed tool.
    """
    members, repairs = _members(sent)
    if members is None:
        return UnresolvedCall(faults=("arguments",))
    server_key, tool_key = _find_key(members, SERVER_KEYS), _find_key(members, TOOL_KEYS)
    named_server = members.get(server_key) if server_key is not None else None
    named_tool = members.get(tool_key) if tool_key is not None else None
    for key, plain in ((server_key, "server"), (tool_key, "tool")):
        if key is not None and key != plain:
            repairs.append(Repair(name="address_key", path=(plain,), was=key))
    tool = named_tool if isinstance(named_tool, str) and named_tool else None
    server = named_server if isinstance(named_server, str) and named_server else None
    # A wrapper name determines the server.
    by_wrapper_name = catalog.by_name.get(tool) if tool is not None and named_server in (None, "") else None
    if by_wrapper_name is not None:
        server = by_wrapper_name.server
    if server is None or tool is None:
        absent: tuple[tuple[Fault, str | None], ...] = (("server", server), ("tool", tool))
        return UnresolvedCall(faults=tuple(fault for fault, name in absent if name is None), server=server, tool=tool)
    alias = _find_server(server, servers)
    if alias is None:
        return UnresolvedCall(faults=("server",), server=server, tool=tool)
    if alias != server:
        repairs.append(Repair(name="server_case", path=("server",)))
    if by_wrapper_name is not None:
        repairs.append(Repair(name="typed_name", path=("tool",)))
    wrapper = by_wrapper_name if by_wrapper_name is not None else _find_tool(catalog, alias, tool, repairs, retired)
    if wrapper is None:
        return UnresolvedCall(faults=("tool",), server=alias, tool=tool, known_server=True)
    remaining = without_keys(members, (server_key, tool_key))
    arguments = _arguments_of(remaining, wrapper, repairs)
    fault: Fault | None = "mixture" if arguments is MISSING else None
    # The wrapper name is an advertised form of the call, so it is accepted even if repairs are turned off.
    if fault is None and any(repair.name != "typed_name" for repair in repairs) and not repairs_for(alias):
        fault = "form"
    if fault is not None:
        return UnresolvedCall(faults=(fault,), server=alias, tool=tool, known_server=True, wrapper=wrapper)
    return ResolvedCall(wrapper=wrapper, arguments=arguments, repairs=tuple(repairs))


def _members(sent: Any) -> tuple[dict[str, Any] | None, list[Repair]]:
    def has_address(value: Any) -> bool:
        return not isinstance(value, dict) or any(
            coercion.normalized_parameter(key) in ADDRESS_KEYS for key in list(value)[:_MAX_MEMBERS]
        )

    try:
        value, repairs = unwrap(sent, (), None, until=has_address)
    except NotChecked:  # a long JSON text instead of an object, which is not parsed before the tool is known
        return None, []
    return (value if isinstance(value, dict) else None), repairs


def _find_key(members: Mapping[str, Any], spellings: tuple[str, ...]) -> str | None:
    """Return the key that is the first spelling, else the only key that equals one of the spellings when normalized."""
    if spellings[0] in members:
        return spellings[0]
    short_keys = [key for key in members if len(key) <= _MAX_KEY_LENGTH]
    for spelling in spellings:
        matches = [key for key in short_keys if coercion.normalized_parameter(key) == spelling]
        if len(matches) == 1:
            return matches[0]
    return None


def _find_server(server: str, servers: Iterable[str]) -> str | None:
    aliases = list(servers)
    if server in aliases:
        return server
    matches = [name for name in aliases if normalized_name(name) == normalized_name(server)]
    return matches[0] if len(matches) == 1 else None


def _find_tool(
    catalog: Catalog, server: str, tool: str, repairs: list[Repair], retired: Callable[[str, str], bool]
) -> ToolWrapper | None:
    if (exact := catalog.by_tool.get((server, tool))) is not None:
        return exact
    if (by_wrapper_name := catalog.find(server, tool)) is not None:
        repairs.append(Repair(name="typed_name", path=("tool",)))
        return by_wrapper_name
    if retired(server, tool):
        return None
    wanted = normalized_name(tool)
    matches = [
        wrapper
        for wrapper in catalog.wrappers_of(server)
        for names in ((wrapper.tool, wrapper.name, server + NAME_SEPARATOR + wrapper.tool),)
        if wanted in map(normalized_name, names)
    ]
    if len(matches) != 1:
        return None
    repairs.append(Repair(name="tool_case", path=("tool",)))
    return matches[0]


def _arguments_of(members: dict[str, Any], wrapper: ToolWrapper, repairs: list[Repair]) -> Any:
    """Return the tool's arguments from the members other than `server` and `tool`; `MISSING` if they are ambiguous."""
    schema = wrapper.input_schema
    properties = schema.get("properties") if isinstance(schema, dict) else None
    declared: Collection[str] = properties if isinstance(properties, dict) else ()
    keys = [
        key
        for key in members
        # `arguments` is a member of `invoke_tool`, even if the tool declares a parameter of this name.
        if key == "arguments" or (coercion.normalized_parameter(key) in WRAPPER_KEYS and key not in declared)
    ]
    flat = without_keys(members, keys)
    filled = [key for key in keys if members[key] not in (None, {}, "")]
    if len(filled) > 1 or (filled and flat):
        return MISSING
    if flat:
        repairs.append(Repair(name="flat_arguments"))
        return flat
    chosen = filled[0] if filled else keys[0] if keys else None
    if chosen is None:
        return {}
    if chosen != "arguments":
        repairs.append(Repair(name="arguments_key", was=chosen))
    return members[chosen]
