"""`typegate stdio --config`: serve one host over standard input and output."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from gateway.access.credentials import ApiKeys
from gateway.access.principal import LOCAL, Principal
from gateway.config.model import Config
from gateway.config.overlay import Overlay, with_changes
from gateway.downstream.stdio_server import StdioServer
from gateway.fleet.lock_file import read_approved
from gateway.fleet.reload import Reloader
from gateway.process.files import make_private_folder, prepare_state_dir
from gateway.protocol.gateway_errors import ConfigError
from gateway.serving.app import open_gateway
from gateway.serving.listen import open_redirect_port
from gateway.upstream.oauth.authorization import BrowserOrigin
from gateway.upstream.oauth.sign_ins import SignIns
from registry.views.profile import DEFAULT_PROFILE

log = logging.getLogger(__name__)


async def serve_stdio(
    config: Config,
    *,
    state_dir: Path | None,
    profile: str = DEFAULT_PROFILE,
    key: str | None = None,
    strict: bool = False,
) -> int:
    """Serve one host until standard input closes or a signal arrives, and return the exit code.

    Args:
        key: The API key that identifies the host. Without a key, the caller is `LOCAL`, the user who started the
            process.
        strict: Reject a changed configuration file if the entry of any server is invalid.

    Raises:
        ConfigError: The key is not in the configuration, or does not grant access to the profile.
    """
    if state_dir is not None:
        prepare_state_dir(state_dir)
    # Apply the changes that administrators have made in a gateway that serves this configuration over HTTP.
    overlay = Overlay(state_dir, config.path, writes=False, follows=True)
    overlay.check()
    if overlay.path is not None:
        with suppress(OSError):
            # Create the folder, because only an existing folder can be watched for later changes.
            make_private_folder(overlay.path.parent)
    running = with_changes(config, overlay.changes)
    if key is not None and not running.gateway.auth.api_keys:
        log.warning("TYPEGATE_API_KEY is ignored: the configuration has no gateway.auth.apiKeys")
        key = None
    if config.gateway.cluster is not None:
        log.warning("gateway.cluster is ignored: this process serves one host")
    principal = _principal(ApiKeys(running.gateway.auth.api_keys), key, profile, str(config.path or "configuration"))
    await anyio.to_thread.run_sync(read_approved, running)
    origin = BrowserOrigin(opens_on_demand=True)
    async with open_gateway(running, state_dir=state_dir, origin=origin) as gateway, anyio.create_task_group() as group:
        reloader = Reloader(gateway.active, check=lambda config: None, strict=strict, base=config, overlay=overlay)
        server = StdioServer(gateway.server, gateway.quotas.account(principal), profile, principal=principal)
        refused: list[ConfigError] = []

        def identify() -> None:
            # Apply the current access rights of the key, and stop serving if the key has been revoked.
            try:
                server.identify(_principal(gateway.authenticator.keys, key, profile, str(config.path or "")))
                gateway.quotas.account(server.principal)  # changed groups can change the limits
            except ConfigError as error:
                refused.append(error)
                group.cancel_scope.cancel()

        if key is not None:
            gateway.authenticator.keys.on_change(identify)
        group.start_soon(partial(reloader.run, hangups=False))
        group.start_soon(reloader.reload_when_suspected)
        group.start_soon(_listen_for_browsers, gateway.sign_ins, origin)
        await server.run()
        group.cancel_scope.cancel()
    if refused:
        raise refused[0]
    return 0


def _principal(keys: ApiKeys, key: str | None, profile: str, file: str) -> Principal:
    if key is None:
        return LOCAL
    holder = keys.find_by_text(key)
    if holder is None:
        what = "TYPEGATE_API_KEY is not a key of this configuration, or has expired; expected a valid key or none"
        raise ConfigError(what, file=file, key="gateway.auth.apiKeys")
    if not holder.may_enter(profile):
        what = f"the key of {holder.name} does not open the profile {profile}"
        expected = "--profile with a profile of the key"
        raise ConfigError(f"{what}; expected {expected}", file=file, key="gateway.auth.apiKeys")
    return holder


async def _listen_for_browsers(sign_ins: SignIns, origin: BrowserOrigin) -> None:
    """Open a port for OAuth redirects once an upstream requires a sign-in, which most upstreams do not."""
    await origin.needed.wait()
    async with open_redirect_port(sign_ins) as url:
        origin.open(url)
        await anyio.sleep_forever()
