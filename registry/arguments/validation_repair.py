"""Repair an argument object where a validation error has exactly one fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from registry.arguments import coercion
from registry.arguments.coercion import Repair, SpellingCorrector
from registry.errors import SchemaRejected
from registry.schema.check_cost import MAX_INSTANCE_DEPTH, InstanceSize, current_effort
from registry.schema.json_paths import MISSING, JsonPath, resolve_reference, value_at
from registry.schema.json_values import deep_copy
from registry.schema.schemas import canonical_json
from registry.schema.validators import Validator

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
