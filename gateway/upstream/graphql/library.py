"""What a folder and a schema make together: tools, and what could not become one. Only what changed is made again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
from graphql import GraphQLSchema

from gateway.config.model import ServerConfig
from gateway.errors import ConnectionLost
from gateway.upstream.graphql import exploring
from gateway.upstream.graphql.aside import run_aside
from gateway.upstream.graphql.documents import Document, Fragment, read_document
from gateway.upstream.graphql.endpoint import Endpoint
from gateway.upstream.graphql.folder import SourceFile, read_folder
from gateway.upstream.graphql.operations import Operation, tool_of
from gateway.upstream.graphql.refusals import ODD, Refused
from gateway.upstream.graphql.schema import introspect, load_introspection, load_schema, read_schema_file
from registry.intake.tools import Finding

# A thread works so long at most before the loop hears of it, and what it made is kept.
_STRETCH_S: Final = 0.25
_ASK_AGAIN_S: Final = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """What there is at one moment.

    Attributes:
        tools: Definitions, in the order of the files.
        operations: What a call of each sends, by the tool's name.
        refused: Files that gave no tool.
        noted: What to know of files that did.
    """

    schema: GraphQLSchema
    tools: tuple[dict[str, Any], ...] = ()
    operations: Mapping[str, Operation] = field(default_factory=dict)
    refused: tuple[Finding, ...] = ()
    noted: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class _Read:
    digest: bytes
    document: Document | Refused


@dataclass(frozen=True, slots=True)
class _Made:
    key: tuple[object, ...]
    operation: Operation | Refused


class Library:
    """The shelf of one upstream over all its connections."""

    def __init__(self, config: ServerConfig) -> None:
        self._folder = Path(config.operations) if config.operations is not None else None
        self._schema_file = Path(config.schema_file) if config.schema_file is not None else None
        self._mutations = not config.exclude_mutations
        self._exploring = config.introspection_tools
        self._read: dict[str, _Read] = {}
        self._made: dict[str, _Made] = {}
        self._schema: tuple[bytes, GraphQLSchema] | None = None
        self._asked_s = 0.0
        self._files: tuple[object, ...] = ()
        self.shelf: Shelf | None = None

    async def renew(self, endpoint: Endpoint, *, ask: bool, polled: bool, limit_s: float) -> Shelf:
        """Look at everything again; the very shelf that there was comes back where nothing has changed.

        Args:
            endpoint: Where a schema without a file comes from.
            ask: Whether such a schema is asked for again although one is known.
            polled: It is only time to look again: the endpoint is asked less often.
            limit_s: For the endpoint's answer.

        Raises:
            FilesUnusable: There is nothing to make tools of.
            SchemaUnusable, ConnectionLost, HttpStatusError: The endpoint does not tell its schema.
        """
        schema = await self._renewed_schema(endpoint, ask=ask, polled=polled, limit_s=limit_s)
        files: tuple[SourceFile, ...] = ()
        if self._folder is not None:
            files = await run_aside(partial(read_folder, self._folder))
        state = tuple((one.name, one.refused, one.digest) for one in files)
        if self.shelf is not None and self.shelf.schema is schema and state == self._files:
            return self.shelf
        while not await run_aside(partial(self._make_some, files, schema)):
            pass
        self.shelf = await run_aside(partial(self._shelve, files, schema))
        self._files = state
        return self.shelf

    async def _renewed_schema(self, endpoint: Endpoint, *, ask: bool, polled: bool, limit_s: float) -> GraphQLSchema:
        if self._schema_file is not None:
            data = await run_aside(partial(read_schema_file, self._schema_file))
            return await self._kept(data, self._schema_file.name)
        lately = time.monotonic() - self._asked_s < _ASK_AGAIN_S
        if self._schema is not None and (not ask or (polled and lately)):
            return self._schema[1]
        with anyio.move_on_after(limit_s) as scope:
            data = await introspect(endpoint)
        if scope.cancelled_caught:
            raise ConnectionLost(f"the endpoint did not tell its schema within {limit_s:g} s", sent=True)
        schema = await self._kept(data, None)
        self._asked_s = time.monotonic()
        return schema

    async def _kept(self, data: bytes, file: str | None) -> GraphQLSchema:
        digest = hashlib.sha256(data).digest()
        if self._schema is None or self._schema[0] != digest:
            load = partial(load_introspection, data) if file is None else partial(load_schema, data, file)
            self._schema = (digest, await run_aside(load))
        return self._schema[1]

    def _make_some(self, files: tuple[SourceFile, ...], schema: GraphQLSchema) -> bool:
        """Work for a while; True once every file is made."""
        until_s = time.monotonic() + _STRETCH_S
        for one in files:
            known = self._read.get(one.name)
            if one.refused is None and (known is None or known.digest != one.digest):
                self._read[one.name] = _Read(one.digest, _document(one))
                if time.monotonic() > until_s:
                    return False
        shared, _ = self._fragments(files)
        shared_key = tuple((name, one.text) for name, one in sorted(shared.items()))
        key = (self._schema[0] if self._schema is not None else b"", hash(shared_key))
        for one in files:
            read = self._read.get(one.name) if one.refused is None else None
            if read is None or isinstance(read.document, Refused) or read.document.operation is None:
                continue
            made = self._made.get(one.name)
            if made is None or made.key != (*key, read.digest):
                self._made[one.name] = _Made((*key, read.digest), make_operation(read.document, schema, shared))
                if time.monotonic() > until_s:
                    return False
        return True

    def _fragments(self, files: tuple[SourceFile, ...]) -> tuple[dict[str, Fragment], dict[str, Refused]]:
        """The fragments of files that hold nothing else, by name; and the files that repeat one."""
        shared: dict[str, Fragment] = {}
        refused: dict[str, Refused] = {}
        for one in files:
            read = self._read.get(one.name) if one.refused is None else None
            if read is None or isinstance(read.document, Refused) or read.document.operation is not None:
                continue
            taken = [fragment for name, fragment in read.document.fragments.items() if name in shared]
            if taken:
                first = shared[taken[0].name].file
                detail = f"the fragment {taken[0].name} is in {first} already"
                refused[one.name] = Refused.at("duplicate_fragment", detail, taken[0].node, one.name)
            else:
                shared |= read.document.fragments
        return shared, refused

    def _shelve(self, files: tuple[SourceFile, ...], schema: GraphQLSchema) -> Shelf:
        names = {one.name for one in files}
        self._read = {name: read for name, read in self._read.items() if name in names}
        self._made = {name: made for name, made in self._made.items() if name in names}
        tools: list[dict[str, Any]] = exploring.definitions(exclude_mutations=not self._mutations)
        tools = tools if self._exploring else []
        operations: dict[str, Operation] = {}
        refused: list[Finding] = []
        noted: list[Finding] = []
        _, repeating = self._fragments(files)
        for one in files:
            reason = self._reason_against(one, repeating)
            operation = self._made[one.name].operation if reason is None and one.name in self._made else None
            if isinstance(operation, Refused):
                reason = operation
            elif operation is not None and (self._mutations or not operation.mutation):
                reason = self._taken(operation, operations)
                if reason is None:
                    operations[operation.name] = operation
                    tools.append(operation.definition)
                    noted += [note.finding(one.name) for note in operation.notes]
            if reason is not None:
                refused.append(reason.finding(one.name))
        if self._folder is not None and not files:
            empty = Refused("no_operations", "there is no .graphql or .gql file in the folder", str(self._folder))
            refused.append(empty.finding("(folder)"))
        return Shelf(
            schema=schema, tools=tuple(tools), operations=operations, refused=tuple(refused), noted=tuple(noted)
        )

    def _reason_against(self, one: SourceFile, repeating: Mapping[str, Refused]) -> Refused | None:
        if one.refused is not None:
            return Refused("unreadable", one.refused, one.name)
        document = self._read[one.name].document
        return document if isinstance(document, Refused) else repeating.get(one.name)

    def _taken(self, operation: Operation, operations: Mapping[str, Operation]) -> Refused | None:
        first = operations.get(operation.name)
        if first is not None:
            detail = f"the name {operation.name} is taken by {first.file}"
        elif self._exploring and operation.name in exploring.NAMES:
            detail = f"the name {operation.name} is taken by a tool of introspectionTools"
        else:
            return None
        return Refused("duplicate_name", detail, f"{operation.file}:1:1")


def _document(one: SourceFile) -> Document | Refused:
    try:
        return read_document(one.name, one.data)
    except Refused as refused:
        return refused
    except ODD as error:
        # Boundary: whatever a file provokes spoils that file only.
        return Refused("unreadable", f"{type(error).__name__}: {error}", one.name)


def make_operation(document: Document, schema: GraphQLSchema, shared: Mapping[str, Fragment]) -> Operation | Refused:
    """Make the tool of a document, or the reason why there is none; whatever the schema is, it does not raise."""
    try:
        return tool_of(document, schema, shared)
    except Refused as refused:
        return refused
    except ODD as error:
        # Boundary: an odd schema spoils the operations that touch what is odd.
        return Refused("not_in_schema", f"{type(error).__name__}: {error}", document.file)
