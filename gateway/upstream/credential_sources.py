"""Which credentials an upstream gets: what a program prints, a sign-in, or those of its entry alone."""

from __future__ import annotations

from gateway.config.server import ServerConfig
from gateway.config.upstream_types.http_config import UrlConfig
from gateway.upstream.credentials import Credentials
from gateway.upstream.headers_command import HeadersCommand
from gateway.upstream.oauth.sign_ins import SignIns


def credentials_of(server: str, config: ServerConfig, sign_ins: SignIns, *, user: str = "") -> Credentials | None:
    """What proves who we are to this upstream, where that may change while it is connected.

    Args:
        server, config: The upstream.
        sign_ins: Where sign-ins are.
        user: Whose connection it is, as `user_of` names callers; empty where callers share it.
    """
    if isinstance(config, UrlConfig) and config.headers_command is not None:
        return HeadersCommand(server, config.headers_command, config.headers_env)
    return sign_ins.of(server, config, user=user)
