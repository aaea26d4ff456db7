"""`typegate serve`, `stdio` and `demo`: the commands that run until they are stopped."""

from __future__ import annotations

import logging
import os
import socket
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.commands import output
from gateway.commands.locations import UsageError, added_over, program_command, state_dir
from gateway.secrets import SECRETS, secrets_in, split_credentials
from gateway.telemetry import logs
from registry.views.profile import DEFAULT_PROFILE

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.config.model import Config

# The default of `gateway.listen`, so that other commands find the demo without --url.
DEMO_PORT: Final = 8765
_LOOPBACK: Final = "127.0.0.1"
# Two interpreters that import an SDK, on a slow machine; after it the demo is shown with what is there.
_DEMO_START_S: Final = 20.0


def serve(args: Namespace) -> int:
    """Serve a configuration over Streamable HTTP until a signal.

    Raises:
        ConfigError: The configuration is wrong.
    """
    from gateway.config.leads_back import check_ancestors
    from gateway.config.load import loaded
    from gateway.config.source import read
    from gateway.lock.lock_file import read_approved

    text = read(args.config)
    check_ancestors(args.config)
    config = loaded(text, path=args.config, strict=args.strict, added=added_over(args.config, state_dir(args)))
    output.warn_of(config)
    host = args.host or config.gateway.listen.host
    port = config.gateway.listen.port if args.port is None else args.port
    # Before any process or connection is started: the usual mistake is a second gateway on the same port.
    _check_free(host, port)
    # Each worker would find it for itself.
    read_approved(config)
    if args.workers > 1:
        return _serve_workers(args, config, text, host, port)

    async def run() -> int:
        from gateway.serving.over_http import serve

        def announce(_: Gateway, url: str) -> None:
            output.say(f"serving {_counted(config)} at {url} (Ctrl-C stops)")

        return await serve(
            config,
            host=host,
            port=port,
            state_dir=state_dir(args),
            insecure=args.insecure,
            on_ready=announce,
            strict=args.strict,
        )

    logs.start(calls=args.verbose, form=args.log_format)
    return _run(run)


def _serve_workers(args: Namespace, config: Config, text: str, host: str, port: int) -> int:
    import anyio

    async def run() -> int:
        from gateway.serving.worker_parent import serve_workers

        def announce(url: str) -> None:
            output.say(f"serving {_counted(config)} at {url} with {args.workers} workers (Ctrl-C stops)")

        return await serve_workers(
            config,
            text=text,
            workers=args.workers,
            host=host,
            port=port,
            state_dir=state_dir(args),
            insecure=args.insecure,
            verbose=args.verbose,
            log_format=args.log_format,
            on_ready=announce,
            strict=args.strict,
        )

    logs.start(calls=args.verbose, form=args.log_format)
    return anyio.run(run)


def stdio(args: Namespace) -> int:
    """The same gateway over stdin and stdout, or a bridge from there to a running one.

    Raises:
        ConfigError: The configuration is wrong.
        UsageError: A header is malformed.
    """
    if args.url is not None:
        if args.profile is not None:
            raise UsageError("--profile goes with --config; expected --url .../mcp/PROFILE instead")
        url, headers = args.url, dict(_header(text) for text in args.header)
        key = _key_of_host()
        if key is not None and not any(name.lower() == "authorization" for name in headers):
            headers["authorization"] = f"Bearer {key}"
        SECRETS.hide(secrets_in({"url": url}))
        url, authorization = split_credentials(url)
        if authorization is not None and not any(name.lower() == "authorization" for name in headers):
            headers["authorization"] = authorization
        SECRETS.hide(secrets_in({"url": url, "headers": headers}))

        async def run_bridge() -> int:
            from gateway.serving.bridge import bridge

            return await bridge(url, headers)

        logs.start(calls=args.verbose, form=args.log_format)
        return _run(run_bridge)
    if args.header:
        raise UsageError("--header goes with --url; expected headers of upstreams in the configuration")
    from gateway.config.leads_back import check_ancestors
    from gateway.config.load import load

    check_ancestors(args.config)
    config = load(args.config, strict=args.strict, added=added_over(args.config, state_dir(args)))
    output.warn_of(config)
    if args.profile is not None and args.profile != DEFAULT_PROFILE and args.profile not in config.gateway.profiles:
        known = ", ".join([DEFAULT_PROFILE, *config.gateway.profiles])
        raise UsageError(f"--profile {args.profile}: there is no such profile; expected one of: {known}")

    key = _key_of_host()

    # Imported inside: a host waits for its first answer, and a bridge needs nothing of a gateway.
    async def run_stdio() -> int:
        from gateway.serving.over_stdio import serve_stdio

        profile = args.profile or DEFAULT_PROFILE
        return await serve_stdio(config, state_dir=state_dir(args), profile=profile, key=key, strict=args.strict)

    logs.start(calls=args.verbose, form=args.log_format)
    return _run(run_stdio)


def _counted(config: Config) -> str:
    left_out = f" ({len(config.left_out)} left out)" if config.left_out else ""
    return f"{len(config.servers)} server{'' if len(config.servers) == 1 else 's'}{left_out}"


def demo(args: Namespace) -> int:
    """Serve two bundled upstreams and show how to call them."""
    import anyio

    config = demo_config()
    port = DEMO_PORT if args.port is None else args.port
    if args.port is not None:
        _check_free(_LOOPBACK, port)
    elif not _is_free(_LOOPBACK, port):
        output.say(f"port {port} is taken; taking a free one (--port chooses)")
        port = 0
    from gateway.commands.running import demo_dir, noted  # late: it brings an HTTP client that `stdio` does without

    state = demo_dir(args)

    async def run() -> int:
        from gateway.serving.over_http import serve

        async def announce(gateway: Gateway, url: str) -> None:
            await gateway.fleet.settled(_DEMO_START_S)
            address = url if url.rstrip("/").endswith("/mcp") else f"{url.rstrip('/')}/mcp"
            show_demo(address, gateway, state)
            with noted(state, address):
                await anyio.sleep_forever()

        return await serve(config, host=_LOOPBACK, port=port, state_dir=state, on_ready=announce)

    logs.start(logging.WARNING)
    return _run(run)


def demo_config() -> Config:
    """The configuration of the demo: a calendar and a bank, as processes of this Python."""
    from gateway.config.model import Config
    from gateway.config.upstream_types.stdio_config import StdioConfig

    # For a checkout that is run without being installed; an installed package is found anyway.
    root = Path(__file__).parents[2]
    env: dict[str, str | None] = {} if root.name == "site-packages" else {"PYTHONPATH": str(root)}
    return Config(
        servers={
            alias: StdioConfig(command=sys.executable, args=["-m", module], env=env)
            for alias, module in (("calendar-mcp", "gateway.demo.calendar"), ("bank", "gateway.demo.bank"))
        }
    )


def show_demo(url: str, gateway: Gateway, state: Path) -> None:
    """Print the address, the wrappers, and commands to try in a second terminal."""
    import shlex

    from gateway.admin import rows

    program = program_command()
    print(f"typegate demo: two small MCP servers behind one address\n\n  {url}\n\nwrappers:")
    for row in rows.wrapper_rows(gateway.views.view()):
        print(f"  {row['name']}")
    for row in rows.server_rows(gateway.fleet, gateway.registry.catalog):
        if row.get("lastError"):
            print(f"  {row['name']} is not connected: {row['lastError']}")
    print("\ntry it in a second terminal:\n")
    print(f"  {program} call --url {url} calendar-mcp__list_accounts '{{}}'")
    print(f"  {program} call --url {url} calendar-mcp__send_email '{{}}'")
    print(f"  {program} servers --url {url} --state-dir {shlex.quote(str(state))}")
    print("\nCtrl-C stops it.", flush=True)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    name, value = name.strip(), value.strip()
    if not colon or not name or not text.isascii() or not text.isprintable() or " " in name:
        # The text itself may be a credential, so it is not repeated.
        raise UsageError("a --header has a wrong form; expected 'Name: value'")
    return name, value


def _key_of_host() -> str | None:
    """Who the host of `stdio` is, as its environment says."""
    key = os.environ.get("TYPEGATE_API_KEY", "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError("TYPEGATE_API_KEY has a wrong form; expected one key, without spaces and line breaks")
    SECRETS.hide([key] if key else [])
    return key or None


def _is_free(host: str, port: int) -> bool:
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with socket.socket(family, kind, protocol) as probe:
            # As the server itself does: a port in TIME_WAIT counts as free. On Windows it would share a port in use.
            if sys.platform != "win32":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError:
        return False
    return True


def _check_free(host: str, port: int) -> None:
    if not _is_free(host, port):
        from gateway.serving.listen import holder_of

        holder = holder_of(port)
        taken = f" (in use by {holder})" if holder else ""
        raise UsageError(
            f"cannot listen on {host}:{port}{taken}; expected a free port of this machine (--host, --port)"
        )


def _run(main: Callable[[], Coroutine[Any, Any, int]] | Callable[[], Awaitable[int]]) -> int:
    import anyio

    return anyio.run(main, backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})
