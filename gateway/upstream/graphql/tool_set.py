"""The tools that a folder and a schema give, and what could not become one. Only what changed is made again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
from graphql import GraphQLSchema

from gateway.config.upstream_types.graphql_config import GraphqlConfig
from gateway.errors import ConnectionLost
from gateway.upstream.graphql import introspection_tools
from gateway.upstream.graphql.documents import Document, Fragment, read_document
from gateway.upstream.graphql.endpoint import Endpoint
from gateway.upstream.graphql.folder import SourceFile, read_folder
from gateway.upstream.graphql.operations import Operation, tool_of
from gateway.upstream.graphql.rejections import SCHEMA_ERRORS, FileRejected
from gateway.upstream.graphql.schema import fetch_introspection, load_introspection, load_schema, read_schema_file
from gateway.worker_thread import run_in_thread
from registry.intake.issues import ItemIssue

# A thread works so long at most before it returns, and what it made is kept: a connection that ends while thousands
# of files are read begins no more from the start.
_STRETCH_S: Final = 0.25
# How old an introspected schema may be when it is only time to look again: every fourth poll asks.
_SCHEMA_AGE_S: Final = 240.0


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSet:
    """The tools at one moment.

    Attributes:
        tools: Definitions, in the order of the files.
        operations: What a call of each sends, by the tool's name.
        refused: Files that gave no tool.
        noted: What to know of files that did.
    """

    schema: GraphQLSchema
    tools: tuple[dict[str, Any], ...] = ()
    operations: Mapping[str, Operation] = field(default_factory=dict)
    refused: tuple[ItemIssue, ...] = ()
    noted: tuple[ItemIssue, ...] = ()


@dataclass(frozen=True, slots=True)
class _Read:
    digest: bytes
    document: Document | FileRejected


@dataclass(frozen=True, slots=True)
class _Made:
    key: tuple[object, ...]
    operation: Operation | FileRejected


class ToolSetBuilder:
    """Makes the tools of one upstream, and remembers what it made over all connections.

    Attributes:
        tool_set: The last one.
    """

    def __init__(self, config: GraphqlConfig) -> None:
        self._folder = Path(config.operations) if config.operations is not None else None
        self._schema_file = Path(config.schema_file) if config.schema_file is not None else None
        self._mutations = not config.exclude_mutations
        self._introspection_tools = config.introspection_tools
        self._read: dict[str, _Read] = {}
        self._made: dict[str, _Made] = {}
        self._schema: tuple[bytes, GraphQLSchema] | None = None
        self._introspected_s = 0.0
        self._files: tuple[object, ...] = ()
        self.tool_set: ToolSet | None = None

    async def renew(self, endpoint: Endpoint, *, introspect: bool, polled: bool, limit_s: float) -> ToolSet:
        """Look at everything again; the very same object comes back where nothing has changed.

        Args:
            endpoint: Where a schema without a file comes from.
            introspect: Whether such a schema is asked for again although one is known.
            polled: It is only time to look again: the endpoint is asked less often.
            limit_s: For the endpoint's answer.

        Raises:
            FilesUnusable: There is nothing to make tools of.
            SchemaUnusable, ConnectionLost, HttpStatusError: The endpoint does not give its schema.
        """
        schema = await self._renewed_schema(endpoint, introspect=introspect, polled=polled, limit_s=limit_s)
        files: tuple[SourceFile, ...] = ()
        if self._folder is not None:
            files = await run_in_thread(partial(read_folder, self._folder))
        # Digests, not times: an editor may write the same text again, and a checkout older ones.
        state = tuple((file.name, file.refused, file.digest) for file in files)
        if self.tool_set is not None and self.tool_set.schema is schema and state == self._files:
            return self.tool_set
        # In several stretches, so that a connection that is given up waits for one of them at most.
        while not await run_in_thread(partial(self._make_some, files, schema)):
            pass
        self.tool_set = await run_in_thread(partial(self._assemble, files, schema))
        self._files = state
        return self.tool_set

    async def _renewed_schema(
        self, endpoint: Endpoint, *, introspect: bool, polled: bool, limit_s: float
    ) -> GraphQLSchema:
        if self._schema_file is not None:
            data = await run_in_thread(partial(read_schema_file, self._schema_file))
            return await self._parsed_once(data, self._schema_file.name)
        recent = time.monotonic() - self._introspected_s < _SCHEMA_AGE_S
        if self._schema is not None and (not introspect or (polled and recent)):
            return self._schema[1]
        with anyio.move_on_after(limit_s) as scope:
            data = await fetch_introspection(endpoint)
        if scope.cancelled_caught:
            raise ConnectionLost(f"the endpoint did not tell its schema within {limit_s:g} s", sent=True)
        schema = await self._parsed_once(data, None)
        # Only now: an answer that is of no use is asked for again at the next poll.
        self._introspected_s = time.monotonic()
        return schema

    async def _parsed_once(self, data: bytes, file: str | None) -> GraphQLSchema:
        digest = hashlib.sha256(data).digest()
        if self._schema is None or self._schema[0] != digest:
            load = partial(load_introspection, data) if file is None else partial(load_schema, data, file)
            self._schema = (digest, await run_in_thread(load))
        return self._schema[1]

    def _make_some(self, files: tuple[SourceFile, ...], schema: GraphQLSchema) -> bool:
        """Work for a while; True once every file is read and made."""
        until_s = time.monotonic() + _STRETCH_S
        for file in files:
            known = self._read.get(file.name)
            if file.refused is None and (known is None or known.digest != file.digest):
                document = _or_rejection(partial(read_document, file.name, file.data), "unreadable", file.name)
                self._read[file.name] = _Read(file.digest, document)
                if time.monotonic() > until_s:
                    return False
        shared, _ = self._fragments(files)
        # A changed fragment makes every operation anew: which ones use it is known only afterwards.
        shared_key = tuple((name, one.text) for name, one in sorted(shared.items()))
        key = (self._schema[0] if self._schema is not None else b"", hash(shared_key))
        for file in files:
            read = self._read.get(file.name) if file.refused is None else None
            if read is None or isinstance(read.document, FileRejected) or read.document.operation is None:
                continue
            made = self._made.get(file.name)
            if made is None or made.key != (*key, read.digest):
                self._made[file.name] = _Made((*key, read.digest), make_operation(read.document, schema, shared))
                if time.monotonic() > until_s:
                    return False
        return True

    def _fragments(self, files: tuple[SourceFile, ...]) -> tuple[dict[str, Fragment], dict[str, FileRejected]]:
        """The fragments of files that hold nothing else, by name; and the files that repeat one."""
        shared: dict[str, Fragment] = {}
        refused: dict[str, FileRejected] = {}
        for file in files:
            read = self._read.get(file.name) if file.refused is None else None
            if read is None or isinstance(read.document, FileRejected) or read.document.operation is not None:
                continue
            taken = [fragment for name, fragment in read.document.fragments.items() if name in shared]
            if taken:
                first = shared[taken[0].name].file
                detail = f"the fragment {taken[0].name} is in {first} already"
                refused[file.name] = FileRejected.at("duplicate_fragment", detail, taken[0].node, file.name)
            else:
                shared |= read.document.fragments
        return shared, refused

    def _assemble(self, files: tuple[SourceFile, ...], schema: GraphQLSchema) -> ToolSet:
        # What is gone is forgotten, or a folder that changes for months would fill the memory.
        names = {file.name for file in files}
        self._read = {name: read for name, read in self._read.items() if name in names}
        self._made = {name: made for name, made in self._made.items() if name in names}
        tools: list[dict[str, Any]] = introspection_tools.definitions(exclude_mutations=not self._mutations)
        tools = tools if self._introspection_tools else []
        operations: dict[str, Operation] = {}
        refused: list[ItemIssue] = []
        noted: list[ItemIssue] = []
        _, repeating = self._fragments(files)
        for file in files:
            reason = self._reason_against(file, repeating)
            operation = self._made[file.name].operation if reason is None and file.name in self._made else None
            if isinstance(operation, FileRejected):
                reason = operation
            elif operation is not None and (self._mutations or not operation.mutation):
                reason = self._taken(operation, operations)
                if reason is None:
                    operations[operation.name] = operation
                    tools.append(operation.definition)
                    noted += [note.finding(file.name) for note in operation.notes]
            if reason is not None:
                refused.append(reason.finding(file.name))
        if self._folder is not None and not files:
            empty = FileRejected("no_operations", "there is no .graphql or .gql file in the folder", str(self._folder))
            refused.append(empty.finding("(folder)"))
        return ToolSet(
            schema=schema, tools=tuple(tools), operations=operations, refused=tuple(refused), noted=tuple(noted)
        )

    def _reason_against(self, file: SourceFile, repeating: Mapping[str, FileRejected]) -> FileRejected | None:
        if file.refused is not None:
            return FileRejected("unreadable", file.refused, file.name)
        document = self._read[file.name].document
        return document if isinstance(document, FileRejected) else repeating.get(file.name)

    # The first file in the order of names keeps a tool's name, whatever was there before: a restart changes nothing.
    def _taken(self, operation: Operation, operations: Mapping[str, Operation]) -> FileRejected | None:
        first = operations.get(operation.name)
        if first is not None:
            detail = f"the name {operation.name} is taken by {first.file}"
        elif self._introspection_tools and operation.name in introspection_tools.NAMES:
            detail = f"the name {operation.name} is taken by a tool of introspectionTools"
        else:
            return None
        return FileRejected("duplicate_name", detail, f"{operation.file}:1:1")


def make_operation(
    document: Document, schema: GraphQLSchema, shared: Mapping[str, Fragment]
) -> Operation | FileRejected:
    """Make the tool of a document, or the reason why there is none; whatever the schema is, it does not raise."""
    return _or_rejection(partial(tool_of, document, schema, shared), "not_in_schema", document.file)


def _or_rejection(make: Callable[[], T], code: str, file: str) -> T | FileRejected:
    try:
        return make()
    except FileRejected as rejection:
        return rejection
    except SCHEMA_ERRORS as error:
        # Boundary: whatever a file, or a part of a schema, provokes spoils only the files that it concerns.
        return FileRejected(code, f"{type(error).__name__}: {error}", file)
