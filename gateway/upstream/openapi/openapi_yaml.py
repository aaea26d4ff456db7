"""Parse YAML documents to JSON values.

LibYAML splits a document into events, without recursion. This module builds the values from the events itself,
because YAML libraries do so recursively: a document of a few kilobytes can overflow their stack or expand to gigabytes.

Source: YAML 1.2.2, section 10.3, "Core Schema". The merge keys (`<<`) of YAML 1.1 are supported too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml import events

from gateway.protocol.gateway_errors import GatewayError
from registry.schema.display_text import excerpt

# Limit for the values of a document with all aliases expanded. Without it, a small file could expand to billions of
# values. GitHub's document has 258,000.
MAX_VALUES: Final = 2_000_000
_MAX_DETAIL: Final = 200
# PyYAML packages for rare platforms lack LibYAML, and have only a slower parser, which yields the same events.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE: Final = "<<"
_TAG: Final = "tag:yaml.org,2002:"
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INFINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_NUMBER: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
# Values with `_TEXT_TAGS` stay text, also dates, as in JSON. Values with `_PLAIN_TAGS` are parsed by the rules of the
# core schema, like values without a tag.
_TEXT_TAGS: Final = frozenset({"!", f"{_TAG}str", f"{_TAG}timestamp", f"{_TAG}binary"})
_PLAIN_TAGS: Final = frozenset({f"{_TAG}{name}" for name in ("null", "bool", "int", "float")})
_CONTAINER_TAGS: Final = frozenset({None, "!", *(f"{_TAG}{name}" for name in ("map", "seq", "set", "omap", "pairs"))})


class MalformedYaml(GatewayError):
    """The document is not YAML, or exceeds a limit; the message gives the reason and the line."""


@dataclass(slots=True, kw_only=True)
class _Open:
    """A list or an object whose end has not been read.

    Attributes:
        value: The list or the object, as far as it has been read.
        anchor: The anchor of the list or the object; None if there is none.
        key: The key whose value comes next; None if a key comes next.
        is_merge: Whether `key` is a merge key.
        merged: The values of merge keys.
        count: The number of values inside, with aliases expanded, plus 1 for the list or object itself.
    """

    value: dict[str, Any] | list[Any]
    anchor: str | None
    key: str | None = None
    is_merge: bool = False
    merged: list[Any] = field(default_factory=list)
    count: int = 1


def load_yaml(data: bytes, max_depth: int) -> Any:
    """Parse one YAML document; if a key is repeated, use its first value.

    Args:
        max_depth: The maximum number of levels of nested lists and objects.

    Raises:
        MalformedYaml: The document is malformed, nested too deeply, or has too many values.
    """
    composer = _Composer(max_depth)
    try:
        data.decode("utf-8")  # LibYAML would also accept UTF-16
        for event in yaml.parse(data, Loader=_LOADER):
            composer.add(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "an unknown line"
        reason = excerpt(str(error.problem or error.context or "malformed"), _MAX_DETAIL)
        raise MalformedYaml(f"is neither JSON nor YAML at {where}: {reason}") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = excerpt((str(error).splitlines() or [type(error).__name__])[0], _MAX_DETAIL)
        raise MalformedYaml(f"is neither JSON nor YAML ({reason})") from None
    return composer.root


class _Composer:
    """Builds the value of a document from its events.

    Attributes:
        root: The value of the document; complete after the last event.
    """

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self.root: Any = None
        self._documents = 0
        self._open: list[_Open] = []
        # By anchor: the value, and the number of values in it. Aliases share the value, so that they need no memory.
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._handlers: Mapping[type, Callable[[Any], None]] = {
            events.ScalarEvent: self._scalar,
            events.AliasEvent: self._alias,
            events.MappingStartEvent: self._start_object,
            events.SequenceStartEvent: self._start_list,
            events.MappingEndEvent: self._end,
            events.SequenceEndEvent: self._end,
            events.DocumentStartEvent: self._start_document,
        }

    def add(self, event: Any) -> None:
        """Handle one event."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def _start_document(self, event: Any) -> None:
        self._documents += 1
        if self._documents > 1:
            raise _malformed_error(event, "a second document begins; expected one")

    def _scalar(self, event: Any) -> None:
        top = self._open[-1] if self._open else None
        tag, text = event.tag, event.value
        if top is not None and top.key is None and type(top.value) is dict:
            if event.anchor is not None:
                self._anchors[event.anchor] = text, 1
            top.key = text  # not converted, because keys are text in JSON
            top.is_merge = text == _MERGE and event.implicit[0]
            return
        value: Any = text
        if tag is None:
            if event.implicit[0]:
                value = _plain_value(text)
        elif tag in _PLAIN_TAGS:
            value = _plain_value(text)
        elif tag not in _TEXT_TAGS:
            raise _malformed_error(event, f"the tag {excerpt(tag, 80)} is not supported")
        if event.anchor is not None:
            self._anchors[event.anchor] = value, 1
        self._place(value, 1, event)

    def _alias(self, event: Any) -> None:
        anchored = self._anchors.get(event.anchor)
        if anchored is None:
            if any(container.anchor == event.anchor for container in self._open):
                raise _malformed_error(event, f"is nested more than {self._max_depth} levels: a value contains itself")
            raise _malformed_error(event, f"nothing has the anchor {excerpt(event.anchor, 80)}")
        self._place(*anchored, event)

    def _start_object(self, event: Any) -> None:
        self._start({}, event)

    def _start_list(self, event: Any) -> None:
        self._start([], event)

    def _start(self, value: dict[str, Any] | list[Any], event: Any) -> None:
        if event.tag not in _CONTAINER_TAGS:
            raise _malformed_error(event, f"the tag {excerpt(event.tag, 80)} is not supported")
        if len(self._open) >= self._max_depth:
            raise _malformed_error(event, f"is nested more than {self._max_depth} levels")
        # The anchor now stands for this value, so an alias inside this value must not find the anchor's former value.
        self._anchors.pop(event.anchor, None)
        self._open.append(_Open(value=value, anchor=event.anchor))

    def _end(self, event: Any) -> None:
        done = self._open.pop()
        for merged in done.merged:
            for part in merged if isinstance(merged, list) else [merged]:
                if not isinstance(part, dict):
                    raise _malformed_error(event, "a merge key has a value that is not an object")
                for key, value in part.items():
                    done.value.setdefault(key, value)  # type: ignore[union-attr]
        if done.anchor is not None:
            self._anchors[done.anchor] = done.value, done.count
        self._place(done.value, done.count, event)

    def _place(self, value: Any, count: int, event: Any) -> None:
        """Add a value to the innermost list or object that is open, or make it the root."""
        if not self._open:
            self.root = value
            return
        top = self._open[-1]
        top.count += count
        if top.count > MAX_VALUES:
            raise _malformed_error(event, f"has more than {MAX_VALUES} values; expected fewer aliases")
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is None:
            if not isinstance(value, str | int | float | None):
                raise _malformed_error(event, "a list or an object is used as a key")
            top.key = value if isinstance(value, str) else str(value)
        else:
            if top.is_merge:
                top.merged.append(value)
            else:
                top.value.setdefault(top.key, value)
            top.key, top.is_merge = None, False


def _plain_value(text: str) -> Any:
    """Return the value of a scalar that is written without quotes."""
    first = text[:1]
    if first.isalpha() or first in "/#":  # fast path: text, except for the few words that mean null or a boolean
        return None if text in _NULLS else _BOOLEANS.get(text, text)
    if text in _NULLS:
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text) or _INFINITE.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return int(text, 0) if _OTHER_BASE.fullmatch(text) else text


def _malformed_error(event: Any, reason: str) -> MalformedYaml:
    mark = event.start_mark
    return MalformedYaml(f"is neither JSON nor YAML at line {mark.line + 1}, column {mark.column + 1}: {reason}")
