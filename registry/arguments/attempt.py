"""One try at an argument object: each error of the validator is answered by the only edit that mends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from registry.arguments import coercion
from registry.arguments.unwrapping import Repair
from registry.errors import SchemaRejected
from registry.schema.json_paths import MISSING, Path, at, composition, copied, declared, resolved, schema_at
from registry.schema.schemas import canonical
from registry.schema.validators import MAX_ERRORS_COST, MAX_INSTANCE_DEPTH, Extent, Validator

if TYPE_CHECKING:
    import jsonschema_rs

_MAX_ROUNDS: Final = 8
_MAX_ERRORS: Final = 2_000
_MAX_VALIDATIONS: Final = 600
"""How often one attempt may ask for errors; alternatives are tried one by one."""
_MAX_COST: Final = MAX_ERRORS_COST * 3
"""What all of them may cost together, the first apart: a small call has many tries, a huge one has one."""
_MAX_ALTERNATIVES: Final = 16
_ALTERNATIVE_ROUNDS: Final = 4
_SCALARS: Final = frozenset({"string", "number", "integer", "boolean"})


@dataclass(frozen=True, slots=True)
class _Options:
    """The members of one enumeration, looked at once."""

    cases: dict[str, Any]
    kinds: set[str]
    others: list[Any]


@dataclass(frozen=True, slots=True)
class _Names:
    """The names that one object may have, and those that are no slip of another."""

    targets: dict[str, list[str]]
    known: set[str]


class Attempt:
    """Edits a copy of an argument object, only where the validator complains.

    `lead_back` puts what an edit brought to light in the names of the schema; see `registry.arguments.repair`.

    Attributes:
        repairs: What was done, in order. Whether it made the whole valid is for the caller to ask.
    """

    def __init__(
        self,
        schema: Any,
        validator: Validator,
        value: dict[str, Any],
        *,
        full: bool,
        lead_back: Callable[[Any], Any],
    ) -> None:
        self.repairs: list[Repair] = []
        self._schema = schema
        self._validator = validator
        self._full = full
        self._lead_back = lead_back
        self._unread = False
        # Deeper values are never walked by recursion, and have no errors to answer.
        self._value: Any = copied(value) if Extent(value).depth <= MAX_INSTANCE_DEPTH else value
        self._validations = 0
        self._cost = 0
        self._dropped: set[Path] = set()
        self._options: dict[int, _Options] = {}
        self._names: dict[int, _Names] = {}

    def settle(self) -> Any:
        """Return the value with every error answered that has an answer; it may still be wrong."""
        if isinstance(self._schema, dict):
            self._spell((), [], self._schema)
        for _round in range(_MAX_ROUNDS):
            before = len(self.repairs)
            self._answer_all(self._errors())
            if len(self.repairs) == before:
                break
        return self._value

    def _errors(self) -> list[jsonschema_rs.ValidationError]:
        if self._unread:
            # What came out of a text or to its place by an edit may be in the names that the caller was shown.
            self._value, self._unread = self._lead_back(self._value), False
        self._validations += 1
        self._cost += self._validator.errors_cost(self._value)
        return [] if self._spent() else self._validator.errors(self._value, _MAX_ERRORS)

    def _spent(self) -> bool:
        return self._validations > _MAX_VALIDATIONS or (self._validations > 1 and self._cost > _MAX_COST)

    def _answer_all(self, errors: list[jsonschema_rs.ValidationError]) -> None:
        done: set[Path] = set()
        spelt: set[tuple[Path, int]] = set()
        for error in errors:
            path = tuple(error.instance_path)
            # An answer changes what is below it: other errors there are told anew in the next round.
            if any(path[:length] in done for length in range(len(path) + 1)):
                continue
            before = len(self.repairs)
            self._answer(path, error, spelt)
            if len(self.repairs) > before:
                done.add(path)

    def _answer(self, path: Path, error: jsonschema_rs.ValidationError, spelt: set[tuple[Path, int]]) -> None:
        here = at(self._value, path)
        if here is MISSING:
            return
        place = list(error.schema_path)[:-1]
        node = schema_at(self._schema, place)
        node = node if isinstance(node, dict) else {}
        self._spell_around(path, place, node, error, spelt)
        match error.kind.name:
            case "type" if path:
                self._retype(path, here, set(getattr(error.kind, "types", ())), node)
            case "enum" | "const" if path:
                self._choose(path, here, node)
            case "anyOf" | "oneOf":
                self._take_alternative(path, here, error)

    def _spell_around(
        self,
        path: Path,
        place: list[str | int],
        node: Any,
        error: jsonschema_rs.ValidationError,
        spelt: set[tuple[Path, int]],
    ) -> None:
        """Spell the names of the object that an error is about, or that it is directly in."""
        if error.kind.name not in ("required", "additionalProperties", "unevaluatedProperties"):
            # By way of a reference the schema around the keyword is not the one of the object around the value.
            if not path or list(error.evaluation_path)[-3:-1] != ["properties", path[-1]]:
                return
            path, place = path[:-1], place[:-2]
            node = schema_at(self._schema, place)
        if isinstance(node, dict) and (path, id(node)) not in spelt:
            spelt.add((path, id(node)))
            self._spell(path, place, node)

    def _put(self, path: Path, new: Any, name: str) -> None:
        self._replace(path, new)
        self._unread = self._unread or isinstance(new, dict | list)
        self.repairs.append(Repair(name=name, path=path))

    def _replace(self, path: Path, new: Any) -> None:
        if path:
            at(self._value, path[:-1])[path[-1]] = new
        else:
            self._value = new

    def _drop_null(self, path: Path) -> None:
        if self._full and path and isinstance(path[-1], str):
            self._dropped.add(path)
            del at(self._value, path[:-1])[path[-1]]
            self.repairs.append(Repair(name="null_dropped", path=path))

    def _retype(self, path: Path, here: Any, kinds: set[str], node: dict[str, Any]) -> None:
        if isinstance(here, str):
            read = coercion.from_text(here, kinds, rounded=self._full)
            if read is not MISSING:
                self._put(path, read, "json_text" if isinstance(read, dict | list) else "converted")
                return
        if "array" in kinds and self._is_one_item(here, node):
            self._put(path, [here], "listed")
        elif here is None:
            self._drop_null(path)
        elif self._full and "string" in kinds and isinstance(here, int) and not isinstance(here, bool):
            self._put(path, str(here), "converted")
        elif self._full and isinstance(here, list) and len(here) == 1:
            self._put(path, here[0], "item_taken")

    def _is_one_item(self, here: Any, node: dict[str, Any]) -> bool:
        """Tell whether an array of just such values is declared."""
        items = resolved(node.get("items"), self._schema)
        if not isinstance(items, dict):
            return False
        kinds, options = items.get("type"), items.get("enum")
        wanted = {kinds} if isinstance(kinds, str) else set(kinds) if isinstance(kinds, list) else set()
        if isinstance(here, dict):
            return self._full and wanted == {"object"}
        if not wanted and isinstance(options, list) and len(options) <= coercion.MAX_OPTIONS:
            wanted = {"string"} if all(isinstance(one, str) for one in options) else wanted
        return bool(wanted) and wanted <= _SCALARS and coercion.is_one_item(here)

    def _choose(self, path: Path, here: Any, node: dict[str, Any]) -> None:
        if here is None:
            self._drop_null(path)
        if not isinstance(here, str):
            return
        options = self._options_of(node)
        option = options.cases.get(here.casefold(), MISSING)
        if option is not MISSING:
            self._put(path, option, "letter_case")
            return
        read = coercion.from_text(here, options.kinds)
        if read is not MISSING and any(read == one and type(read) is type(one) for one in options.others):
            self._put(path, read, "converted")

    def _options_of(self, node: dict[str, Any]) -> _Options:
        known = self._options.get(id(node))
        if known is None:
            options = node.get("enum", [node["const"]] if "const" in node else [])
            if not isinstance(options, list) or len(options) > coercion.MAX_OPTIONS:
                options = []
            others = [one for one in options if not isinstance(one, str)]
            known = _Options(coercion.by_letter_case(options), coercion.kinds_of(others), others)
            self._options[id(node)] = known
        return known

    def _spell(self, path: Path, place: list[str | int], node: dict[str, Any]) -> None:
        """Spell the names of one object as they are declared: it is wrong, so all its slips are in doubt."""
        here = at(self._value, path)
        if not isinstance(here, dict) or not (slips := self._slips(path, here, self._names_of(place, node))):
            return
        entries = [(slips.get(key, key), child) for key, child in here.items()]
        here.clear()
        here.update(entries)
        self._unread = True
        self.repairs += [Repair(name="renamed", path=(*path, new), was=old) for old, new in slips.items()]

    def _names_of(self, place: list[str | int], node: dict[str, Any]) -> _Names:
        kept = self._names.get(id(node))
        if kept is not None:
            return kept
        own = set(declared(node, self._schema))
        required = node.get("required")
        if isinstance(required, list):
            own.update(name for name in required if isinstance(name, str))
        if any(_names_freely(one) for one in composition(node, self._schema)):
            own.clear()
        known = set(own)
        for length in range(len(place)):
            above = schema_at(self._schema, place[:length])
            # A branch knows only some of the names; what is declared above it is no slip either.
            if isinstance(above, dict) and isinstance(above.get("properties"), dict):
                known |= above["properties"].keys()
        targets: dict[str, list[str]] = {}
        for name in own:
            targets.setdefault(coercion.fold(name), []).append(name)
        kept = self._names[id(node)] = _Names(targets, known)
        return kept

    def _slips(self, path: Path, here: dict[str, Any], names: _Names) -> dict[str, str]:
        """Return the names that differ from one absent property in spelling, each with that property."""
        sent: dict[str, list[str]] = {}
        for key in here:
            if key not in names.known:
                sent.setdefault(coercion.fold(key), []).append(key)
        slips: dict[str, str] = {}
        for folded, keys in sent.items():
            free = [
                name
                for name in names.targets.get(folded, ())
                if name not in here and (*path, name) not in self._dropped
            ]
            if len(keys) == 1 and len(free) == 1:
                slips[keys[0]] = free[0]
        return slips

    def _take_alternative(self, path: Path, here: Any, error: jsonschema_rs.ValidationError) -> None:
        """Repair for the only alternative that can be repaired; two different outcomes leave a doubt.

        Each is tried on a value that holds nothing else, so that an array of many such costs no more than its parts.
        """
        keyword = list(error.schema_path)
        whole, repairs, dropped, unread = self._value, self.repairs, self._dropped, self._unread
        # Where the place in an array chooses the schema, the place has to stay.
        tuples = "prefixItems" in keyword or any(
            word == "items" and isinstance(step, int) for word, step in pairwise(keyword)
        )
        alone = path if tuples else tuple(0 if isinstance(step, int) else step for step in path)
        outcomes: dict[bytes, tuple[Any, list[Repair]]] = {}
        try:
            for index in range(_MAX_ALTERNATIVES):
                self._value = whole if alone is path else _holding(alone, None)
                self._replace(alone, copied(here))
                self.repairs, self._dropped, self._unread = [], set(dropped), False
                mended, branches = self._mended_by(index, alone, keyword)
                if mended is not MISSING:
                    outcomes.setdefault(canonical(mended), (mended, self.repairs))
                if index + 1 >= branches:
                    break
        except SchemaRejected:
            outcomes.clear()
        finally:
            self._value = whole
            self._replace(path, here)
            self.repairs, self._dropped, self._unread = repairs, dropped, unread
        if len(outcomes) == 1:
            [(mended, made)] = outcomes.values()
            self._replace(path, mended)
            self.repairs += [replace(one, path=(*path, *one.path[len(path) :])) for one in made]
        elif here is None:
            self._drop_null(path)

    def _mended_by(self, index: int, path: Path, keyword: list[str | int]) -> tuple[Any, int]:
        """Return what an alternative makes of the value at a path, or MISSING; and how many alternatives there are."""
        count = 0
        for _round in range(_ALTERNATIVE_ROUNDS):
            found = self._errors()
            if self._spent():
                break
            current = _again(found, path, keyword)
            if current is None:
                below = any(tuple(one.instance_path)[: len(path)] == path for one in found)
                # No errors at all may also mean that none could be asked for.
                right = not below and (bool(found) or self._validator.is_valid(self._value))
                return (at(self._value, path) if right and self.repairs else MISSING), count
            branches = getattr(current.kind, "context", None) or []
            count = len(branches)
            before = len(self.repairs)
            if index < count:
                self._answer_all(branches[index])
            if len(self.repairs) == before:
                break
        return MISSING, count


def _names_freely(node: dict[str, Any]) -> bool:
    """Tell whether other names than the declared ones have a meaning too: a map, where no name is a slip."""
    others = node.get("additionalProperties")
    return "patternProperties" in node or (isinstance(others, dict) and bool(others))


def _holding(path: Path, value: Any) -> Any:
    for step in reversed(path):
        value = [value] if isinstance(step, int) else {step: value}
    return value


def _again(
    errors: list[jsonschema_rs.ValidationError], path: Path, keyword: list[str | int]
) -> jsonschema_rs.ValidationError | None:
    """Return the error of a keyword at a path, be it among the errors or within those of an alternative."""
    pending = list(errors)
    for _error in range(_MAX_ERRORS):
        if not pending:
            return None
        error = pending.pop()
        if list(error.schema_path) == keyword and tuple(error.instance_path) == path:
            return error
        for branch in getattr(error.kind, "context", None) or []:
            pending += branch
    return None
