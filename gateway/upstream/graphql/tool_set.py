"""Build the tools of an upstream from a folder of operations and a schema, and report rejected files."""

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
from gateway.process.tasks import run_in_thread
from gateway.protocol.gateway_errors import ConnectionLost
from gateway.upstream.graphql import graphql_schema
from gateway.upstream.graphql.documents import SCHEMA_ERRORS, Document, FileRejected, Fragment, read_document
from gateway.upstream.graphql.folder import SourceFile, read_folder
from gateway.upstream.graphql.graphql_schema import (
    fetch_introspection,
    load_introspection,
    load_schema,
    read_schema_file,
)
from gateway.upstream.graphql.operations import Operation, tool_of
from gateway.upstream.graphql.responses import Endpoint
from registry.intake.issues import ItemIssue

# How long a thread processes files before it returns. If the connection is closed while thousands of files are being
# read, the work of earlier threads is not lost, because the results are cached.
_SLICE_S: Final = 0.25
# Polls reuse an introspected schema of up to this age, so that only every fourth poll queries the endpoint.
_SCHEMA_AGE_S: Final = 240.0


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSet:
    """An immutable snapshot of the tools.

    Attributes:
        schema: The schema that the operations were validated against.
        tools: The tool definitions: introspection tools, then operations in the order of their files.
        operations: The operations by tool name.
        refused: The issues of rejected files.
        noted: Warnings about accepted files.
    """

    schema: GraphQLSchema
    tools: tuple[dict[str, Any], ...] = ()
    operations: Mapping[str, Operation] = field(default_factory=dict)
    refused: tuple[ItemIssue, ...] = ()
    noted: tuple[ItemIssue, ...] = ()


@dataclass(frozen=True, slots=True)
class _ParsedFile:
    digest: bytes
    document: Document | FileRejected


@dataclass(frozen=True, slots=True)
class _BuiltOperation:
    key: tuple[object, ...]
    operation: Operation | FileRejected


class ToolSetBuilder:
    """Builds the tools of one upstream, with a cache that outlives connections.

    Attributes:
        tool_set: The most recent tool set.
    """

    def __init__(self, config: GraphqlConfig) -> None:
        self._folder = Path(config.operations) if config.operations is not None else None
        self._schema_file = Path(config.schema_file) if config.schema_file is not None else None
        self._mutations = not config.exclude_mutations
        self._introspection_tools = config.introspection_tools
        self._parsed: dict[str, _ParsedFile] = {}
        self._built: dict[str, _BuiltOperation] = {}
        self._schema: tuple[bytes, GraphQLSchema] | None = None
        self._introspected_s = 0.0
        self._files: tuple[object, ...] = ()
        self.tool_set: ToolSet | None = None

    async def renew(self, endpoint: Endpoint, *, introspect: bool, polled: bool, limit_s: float) -> ToolSet:
        """Return the current tool set, which is the same object as before if nothing has changed.

        Args:
            endpoint: The source of the schema if no schema file is configured.
            introspect: Whether to query the endpoint even if its schema is cached.
            polled: Whether this is a periodic check; such a check reuses a recently fetched schema.
            limit_s: The time limit for introspection, in seconds.

        Raises:
            FilesUnusable: The folder or the schema file cannot be read.
            SchemaUnusable, ConnectionLost, HttpStatusError: The endpoint does not return a usable schema.
        """
        schema = await self._renewed_schema(endpoint, introspect=introspect, polled=polled, limit_s=limit_s)
        files: tuple[SourceFile, ...] = ()
        if self._folder is not None:
            files = await run_in_thread(partial(read_folder, self._folder))
        # Compare digests, not timestamps: an editor may save unchanged text, and a checkout may restore old timestamps.
        state = tuple((file.name, file.refused, file.digest) for file in files)
        if self.tool_set is not None and self.tool_set.schema is schema and state == self._files:
            return self.tool_set
        # Work in short slices, so that cancellation waits for at most one slice.
        while not await run_in_thread(partial(self._process_files, files, schema)):
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
            raise ConnectionLost(f"the endpoint did not return its schema within {limit_s:g} s", sent=True)
        schema = await self._parsed_once(data, None)
        # Set only after parsing succeeds, so that the next poll retries after an unusable response.
        self._introspected_s = time.monotonic()
        return schema

    async def _parsed_once(self, data: bytes, file: str | None) -> GraphQLSchema:
        digest = hashlib.sha256(data).digest()
        if self._schema is None or self._schema[0] != digest:
            load = partial(load_introspection, data) if file is None else partial(load_schema, data, file)
            self._schema = (digest, await run_in_thread(load))
        return self._schema[1]

    def _process_files(self, files: tuple[SourceFile, ...], schema: GraphQLSchema) -> bool:
        """Process files for up to `_SLICE_S` seconds. Return true once every file has been processed."""
        until_s = time.monotonic() + _SLICE_S
        for file in files:
            parsed = self._parsed.get(file.name)
            if file.refused is None and (parsed is None or parsed.digest != file.digest):
                document = _try_make(partial(read_document, file.name, file.data), "unreadable", file.name)
                self._parsed[file.name] = _ParsedFile(file.digest, document)
                if time.monotonic() > until_s:
                    return False
        shared, _ = self._fragments(files)
        # If a fragment changes, build every operation again: the cache does not record which operations use a fragment.
        shared_key = tuple((name, fragment.text) for name, fragment in sorted(shared.items()))
        key = (self._schema[0] if self._schema is not None else b"", hash(shared_key))
        for file in files:
            read = self._parsed.get(file.name) if file.refused is None else None
            if read is None or isinstance(read.document, FileRejected) or read.document.operation is None:
                continue
            built = self._built.get(file.name)
            if built is None or built.key != (*key, read.digest):
                self._built[file.name] = _BuiltOperation(
                    (*key, read.digest), make_operation(read.document, schema, shared)
                )
                if time.monotonic() > until_s:
                    return False
        return True

    def _fragments(self, files: tuple[SourceFile, ...]) -> tuple[dict[str, Fragment], dict[str, FileRejected]]:
        """Return the shared fragments by name, and the rejection of each file that defines a shared fragment again.

        A fragment is shared if its file contains no operation.
        """
        shared: dict[str, Fragment] = {}
        refused: dict[str, FileRejected] = {}
        for file in files:
            read = self._parsed.get(file.name) if file.refused is None else None
            if read is None or isinstance(read.document, FileRejected) or read.document.operation is not None:
                continue
            duplicates = [fragment for name, fragment in read.document.fragments.items() if name in shared]
            if duplicates:
                first = shared[duplicates[0].name].file
                detail = f"the fragment {duplicates[0].name} is already defined in {first}"
                refused[file.name] = FileRejected.at("duplicate_fragment", detail, duplicates[0].node, file.name)
            else:
                shared |= read.document.fragments
        return shared, refused

    def _assemble(self, files: tuple[SourceFile, ...], schema: GraphQLSchema) -> ToolSet:
        # Drop cache entries of deleted files, so that the cache does not grow without bound.
        names = {file.name for file in files}
        self._parsed = {name: read for name, read in self._parsed.items() if name in names}
        self._built = {name: built for name, built in self._built.items() if name in names}
        tools: list[dict[str, Any]] = graphql_schema.definitions(exclude_mutations=not self._mutations)
        tools = tools if self._introspection_tools else []
        operations: dict[str, Operation] = {}
        refused: list[ItemIssue] = []
        noted: list[ItemIssue] = []
        _, repeating = self._fragments(files)
        for file in files:
            reason = self._reason_against(file, repeating)
            operation = self._built[file.name].operation if reason is None and file.name in self._built else None
            if isinstance(operation, FileRejected):
                reason = operation
            elif operation is not None and (self._mutations or not operation.mutation):
                reason = self._find_name_conflict(operation, operations)
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
        document = self._parsed[file.name].document
        return document if isinstance(document, FileRejected) else repeating.get(file.name)

    # If several files define the same tool name, the first file in alphabetical order wins, also after a restart.
    def _find_name_conflict(self, operation: Operation, operations: Mapping[str, Operation]) -> FileRejected | None:
        first = operations.get(operation.name)
        if first is not None:
            detail = f"the name {operation.name} is already used by {first.file}"
        elif self._introspection_tools and operation.name in graphql_schema.NAMES:
            detail = f"the name {operation.name} is already used by a tool of introspectionTools"
        else:
            return None
        return FileRejected("duplicate_name", detail, f"{operation.file}:1:1")


def make_operation(
    document: Document, schema: GraphQLSchema, shared: Mapping[str, Fragment]
) -> Operation | FileRejected:
    """Return the tool of a document, or the reason to reject the document. Never raise, even for an invalid schema."""
    return _try_make(partial(tool_of, document, schema, shared), "not_in_schema", document.file)


def _try_make(make: Callable[[], T], code: str, file: str) -> T | FileRejected:
    try:
        return make()
    except FileRejected as rejection:
        return rejection
    except SCHEMA_ERRORS as error:
        # Boundary: an error that one file or a part of the schema causes must not affect other files.
        return FileRejected(code, f"{type(error).__name__}: {error}", file)
