"""Evaluate JMESPath expressions and JSON pointers within bounds, and suggest names for unknown fields.

Expressions and values are untrusted. The syntax is checked before a call is sent. The evaluation counts its steps and
ends with an error after too many. All functions are pure. They run on the event loop for small values, and in the check
process (`check_process`) for large values.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions
from jmespath.visitor import TreeInterpreter

from gateway.protocol import json_bytes
from registry.schema.display_text import excerpt

MAX_EXPRESSION_CHARS: Final = 1_000
"""Maximum length of an expression. Models write expressions of less than 200 characters; parsing takes linear time."""
MAX_WORD_CHARS: Final = 1_500
"""Maximum length of an encoded selection in a task id, which clients also send as a header. Every ASCII expression of
the maximum length fits."""
MAX_POINTERS: Final = 50
MAX_POINTER_CHARS: Final = 500
INLINE_STEPS: Final = 10_000
"""Maximum steps of an evaluation on the event loop, at about 1 µs each."""
MAX_STEPS: Final = 5_000_000
"""Maximum steps of an evaluation in the check process. The deadline of the process ends most evaluations earlier."""
# Comparing a text, or passing it to a function, counts as one step for this many characters.
_CHARS_PER_STEP: Final = 100
# Maximum growth of a result through a selection that repeats values: `[@,@]|[@,@]|…` doubles the result repeatedly.
_MAX_GROWTH_BYTES: Final = 64 * 1024
_FUNCTIONS: Final = frozenset(Functions.FUNCTION_TABLE)
# Maximum number of field names in a message.
_MAX_LISTED: Final = 12
# Maximum number of field names among which the most similar name is searched.
_MAX_KNOWN: Final = 200
_NAME_CHARS: Final = 64
_MAX_UNKNOWN: Final = 5


class SelectionRefused(ValueError):
    """The selection is invalid, or does not fit the value. The text of the exception is for the model."""


class SelectionTooCostly(SelectionRefused):
    """The evaluation took too many steps, or its result is too large."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a result that a caller needs: an expression, or else pointers."""

    expression: str = ""
    pointers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The outcome of a selection.

    Attributes:
        value: The selected value.
        hints: One sentence for each field that does not exist, with suggestions.
    """

    value: Any
    hints: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if nothing was selected."""
        return self.value is None or self.value in ([], {})


def parse_selection(value: object) -> Selection | None:
    """Check the selection that a caller sent, and return it; None to return the whole result.

    Raises:
        SelectionRefused: The selection is neither a valid expression nor a JSON pointer nor a list of JSON pointers.
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        if value.startswith("/"):  # a pointer, which is never a valid expression
            return Selection(pointers=(_checked_pointer(value),))
        if len(value) > MAX_EXPRESSION_CHARS:
            raise SelectionRefused(f"it has {len(value)} characters; at most {MAX_EXPRESSION_CHARS} are allowed")
        _parse_expression(value)
        return Selection(value)
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        if len(value) > MAX_POINTERS:
            raise SelectionRefused(f"it has {len(value)} pointers; at most {MAX_POINTERS} are allowed")
        return Selection(pointers=tuple(map(_checked_pointer, value)))
    raise SelectionRefused(
        'it must be a JMESPath expression, as in "items[].name", or a list of JSON pointers, as in ["/items/0/name"]'
    )


def encode_selection(selection: Selection | None) -> str:
    """Return a selection as a word for a task id; empty if there is no selection or the word would be too long."""
    if selection is None:
        return ""
    text = json_bytes.dumps(selection.expression or list(selection.pointers))
    word = base64.urlsafe_b64encode(text).decode().rstrip("=")
    return word if len(word) <= MAX_WORD_CHARS else ""


def decode_selection(word: str) -> Selection | None:
    """Return the selection from a word in a task id whose signature was verified; None if the word is empty."""
    return parse_selection(json_bytes.loads(base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)))) if word else None


def _checked_pointer(pointer: str) -> str:
    if len(pointer) > MAX_POINTER_CHARS:
        raise SelectionRefused(f"a JSON pointer has {len(pointer)} characters; at most {MAX_POINTER_CHARS} are allowed")
    if pointer and not pointer.startswith("/"):
        raise SelectionRefused(f"{excerpt(pointer, _NAME_CHARS)!r} is not a JSON pointer: it must begin with /")
    return pointer


def _parse_expression(expression: str) -> Any:
    try:
        # The library keeps at most 128 parsed expressions.
        parsed = jmespath.compile(expression).parsed
    except RecursionError:
        raise SelectionRefused("it is nested too deeply") from None
    except JMESPathError as error:
        # The first line says what is wrong. The other lines repeat the expression and mark the error.
        reason = excerpt(str(error).splitlines()[0], 200)
        raise SelectionRefused(f"it is not a valid JMESPath expression: {reason}") from None
    if (name := _unknown_function(parsed)) is not None:
        close = get_close_matches(name, _FUNCTIONS, n=1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        raise SelectionRefused(f"JMESPath has no function '{excerpt(name, _NAME_CHARS)}'{hint}")
    return parsed


def _unknown_function(node: Any) -> str | None:
    """Return the name of a called function that JMESPath does not define; None if all functions exist."""
    pending = [node]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if node["type"] == "function_expression" and node["value"] not in _FUNCTIONS:
                return str(node["value"])
            pending += node["children"]
    return None


def select(value: Any, selection: Selection, *, most_steps: int, most_bytes: int) -> Selected:
    """Return the selected part of a JSON value.

    Args:
        most_steps: The number of steps after which the evaluation ends with an error.
        most_bytes: The approximate size of the value. The selected part may be larger by `_MAX_GROWTH_BYTES`.

    Raises:
        SelectionTooCostly: The evaluation takes too many steps, or the selected part is too large.
        SelectionRefused: The expression does not fit the value; for example, it asks for the length of a number.
    """
    if selection.pointers:
        return _select_pointers(value, selection.pointers)
    interpreter = _Interpreter(most_steps, most_bytes + _MAX_GROWTH_BYTES)
    try:
        part = interpreter.visit(_parse_expression(selection.expression), value)
    except SelectionRefused:
        raise
    except RecursionError:
        raise SelectionTooCostly("the value or the expression is nested too deeply") from None
    except (JMESPathError, ValueError, TypeError, ArithmeticError, AttributeError, LookupError) as error:
        # Boundary: the library's functions raise many kinds of errors for values of an unexpected type.
        reason = excerpt(str(error).splitlines()[0] if str(error) else type(error).__name__, 200)
        raise SelectionRefused(
            "; ".join((f"the expression does not fit the result: {reason}", *interpreter.hints()))
        ) from None
    if isinstance(part, dict | list | str):
        check_size(part, most_bytes + _MAX_GROWTH_BYTES)
    selected = Selected(value=part, hints=tuple(interpreter.hints()))
    if selected.is_empty and not selected.hints:
        return Selected(value=part, hints=(_describe_value(value),))
    return selected


def check_size(value: Any, most_bytes: int) -> None:
    """Check that a value is not much larger than `most_bytes` as JSON. Repeated parts count each time.

    Raises:
        SelectionTooCostly: The value is larger.
    """
    remaining, pending = most_bytes, [value]
    while pending:
        node = pending.pop()
        remaining -= 2
        if isinstance(node, str):
            remaining -= len(node)
        elif isinstance(node, dict):
            remaining -= sum(map(len, node))
            pending += node.values()
        elif isinstance(node, list):
            pending += node
        if remaining < 0 or len(pending) > most_bytes:
            raise SelectionTooCostly("it would return more than the whole result")


@dataclass(slots=True)
class _FieldUse:
    """The lookups of one field of an expression.

    Attributes:
        found: True if some object had the field.
        known: The names of fields in the objects that did not have the field.
    """

    name: str
    found: bool = False
    known: dict[str, None] = field(default_factory=dict)


class _Interpreter(TreeInterpreter):  # type: ignore[misc]  # the library has no annotations
    """Evaluates an expression, counts its steps, and records fields that no object has."""

    def __init__(self, most_steps: int, most_chars: int) -> None:
        super().__init__()
        self._left = most_steps
        self._most_chars = most_chars
        self._fields: dict[int, _FieldUse] = {}

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        self._charge(1)
        return super().visit(node, *args, **kwargs)

    def visit_field(self, node: Any, value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        name = node["value"]
        use = self._fields.get(id(node))
        if use is None:
            use = self._fields[id(node)] = _FieldUse(name)
        if name in value:
            use.found = True
            return value[name]
        if not use.found and len(use.known) < _MAX_KNOWN:
            use.known.update(dict.fromkeys(list(value)[:_MAX_KNOWN]))
        return None

    def visit_flatten(self, node: Any, value: Any) -> Any:
        return self._charge_result(super().visit_flatten(node, value))

    def visit_slice(self, node: Any, value: Any) -> Any:
        return self._charge_result(super().visit_slice(node, value))

    def visit_comparator(self, node: Any, value: Any) -> Any:
        # `visit` counts a comparison as one step, but a comparison processes whole values, so charge for their size.
        left, right = (self.visit(child, value) for child in node["children"])
        self._charge_all(left)
        self._charge_all(right)
        compare = self.COMPARATOR_FUNC[node["value"]]
        if node["value"] in self._EQUALITY_OPS:
            return compare(left, right)
        # JMESPath defines `<` and `>` only for numbers. Texts are compared as well, as in the library.
        both = isinstance(left, str) and isinstance(right, str)
        return compare(left, right) if both or (_is_number(left) and _is_number(right)) else None

    def visit_function_expression(self, node: Any, value: Any) -> Any:
        arguments = [self.visit(child, value) for child in node["children"]]
        for argument in arguments:
            self._charge_all(argument)
        result = self._functions.call_function(node["value"], arguments)
        if isinstance(result, str) and len(result) > self._most_chars:
            raise SelectionTooCostly("it would return more than the whole result")
        return self._charge_result(result)

    def _charge_result(self, result: Any) -> Any:
        if isinstance(result, list | dict):
            self._charge(len(result))
        return result

    def _charge(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise SelectionTooCostly("it takes too many steps for this result")

    def _charge_all(self, value: Any) -> None:
        """Charge one step for each value inside a value, and one step per `_CHARS_PER_STEP` characters of a text."""
        pending = [value]
        while pending:
            node = pending.pop()
            if isinstance(node, str):
                self._charge(len(node) // _CHARS_PER_STEP)
            elif isinstance(node, dict):
                self._charge(len(node))
                pending += node.values()
            elif isinstance(node, list):
                self._charge(len(node))
                pending += node

    def hints(self) -> Iterable[str]:
        """Return a sentence for each field that no object had, up to `_MAX_UNKNOWN`."""
        unknown = {use.name: use for use in self._fields.values() if not use.found}
        for use in list(unknown.values())[:_MAX_UNKNOWN]:
            yield unknown_name(use.name, list(use.known))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def unknown_name(name: str, names: list[str]) -> str:
    """Return a sentence about a field that does not exist, with the most similar name and the existing names."""
    folded = {_fold_name(each): each for each in reversed(names)}
    close = get_close_matches(_fold_name(name), folded, n=1)
    text = f"there is no field '{excerpt(name, _NAME_CHARS)}'"
    if close:
        text += f" (did you mean '{excerpt(folded[close[0]], _NAME_CHARS)}'?)"
    return f"{text}; the fields are: {_list_names(names)}" if names else f"{text}, and the object is empty"


def _fold_name(name: str) -> str:
    return name[:_NAME_CHARS].casefold().replace("_", "").replace("-", "")


def _list_names(names: list[str]) -> str:
    listed = ", ".join(excerpt(name, _NAME_CHARS) for name in names[:_MAX_LISTED])
    return f"{listed}, …" if len(names) > _MAX_LISTED else listed


def _describe_value(value: Any) -> str:
    """Describe a value for which an expression returned nothing."""
    if isinstance(value, dict):
        return (
            f"the result is an object with the fields: {_list_names(list(value))}" if value else "the result is empty"
        )
    if isinstance(value, list):
        inner = next((item for item in value if isinstance(item, dict)), None)
        fields = f"; the first object has the fields: {_list_names(list(inner))}" if inner else ""
        return f"the result is a list of {len(value)} items{fields}"
    return "the result is neither an object nor a list"


def _select_pointers(value: Any, pointers: tuple[str, ...]) -> Selected:
    parts: dict[str, Any] = {}
    hints: dict[str, None] = {}
    for pointer in pointers:
        try:
            parts[pointer] = resolve_pointer(value, pointer)
        except SelectionRefused as refused:
            hints[str(refused)] = None
    return Selected(value=parts, hints=tuple(hints)[:_MAX_UNKNOWN])


def resolve_pointer(value: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer (RFC 6901).

    Raises:
        SelectionRefused: There is no value at the pointer. The text names the first step of the pointer that failed.
    """
    steps = _checked_pointer(pointer).split("/")[1:]
    for number, step in enumerate(steps):
        name = step.replace("~1", "/").replace("~0", "~")
        where = f"at '/{excerpt('/'.join(steps[:number]), _NAME_CHARS)}'"
        if isinstance(value, dict):
            if name not in value:
                raise SelectionRefused(f"{where}, {unknown_name(name, list(value)[:_MAX_KNOWN])}")
            value = value[name]
        elif isinstance(value, list):
            # RFC 6901, section 4: an index consists of digits without a leading zero.
            is_index = name.isascii() and name.isdecimal() and (name == "0" or name[0] != "0") and len(name) < 19
            if not is_index or int(name) >= len(value):
                raise SelectionRefused(
                    f"{where} there is a list of {len(value)} items, without an item '{excerpt(name, _NAME_CHARS)}'"
                )
            value = value[int(name)]
        else:
            raise SelectionRefused(f"{where} there is neither an object nor a list")
    return value
