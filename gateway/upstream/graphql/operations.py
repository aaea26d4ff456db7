"""One document and the schema become one tool: its definition, and the text that is sent for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from graphql import (
    ArgumentNode,
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLError,
    GraphQLField,
    GraphQLInputObjectType,
    GraphQLObjectType,
    GraphQLSchema,
    InlineFragmentNode,
    Node,
    ObjectFieldNode,
    OperationDefinitionNode,
    OperationType,
    SelectionNode,
    TypeInfo,
    TypeInfoVisitor,
    VariableDefinitionNode,
    VariableNode,
    Visitor,
    get_named_type,
    print_ast,
    type_from_ast,
    validate,
    visit,
)

from gateway.upstream.graphql.documents import Document, Fragment
from gateway.upstream.graphql.inputs import input_schema, type_description
from gateway.upstream.graphql.rejections import FileRejected

# An `s` after capitals is a plural: `getIDs` is `get_ids`.
_WORD_EDGE: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z](?!s(?![a-z]))[a-z])")
_MAX_FIELDS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A tool, and what a call of it sends.

    Attributes:
        definition: The tool as an MCP server would list it.
        text: The document, with the fragments that it takes from other files.
        operation_name: As the document has it.
        mutation: It may change something.
        notes: What its author should know of, although it is used.
    """

    name: str
    file: str
    definition: dict[str, Any]
    text: str
    operation_name: str | None
    mutation: bool
    notes: tuple[FileRejected, ...] = ()


def tool_of(document: Document, schema: GraphQLSchema, shared: Mapping[str, Fragment]) -> Operation:
    """Make the tool of a document that holds an operation.

    Args:
        document: The file.
        schema: What the endpoint offers.
        shared: Fragments of files that hold only fragments; those that are used are sent along.

    Raises:
        FileRejected: It is not valid for this schema; the reason says where.
    """
    operation = document.operation
    assert operation is not None
    root = schema.get_root_type(operation.operation)
    if root is None:
        detail = f"the schema has no {operation.operation.value} type"
        raise FileRejected.at("not_in_schema", detail, operation, document.file)
    borrowed = _borrowed(document, shared)
    whole = DocumentNode(definitions=(*document.node.definitions, *(one.node for one in borrowed)))
    notes: list[FileRejected] = []
    for error in validate(schema, whole):
        refused = FileRejected.of("not_in_schema", error, document.file)
        if not _is_condition(error, whole):
            raise refused
        detail = f"{refused.detail} A strict endpoint refuses it: make it Boolean!, or give it a default."
        notes.append(FileRejected("nullable_condition", detail, refused.place))
    own_name = operation.name.value if operation.name is not None else None
    name = document.tool_name or (snake_case(own_name) if own_name else PurePosixPath(document.file).stem)
    mutation = operation.operation == OperationType.MUTATION
    fragments = {one.name.value: one for one in whole.definitions if isinstance(one, FragmentDefinitionNode)}
    fields = list(_root_fields(operation, root, fragments))
    return Operation(
        name=name,
        file=document.file,
        definition={
            "name": name,
            "description": document.description or _described(operation, fields, own_name),
            "inputSchema": input_schema(
                operation.variable_definitions or (), schema, _descriptions(document, operation, whole, schema)
            ),
            "annotations": {"readOnlyHint": False, "destructiveHint": True} if mutation else {"readOnlyHint": True},
        },
        text="\n\n".join([document.sent, *(one.text for one in borrowed)]),
        operation_name=own_name,
        mutation=mutation,
        notes=tuple(notes),
    )


def snake_case(name: str) -> str:
    """`GetHTTPServer2Names` gives `get_http_server2_names`; a name in snake case stays as it is."""
    parts = (part for word in name.split("_") for part in ([word] if not word else _WORD_EDGE.split(word)))
    return "_".join(parts).lower()


def _is_condition(error: GraphQLError, whole: DocumentNode) -> bool:
    """Whether all that is wrong is a variable that may be null as the condition of @include or @skip.

    People write it so, and there are servers that take it: the endpoint has the last word.
    """
    if len(error.nodes or ()) != 2 or error.nodes is None or not isinstance(error.nodes[1], VariableNode):
        return False
    if not isinstance(error.nodes[0], VariableDefinitionNode) or print_ast(error.nodes[0].type) != "Boolean":
        return False
    return any(node is error.nodes[1] for node in _conditions(whole))


def _conditions(whole: DocumentNode) -> Iterator[Node]:
    pending: list[Any] = list(whole.definitions)
    while pending:
        one = pending.pop()
        for directive in getattr(one, "directives", None) or ():
            if directive.name.value in ("include", "skip"):
                yield from (argument.value for argument in directive.arguments or ())
        if getattr(one, "selection_set", None) is not None:
            pending += one.selection_set.selections


def _borrowed(document: Document, shared: Mapping[str, Fragment]) -> list[Fragment]:
    """The shared fragments that a document needs, those that they need included, ordered by name."""
    needed: dict[str, Fragment] = {}
    pending: list[Node] = list(document.node.definitions)
    while pending:
        for name in _spreads(pending.pop()):
            if name not in document.fragments and name not in needed and name in shared:
                needed[name] = shared[name]
                pending.append(shared[name].node)
    return [needed[name] for name in sorted(needed)]


def _spreads(node: Node) -> Iterator[str]:
    pending: list[Any] = [node]
    while pending:
        one = pending.pop()
        if isinstance(one, FragmentSpreadNode):
            yield one.name.value
        selection_set = getattr(one, "selection_set", None)
        if selection_set is not None:
            pending += selection_set.selections


def _root_fields(
    operation: OperationDefinitionNode, root: GraphQLObjectType, fragments: Mapping[str, FragmentDefinitionNode]
) -> Iterator[tuple[str, GraphQLField | None]]:
    """The fields that are asked for first, fragments opened."""
    pending: list[SelectionNode] = list(reversed(operation.selection_set.selections))
    opened: set[str] = set()
    while pending:
        one = pending.pop()
        if isinstance(one, FieldNode):
            yield one.name.value, root.fields.get(one.name.value)
        elif isinstance(one, InlineFragmentNode):
            pending += reversed(one.selection_set.selections)
        elif isinstance(one, FragmentSpreadNode) and one.name.value not in opened:
            opened.add(one.name.value)
            pending += reversed(fragments[one.name.value].selection_set.selections)


def _described(
    operation: OperationDefinitionNode, fields: list[tuple[str, GraphQLField | None]], name: str | None
) -> str:
    said = next((field.description for _, field in fields if field is not None and field.description), None)
    if said is not None:
        return said
    names = list(dict.fromkeys(name for name, _ in fields))
    shown = ", ".join(names[:_MAX_FIELDS]) + (" and others" if len(names) > _MAX_FIELDS else "")
    return f"Runs the GraphQL {operation.operation.value}{f' {name}' if name else ''}: {shown}."


def _descriptions(
    document: Document, operation: OperationDefinitionNode, whole: DocumentNode, schema: GraphQLSchema
) -> dict[str, str]:
    """What is said of each variable: by the document, by its type, by the argument that it is given to."""
    found = dict(document.arguments)
    wanting: set[str] = set()
    for one in operation.variable_definitions or ():
        name = one.variable.name.value
        if name not in found:
            said = type_description(type_from_ast(schema, one.type))
            if said is None:
                wanting.add(name)
            else:
                found[name] = said
    if wanting:
        info = TypeInfo(schema)
        uses = _Uses(info, wanting)
        visit(whole, TypeInfoVisitor(info, uses))
        found |= uses.found
    return found


class _Uses(Visitor):
    """Looks where variables are given to, for what the schema says there."""

    def __init__(self, info: TypeInfo, wanting: set[str]) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._info = info
        self._wanting = wanting

    def enter_variable(
        self, node: VariableNode, _key: object, parent: object, _path: object, _ancestors: object
    ) -> None:
        """Take the description of the argument, or of the member of an input object."""
        name = node.name.value
        if name not in self._wanting or name in self.found:
            return
        said: str | None = None
        if isinstance(parent, ArgumentNode):
            argument = self._info.get_argument()
            said = argument.description if argument is not None else None
        elif isinstance(parent, ObjectFieldNode):
            owner = get_named_type(self._info.get_parent_input_type())
            if isinstance(owner, GraphQLInputObjectType) and parent.name.value in owner.fields:
                said = owner.fields[parent.name.value].description
        if said:
            self.found[name] = said
