"""`typegate stdio --config`: the gateway for a host that only starts processes."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from gateway.access.api_keys import ApiKeys
from gateway.access.principal import LOCAL, Principal
from gateway.app import Gateway, open_gateway
from gateway.config.model import Config
from gateway.config.overlay import Overlay, with_changes
from gateway.downstream.stdio_server import StdioServer
from gateway.errors import ConfigError
from gateway.files import make_private_folder, prepare_state_dir
from gateway.lock.lock_file import read_approved
from gateway.reload import Reloader
from gateway.serving.callback_listener import listening_for_browsers
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
    """Serve one host until its end of the pipe closes, or a signal comes. Returns the exit code.

    Args:
        config: What to serve.
        state_dir: Where state is kept.
        profile: The profile to serve.
        key: Says who the host is, where there are keys; without one it is whoever started the process.
        strict: A fault in the entry of one server keeps a changed file from being used.

    Raises:
        ConfigError: The key is none of the configuration, or does not open the profile.
    """
    if state_dir is not None:
        prepare_state_dir(state_dir)
    # What administrators have changed where the same configuration is served over HTTP holds here, too.
    overlay = Overlay(state_dir, config.path, writes=False, follows=True)
    overlay.check()
    if overlay.path is not None:
        with suppress(OSError):
            # It has to be there to be watched: the first change may come while this process runs.
            make_private_folder(overlay.path.parent)
    running = with_changes(config, overlay.changes)
    if key is not None and not running.gateway.auth.api_keys:
        log.warning("TYPEGATE_API_KEY is ignored: the configuration has no gateway.auth.apiKeys")
        key = None
    if config.gateway.cluster is not None:
        log.warning("gateway.cluster is ignored: this process serves one host")
    principal = _principal(ApiKeys(running.gateway.auth.api_keys), key, profile, str(config.path or "configuration"))
    await anyio.to_thread.run_sync(read_approved, running)
    async with open_gateway(running, state_dir=state_dir) as gateway, anyio.create_task_group() as group:
        reloader = Reloader(gateway, check=lambda config: None, strict=strict, base=config, overlay=overlay)
        server = StdioServer(gateway.server, gateway.quotas.account(principal), profile, principal=principal)
        refused: list[ConfigError] = []

        def identify() -> None:
            # With the rights that its key has now; without any, it has nothing more to say here.
            try:
                server.principal = _principal(gateway.authenticator.keys, key, profile, str(config.path or ""))
                gateway.quotas.account(server.principal)  # its groups may have changed, and with them its limits
            except ConfigError as error:
                refused.append(error)
                group.cancel_scope.cancel()

        if key is not None:
            gateway.authenticator.keys.on_change(identify)
        group.start_soon(partial(reloader.run, hangups=False))
        gateway.on_refused = lambda: group.start_soon(reloader.look)
        gateway.sign_ins.listening = listening = anyio.Event()
        group.start_soon(_listen_for_browsers, gateway, listening)
        await server.run()
        group.cancel_scope.cancel()
    if refused:
        raise refused[0]
    return 0


def _principal(keys: ApiKeys, key: str | None, profile: str, file: str) -> Principal:
    if key is None:
        return LOCAL
    # Where the last key was taken out while it runs, nobody is let in by that.
    found = keys.principal(f"Bearer {key}") if keys.required else None
    if found is None:
        what = "TYPEGATE_API_KEY is no key of this configuration, or has expired; expected one that is good, or none"
        raise ConfigError(what, file=file, key="gateway.auth.apiKeys")
    if not found.may_enter(profile):
        what = f"the key of {found.name} does not open the profile {profile}; expected --profile with one of its own"
        raise ConfigError(what, file=file, key="gateway.auth.apiKeys")
    return found


async def _listen_for_browsers(gateway: Gateway, listening: anyio.Event) -> None:
    """Open a port for the end of sign-ins, once a server asks for one: most hosts never need it."""
    await gateway.sign_ins.needed.wait()
    async with listening_for_browsers(gateway.sign_ins) as origin:
        gateway.origin = origin
        listening.set()
        await anyio.sleep_forever()
