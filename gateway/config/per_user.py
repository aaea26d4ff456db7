"""Servers to which each caller signs in for itself, and gateways that cannot tell one caller's data from another's."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config.server import ServerConfig
from gateway.errors import ConfigError


def check_per_user(servers: Mapping[str, ServerConfig], *, file: str, block: str = "mcpServers") -> None:
    """Refuse servers with `perUser` where several callers cannot be told apart.

    Raises:
        ConfigError: There is one.
    """
    for alias, server in servers.items():
        if server.per_user and not server.exchanges_callers:
            raise ConfigError(
                "needs callers who can be told apart: gateway.auth, or a loopback address for a gateway of one user; "
                "here all callers would share one sign-in. Leave perUser out if they may",
                file=file,
                key=f"{block}.{alias}.auth.perUser",
            )


def check_exchanges(
    servers: Mapping[str, ServerConfig], *, has_issuers: bool, file: str, block: str = "mcpServers"
) -> None:
    """Refuse servers that want the tokens of callers, where callers have none.

    Raises:
        ConfigError: There is one.
    """
    for alias, server in servers.items():
        if server.exchanges_callers and not has_issuers:
            raise ConfigError(
                "exchanges the tokens of callers, who have none; expected gateway.auth.oauth, or what is to be "
                "exchanged (subjectToken, idToken)",
                file=file,
                key=f"{block}.{alias}.auth",
            )
