"""From what was sent to what is called: repair, then defaults, then the check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from registry.arguments import problems
from registry.arguments.problems import ArgumentProblem
from registry.arguments.repair import Restore, as_it_is, repair, repair_invalid
from registry.arguments.unwrapping import Address, Repair
from registry.catalog.catalog import ToolWrapper
from registry.catalog.shape import Level
from registry.dialects.definitions import Lowered, restore
from registry.errors import SchemaRejected
from registry.schema import schemas
from registry.schema.json_paths import NO_NAMES, declared
from registry.schema.validators import Validator

NO_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A call's arguments, ready to be sent or with what keeps them from it.

    Attributes:
        arguments: What to send if there are no problems; the very object that came if nothing was done to it.
        repairs: What was read in another way than it was written.
        filled: The names that came from configuration.
        problems: What keeps the call from its upstream; nothing is sent then.
        understood: What the problems speak of: the arguments inside their wrapping, with defaults.
    """

    arguments: Any
    repairs: tuple[Repair, ...] = ()
    filled: tuple[str, ...] = ()
    problems: tuple[ArgumentProblem, ...] = ()
    understood: Any = None


def fill(schema: Any, arguments: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the defaults of declared parameters that are absent; nothing is invented.

    The same object comes back when nothing was added. An argument that is there stays, null included.
    """
    absent = [name for name in defaults if name not in arguments]
    if not absent:
        return arguments
    names = declared(schema, schema)
    added = {name: defaults[name] for name in absent if name in names}
    return {**arguments, **added} if added else arguments


def prepare(
    wrapper: ToolWrapper,
    arguments: Any,
    *,
    level: Level = "safe",
    defaults: Mapping[str, Any] = NO_DEFAULTS,
    lowered: Lowered | None = None,
) -> Prepared:
    """Repair the arguments, fill in defaults, and check the outcome, in this order.

    A valid call costs one look of the compiled validator and comes back as the same object. A default never
    spoils a call that is right without it.

    Args:
        wrapper: The tool.
        arguments: What was sent, any JSON value; null is the same as nothing.
        level: What may be repaired; see `registry.arguments.repair`.
        defaults: What configuration says of parameters by name.
        lowered: How the caller was shown the tool: names and nulls of that schema are led back before anything is
            looked at, however deep inside a wrapping they are.
    """
    schema = wrapper.input_schema
    names = lowered.names if lowered is not None and lowered.keys else NO_NAMES
    lead_back: Restore = as_it_is
    if lowered is not None and lowered.document is not None:
        lead_back = partial(restore, lowered=lowered)
    arguments = lead_back(arguments)
    try:
        validator = schemas.validator(schema, wrapper.schema_digest)
    except SchemaRejected:
        plain = {} if arguments is None else arguments
        if not isinstance(plain, dict):
            return Prepared(arguments=plain, problems=problems.check(wrapper, plain, names), understood=plain)
        return _ready(plain, fill(schema, plain, defaults))
    valid = isinstance(arguments, dict) and validator.is_valid(arguments)
    if valid and level != "full":
        return Prepared(arguments=arguments) if not defaults else _filled(wrapper, validator, arguments, defaults)
    plain = {} if arguments is None and level == "off" else arguments
    done = (repair if valid else repair_invalid)(
        schema,
        validator,
        plain,
        level,
        address=Address(server=wrapper.server, tool=wrapper.tool, name=wrapper.name),
        fill=lambda value: fill(schema, value, defaults),
        lead_back=lead_back,
    )
    if done.valid:
        return _filled(wrapper, validator, done.arguments, defaults, done.repairs)
    understood = fill(schema, done.opened, defaults) if isinstance(done.opened, dict) else done.opened
    return Prepared(arguments=arguments, problems=problems.check(wrapper, understood, names), understood=understood)


def _filled(
    wrapper: ToolWrapper,
    validator: Validator,
    arguments: dict[str, Any],
    defaults: Mapping[str, Any],
    repairs: tuple[Repair, ...] = (),
) -> Prepared:
    filled = fill(wrapper.input_schema, arguments, defaults)
    spoilt = filled is not arguments and not validator.is_valid(filled)
    return _ready(arguments, arguments if spoilt else filled, repairs)


def _ready(arguments: dict[str, Any], filled: dict[str, Any], repairs: tuple[Repair, ...] = ()) -> Prepared:
    added = tuple(name for name in filled if name not in arguments) if filled is not arguments else ()
    return Prepared(arguments=filled, repairs=repairs, filled=added)
