"""One GraphQL document taken apart: what of it is for us, and what is sent, byte for byte.

For us are the directives `@mcpTool` and `@mcpToolArg` and all descriptions of operations, variables and fragments:
servers from before September 2025 refuse them. They are cut out by their positions, so that nothing else
moves; for validation they are blanked instead, so that every position is that of the file.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import graphql as gql

from gateway.upstream.graphql.rejections import FileRejected

# Operations of people have hundreds, generated ones some thousands; so many take the parser tenths of a second.
MAX_TOKENS: Final = 20_000
TOOL_DIRECTIVE: Final = "mcpTool"
ARGUMENT_DIRECTIVE: Final = "mcpToolArg"
_BYTE_ORDER_MARK: Final = "\ufeff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """One fragment as it is sent, and as it is validated."""

    name: str
    file: str
    text: str
    node: gql.FragmentDefinitionNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One file.

    Attributes:
        file: Its path inside the folder.
        sent: Its text without what is for us.
        node: The syntax tree of what is sent, its positions those in the file.
        operation: The operation in that tree; None for a file that holds only fragments.
        tool_name: Of `@mcpTool(name:)`.
        description: The operation's own.
        arguments: The text of `@mcpToolArg(description:)`, or else the variable's own description, of each.
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
    """The parts of one file.

    Raises:
        FileRejected: It is no GraphQL, or not what one tool is made of; the reason says where.
    """
    text = _decoded(file, data)
    written = _parsed(text, file)
    operation = _only_operation(written, file)
    cut: list[gql.Node] = []
    described: dict[str, str] = {}
    tool_name: str | None = None
    description: str | None = None
    for definition in written.definitions:
        cut += _own_description(definition)
    if operation is not None:
        description = _value(operation.description)
        tool_name, found = _directive(operation.directives or (), TOOL_DIRECTIVE, "name", file)
        cut += found
        for variable in operation.variable_definitions or ():
            own, found = _directive(variable.directives or (), ARGUMENT_DIRECTIVE, "description", file)
            cut += [*found, *_own_description(variable)]
            description_of_it = own or _value(variable.description)
            if description_of_it:
                described[variable.variable.name.value] = description_of_it
    spans = sorted((node.loc.start, node.loc.end) for node in cut if node.loc is not None)
    # Parsed again only where something was cut: most documents of others hold nothing for us.
    node = _parsed(_without(text, spans, blank=True), file) if spans else written
    return Document(
        file=file,
        # With its byte order mark: endpoints that allow only known documents compare every byte.
        sent=_BYTE_ORDER_MARK * data.startswith(codecs.BOM_UTF8) + _without(text, spans, blank=False),
        node=node,
        operation=next((part for part in node.definitions if isinstance(part, gql.OperationDefinitionNode)), None),
        fragments={fragment.name: fragment for fragment in _fragments(node, text, file)},
        tool_name=tool_name,
        description=description,
        arguments=described,
    )


def _decoded(file: str, data: bytes) -> str:
    try:
        # Without a byte order mark, so that it shifts no column that is reported.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace").splitlines() or [""]
        raise FileRejected("not_utf8", "it is not UTF-8", f"{file}:{len(before)}:{len(before[-1]) + 1}") from None


def _parsed(text: str, file: str) -> gql.DocumentNode:
    try:
        return gql.parse(gql.Source(text, file), max_tokens=MAX_TOKENS)
    except gql.GraphQLSyntaxError as error:
        raise FileRejected.of("syntax", error, file) from None


def _only_operation(document: gql.DocumentNode, file: str) -> gql.OperationDefinitionNode | None:
    found: gql.OperationDefinitionNode | None = None
    for definition in document.definitions:
        if isinstance(definition, gql.OperationDefinitionNode):
            if found is not None:
                detail = "a second operation; expected one operation in each file"
                raise FileRejected.at("two_operations", detail, definition, file)
            found = definition
        elif not isinstance(definition, gql.FragmentDefinitionNode):
            detail = "a definition of the schema; expected operations and fragments only"
            raise FileRejected.at("not_executable", detail, definition, file)
    if found is not None and found.operation == gql.OperationType.SUBSCRIPTION:
        raise FileRejected.at("subscription", "a subscription, which no tool call can carry", found, file)
    return found


def _own_description(node: gql.DefinitionNode | gql.VariableDefinitionNode) -> list[gql.Node]:
    description = getattr(node, "description", None)
    return [description] if isinstance(description, gql.StringValueNode) else []


def _value(node: gql.StringValueNode | None) -> str | None:
    return node.value.strip() or None if node is not None else None


def _directive(
    directives: tuple[gql.DirectiveNode, ...] | tuple[gql.ConstDirectiveNode, ...],
    name: str,
    member: str,
    file: str,
) -> tuple[str | None, list[gql.Node]]:
    """The text that one of our directives gives, and its nodes."""
    ours = [directive for directive in directives if directive.name.value == name]
    form = f'@{name}({member}: "…")'

    def bad(detail: str, node: gql.Node) -> FileRejected:
        return FileRejected.at("bad_directive", f"{detail}; expected {form}", node, file)

    text: str | None = None
    for directive in ours:
        if directive is not ours[0]:
            raise FileRejected.at("bad_directive", f"@{name} stands twice; expected it once", directive, file)
        if not directive.arguments:
            raise bad(f"@{name} says nothing", directive)
        for argument in directive.arguments:
            if argument.name.value != member or text is not None:
                raise bad(f"@{name} has the argument '{argument.name.value}'", argument)
            if not isinstance(argument.value, gql.StringValueNode):
                raise bad(f"{member} of @{name} is no text", argument.value)
            text = argument.value.value.strip()
            if not text:
                raise bad(f"{member} of @{name} is empty", argument.value)
    return text, list[gql.Node](ours)


def _without(text: str, spans: list[tuple[int, int]], *, blank: bool) -> str:
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
            # Nothing inside a fragment is for us: its description stands before it.
            yield Fragment(name=node.name.value, file=file, text=text[node.loc.start : node.loc.end], node=node)
