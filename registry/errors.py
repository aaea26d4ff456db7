"""The exceptions of the registry. How they are put on the wire is not its concern."""

from __future__ import annotations

from collections.abc import Iterable


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
