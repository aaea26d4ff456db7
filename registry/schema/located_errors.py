"""Errors of a part of a value, told as errors of the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from registry.schema.json_paths import JsonPath

if TYPE_CHECKING:
    import jsonschema_rs


class LocatedError:
    """An error of a part of a value, with the path in the whole."""

    __slots__ = ("_at", "_error", "evaluation_path", "kind", "message", "schema_path")

    def __init__(self, error: jsonschema_rs.ValidationError, at: JsonPath) -> None:
        self._error = error
        self._at = at
        self.message = error.message
        self.schema_path = error.schema_path
        self.evaluation_path = error.evaluation_path
        self.kind: Any = error.kind
        if getattr(error.kind, "context", None) and error.kind.name != "oneOfMultipleValid":
            self.kind = _LocatedKind(error.kind, at)

    @property
    def instance_path(self) -> list[str | int]:
        """The path of the value in the whole."""
        return [*self._at, *self._error.instance_path]


class _LocatedKind:
    """The kind of an error that holds others."""

    __slots__ = ("context", "name")

    def __init__(self, kind: Any, at: JsonPath) -> None:
        self.name = kind.name
        self.context = [[LocatedError(error, at) for error in branch] for branch in kind.context]


class FoundKind:
    """What kind of error one is that no validator made, in the attributes of theirs.

    Attributes:
        name: The keyword; `options` where a value is none of those that alternatives take, `whole` where it is not
            known what is wrong.
        property: The missing member.
        unexpected: The undeclared members.
        types: The types that are declared.
        options: The values that are taken.
    """

    __slots__ = ("name", "options", "property", "types", "unexpected")

    def __init__(
        self,
        name: str,
        *,
        property: str = "",
        unexpected: tuple[str, ...] = (),
        types: tuple[str, ...] = (),
        options: tuple[Any, ...] = (),
    ) -> None:
        self.name = name
        self.property = property
        self.unexpected = unexpected
        self.types = types
        self.options = options


class FoundError:
    """An error that was found without a validator, which copies what each error is about."""

    __slots__ = ("evaluation_path", "instance_path", "kind", "message", "schema_path")

    def __init__(self, path: JsonPath, kind: FoundKind, schema_path: list[str | int], message: str = "") -> None:
        self.instance_path = list(path)
        self.schema_path = schema_path
        self.evaluation_path = schema_path
        self.kind = kind
        self.message = message
