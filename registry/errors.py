"""The exceptions of the registry. How they are put on the wire is not its concern."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial


class RegistryError(Exception):
    """Base class of all exceptions that the registry raises on purpose."""


class AliasError(RegistryError):
    """The configured server aliases cannot be compiled into distinct names.

    Attributes:
        aliases: Every offending alias, in the order given.
    """

    def __init__(self, aliases: Iterable[str], message: str) -> None:
        super().__init__(message)
        self.aliases = tuple(aliases)


class UnknownTool(RegistryError):
    """No wrapper in the catalog has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown tool: {name}")
        self.name = name


class SchemaRejected(RegistryError):
    """A schema is out of bounds, refers to other documents, or cannot be compiled.

    Attributes:
        code: A stable word for tables and tests, such as `too_deep` or `remote_ref`.
        detail: One sentence for a person.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class LockfileRejected(RegistryError):
    """A lock file cannot be used.

    Attributes:
        detail: What is wrong and what was expected.
        key: The dotted path of what is wrong, if it is one place.
    """

    def __init__(self, detail: str, *, key: str | None = None) -> None:
        super().__init__(f"{key}: {detail}" if key else detail)
        self.detail = detail
        self.key = key


class NotChecked(RegistryError):
    """Whether arguments are valid cannot be told within the bounds of a check.

    Attributes:
        path: Which argument.
        reason: What it is about the argument, as the rest of a sentence after its name.
        final: A check that may cost more would not help.
        invalid: The arguments are known to be invalid; only the errors could not be collected.
        unlocated: There are too many values, and it was not looked for the argument that holds most of them.
    """

    def __init__(
        self,
        path: tuple[str | int, ...],
        reason: str,
        *,
        final: bool = False,
        invalid: bool = False,
        unlocated: bool = False,
    ) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason
        self.final = final
        self.invalid = invalid
        self.unlocated = unlocated

    def __reduce__(self) -> tuple[Callable[..., NotChecked], tuple[object, ...]]:
        rebuild = partial(NotChecked, final=self.final, invalid=self.invalid, unlocated=self.unlocated)
        return rebuild, (self.path, self.reason)
