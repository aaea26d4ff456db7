"""Open sessions to a GraphQL endpoint; what was made of its files outlives them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from gateway.config.upstream_types.graphql_config import GraphqlConfig
from gateway.errors import ConnectionLost, GatewayError
from gateway.extras import install_command
from gateway.upstream.credentials import Credentials
from gateway.upstream.graphql.endpoint import Endpoint
from gateway.upstream.graphql.folder import FileStamp, FilesUnusable, stamp_of, watch_paths
from gateway.upstream.reachability import accepts_connections, is_behind_proxy
from gateway.upstream.request_callbacks import HostSession
from gateway.upstream.session import SessionPorts, UpstreamSession
from gateway.upstream.transport.http_client import HttpClient

if TYPE_CHECKING:
    from gateway.upstream.graphql.tool_set import ToolSetBuilder

NEEDED: Final = (3, 3)
# Unusable files are looked at again after this time without a report of a change: not every file system gives one.
_UNUSABLE_S: Final = 30.0


class ExtraMissing(GatewayError):
    """graphql-core is not installed; the text says how to."""


class GraphqlConnector:
    """Opens sessions to one configured endpoint; remembers what its files and its schema gave."""

    def __init__(
        self,
        server: str,
        config: GraphqlConfig,
        client: HttpClient,
        *,
        host: HostSession | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        # No host: an endpoint asks nobody, and the configuration refuses `elicitation`. No credentials either: those
        # of an endpoint are in its headers.
        self._server = server
        self._config = config
        self._client = client
        self._builder: ToolSetBuilder | None = None
        self._folder = Path(config.operations) if config.operations is not None else None
        self._schema_file = Path(config.schema_file) if config.schema_file is not None else None
        self._unreachable = False
        # How the files looked that were of no use.
        self._unusable: tuple[FileStamp, ...] | None = None

    @asynccontextmanager
    async def open(self, ports: SessionPorts) -> AsyncIterator[UpstreamSession]:
        """See `Connector.open`; after a connection was refused it waits for the endpoint to be there again.

        At first the endpoint need not be there: files say what the tools are.
        """
        # graphql-core is a tenth of a second to import: not on the loop.
        await anyio.to_thread.run_sync(_import_extra, self._server)
        from gateway.upstream.graphql.session import TOOLS, GraphqlSession
        from gateway.upstream.graphql.tool_set import ToolSetBuilder

        config = self._config
        if self._unusable is not None:
            await self._wait_for_other_files(self._unusable)
        direct = not is_behind_proxy(config.endpoint, config.proxy)
        if self._unreachable and direct and not await accepts_connections(config.endpoint):
            raise ConnectionLost("the endpoint cannot be reached", sent=False)
        if self._builder is None:
            self._builder = ToolSetBuilder(config)
        session = GraphqlSession(
            endpoint=Endpoint(self._client, config.endpoint, config.headers),
            builder=self._builder,
            on_list_changed=ports.on_list_changed,
            exclude_mutations=config.exclude_mutations,
            introspects=config.schema_file is None,
        )
        # Before they are read: a change while they are read is one more change.
        self._unusable, stamps = None, self._stamps()
        async with anyio.create_task_group() as group:
            changed = partial(ports.on_list_changed, TOOLS)
            group.start_soon(watch_paths, self._folder, self._schema_file, changed)
            try:
                yield session
            except FilesUnusable:
                self._unusable = stamps
                raise
            finally:
                self._unreachable = session.abandoned
                group.cancel_scope.cancel()

    def _stamps(self) -> tuple[FileStamp, ...]:
        return tuple(stamp_of(path) for path in (self._folder, self._schema_file) if path is not None)

    async def _wait_for_other_files(self, before: tuple[FileStamp, ...]) -> None:
        """Wait for files that were of no use to be others, or for a while."""
        with anyio.move_on_after(_UNUSABLE_S):
            async with anyio.create_task_group() as group:

                def look() -> None:
                    if self._stamps() != before:
                        group.cancel_scope.cancel()

                group.start_soon(watch_paths, self._folder, self._schema_file, look)
                # They may have changed before the watch began.
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
        raise ExtraMissing(f"{what}, which is not installed; expected: {install_command('graphql')}") from None
    if version_info[:2] < NEEDED:
        raise ExtraMissing(f"{what} 3.3 or newer; expected: {install_command('graphql')}")
    import_module("gateway.upstream.graphql.session")
