"""The exceptions of the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial


class RegistryError(Exception):
    """Base class of the exceptions that the registry raises."""


class AliasError(RegistryError):
    """The gateway cannot derive distinct names from the configured server aliases.

    Attributes:
        aliases: The aliases that cause the problem, in the given order.
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
    """A schema exceeds a limit, refers to another document, or cannot be compiled.

    Attributes:
        code: A stable code for programs, such as `too_deep` or `remote_ref`.
        detail: A text for people.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class LockfileRejected(RegistryError):
    """A lock file cannot be used.

    Attributes:
        detail: What is wrong, and what was expected.
        key: The dotted path of the wrong entry, if the problem concerns a single entry.
    """

    def __init__(self, detail: str, *, key: str | None = None) -> None:
        super().__init__(f"{key}: {detail}" if key else detail)
        self.detail = detail
        self.key = key


class NotChecked(RegistryError):
    """The arguments of a call cannot be checked within the current limits.

    Attributes:
        path: The path of the argument that exceeds a limit.
        reason: The rest of a sentence that starts with the name of the argument and states the reason.
        final: Whether a check with higher limits would fail, too.
        invalid: True if the arguments are known to be invalid, and only the list of errors is missing.
        unlocated: True if there are too many values, and it has not been determined which argument has most of them.
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
