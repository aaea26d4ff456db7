"""Parse one GraphQL document, and explain why a file cannot become a tool.

The text that is sent to the endpoint omits the directives `@mcpTool` and `@mcpToolArg`, and all descriptions of
operations, variables and fragments. Only the gateway uses these directives, and servers that predate the GraphQL
specification of September 2025 reject such descriptions. In the text that the gateway validates, spaces replace the
directives and descriptions, so that error positions match the file.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import graphql as gql
from graphql import GraphQLError, Node

from gateway.protocol.gateway_errors import GatewayError
from registry.intake.issues import ItemIssue
from registry.schema.display_text import excerpt

# The errors that graphql-core raises for invalid schemas. Most of these come from code that assumes a valid schema.
SCHEMA_ERRORS: Final = (
    GraphQLError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    AssertionError,
    RecursionError,
)
# The longest detail, in characters. The limit is needed because a detail has to fit in a table row, but messages of
# graphql-core include whole type names and lists of suggestions.
_MAX_DETAIL: Final = 300
# The longest file name that is shown. Tool names, which appear in the same column, have the same limit.
_MAX_LABEL: Final = 128


class FileRejected(GatewayError):
    """A file cannot become a tool.

    Attributes:
        code: A stable identifier of the reason.
        detail: The reason, for operators.
        place: `file:line:column`, or only `file` if the position is unknown.
    """

    def __init__(self, code: str, detail: str, place: str) -> None:
        super().__init__(f"{place}: {detail}")
        self.code = code
        self.detail = detail
        self.place = place

    @classmethod
    def from_graphql_error(cls, code: str, error: GraphQLError, file: str) -> FileRejected:
        """Convert an error of graphql-core. For an error in a shared fragment, `place` names the fragment's file."""
        message = error.message.removeprefix("Syntax Error: ")
        if error.source is None or not error.locations:
            return cls(code, message, file)
        line, column = error.locations[0]
        return cls(code, message, f"{error.source.name}:{line}:{column}")

    @classmethod
    def at(cls, code: str, detail: str, node: Node, file: str) -> FileRejected:
        """Create an error located at the start of `node`."""
        if node.loc is None:
            return cls(code, detail, file)
        token = node.loc.start_token
        return cls(code, detail, f"{file}:{token.line}:{token.column}")

    def finding(self, file: str) -> ItemIssue:
        """Return the issue to show to the operator, with the file name in place of a tool name."""
        detail = excerpt(f"{self.place}: {self.detail}", _MAX_DETAIL)
        return ItemIssue(tool=excerpt(file, _MAX_LABEL), code=self.code, detail=detail)


# Handwritten operations have hundreds of tokens, and generated operations a few thousand. Parsing 20,000 tokens takes
# 0.1 s or more.
MAX_TOKENS: Final = 20_000
TOOL_DIRECTIVE: Final = "mcpTool"
ARGUMENT_DIRECTIVE: Final = "mcpToolArg"
_BYTE_ORDER_MARK: Final = "\ufeff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A fragment.

    Attributes:
        file: The path of the file, relative to the folder.
        text: The text to send.
        node: The syntax tree to validate.
    """

    name: str
    file: str
    text: str
    node: gql.FragmentDefinitionNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed file.

    Attributes:
        file: The path relative to the folder.
        sent: The text to send, without the gateway's directives and without descriptions.
        node: The syntax tree of the text to send, with positions that match the file.
        operation: The operation in `node`, or None if the file contains only fragments.
        fragments: The fragments of the file by name.
        tool_name: The value of `@mcpTool(name:)`; None without the directive.
        description: The description of the operation; None without a description.
        arguments: The description of each variable: the value of `@mcpToolArg(description:)`, or else the description
            in the document.
    """

    file: str
    sent: str
    node: gql.DocumentNode
    operation: gql.OperationDefinitionNode | None
    fragments: Mapping[str, Fragment]
    tool_name: str | None = None
    description: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)


def read_document(file: str, data: bytes) -> Document:
    """Parse one file.

    Raises:
        FileRejected: The file is not valid GraphQL, or contains anything except one operation and fragments.
    """
    text = _decode_text(file, data)
    parsed = _parse_text(text, file)
    operation = _only_operation(parsed, file)
    cut: list[gql.Node] = []
    described: dict[str, str] = {}
    tool_name: str | None = None
    description: str | None = None
    for definition in parsed.definitions:
        cut += _own_description(definition)
    if operation is not None:
        description = _string_value(operation.description)
        tool_name, nodes = _directive(operation.directives or (), TOOL_DIRECTIVE, "name", file)
        cut += nodes
        for variable in operation.variable_definitions or ():
            own, nodes = _directive(variable.directives or (), ARGUMENT_DIRECTIVE, "description", file)
            cut += [*nodes, *_own_description(variable)]
            variable_description = own or _string_value(variable.description)
            if variable_description:
                described[variable.variable.name.value] = variable_description
    spans = sorted((node.loc.start, node.loc.end) for node in cut if node.loc is not None)
    # Parse again only if parts have to be removed, which is not the case for most documents.
    node = _parse_text(_remove_spans(text, spans, blank=True), file) if spans else parsed
    return Document(
        file=file,
        # Keep the byte order mark: an endpoint with an allowlist compares documents byte for byte.
        sent=_BYTE_ORDER_MARK * data.startswith(codecs.BOM_UTF8) + _remove_spans(text, spans, blank=False),
        node=node,
        operation=next((part for part in node.definitions if isinstance(part, gql.OperationDefinitionNode)), None),
        fragments={fragment.name: fragment for fragment in _fragments(node, text, file)},
        tool_name=tool_name,
        description=description,
        arguments=described,
    )


def _decode_text(file: str, data: bytes) -> str:
    try:
        # Strip the byte order mark, which would shift the reported columns.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace").splitlines() or [""]
        raise FileRejected("not_utf8", "it is not UTF-8", f"{file}:{len(before)}:{len(before[-1]) + 1}") from None


def _parse_text(text: str, file: str) -> gql.DocumentNode:
    try:
        return gql.parse(gql.Source(text, file), max_tokens=MAX_TOKENS)
    except gql.GraphQLSyntaxError as error:
        raise FileRejected.from_graphql_error("syntax", error, file) from None


def _only_operation(document: gql.DocumentNode, file: str) -> gql.OperationDefinitionNode | None:
    operation: gql.OperationDefinitionNode | None = None
    for definition in document.definitions:
        if isinstance(definition, gql.OperationDefinitionNode):
            if operation is not None:
                detail = "a second operation; expected one operation in each file"
                raise FileRejected.at("two_operations", detail, definition, file)
            operation = definition
        elif not isinstance(definition, gql.FragmentDefinitionNode):
            detail = "a definition of the schema; expected operations and fragments only"
            raise FileRejected.at("not_executable", detail, definition, file)
    if operation is not None and operation.operation == gql.OperationType.SUBSCRIPTION:
        raise FileRejected.at("subscription", "a subscription, which tool calls do not support", operation, file)
    return operation


def _own_description(node: gql.DefinitionNode | gql.VariableDefinitionNode) -> list[gql.Node]:
    description = getattr(node, "description", None)
    return [description] if isinstance(description, gql.StringValueNode) else []


def _string_value(node: gql.StringValueNode | None) -> str | None:
    return node.value.strip() or None if node is not None else None


def _directive(
    directives: tuple[gql.DirectiveNode, ...] | tuple[gql.ConstDirectiveNode, ...],
    name: str,
    member: str,
    file: str,
) -> tuple[str | None, list[gql.Node]]:
    """Return the value of argument `member` of the directive `name`, and the nodes to remove from the document."""
    ours = [directive for directive in directives if directive.name.value == name]
    form = f'@{name}({member}: "…")'

    def bad(detail: str, node: gql.Node) -> FileRejected:
        return FileRejected.at("bad_directive", f"{detail}; expected {form}", node, file)

    text: str | None = None
    for directive in ours:
        if directive is not ours[0]:
            raise FileRejected.at("bad_directive", f"@{name} is given twice; expected it once", directive, file)
        if not directive.arguments:
            raise bad(f"@{name} has no argument", directive)
        for argument in directive.arguments:
            if argument.name.value != member or text is not None:
                raise bad(f"@{name} has the argument '{argument.name.value}'", argument)
            if not isinstance(argument.value, gql.StringValueNode):
                raise bad(f"{member} of @{name} is not a string", argument.value)
            text = argument.value.value.strip()
            if not text:
                raise bad(f"{member} of @{name} is empty", argument.value)
    return text, list[gql.Node](ours)


def _remove_spans(text: str, spans: list[tuple[int, int]], *, blank: bool) -> str:
    parts: list[str] = []
    at = 0
    for start, end in spans:
        parts.append(text[at:start])
        if blank:
            parts.append("".join(char if char in "\r\n" else " " for char in text[start:end]))
        at = end
    return "".join([*parts, text[at:]])


def _fragments(document: gql.DocumentNode, text: str, file: str) -> Iterator[Fragment]:
    for node in document.definitions:
        if isinstance(node, gql.FragmentDefinitionNode) and node.loc is not None:
            # The description of a fragment precedes the node, so this text does not contain the description.
            yield Fragment(name=node.name.value, file=file, text=text[node.loc.start : node.loc.end], node=node)
