"""Find the tool and the arguments that a call of `invoke_tool` means, however its members are spelled or wrapped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from registry.arguments import coercion
from registry.arguments.repair_report import Repair
from registry.arguments.unwrapping import ADDRESS_KEYS, SERVER_KEYS, TOOL_KEYS, WRAPPER_KEYS, unwrap
from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.names import NAME_SEPARATOR, normalized_name
from registry.schema.json_paths import MISSING
from registry.schema.json_values import without_keys

# `arguments`: what was sent is no object. `server`, `tool`: missing or unknown. `mixture`: parameters in two places.
# `form`: it could be understood, but only by a repair that is turned off.
Fault = Literal["arguments", "server", "tool", "mixture", "form"]

# Members looked at for an address; what is sent may have any number, and a real call has five at most.
_MAX_MEMBERS: Final = 64
# The longest spelling of a key is `server_name`; this leaves room for separators, and skips long keys unread.
_MAX_KEY_LENGTH: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedCall:
    """A call of `invoke_tool` as it is understood: the tool, and its arguments."""

    wrapper: ToolWrapper
    arguments: Any
    repairs: tuple[Repair, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnresolvedCall:
    """A call of `invoke_tool` that reaches no tool.

    Attributes:
        faults: What is missing, unknown or ambiguous.
        server: The server that was named; in its configured spelling if it is known.
        tool: The tool that was named.
        known_server: Whether the server is configured.
        wrapper: The tool, if only the form of the call is wrong.
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
    """Return the tool and the arguments that a call of `invoke_tool` means.

    Repaired are other names for the members (`toolName`, `name`, `params`), the typed name as `tool`, names in another
    case, parameters beside `server` and `tool`, all of it wrapped once more, and all of it as text. The arguments
    themselves are left to `registry.arguments.repair`.

    Args:
        sent: The argument object of `invoke_tool` as it was sent.
        catalog: The tools.
        servers: Every configured server, also those without tools at the moment.
        repairs_for: Returns whether calls to a server may be repaired at all.
        retired: Returns whether a server had a tool of this name, and has it no longer: another one that is spelt in a
            similar way is not meant then.
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
    # A wrapper's name says which server is meant, so it needs none beside it.
    typed = catalog.get(tool) if tool is not None and named_server in (None, "") else None
    if typed is not None:
        server = typed.server
    if server is None or tool is None:
        absent: tuple[tuple[Fault, str | None], ...] = (("server", server), ("tool", tool))
        return UnresolvedCall(faults=tuple(fault for fault, name in absent if name is None), server=server, tool=tool)
    known = _known_server(server, servers)
    if known is None:
        return UnresolvedCall(faults=("server",), server=server, tool=tool)
    if known != server:
        repairs.append(Repair(name="server_case", path=("server",)))
    if typed is not None:
        repairs.append(Repair(name="typed_name", path=("tool",)))
    wrapper = typed if typed is not None else _find_tool(catalog, known, tool, repairs, retired)
    if wrapper is None:
        return UnresolvedCall(faults=("tool",), server=known, tool=tool, known_server=True)
    rest = without_keys(members, (server_key, tool_key))
    arguments = _arguments_of(rest, wrapper, repairs)
    fault: Fault | None = "mixture" if arguments is MISSING else None
    # The typed name is a form that we advertise, so it is accepted where repairs are turned off.
    if fault is None and any(repair.name != "typed_name" for repair in repairs) and not repairs_for(known):
        fault = "form"
    if fault is not None:
        return UnresolvedCall(faults=(fault,), server=known, tool=tool, known_server=True, wrapper=wrapper)
    return ResolvedCall(wrapper=wrapper, arguments=arguments, repairs=tuple(repairs))


def _members(sent: Any) -> tuple[dict[str, Any] | None, list[Repair]]:
    def has_address(value: Any) -> bool:
        return not isinstance(value, dict) or any(
            coercion.normalized_parameter(key) in ADDRESS_KEYS for key in list(value)[:_MAX_MEMBERS]
        )

    value, repairs = unwrap(sent, (), None, until=has_address)
    return (value if isinstance(value, dict) else None), repairs


def _find_key(members: Mapping[str, Any], spellings: tuple[str, ...]) -> str | None:
    """Return the member under the first of these names, spelled exactly or else in just one other way."""
    if spellings[0] in members:
        return spellings[0]
    short = [key for key in members if len(key) <= _MAX_KEY_LENGTH]
    for spelling in spellings:
        found = [key for key in short if coercion.normalized_parameter(key) == spelling]
        if len(found) == 1:
            return found[0]
    return None


def _known_server(server: str, servers: Iterable[str]) -> str | None:
    known = list(servers)
    if server in known:
        return server
    found = [name for name in known if normalized_name(name) == normalized_name(server)]
    return found[0] if len(found) == 1 else None


def _find_tool(
    catalog: Catalog, server: str, tool: str, repairs: list[Repair], retired: Callable[[str, str], bool]
) -> ToolWrapper | None:
    if (exact := catalog.get_by_tool(server, tool)) is not None:
        return exact
    if (named := catalog.find(server, tool)) is not None:
        repairs.append(Repair(name="typed_name", path=("tool",)))
        return named
    if retired(server, tool):
        return None
    plain = normalized_name(tool)
    found = [
        wrapper
        for wrapper in catalog.wrappers_of(server)
        for names in ((wrapper.tool, wrapper.name, server + NAME_SEPARATOR + wrapper.tool),)
        if plain in map(normalized_name, names)
    ]
    if len(found) != 1:
        return None
    repairs.append(Repair(name="tool_case", path=("tool",)))
    return found[0]


def _arguments_of(rest: dict[str, Any], wrapper: ToolWrapper, repairs: list[Repair]) -> Any:
    """Return the arguments among the members beside the address, or MISSING if they could be two things."""
    schema = wrapper.input_schema
    properties = schema.get("properties") if isinstance(schema, dict) else None
    declared: Collection[str] = properties if isinstance(properties, dict) else ()
    keys = [
        key
        for key in rest
        # `arguments` is our own member, even if the tool declares a parameter of that name.
        if key == "arguments" or (coercion.normalized_parameter(key) in WRAPPER_KEYS and key not in declared)
    ]
    flat = without_keys(rest, keys)
    filled = [key for key in keys if rest[key] not in (None, {}, "")]
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
    return rest[chosen]
