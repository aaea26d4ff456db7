"""One GraphQL document taken apart: what of it is for us, and what is sent, byte for byte.

Ours are the directives `@mcpTool` and `@mcpToolArg` and all descriptions of operations, variables and fragments;
servers of before September 2025 know none of them. They are cut out by their positions, so that nothing else
moves; for validation they are blanked instead, so that every position is that of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from graphql import (
    ConstDirectiveNode,
    DefinitionNode,
    DirectiveNode,
    DocumentNode,
    FragmentDefinitionNode,
    GraphQLSyntaxError,
    Node,
    OperationDefinitionNode,
    OperationType,
    Source,
    StringValueNode,
    VariableDefinitionNode,
    parse,
)

from gateway.upstream.graphql.rejections import FileRejected

MAX_TOKENS: Final = 20_000
TOOL_DIRECTIVE: Final = "mcpTool"
ARGUMENT_DIRECTIVE: Final = "mcpToolArg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """One fragment as it is sent, and as it is validated."""

    name: str
    file: str
    text: str
    node: FragmentDefinitionNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One file.

    Attributes:
        file: Its path inside the folder.
        sent: Its text without what is ours.
        node: The syntax tree of what is sent, its positions those in the file.
        operation: The operation in that tree; None for a file that holds only fragments.
        tool_name: What `@mcpTool(name:)` says.
        description: The operation's own.
        arguments: What `@mcpToolArg(description:)`, or else the variable's own description, says of each.
    """

    file: str
    sent: str
    node: DocumentNode
    operation: OperationDefinitionNode | None
    fragments: Mapping[str, Fragment]
    tool_name: str | None = None
    description: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)


def read_document(file: str, data: bytes) -> Document:
    """Take a file apart.

    Raises:
        FileRejected: It is no GraphQL, or not what one tool is made of; the reason says where.
    """
    text = _decoded(file, data)
    written = _parsed(text, file)
    operation = _only_operation(written, file)
    marks: list[Node] = []
    described: dict[str, str] = {}
    tool_name: str | None = None
    description: str | None = None
    for definition in written.definitions:
        marks += _own_description(definition)
    if operation is not None:
        description = _value(operation.description)
        said, found = _directive(operation.directives or (), TOOL_DIRECTIVE, "name", operation, file)
        marks += found
        tool_name = said
        for variable in operation.variable_definitions or ():
            own, found = _directive(variable.directives or (), ARGUMENT_DIRECTIVE, "description", variable, file)
            marks += [*found, *_own_description(variable)]
            told = own or _value(variable.description)
            if told:
                described[variable.variable.name.value] = told
    spans = sorted((mark.loc.start, mark.loc.end) for mark in marks if mark.loc is not None)
    node = _parsed(_without(text, spans, blank=True), file) if spans else written
    return Document(
        file=file,
        sent=_without(text, spans, blank=False) if spans else text,
        node=node,
        operation=next((one for one in node.definitions if isinstance(one, OperationDefinitionNode)), None),
        fragments={one.name: one for one in _fragments(node, text, file)},
        tool_name=tool_name,
        description=description,
        arguments=described,
    )


def _decoded(file: str, data: bytes) -> str:
    try:
        # A byte order mark tells how the file is written and is no part of the document.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace").splitlines() or [""]
        raise FileRejected("not_utf8", "it is not UTF-8", f"{file}:{len(before)}:{len(before[-1]) + 1}") from None


def _parsed(text: str, file: str) -> DocumentNode:
    try:
        return parse(Source(text, file), max_tokens=MAX_TOKENS)
    except GraphQLSyntaxError as error:
        raise FileRejected.of("syntax", error, file) from None


def _only_operation(document: DocumentNode, file: str) -> OperationDefinitionNode | None:
    found: OperationDefinitionNode | None = None
    for definition in document.definitions:
        if isinstance(definition, OperationDefinitionNode):
            if found is not None:
                detail = "a second operation; expected one operation in each file"
                raise FileRejected.at("two_operations", detail, definition, file)
            found = definition
        elif not isinstance(definition, FragmentDefinitionNode):
            detail = "a definition of the schema; expected operations and fragments only"
            raise FileRejected.at("not_executable", detail, definition, file)
    if found is not None and found.operation == OperationType.SUBSCRIPTION:
        raise FileRejected.at("subscription", "a subscription, which no tool call can carry", found, file)
    return found


def _own_description(node: DefinitionNode | VariableDefinitionNode) -> list[Node]:
    description = getattr(node, "description", None)
    return [description] if isinstance(description, StringValueNode) else []


def _value(node: StringValueNode | None) -> str | None:
    return node.value.strip() or None if node is not None else None


def _directive(
    directives: tuple[DirectiveNode, ...] | tuple[ConstDirectiveNode, ...],
    name: str,
    member: str,
    owner: Node,
    file: str,
) -> tuple[str | None, list[Node]]:
    """The text that one of our directives gives, and where it stands."""
    found: list[Node] = [one for one in directives if one.name.value == name]
    said: str | None = None
    form = f'@{name}({member}: "…")'
    for one in directives:
        if one.name.value != name:
            continue
        if one is not found[0]:
            raise FileRejected.at("bad_directive", f"@{name} stands twice; expected it once", one, file)
        if not one.arguments:
            raise FileRejected.at("bad_directive", f"@{name} says nothing; expected {form}", one, file)
        for argument in one.arguments:
            if argument.name.value != member or said is not None:
                unknown = f"@{name} has the argument '{argument.name.value}'; expected {form}"
                raise FileRejected.at("bad_directive", unknown, argument, file)
            if not isinstance(argument.value, StringValueNode):
                raise FileRejected.at(
                    "bad_directive", f"{member} of @{name} is no text; expected {form}", argument.value, file
                )
            said = argument.value.value.strip()
            if not said:
                raise FileRejected.at(
                    "bad_directive", f"{member} of @{name} is empty; expected {form}", argument.value, file
                )
    return said, found


def _without(text: str, spans: list[tuple[int, int]], *, blank: bool) -> str:
    parts: list[str] = []
    at = 0
    for start, end in spans:
        parts.append(text[at:start])
        if blank:
            parts.append("".join(one if one in "\r\n" else " " for one in text[start:end]))
        at = end
    return "".join([*parts, text[at:]])


def _fragments(document: DocumentNode, text: str, file: str) -> Iterator[Fragment]:
    for one in document.definitions:
        if isinstance(one, FragmentDefinitionNode) and one.loc is not None:
            # Nothing inside a fragment is ours: its description stands before it.
            yield Fragment(name=one.name.value, file=file, text=text[one.loc.start : one.loc.end], node=one)
