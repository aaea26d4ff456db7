"""One document and the schema become one tool: its definition, and the text that is sent for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

import graphql as gql

from gateway.upstream.graphql.documents import Document, Fragment
from gateway.upstream.graphql.inputs import input_schema, type_description, with_deprecation
from gateway.upstream.graphql.rejections import FileRejected

# An `s` after capitals is a plural: `getIDs` is `get_ids`.
_WORD_EDGE: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z](?!s(?![a-z]))[a-z])")
# Names in a generated description: enough to show what the operation asks for, and still a sentence.
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


def tool_of(document: Document, schema: gql.GraphQLSchema, shared: Mapping[str, Fragment]) -> Operation:
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
    # Validated with what it borrows: an error may be in a shared fragment, and then names its file.
    whole = gql.DocumentNode(definitions=(*document.node.definitions, *(fragment.node for fragment in borrowed)))
    notes: list[FileRejected] = []
    for error in gql.validate(schema, whole):
        refused = FileRejected.of("not_in_schema", error, document.file)
        if not _is_condition(error, whole):
            raise refused
        detail = f"{refused.detail} A strict endpoint refuses it: make it Boolean!, or give it a default."
        notes.append(FileRejected("nullable_condition", detail, refused.place))
    own_name = operation.name.value if operation.name is not None else None
    # Unnamed operations are allowed where a file holds only one: then the file names the tool.
    name = document.tool_name or (snake_case(own_name) if own_name else PurePosixPath(document.file).stem)
    mutation = operation.operation == gql.OperationType.MUTATION
    fragments = {node.name.value: node for node in whole.definitions if isinstance(node, gql.FragmentDefinitionNode)}
    fields = list(_root_fields(operation, root, fragments))
    info = gql.TypeInfo(schema)
    uses = _Uses(info)
    gql.visit(whole, gql.TypeInfoVisitor(info, uses))
    inputs = input_schema(
        operation.variable_definitions or (), schema, _descriptions(document, operation, schema, uses.described)
    )
    for variable, reason in uses.deprecated.items():
        if variable in inputs["properties"]:
            inputs["properties"][variable] = with_deprecation(inputs["properties"][variable], reason)
    description = document.description or _described(operation, fields, own_name)
    return Operation(
        name=name,
        file=document.file,
        definition={
            "name": name,
            "description": "\n".join([description, *uses.deprecated_fields[:_MAX_FIELDS]]),
            "inputSchema": inputs,
            "annotations": {"readOnlyHint": False, "destructiveHint": True} if mutation else {"readOnlyHint": True},
        },
        # As written, not printed anew: endpoints that allow only known documents compare them byte for byte.
        text="\n\n".join([document.sent, *(fragment.text for fragment in borrowed)]),
        operation_name=own_name,
        mutation=mutation,
        notes=tuple(notes),
    )


def snake_case(name: str) -> str:
    """`GetHTTPServer2Names` gives `get_http_server2_names`; a name in snake case stays as it is."""
    parts = (part for word in name.split("_") for part in ([word] if not word else _WORD_EDGE.split(word)))
    return "_".join(parts).lower()


def _is_condition(error: gql.GraphQLError, whole: gql.DocumentNode) -> bool:
    """Whether all that is wrong is a variable that may be null as the condition of @include or @skip.

    People write it so, and there are servers that accept it: the endpoint has the last word.
    """
    if len(error.nodes or ()) != 2 or error.nodes is None or not isinstance(error.nodes[1], gql.VariableNode):
        return False
    if not isinstance(error.nodes[0], gql.VariableDefinitionNode) or gql.print_ast(error.nodes[0].type) != "Boolean":
        return False
    return any(node is error.nodes[1] for node in _conditions(whole))


def _conditions(whole: gql.DocumentNode) -> Iterator[gql.Node]:
    pending: list[Any] = list(whole.definitions)
    while pending:
        node = pending.pop()
        for directive in getattr(node, "directives", None) or ():
            if directive.name.value in ("include", "skip"):
                yield from (argument.value for argument in directive.arguments or ())
        if getattr(node, "selection_set", None) is not None:
            pending += node.selection_set.selections


def _borrowed(document: Document, shared: Mapping[str, Fragment]) -> list[Fragment]:
    """The shared fragments that a document needs, those that they need included, ordered by name."""
    # Fragments may need others: each is looked at once, so that a circle ends (validation refuses it later).
    needed: dict[str, Fragment] = {}
    pending: list[gql.Node] = list(document.node.definitions)
    while pending:
        for name in _spreads(pending.pop()):
            if name not in document.fragments and name not in needed and name in shared:
                needed[name] = shared[name]
                pending.append(shared[name].node)
    return [needed[name] for name in sorted(needed)]


def _spreads(node: gql.Node) -> Iterator[str]:
    pending: list[Any] = [node]
    while pending:
        node = pending.pop()
        if isinstance(node, gql.FragmentSpreadNode):
            yield node.name.value
        selection_set = getattr(node, "selection_set", None)
        if selection_set is not None:
            pending += selection_set.selections


def _root_fields(
    operation: gql.OperationDefinitionNode,
    root: gql.GraphQLObjectType,
    fragments: Mapping[str, gql.FragmentDefinitionNode],
) -> Iterator[tuple[str, gql.GraphQLField | None]]:
    """The fields at the top of the operation, fragments opened."""
    # A stack, so in reverse: the fields come in the order of the document.
    pending: list[gql.SelectionNode] = list(reversed(operation.selection_set.selections))
    opened: set[str] = set()
    while pending:
        node = pending.pop()
        if isinstance(node, gql.FieldNode):
            yield node.name.value, root.fields.get(node.name.value)
        elif isinstance(node, gql.InlineFragmentNode):
            pending += reversed(node.selection_set.selections)
        elif isinstance(node, gql.FragmentSpreadNode) and node.name.value not in opened:
            opened.add(node.name.value)
            pending += reversed(fragments[node.name.value].selection_set.selections)


def _described(
    operation: gql.OperationDefinitionNode, fields: list[tuple[str, gql.GraphQLField | None]], name: str | None
) -> str:
    # The author of the schema described what the first of its fields gives: no words of ours are better.
    described = next((field.description for _, field in fields if field is not None and field.description), None)
    if described is not None:
        return described
    names = list(dict.fromkeys(name for name, _ in fields))
    shown = ", ".join(names[:_MAX_FIELDS]) + (" and others" if len(names) > _MAX_FIELDS else "")
    return f"Runs the GraphQL {operation.operation.value}{f' {name}' if name else ''}: {shown}."


def _descriptions(
    document: Document, operation: gql.OperationDefinitionNode, schema: gql.GraphQLSchema, described: Mapping[str, str]
) -> dict[str, str]:
    """The description of each variable: from the document, of its type, or of the argument that it is given to."""
    found = dict(document.arguments)
    for variable in operation.variable_definitions or ():
        name = variable.variable.name.value
        if name not in found:
            of_type = type_description(gql.type_from_ast(schema, variable.type))
            if (text := of_type or described.get(name)) is not None:
                found[name] = text
    return found


class _Uses(gql.Visitor):
    """Looks at where variables and fields are used, for what the schema says there.

    Attributes:
        described: The description of the first argument or member that each variable is given to.
        deprecated: Variables that are given to something deprecated, with the reason.
        deprecated_fields: What is said of fields that are deprecated.
    """

    def __init__(self, info: gql.TypeInfo) -> None:
        super().__init__()
        self.described: dict[str, str] = {}
        self.deprecated: dict[str, str] = {}
        self.deprecated_fields: list[str] = []
        self._info = info

    def enter_field(
        self, node: gql.FieldNode, _key: object, _parent: object, _path: object, _ancestors: object
    ) -> None:
        """Note a deprecated field."""
        field = self._info.get_field_def()
        if field is not None and field.deprecation_reason is not None:
            text = f"Deprecated field {node.name.value}: {' '.join(field.deprecation_reason.split())}"
            if text not in self.deprecated_fields:
                self.deprecated_fields.append(text)

    def enter_variable(
        self, node: gql.VariableNode, _key: object, parent: object, _path: object, _ancestors: object
    ) -> None:
        """Take what the schema says of the argument, or of the member of an input object."""
        name = node.name.value
        given_to: gql.GraphQLArgument | gql.GraphQLInputField | None = None
        if isinstance(parent, gql.ArgumentNode):
            given_to = self._info.get_argument()
        elif isinstance(parent, gql.ObjectFieldNode):
            owner = gql.get_named_type(self._info.get_parent_input_type())
            if isinstance(owner, gql.GraphQLInputObjectType) and parent.name.value in owner.fields:
                given_to = owner.fields[parent.name.value]
        if given_to is not None and given_to.description:
            self.described.setdefault(name, given_to.description)
        if given_to is not None and given_to.deprecation_reason is not None:
            self.deprecated.setdefault(name, given_to.deprecation_reason)
