"""Repair an argument object as its schema and its validation errors direct, and report the repairs.

A repair is another reading of the arguments, never a guess at missing arguments. There are three levels:

`off`
    No repairs.

`safe` (the default): repairs of values that can be read in only one way.
    - `json_text`: a text that contains an object or array as JSON, serialized once or twice, where that type is
      declared and a string is not. The whole argument object may be such a text, and an empty text is an empty argument
      object.
    - `unwrapped`: the argument object inside `arguments`, `params`, `args`, `input`, `parameters` or `kwargs`, if the
      schema declares no such property and nothing is next to it except the tool's own address.
    - `renamed`: a name that differs from exactly one declared and absent property in case and separators only. In an
      invalid object, every such name is replaced, so that no parameter is lost. In a map, where the schema gives any
      name a meaning, no name is replaced.
    - `converted`: a text such as `"5"`, `"true"` or `"null"`, where its type is declared and a string is not. `"5.0"`
      is not an integer and `"yes"` is not a boolean; a number that would be rounded stays as it is.
    - `listed`: a single scalar where an array of that scalar is declared, unless it is a text that may contain several
      (`a, b`) or looks like broken JSON.
    - `letter_case`: a text that differs from exactly one `enum` option in case only.

`full`: the repairs of `safe`, and repairs that rest on a convention or that leave something out.
    - `null_dropped`: null for an optional parameter that does not accept null. (The caller may have meant to delete the
      value.)
    - `item_taken`: an array of one item where no array is declared.
    - `listed` for a single object where an array of objects is declared.
    - `converted` from an integer to text, and from `"5.0"` to an integer.

For calls of `invoke_tool`, `registry.arguments.invoke_tool` adds repairs of the address around the arguments.

Invariants: valid arguments are never changed; the result is valid, or nothing was repaired; repairing the result again
changes nothing. Therefore edits are made only where the validator reports an error.

There is one exception to the first invariant. If a schema declares properties, requires none and allows others, then
`{"arguments": {"limit": 5}}` is valid, although the tool will not find the limit and runs without it. Such a wrapper
object is removed if the schema does not declare its name but declares all of its members, possibly in another spelling.
The inner object is then repaired and checked like any other call. If other parameters are next to the wrapper object,
the call is refused. If the schema gives other names a meaning (a map) or declares nothing, the call stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from registry.arguments.coercion import (
    Repair,
    SpellingCorrector,
    ToolAddress,
    find_mixed_wrapper,
    is_map,
    may_be_wrapped,
    unwrap,
)
from registry.catalog.shape import RepairLevel
from registry.schema.check_cost import InstanceSize, current_effort, use_effort
from registry.schema.json_paths import JsonPath, composed_schemas, declared_properties
from registry.schema.validators import LARGE, Validator, reduce_to_parts

if TYPE_CHECKING:
    import jsonschema_rs
from itertools import pairwise
from typing import TYPE_CHECKING

from registry.arguments import coercion
from registry.errors import SchemaRejected
from registry.schema.check_cost import MAX_INSTANCE_DEPTH
from registry.schema.json_paths import MISSING, resolve_reference, value_at
from registry.schema.json_values import deep_copy
from registry.schema.schemas import canonical_json

if TYPE_CHECKING:
    import jsonschema_rs

# A repair can reveal errors one level deeper, and mistakes are rarely nested more than a few levels.
MAX_ROUNDS: Final = 8
# Maximum number of errors that are handled in one round; each of 2,000 items of a list may need the same repair.
MAX_ERRORS: Final = 2_000
# Maximum number of times that errors are collected. The number can be large, because each alternative is tried
# separately.
_MAX_VALIDATIONS: Final = 600
# Maximum number of alternatives that are tried for a value, and of rounds for each alternative. Generated unions of
# scalars have two to five alternatives.
_MAX_ALTERNATIVES: Final = 16
_ALTERNATIVE_ROUNDS: Final = 4
# The deepest nesting of unions. Each level takes several stack frames, and the interpreter allows a thousand.
_MAX_NESTED_ALTERNATIVES: Final = 32
_SCALAR_TYPES: Final = frozenset({"string", "number", "integer", "boolean"})


class ValidationRepair:
    """Edits a copy of an argument object, only where the validator reports an error.

    The caller has to check whether the result is valid.

    Attributes:
        repairs: The repairs, in order.
        errors: The errors of the original value; None if they were not collected.
    """

    def __init__(
        self,
        schema: Any,
        validator: Validator,
        value: dict[str, Any],
        *,
        full: bool,
        map_back: Callable[[Any], Any],
        size: InstanceSize | None = None,
    ) -> None:
        """Prepare to repair a value.

        Args:
            schema: The input schema.
            validator: The compiled input schema.
            value: The arguments as sent.
            full: True if repairs of the level `full` are allowed.
            map_back: Maps the names in a value that a repair has revealed, such as parsed JSON, to the names of the
                schema.
            size: The size of the value, if known.
        """
        self.repairs: list[Repair] = []
        self.errors: list[jsonschema_rs.ValidationError] | None = None
        self._schema = schema
        self._validator = validator
        self._full = full
        self._map_back = map_back
        self._needs_mapping = False
        self._size = size or InstanceSize(value)
        # A value that is nested more deeply must not be copied recursively, so it is not repaired.
        self._is_repairable = self._size.depth <= MAX_INSTANCE_DEPTH
        self._value: Any = deep_copy(value) if self._is_repairable else value
        self._validations = 0
        self._trying: set[tuple[JsonPath, tuple[str | int, ...]]] = set()
        self._cost = 0
        # The first validation does not count toward this limit. The limit allows many further validations of a small
        # value, but none of a huge value.
        self._max_cost = current_effort().repair_cost
        self._dropped: set[JsonPath] = set()
        self._options: dict[int, coercion.EnumOptions] = {}
        self._spelling = SpellingCorrector(schema)

    def run(self) -> Any:
        """Return the value with every repairable error fixed; it may still be invalid."""
        if not self._is_repairable:
            self._errors()
            return self._value
        if isinstance(self._schema, dict):
            self._correct_names((), [], self._schema)
        for _round in range(MAX_ROUNDS):
            before = len(self.repairs)
            self._resolve_all(self._errors())
            if len(self.repairs) == before:
                break
        return self._value

    def _errors(self) -> list[jsonschema_rs.ValidationError]:
        if self._needs_mapping:
            # Parsed texts and renamed members may use the names that the caller was shown.
            self._value, self._needs_mapping = self._map_back(self._value), False
        self._validations += 1
        if self._validations > 1:
            self._cost += self._validator.repair_cost(self._value)
        if self._is_spent():
            return []
        if self._validations > 1 or self.repairs:
            return self._validator.errors(self._value, MAX_ERRORS)
        self.errors = self._validator.errors(self._value, MAX_ERRORS, self._size)
        return self.errors

    def _is_spent(self) -> bool:
        return self._validations > _MAX_VALIDATIONS or self._cost > self._max_cost

    def _resolve_all(self, errors: list[jsonschema_rs.ValidationError]) -> None:
        done: set[JsonPath] = set()
        corrected: set[tuple[JsonPath, int]] = set()
        for error in errors:
            path = tuple(error.instance_path)
            # A repair changes everything below its path; errors that remain there are reported in the next round.
            if any(path[:length] in done for length in range(len(path) + 1)):
                continue
            before = len(self.repairs)
            self._resolve(path, error, corrected)
            if len(self.repairs) > before:
                done.add(path)

    def _resolve(
        self, path: JsonPath, error: jsonschema_rs.ValidationError, corrected: set[tuple[JsonPath, int]]
    ) -> None:
        value = value_at(self._value, path)
        if value is MISSING:
            return
        schema_path = list(error.schema_path)[:-1]
        schema = value_at(self._schema, schema_path)
        schema = schema if isinstance(schema, dict) else {}
        self._correct_names_around(path, schema_path, schema, error, corrected)
        match error.kind.name:
            case "type" if path:
                self._change_type(path, value, set(getattr(error.kind, "types", ())), schema)
            case "enum" | "const" if path:
                self._choose_option(path, value, schema)
            case "anyOf" | "oneOf":
                self._choose_alternative(path, value, error)

    def _correct_names_around(
        self,
        path: JsonPath,
        schema_path: list[str | int],
        schema: Any,
        error: jsonschema_rs.ValidationError,
        corrected: set[tuple[JsonPath, int]],
    ) -> None:
        """Correct the member names in the object that an error is about or that contains the invalid value."""
        if error.kind.name not in ("required", "additionalProperties", "unevaluatedProperties"):
            # Behind a reference, the parent of the keyword does not describe the object around the value.
            if not path or list(error.evaluation_path)[-3:-1] != ["properties", path[-1]]:
                return
            path, schema_path = path[:-1], schema_path[:-2]
            schema = value_at(self._schema, schema_path)
        if isinstance(schema, dict) and (path, id(schema)) not in corrected:
            corrected.add((path, id(schema)))
            self._correct_names(path, schema_path, schema)

    def _correct_names(self, path: JsonPath, schema_path: list[str | int], schema: dict[str, Any]) -> None:
        """Rename every misspelled member of an invalid object, not only the members that the error names."""
        members = value_at(self._value, path)
        if not isinstance(members, dict):
            return
        corrections = self._spelling.corrections(
            members, schema, schema_path=schema_path, path=path, dropped=self._dropped
        )
        if not corrections:
            return
        entries = [(corrections.get(key, key), child) for key, child in members.items()]
        # Change the object in place, because the parent refers to it. The order of its members is kept.
        members.clear()
        members.update(entries)
        self._needs_mapping = True
        self.repairs += [Repair(name="renamed", path=(*path, new), was=old) for old, new in corrections.items()]

    def _apply_repair(self, path: JsonPath, value: Any, repair: str) -> None:
        self._replace(path, value)
        self._needs_mapping = self._needs_mapping or isinstance(value, dict | list)
        self.repairs.append(Repair(name=repair, path=path))

    def _replace(self, path: JsonPath, value: Any) -> None:
        if path:
            value_at(self._value, path[:-1])[path[-1]] = value
        else:
            self._value = value

    def _drop_null(self, path: JsonPath) -> None:
        if self._full and path and isinstance(path[-1], str):
            self._dropped.add(path)
            del value_at(self._value, path[:-1])[path[-1]]
            self.repairs.append(Repair(name="null_dropped", path=path))

    def _change_type(self, path: JsonPath, value: Any, types: set[str], schema: dict[str, Any]) -> None:
        if isinstance(value, str):
            read = coercion.coerce_text(value, types, rounded=self._full)
            if read is not MISSING:
                self._apply_repair(path, read, "json_text" if isinstance(read, dict | list) else "converted")
                return
        # An item of an array is not wrapped: `["a", "b"]` for a table may be a row or a column.
        inside_list = isinstance(path[-1], int)
        if "array" in types and not inside_list and self._is_single_item(value, schema):
            self._apply_repair(path, [value], "listed")
        elif value is None:
            self._drop_null(path)
        elif self._full and "string" in types and isinstance(value, int) and not isinstance(value, bool):
            self._apply_repair(path, str(value), "converted")
        elif self._full and isinstance(value, list) and len(value) == 1:
            self._apply_repair(path, value[0], "item_taken")

    def _is_single_item(self, value: Any, schema: dict[str, Any]) -> bool:
        """Return whether the value is like the items that the schema of an array declares."""
        items = resolve_reference(schema.get("items"), self._schema)
        if not isinstance(items, dict):
            return False
        declared, options = items.get("type"), items.get("enum")
        types = {declared} if isinstance(declared, str) else set(declared) if isinstance(declared, list) else set()
        if isinstance(value, dict):
            return self._full and types == {"object"}
        if not types and isinstance(options, list) and len(options) <= coercion.MAX_OPTIONS:
            types = {"string"} if all(isinstance(option, str) for option in options) else types
        if not types or not types <= _SCALAR_TYPES:
            return False
        # An `enum` option is a single item, whatever it looks like.
        is_option = isinstance(value, str) and isinstance(options, list) and value in options
        return is_option or coercion.is_single_item(value)

    def _choose_option(self, path: JsonPath, value: Any, schema: dict[str, Any]) -> None:
        if value is None:
            self._drop_null(path)
        if not isinstance(value, str):
            return
        options = self._options.get(id(schema))
        if options is None:
            options = self._options[id(schema)] = coercion.EnumOptions(schema)
        option, repair = options.match(value)
        if option is not MISSING:
            self._apply_repair(path, option, repair)

    def _choose_alternative(self, path: JsonPath, value: Any, error: jsonschema_rs.ValidationError) -> None:
        """Repair a value so that it fits an alternative; if alternatives lead to different results, leave it unchanged.

        Each alternative is tried on a root value that contains only this value, so that the other items of a large
        array are not validated again. (If the position in an array selects the schema, the whole root value is used.)
        """
        keyword = list(error.schema_path)
        root_value, repairs, dropped, needs_mapping = self._value, self.repairs, self._dropped, self._needs_mapping
        # If the position in an array selects the schema, the value has to stay at its position.
        positional = "prefixItems" in keyword or any(
            word == "items" and isinstance(step, int) for word, step in pairwise(keyword)
        )
        trial_path = path if positional else tuple(0 if isinstance(step, int) else step for step in path)
        tried = (trial_path, tuple(keyword))
        if tried in self._trying or len(self._trying) >= _MAX_NESTED_ALTERNATIVES:
            return  # a recursive alternative: trying the same union again cannot help
        self._trying.add(tried)
        outcomes: dict[bytes, tuple[Any, list[Repair]]] = {}
        try:
            for index in range(_MAX_ALTERNATIVES):
                self._value = root_value if trial_path is path else _nest(trial_path)
                self._replace(trial_path, deep_copy(value))
                self.repairs, self._dropped, self._needs_mapping = [], set(dropped), False
                repaired, count = self._repair_for_alternative(index, trial_path, keyword)
                if repaired is not MISSING:
                    outcomes.setdefault(canonical_json(repaired), (repaired, self.repairs))
                if index + 1 >= count:
                    break
        except SchemaRejected:
            outcomes.clear()
        finally:
            self._trying.discard(tried)
            self._value = root_value
            self._replace(path, value)
            self.repairs, self._dropped, self._needs_mapping = repairs, dropped, needs_mapping
        if len(outcomes) == 1:
            [(repaired, made_repairs)] = outcomes.values()
            self._replace(path, repaired)
            self.repairs += [replace(repair, path=(*path, *repair.path[len(path) :])) for repair in made_repairs]
        elif value is None:
            self._drop_null(path)

    def _repair_for_alternative(self, index: int, path: JsonPath, keyword: list[str | int]) -> tuple[Any, int]:
        """Return the value at a path repaired for one alternative, or `MISSING`, and the number of alternatives."""
        count = 0
        for _round in range(_ALTERNATIVE_ROUNDS):
            errors = self._errors()
            if self._is_spent():
                break
            current = _find_error(errors, path, keyword)
            if current is None:
                below = any(tuple(error.instance_path)[: len(path)] == path for error in errors)
                # An empty list of errors may also mean that collecting them was too expensive.
                is_fixed = not below and (bool(errors) or self._validator.is_valid(self._value))
                return (value_at(self._value, path) if is_fixed and self.repairs else MISSING), count
            alternatives = getattr(current.kind, "context", None) or []
            count = len(alternatives)
            before = len(self.repairs)
            if index < count:
                self._resolve_all(alternatives[index])
            if len(self.repairs) == before:
                break
        return MISSING, count


def _nest(path: JsonPath) -> Any:
    """Return a value with null at the given path and nothing else."""
    value: Any = None
    for step in reversed(path):
        value = [value] if isinstance(step, int) else {step: value}
    return value


def _find_error(
    errors: list[jsonschema_rs.ValidationError], path: JsonPath, keyword: list[str | int]
) -> jsonschema_rs.ValidationError | None:
    """Return the error of a keyword at a path; the errors of alternatives are searched, too."""
    pending = list(errors)
    for _error in range(MAX_ERRORS):
        if not pending:
            return None
        error = pending.pop()
        if list(error.schema_path) == keyword and tuple(error.instance_path) == path:
            return error
        for alternative in getattr(error.kind, "context", None) or []:
            pending += alternative
    return None


# The number of errors that `registry.arguments.problems` reads.
_MAX_ERRORS: Final = 200
# Maximum number of errors on which repairs are tried. If one of them cannot be repaired, the call stays invalid, so the
# other errors do not matter.
_MAX_TRIED: Final = 2
# Limits of these trials (see `Effort.repair_cost` and `Effort.whole`), which then take about 10 ms.
_MAX_COST: Final = 8_000
_MAX_WHOLE: Final = 500
# Errors that a reduced value may have although the whole value does not have them.
_ERRORS_OF_PARTS: Final = frozenset({"minItems", "minProperties", "contains"})


Fill = Callable[[dict[str, Any]], dict[str, Any]]
MapBack = Callable[[Any], Any]


def identity_mapping(arguments: Any) -> Any:
    """Return the arguments unchanged, for a caller that was shown the original schema."""
    return arguments


def _unchanged(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairTarget:
    """The schema that arguments have to match after a repair, with its validator and mappings.

    Attributes:
        schema: The input schema.
        validator: The compiled input schema.
        address: The tool's names, which may be next to a wrapped argument object.
        fill: Adds defaults; arguments that are valid with their defaults are accepted.
        map_back: Maps arguments written for the schema that the caller was shown to this schema. The arguments to
            repair have been mapped already, but values inside JSON texts and wrapper objects have not.
    """

    schema: Any
    validator: Validator
    address: ToolAddress | None = None
    fill: Fill = _unchanged
    map_back: MapBack = identity_mapping


def errors_beyond_repair(
    target: RepairTarget, value: dict[str, Any], size: InstanceSize, *, full: bool
) -> list[jsonschema_rs.ValidationError] | None:
    """Return the errors of a large value that cannot be repaired; None if it may be repairable or is not large.

    Args:
        value: The arguments as sent, which are invalid.
        size: The size of the value.
        full: True if repairs of the level `full` are allowed.
    """
    validator = target.validator
    if size.members <= LARGE:
        return None
    first_errors = validator.first_errors(value, _MAX_ERRORS, size)
    failing = [tuple(error.instance_path) for error in first_errors.errors[:_MAX_TRIED]]
    part = reduce_to_parts(value, failing, validator.names)
    # If repairing a part is too expensive, repairing the whole value is even more expensive.
    with use_effort(replace(current_effort(), repair_cost=_MAX_COST, whole=_MAX_WHOLE)):
        repaired = ValidationRepair(target.schema, validator, part, full=full, map_back=target.map_back).run()
        if _accepts(target, repaired):
            return first_errors.errors if first_errors.has_failing(MAX_ERRORS * MAX_ROUNDS) else None
        remaining_kinds = {error.kind.name for error in validator.errors(repaired, _MAX_ERRORS)}
    return first_errors.errors if remaining_kinds - _ERRORS_OF_PARTS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The outcome of a repair.

    Attributes:
        arguments: The valid arguments; the original object if nothing was repaired.
        repairs: The repairs, in order.
        valid: Whether `arguments` are valid.
        unwrapped: The inner argument object with its parameters as sent. Problems refer to this object. Send
            `arguments` instead, which may be the same object.
        errors: The errors of `unwrapped`, if collected.
        mixed: The key of a member that contains some parameters while other parameters are next to the member. The call
            is valid because the schema is open, but the upstream would ignore that member.
    """

    arguments: Any
    repairs: tuple[Repair, ...] = ()
    valid: bool
    unwrapped: Any
    errors: list[jsonschema_rs.ValidationError] | None = None
    mixed: str | None = None


def repair(
    target: RepairTarget,
    arguments: Any,
    level: RepairLevel = "safe",
    *,
    known_valid: bool | None = None,
    size: InstanceSize | None = None,
) -> Repaired:
    """Repair arguments; if they stay invalid, return the arguments as sent.

    Args:
        arguments: The arguments as sent, any JSON value.
        level: What may be repaired.
        known_valid: Whether the arguments are valid, if already checked.
        size: The size of the arguments, if known.
    """
    if known_valid is None:
        known_valid = isinstance(arguments, dict) and target.validator.is_valid(arguments)
    if level == "off":
        valid = known_valid or _accepts(target, arguments, known_invalid=True)
        return Repaired(arguments=arguments, valid=valid, unwrapped=arguments)
    repaired = _repair_once(target, arguments, level, known_valid=known_valid, size=size)
    if not repaired.valid or not repaired.repairs or not may_be_wrapped(repaired.arguments):
        return repaired
    # The repaired arguments are valid, but with an open schema they may still be wrapped.
    inner = _repair_once(target, repaired.arguments, level, known_valid=True, size=None)
    if not inner.valid:
        return replace(inner, arguments=arguments)
    return replace(inner, repairs=(*repaired.repairs, *inner.repairs))


def _repair_once(
    target: RepairTarget, arguments: Any, level: RepairLevel, *, known_valid: bool, size: InstanceSize | None
) -> Repaired:
    schema, validator, map_back = target.schema, target.validator, target.map_back
    value: Any
    if known_valid:
        wrapped = may_be_wrapped(arguments) and _is_open(schema)
        unwrapped = _unwrap_valid(target, arguments) if wrapped else None
        if unwrapped is None:
            mixed = find_mixed_wrapper(arguments, declared_properties(schema, schema)) if wrapped else None
            return Repaired(arguments=arguments, valid=True, unwrapped=arguments, mixed=mixed)
        value, repairs = unwrapped
    else:
        names = declared_properties(schema, schema)
        value, repairs = unwrap(
            arguments, names, target.address, until=lambda inner: validator.is_valid(map_back(inner))
        )
        # The content of a wrapper object has not been mapped yet.
        value = value if value is arguments else map_back(value)
    if not isinstance(value, dict):
        return Repaired(arguments=arguments, valid=False, unwrapped=arguments)
    if value is arguments or not validator.is_valid(value):
        value_size = size if size is not None and value is arguments else InstanceSize.at_most(value)
        unrepairable = errors_beyond_repair(target, value, value_size, full=level == "full")
        if unrepairable is not None:
            return Repaired(arguments=arguments, valid=False, unwrapped=value, errors=unrepairable)
        attempt = ValidationRepair(schema, validator, value, full=level == "full", map_back=map_back, size=value_size)
        repaired = attempt.run()
        # All or nothing: if the arguments stay invalid, no repair is applied.
        changed = bool(attempt.repairs)
        if not _accepts(target, repaired if changed else value, known_invalid=not changed):
            return Repaired(arguments=arguments, valid=False, unwrapped=value, errors=attempt.errors)
        if attempt.repairs:
            return Repaired(arguments=repaired, repairs=(*repairs, *attempt.repairs), valid=True, unwrapped=value)
    return Repaired(arguments=value, repairs=tuple(repairs), valid=True, unwrapped=value)


def _accepts(target: RepairTarget, arguments: Any, *, known_invalid: bool = False) -> bool:
    """Return whether arguments are valid, with or without defaults."""
    validator = target.validator
    if not isinstance(arguments, dict):
        return False
    return (not known_invalid and validator.is_valid(arguments)) or (
        (filled := target.fill(arguments)) is not arguments and validator.is_valid(filled)
    )


def _is_open(schema: Any) -> bool:
    """Return whether a schema declares properties and accepts any others without giving them a meaning."""
    nodes = composed_schemas(schema, schema)
    return bool(declared_properties(schema, schema)) and not any(is_map(node) for node in nodes)


def _unwrap_valid(target: RepairTarget, arguments: dict[str, Any]) -> tuple[dict[str, Any], list[Repair]] | None:
    """Return the inner arguments and the repairs if wrapped arguments are valid only because the schema is open."""
    schema = target.schema
    names = declared_properties(schema, schema)
    inner, repairs = unwrap(arguments, names, target.address, until=lambda _: False)
    inner = target.map_back(inner) if repairs else inner
    if not repairs or not isinstance(inner, dict):
        return None
    if not inner.keys() <= names.keys():
        # Unlike in an open object, every member of a wrapper object is meant to be a parameter, so names are corrected.
        corrected = SpellingCorrector(schema).corrections(inner, schema, schema_path=[], path=(), dropped=())
        inner = {corrected.get(name, name): value for name, value in inner.items()}
        repairs += [Repair(name="renamed", path=(new,), was=old) for old, new in corrected.items()]
    if not inner.keys() <= names.keys():
        return None
    if not inner and any(repair.name == "json_text" for repair in repairs):
        return None  # an empty text may be the value of a parameter that the schema does not declare
    return inner, repairs
