"""Why a file gives no tool, and where in the file the reason is."""

from __future__ import annotations

from typing import Final

from graphql import GraphQLError, Node

from gateway.errors import GatewayError
from registry.intake.issues import ItemIssue
from registry.schema.display_text import excerpt

# What graphql-core raises for schemas that are wrong in ways that it takes for impossible.
SCHEMA_ERRORS: Final = (
    GraphQLError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    AssertionError,
    RecursionError,
)
# A row of a table; graphql-core repeats whole type names and lists of suggestions.
_MAX_DETAIL: Final = 300
# As for names of tools, in whose column it stands.
_MAX_LABEL: Final = 128


class FileRejected(GatewayError):
    """One file cannot be used.

    Attributes:
        code: A stable word for the reason.
        detail: One sentence.
        place: `file:line:column`, as far as known.
    """

    def __init__(self, code: str, detail: str, place: str) -> None:
        super().__init__(f"{place}: {detail}")
        self.code = code
        self.detail = detail
        self.place = place

    @classmethod
    def of(cls, code: str, error: GraphQLError, file: str) -> FileRejected:
        """What graphql-core found; an error in a shared fragment has its place in the fragment's file."""
        message = error.message.removeprefix("Syntax Error: ")
        if error.source is None or not error.locations:
            return cls(code, message, file)
        line, column = error.locations[0]
        return cls(code, message, f"{error.source.name}:{line}:{column}")

    @classmethod
    def at(cls, code: str, detail: str, node: Node, file: str) -> FileRejected:
        """What was found here, at the beginning of this node."""
        if node.loc is None:
            return cls(code, detail, file)
        token = node.loc.start_token
        return cls(code, detail, f"{file}:{token.line}:{token.column}")

    def finding(self, file: str) -> ItemIssue:
        """The row that an operator reads, under the name of the file."""
        detail = excerpt(f"{self.place}: {self.detail}", _MAX_DETAIL)
        return ItemIssue(tool=excerpt(file, _MAX_LABEL), code=self.code, detail=detail)
