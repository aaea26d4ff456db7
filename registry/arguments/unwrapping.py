"""Around the arguments: what wraps an argument object, and the address in front of it on the generic route."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from registry.arguments import coercion
from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.names import SEPARATOR
from registry.catalog.names import fold as alike
from registry.schema.json_paths import MAX_SHOWN_KEY, MISSING, NO_NAMES, Path, show_path
from registry.schema.text import excerpt

_WRAPPING: Final = frozenset({"arguments", "params", "args", "input", "parameters", "kwargs"})
_SERVER_KEYS: Final = ("server", "servername")
_TOOL_KEYS: Final = ("tool", "toolname", "name")
_ADDRESS: Final = frozenset({*_SERVER_KEYS, *_TOOL_KEYS})
_MAX_LAYERS: Final = 4
_MAX_REPORTED: Final = 20

Fault = Literal["arguments", "server", "tool", "mixture", "form"]
"""No object; no server or tool, or none of that name; parameters in two places; only to be read by a repair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One thing that was read in another way than it was written.

    Attributes:
        name: A stable word for counters, such as `renamed`.
        path: Where in the repaired arguments.
        was: The name that was sent, of a repair that is about a name; never a value.
    """

    name: str
    path: Path = ()
    was: str | None = None

    def as_data(self, names: Mapping[str, str] = NO_NAMES) -> dict[str, str]:
        """Return it as `report` lists it; names are shown shortened, values never."""
        data = {"repair": self.name, "path": show_path(self.path, names)}
        return data if self.was is None else {**data, "was": excerpt(self.was, MAX_SHOWN_KEY)}


def report(repairs: Sequence[Repair], names: Mapping[str, str] = NO_NAMES) -> dict[str, Any]:
    """Return repairs as they are reported in a result's `_meta`: how many, and the first of them.

    Args:
        repairs: All of them.
        names: Other names for some properties, as the caller was shown them.
    """
    return {"count": len(repairs), "repairs": [one.as_data(names) for one in repairs[:_MAX_REPORTED]]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The names under which one tool goes; they may stand beside its wrapped arguments."""

    server: str
    tool: str
    name: str

    def fits(self, key: str, value: object) -> bool:
        """Tell whether a member only says which tool this is."""
        if not isinstance(value, str):
            return False
        spelt = coercion.fold(key)
        if spelt in _SERVER_KEYS:
            return alike(value) == alike(self.server)
        return spelt in _TOOL_KEYS and alike(value) in (alike(self.tool), alike(self.name))


def opened(
    arguments: Any,
    declared: Collection[str],
    address: Address | None,
    *,
    until: Callable[[Any], bool],
) -> tuple[Any, list[Repair]]:
    """Take an argument object out of texts and wrappings; what is none comes back as it is.

    Args:
        arguments: What was sent; null is the same as nothing.
        declared: Names that the schema declares, which therefore wrap nothing.
        address: Names that may stand beside the wrapping.
        until: Ends the search early: an object that it accepts is what was meant.
    """
    value: Any = {} if arguments is None else arguments
    repairs: list[Repair] = []
    for _layer in range(_MAX_LAYERS):
        if isinstance(value, str):
            inner = _from_text(value)
            if inner is MISSING:
                return arguments if not repairs else value, repairs
            repairs.append(Repair(name="json_text"))
        elif isinstance(value, dict):
            key = _wrapping(value, declared, address)
            if key is None or until(value):
                break
            inner = value[key]
            if isinstance(inner, str) and (inner := _from_text(inner)) is MISSING:
                break
            if not isinstance(inner, dict):
                break
            repairs.append(Repair(name="unwrapped", was=key))
            if isinstance(value[key], str):
                repairs.append(Repair(name="json_text"))
        else:
            break
        value = inner
    return value, repairs


def _from_text(text: str) -> Any:
    """Return the argument object that a text stands for: nothing, null, or JSON made once or twice."""
    if not text.strip() or text.strip() == "null":
        return {}
    value = coercion.container(text)
    return value if isinstance(value, dict) else MISSING


def _wrapping(value: Mapping[str, Any], declared: Collection[str], address: Address | None) -> str | None:
    if len(value) > len(_ADDRESS) + 1:
        return None
    keys = [key for key in value if key not in declared and coercion.fold(key) in _WRAPPING]
    if len(keys) != 1:
        return None
    beside = [key for key in value if key != keys[0]]
    fits = address is not None and all(key not in declared and address.fits(key, value[key]) for key in beside)
    return keys[0] if not beside or fits else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressed:
    """A call of `invoke_tool` as it is understood: the tool, and what is meant for it."""

    wrapper: ToolWrapper
    arguments: Any
    repairs: tuple[Repair, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Misaddressed:
    """A call of `invoke_tool` that reaches no tool.

    Attributes:
        faults: What is missing, unknown or ambiguous.
        server: The server that was named, in its own spelling if it is known.
        tool: The tool that was named.
        known_server: Whether the server is configured.
        wrapper: The tool that it is about, where only the form is wrong.
    """

    faults: tuple[Fault, ...]
    server: str | None = None
    tool: str | None = None
    known_server: bool = False
    wrapper: ToolWrapper | None = None


def addressed(
    sent: Any,
    catalog: Catalog,
    servers: Iterable[str],
    *,
    repairs_for: Callable[[str], bool] = lambda server: True,
) -> Addressed | Misaddressed:
    """Find the tool and the arguments that a call of `invoke_tool` means.

    Repaired are an address in other words (`toolName`, `name`), the typed name as `tool`, names in another case,
    `params` and the like for `arguments`, parameters beside `server` and `tool`, all of it wrapped once more, and
    all of it as text. What the arguments hold is left to `registry.arguments.repair`.

    Args:
        sent: The argument object of `invoke_tool`, as it came.
        catalog: The tools.
        servers: Every server that is configured, also those without tools at the moment.
        repairs_for: Whether calls to a server may be repaired at all.
    """
    members, repairs = _members(sent)
    if members is None:
        return Misaddressed(faults=("arguments",))
    server_key, tool_key = _key_of(members, _SERVER_KEYS), _key_of(members, _TOOL_KEYS)
    named_server = members.get(server_key) if server_key is not None else None
    named_tool = members.get(tool_key) if tool_key is not None else None
    for key, plain in ((server_key, "server"), (tool_key, "tool")):
        if key is not None and key != plain:
            repairs.append(Repair(name="address_key", path=(plain,), was=key))
    tool = named_tool if isinstance(named_tool, str) and named_tool else None
    server = named_server if isinstance(named_server, str) and named_server else None
    typed = catalog.get(tool) if tool is not None and named_server in (None, "") else None
    if typed is not None:
        server = typed.server
    if server is None or tool is None:
        faults: list[Fault] = [] if server is not None else ["server"]
        return Misaddressed(faults=(*faults, "tool") if tool is None else tuple(faults), server=server, tool=tool)
    own = _spelt(server, servers)
    if own is None:
        return Misaddressed(faults=("server",), server=server, tool=tool)
    if own != server:
        repairs.append(Repair(name="server_case", path=("server",)))
    if typed is not None:
        repairs.append(Repair(name="typed_name", path=("tool",)))
    wrapper = typed if typed is not None else _tool(catalog, own, tool, repairs)
    if wrapper is None:
        return Misaddressed(faults=("tool",), server=own, tool=tool, known_server=True)
    rest = {key: value for key, value in members.items() if key not in (server_key, tool_key)}
    arguments = _payload(rest, wrapper, repairs)
    fault: Fault | None = "mixture" if arguments is MISSING else None
    if fault is None and not _harmless(repairs) and not repairs_for(own):
        fault = "form"
    if fault is not None:
        return Misaddressed(faults=(fault,), server=own, tool=tool, known_server=True, wrapper=wrapper)
    return Addressed(wrapper=wrapper, arguments=arguments, repairs=tuple(repairs))


def _harmless(repairs: list[Repair]) -> bool:
    return all(repair.name == "typed_name" for repair in repairs)


def _members(sent: Any) -> tuple[dict[str, Any] | None, list[Repair]]:
    def speaks_of_a_tool(value: Any) -> bool:
        return not isinstance(value, dict) or any(coercion.fold(key) in _ADDRESS for key in list(value)[:64])

    value, repairs = opened(sent, (), None, until=speaks_of_a_tool)
    return (value if isinstance(value, dict) else None), repairs


def _key_of(members: Mapping[str, Any], spellings: tuple[str, ...]) -> str | None:
    """Return the member that is meant: the plain one, else the only one in the best other spelling."""
    if spellings[0] in members:
        return spellings[0]
    for spelling in spellings:
        found = [key for key in members if len(key) <= 16 and coercion.fold(key) == spelling]
        if len(found) == 1:
            return found[0]
    return None


def _spelt(server: str, servers: Iterable[str]) -> str | None:
    known = list(servers)
    if server in known:
        return server
    found = [one for one in known if alike(one) == alike(server)]
    return found[0] if len(found) == 1 else None


def _tool(catalog: Catalog, server: str, tool: str, repairs: list[Repair]) -> ToolWrapper | None:
    if (exact := catalog.exactly(server, tool)) is not None:
        return exact
    if (named := catalog.find(server, tool)) is not None:
        repairs.append(Repair(name="typed_name", path=("tool",)))
        return named
    plain = alike(tool)
    found = [
        one
        for one in catalog.of(server)
        if plain in (alike(one.tool), alike(one.name), alike(server + SEPARATOR + one.tool))
    ]
    if len(found) != 1:
        return None
    repairs.append(Repair(name="tool_case", path=("tool",)))
    return found[0]


def _payload(rest: dict[str, Any], wrapper: ToolWrapper, repairs: list[Repair]) -> Any:
    """Return the arguments among the members beside the address; MISSING where they could be two things."""
    schema = wrapper.input_schema
    properties = schema.get("properties") if isinstance(schema, dict) else None
    declared: Collection[str] = properties if isinstance(properties, dict) else ()
    keys = [key for key in rest if key == "arguments" or (coercion.fold(key) in _WRAPPING and key not in declared)]
    flat = {key: value for key, value in rest.items() if key not in keys}
    full = [key for key in keys if rest[key] not in (None, {}, "")]
    if len(full) > 1 or (full and flat):
        return MISSING
    if flat:
        repairs.append(Repair(name="flat_arguments"))
        return flat
    chosen = full[0] if full else keys[0] if keys else None
    if chosen is None:
        return {}
    if chosen != "arguments":
        repairs.append(Repair(name="arguments_key", was=chosen))
    return rest[chosen]
