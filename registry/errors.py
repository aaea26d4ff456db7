"""What the core raises; no JSON-RPC here."""

from __future__ import annotations

from collections.abc import Iterable


class RegistryError(Exception):
    """Root of everything that the registry raises on purpose."""


class AliasError(RegistryError):
    """The configured server aliases cannot be compiled into distinct names.

    Attributes:
        aliases: every offending alias, in the order given.
    """

    def __init__(self, aliases: Iterable[str], message: str) -> None:
        super().__init__(message)
        self.aliases = tuple(aliases)


class UnknownTool(RegistryError):
    """No wrapper has this name in the catalog that was asked."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown tool: {name}")
        self.name = name


class SchemaRejected(RegistryError):
    """A schema is beyond the bounds, refers elsewhere, or cannot be compiled.

    Attributes:
        code: a stable word for tables and tests, such as `too_deep` or `remote_ref`.
        detail: one sentence for a person.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
