"""Take an argument object out of what was put around it: JSON text, and a member such as `arguments` or `params`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from registry.arguments import coercion
from registry.arguments.repair_report import Repair
from registry.catalog.names import normalized_name
from registry.schema.json_paths import MISSING

# Names in the form of `coercion.normalized_parameter`.
WRAPPER_KEYS: Final = frozenset({"arguments", "params", "args", "input", "parameters", "kwargs"})
_SPELLINGS: Final = WRAPPER_KEYS | {key.capitalize() for key in WRAPPER_KEYS}
SERVER_KEYS: Final = ("server", "servername")
TOOL_KEYS: Final = ("tool", "toolname", "name")
ADDRESS_KEYS: Final = frozenset({*SERVER_KEYS, *TOOL_KEYS})
# Layers that are taken off. Models nest a wrapper in a text in a wrapper; more than that is no slip any more.
_MAX_LAYERS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAddress:
    """The names of one tool; they may stand beside its wrapped arguments."""

    server: str
    tool: str
    name: str

    def matches(self, key: str, value: object) -> bool:
        """Return whether a member only says which tool is called."""
        if not isinstance(value, str):
            return False
        plain_key, plain_value = coercion.normalized_parameter(key), normalized_name(value)
        if plain_key in SERVER_KEYS:
            return plain_value == normalized_name(self.server)
        return plain_key in TOOL_KEYS and plain_value in (normalized_name(self.tool), normalized_name(self.name))


def may_be_wrapped(arguments: Mapping[str, Any]) -> bool:
    """Return whether an object has a member that may be a wrapper; asked of every valid call, so no more than that."""
    return not _SPELLINGS.isdisjoint(arguments)


def unwrap(
    arguments: Any, declared: Collection[str], address: ToolAddress | None, *, until: Callable[[Any], bool]
) -> tuple[Any, list[Repair]]:
    """Return the argument object inside texts and wrappers, with the repairs; the value itself if there is none.

    Args:
        arguments: What was sent; null counts as an empty object.
        declared: Names that the schema declares, and that are therefore not wrappers.
        address: Names that may stand beside the wrapper.
        until: Ends the search early: an object that it accepts is what was meant.
    """
    value: Any = {} if arguments is None else arguments
    repairs: list[Repair] = []
    for _layer in range(_MAX_LAYERS):
        if isinstance(value, str):
            inner = _parse_object(value)
            if inner is MISSING:
                return arguments if not repairs else value, repairs
            repairs.append(Repair(name="json_text"))
        elif isinstance(value, dict):
            key = _wrapper_key(value, declared, address)
            if key is None or until(value):
                break
            inner = value[key]
            if isinstance(inner, str) and (inner := _parse_object(inner)) is MISSING:
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


def mixed_in(arguments: Mapping[str, Any], declared: Collection[str]) -> str | None:
    """Return the member that looks like a wrapper of some parameters while others stand beside it, or None."""
    if len(arguments) < 2:
        return None
    for key in _SPELLINGS.intersection(arguments):
        inner = arguments[key]
        inner = _parse_object(inner) if isinstance(inner, str) else inner
        if key in declared or not isinstance(inner, dict) or not inner.keys() <= set(declared):
            continue
        if inner.keys() - arguments.keys():  # what is given beside it as well is not lost
            return key
    return None


def put_beside(arguments: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return arguments as they were probably meant: what `mixed_in` has found, beside the others, which come first."""
    inner = arguments[key]
    inner = _parse_object(inner) if isinstance(inner, str) else inner
    others = {name: value for name, value in arguments.items() if name != key}
    return {**others, **{name: value for name, value in inner.items() if name not in others}}


def _parse_object(text: str) -> Any:
    """Return the argument object that a text stands for, or MISSING; an empty text is an empty object."""
    if not text.strip() or text.strip() == "null":
        return {}
    value = coercion.parse_container(text)
    return value if isinstance(value, dict) else MISSING


def _wrapper_key(value: Mapping[str, Any], declared: Collection[str], address: ToolAddress | None) -> str | None:
    """Return the only member that may be a wrapper, if nothing stands beside it but the tool's address."""
    # A wrapped call has few members, and this runs for each layer of objects that may have any number.
    if len(value) > len(ADDRESS_KEYS) + 1:
        return None
    keys = [key for key in value if key not in declared and coercion.normalized_parameter(key) in WRAPPER_KEYS]
    if len(keys) != 1:
        return None
    beside = [key for key in value if key != keys[0]]
    matches = address is not None and all(key not in declared and address.matches(key, value[key]) for key in beside)
    return keys[0] if not beside or matches else None
