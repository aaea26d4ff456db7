"""Open sessions to a GraphQL endpoint; what was made of its files outlives them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from gateway.config.model import ServerConfig
from gateway.errors import ConnectionLost, GatewayError
from gateway.upstream.graphql.endpoint import Endpoint
from gateway.upstream.graphql.folder import FilesUnusable, Mark, mark_of, watch_paths
from gateway.upstream.mcp_session import UpstreamSession
from gateway.upstream.reachability import answers
from gateway.upstream.transport.http_client import HttpClient

if TYPE_CHECKING:
    from gateway.upstream.graphql.library import Library

NEEDED: Final = (3, 3)
_HOW: Final = "pip install 'typegate[graphql]'"
_PATIENCE_S: Final = 30.0


class ExtraMissing(GatewayError):
    """graphql-core is not installed; the text says how to."""


class GraphqlConnector:
    """Opens sessions to one configured endpoint; remembers what its files and its schema gave."""

    def __init__(self, server: str, config: ServerConfig, client: HttpClient) -> None:
        self._server = server
        self._config = config
        self._client = client
        self._library: Library | None = None
        self._folder = Path(config.operations) if config.operations is not None else None
        self._schema_file = Path(config.schema_file) if config.schema_file is not None else None
        self._unreachable = False
        # How the files looked that were of no use.
        self._faulty: tuple[Mark, ...] | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[UpstreamSession]:
        """A session; after a connection was refused it waits for the endpoint to be there again.

        At first the endpoint need not be there: files say what the tools are.

        Raises:
            GatewayError: It did not come about; the message says why.
        """
        # The library of a language is a tenth of a second to import: not on the loop.
        await anyio.to_thread.run_sync(_import_extra, self._server)
        from gateway.upstream.graphql.library import Library
        from gateway.upstream.graphql.session import GraphqlSession

        config = self._config
        assert config.endpoint is not None
        if self._faulty is not None:
            await self._files_changed(self._faulty)
        if self._unreachable and not await answers(config.endpoint):
            raise ConnectionLost("the endpoint cannot be reached", sent=False)
        if self._library is None:
            self._library = Library(config)
        endpoint = Endpoint(self._client, config.endpoint, config.headers)
        session = GraphqlSession(
            server=self._server,
            endpoint=endpoint,
            library=self._library,
            exclude_mutations=config.exclude_mutations,
            asks=config.schema_file is None,
        )
        self._faulty, before = None, self._marks()
        async with anyio.create_task_group() as group:
            group.start_soon(watch_paths, self._folder, self._schema_file, session.files_changed)
            try:
                yield session
            except FilesUnusable:
                self._faulty = before
                raise
            finally:
                self._unreachable = endpoint.unreachable
                group.cancel_scope.cancel()

    def _marks(self) -> tuple[Mark, ...]:
        return tuple(mark_of(path) for path in (self._folder, self._schema_file) if path is not None)

    async def _files_changed(self, before: tuple[Mark, ...]) -> None:
        """Wait for files that were of no use to be others, or for a while."""
        with anyio.move_on_after(_PATIENCE_S):
            async with anyio.create_task_group() as group:

                def look() -> None:
                    if self._marks() != before:
                        group.cancel_scope.cancel()

                group.start_soon(watch_paths, self._folder, self._schema_file, look)
                look()


def _import_extra(server: str) -> None:
    """Import what needs graphql-core.

    Raises:
        ExtraMissing: It is not there, or too old.
    """
    what = f"server '{server}': type: graphql needs graphql-core"
    try:
        from graphql import version_info
    except ImportError as error:
        if error.name != "graphql":
            raise
        raise ExtraMissing(f"{what}, which is not installed; expected: {_HOW}") from None
    if version_info[:2] < NEEDED:
        raise ExtraMissing(f"{what} 3.3 or newer; expected: {_HOW}")
    import_module("gateway.upstream.graphql.session")
