"""Open sessions with a GraphQL endpoint; imports graphql-core lazily.

The "extra" is the optional dependency of the package that installs graphql-core.
"""

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
from gateway.http.http_client import HttpClient
from gateway.process.extras import install_command
from gateway.protocol.gateway_errors import ConnectionLost, GatewayError
from gateway.upstream.breaker import accepts_connections, is_behind_proxy
from gateway.upstream.graphql.folder import FileStamp, FilesUnusable, stamp_of, watch_paths
from gateway.upstream.graphql.responses import Endpoint
from gateway.upstream.session import HostSession, SessionPorts, UpstreamSession
from gateway.upstream.upstream_credentials import Credentials

if TYPE_CHECKING:
    from gateway.upstream.graphql.tool_set import ToolSetBuilder

NEEDED: Final = (3, 3)
# Unusable files are read again after this time, because not every file system reports changes.
_UNUSABLE_S: Final = 30.0


class ExtraMissing(GatewayError):
    """graphql-core is missing or too old; the message gives the command that installs it."""


class GraphqlConnector:
    """The connector of one GraphQL endpoint, which shares the parsed files and schema between sessions."""

    def __init__(
        self,
        server: str,
        config: GraphqlConfig,
        client: HttpClient,
        *,
        host: HostSession | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        # `host` is not used, because an endpoint sends no requests, and the configuration rejects `elicitation`.
        # `credentials` is not used, because the credentials of an endpoint are in its configured headers.
        self._server = server
        self._config = config
        self._client = client
        self._builder: ToolSetBuilder | None = None
        self._folder = Path(config.operations) if config.operations is not None else None
        self._schema_file = Path(config.schema_file) if config.schema_file is not None else None
        self._unreachable = False
        # The stamps of the folder and schema file from the time when they were unusable; None if they are usable.
        self._unusable: tuple[FileStamp, ...] | None = None

    @asynccontextmanager
    async def open(self, ports: SessionPorts) -> AsyncIterator[UpstreamSession]:
        """Open a session.

        The first session does not check whether the endpoint is reachable, because the files define the tools. If the
        previous session found the endpoint to be unreachable, check first that the endpoint accepts connections.

        Raises:
            ExtraMissing: graphql-core is missing or too old.
            ConnectionLost: The endpoint cannot be reached.
        """
        # Importing graphql-core takes about 0.1 s, which would block the event loop.
        await anyio.to_thread.run_sync(_import_extra, self._server)
        from gateway.upstream.graphql.graphql_session import TOOLS, GraphqlSession
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
        # Get the stamps before the files are read, so that a change during the reading is noticed.
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
        """Wait until the unusable files have changed, for at most `_UNUSABLE_S` seconds."""
        with anyio.move_on_after(_UNUSABLE_S):
            async with anyio.create_task_group() as group:

                def stop_if_changed() -> None:
                    if self._stamps() != before:
                        group.cancel_scope.cancel()

                group.start_soon(watch_paths, self._folder, self._schema_file, stop_if_changed)
                # The files may have changed before the watch started.
                stop_if_changed()


def _import_extra(server: str) -> None:
    """Import the modules that need graphql-core.

    Raises:
        ExtraMissing: graphql-core is not installed, or is too old.
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
    import_module("gateway.upstream.graphql.graphql_session")
