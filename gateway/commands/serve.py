"""`typegate serve`, `stdio` and `demo`."""

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
from gateway.commands.admin_client import UsageError, load_added_names, program_command, state_dir
from gateway.process.secrets import SECRETS, secrets_in, split_credentials
from gateway.telemetry import logs
from registry.views.profile import DEFAULT_PROFILE

if TYPE_CHECKING:
    from gateway.config.model import Config
    from gateway.serving.app import Gateway
    from gateway.serving.listen import ServeOptions

# The same port as the default of `gateway.listen`, so that other commands find the demo without --url.
DEMO_PORT: Final = 8765
_LOOPBACK: Final = "127.0.0.1"
_ANY_HOST: Final = {"0.0.0.0": _LOOPBACK, "[::]": "[::1]"}
# Enough for two interpreters to import the MCP SDK on a slow machine. Afterwards, the demo lists the available tools.
_DEMO_START_S: Final = 20.0


def serve(args: Namespace) -> int:
    """Serve a configuration over Streamable HTTP until SIGINT or SIGTERM.

    Raises:
        ConfigError: The configuration is invalid.
    """
    from gateway.config.launch_identity import check_ancestors
    from gateway.config.load import loaded
    from gateway.config.source import read
    from gateway.fleet.lock_file import read_approved

    text = read(args.config)
    check_ancestors(args.config)
    config = loaded(text, path=args.config, strict=args.strict, added=load_added_names(args.config, state_dir(args)))
    output.warn_about(config)
    host = args.host or config.gateway.listen.host
    port = config.gateway.listen.port if args.port is None else args.port
    # Check the port before starting any process or connection: the most common mistake is a second gateway on it.
    _check_free(host, port)
    # Report an invalid lock file once, instead of once for each worker.
    read_approved(config)
    if args.workers > 1:
        return _serve_workers(args, config, text, host, port)

    async def run() -> int:
        from gateway.serving.over_http import serve

        def announce(_: Gateway, url: str) -> None:
            output.say(f"serving {_count_servers(config)} at {url} (Ctrl-C stops)")
            _say_page(config, url)

        return await serve(config, _options(args, host, port), on_ready=announce)

    logs.start(calls=args.verbose, form=args.log_format)
    return _run(run)


def _options(args: Namespace, host: str, port: int) -> ServeOptions:
    from gateway.serving.listen import ServeOptions

    return ServeOptions(host=host, port=port, state_dir=state_dir(args), insecure=args.insecure, strict=args.strict)


def _serve_workers(args: Namespace, config: Config, text: str, host: str, port: int) -> int:
    import anyio

    async def run() -> int:
        from gateway.serving.worker_parent import WorkerOptions, serve_workers

        def announce(url: str) -> None:
            output.say(f"serving {_count_servers(config)} at {url} with {args.workers} workers (Ctrl-C stops)")
            _say_page(config, url)

        return await serve_workers(
            config,
            _options(args, host, port),
            WorkerOptions(count=args.workers, verbose=args.verbose, log_format=args.log_format),
            text=text,
            on_ready=announce,
        )

    logs.start(calls=args.verbose, form=args.log_format)
    return anyio.run(run)


def stdio(args: Namespace) -> int:
    """Serve a configuration over stdin and stdout, or forward messages to a running gateway.

    Raises:
        ConfigError: The configuration is invalid.
        UsageError: A header is malformed, or the profile does not exist.
    """
    if args.url is not None:
        if args.profile is not None:
            raise UsageError(
                "--profile needs --config; with --url, put the profile into the address: --url .../mcp/PROFILE"
            )
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
        raise UsageError("--header needs --url; put headers for upstreams into the configuration")
    from gateway.config.launch_identity import check_ancestors
    from gateway.config.load import load

    check_ancestors(args.config)
    config = load(args.config, strict=args.strict, added=load_added_names(args.config, state_dir(args)))
    output.warn_about(config)
    if args.profile is not None and args.profile != DEFAULT_PROFILE and args.profile not in config.gateway.profiles:
        profiles = ", ".join([DEFAULT_PROFILE, *config.gateway.profiles])
        raise UsageError(f"--profile {args.profile}: there is no such profile; expected one of: {profiles}")

    key = _key_of_host()

    # Imported lazily: hosts wait for the first answer, and the bridge does not need the gateway's modules.
    async def run_stdio() -> int:
        from gateway.serving.over_stdio import serve_stdio

        profile = args.profile or DEFAULT_PROFILE
        return await serve_stdio(config, state_dir=state_dir(args), profile=profile, key=key, strict=args.strict)

    logs.start(calls=args.verbose, form=args.log_format)
    return _run(run_stdio)


def page_url(config: Config, url: str) -> str | None:
    """Return the URL of the admin page of a gateway whose MCP endpoint is `url`; None for a Unix domain socket."""
    separate = config.gateway.admin.listen
    if separate is not None and (separate.startswith("unix:") or separate.endswith(":0")):
        # Browsers cannot open a socket file; a port that the system chooses is logged when it is known.
        return None
    origin = url.rstrip("/").removesuffix("/mcp") if separate is None else f"http://{separate}"
    scheme, _, authority = origin.partition("://")
    host, colon, port = authority.rpartition(":")
    # On this machine, a gateway that listens on all addresses is reachable at the loopback address.
    return f"{scheme}://{_ANY_HOST.get(host, host)}{colon}{port}/admin/"


def _say_page(config: Config, url: str) -> None:
    page = page_url(config, url)
    if page is not None:
        output.say(f"admin page: {page} (`typegate admin` opens it signed in)")


def _count_servers(config: Config) -> str:
    left_out = f" ({len(config.left_out)} left out)" if config.left_out else ""
    return f"{len(config.servers)} server{'' if len(config.servers) == 1 else 's'}{left_out}"


def demo(args: Namespace) -> int:
    """Serve two bundled upstreams and print commands that call them."""
    import anyio

    config = demo_config()
    port = DEMO_PORT if args.port is None else args.port
    if args.port is not None:
        _check_free(_LOOPBACK, port)
    elif not _is_free(_LOOPBACK, port):
        output.say(f"port {port} is in use; using any free port (choose one with --port)")
        port = 0
    # Imported lazily: `stdio` does not need the HTTP client.
    from gateway.commands.admin_client import demo_dir, publish_address

    state = demo_dir(args)

    async def run() -> int:
        from gateway.serving.listen import ServeOptions
        from gateway.serving.over_http import serve

        async def announce(gateway: Gateway, url: str) -> None:
            await gateway.fleet.settled(_DEMO_START_S)
            address = url if url.rstrip("/").endswith("/mcp") else f"{url.rstrip('/')}/mcp"
            show_demo(address, gateway, state, page=page_url(config, address))
            with publish_address(state, address):
                await anyio.sleep_forever()

        return await serve(config, ServeOptions(host=_LOOPBACK, port=port, state_dir=state), on_ready=announce)

    logs.start(logging.WARNING)
    return _run(run)


def demo_config() -> Config:
    """Return the demo configuration: a calendar and a bank server, run by this Python interpreter."""
    from gateway.config.model import Config
    from gateway.config.upstream_types.stdio_config import StdioConfig

    # PYTHONPATH makes an uninstalled checkout importable.
    root = Path(__file__).parents[2]
    env: dict[str, str | None] = {} if root.name == "site-packages" else {"PYTHONPATH": str(root)}
    return Config(
        servers={
            alias: StdioConfig(command=sys.executable, args=["-m", module], env=env)
            for alias, module in (("calendar-mcp", "gateway.demo.calendar"), ("bank", "gateway.demo.bank"))
        }
    )


def show_demo(url: str, gateway: Gateway, state: Path, *, page: str | None) -> None:
    """Print the address, the wrappers and commands to try in a second terminal."""
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
    if page is not None:
        print(f"\nadmin page: {page} (`{program} admin` opens it signed in)")
    print("\nCtrl-C stops it.", flush=True)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    name, value = name.strip(), value.strip()
    if not colon or not name or not text.isascii() or not text.isprintable() or " " in name:
        # Do not repeat the text, which may be a credential.
        raise UsageError("a --header is malformed; expected 'Name: value'")
    return name, value


def _key_of_host() -> str | None:
    """Return the API key of the `stdio` host from the environment."""
    key = os.environ.get("TYPEGATE_API_KEY", "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError("TYPEGATE_API_KEY is malformed; expected one key without spaces and line breaks")
    SECRETS.hide([key] if key else [])
    return key or None


def _is_free(host: str, port: int) -> bool:
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with socket.socket(family, kind, protocol) as probe:
            # As in the server, a port in TIME_WAIT counts as free. On Windows, the option would accept a port in use.
            if sys.platform != "win32":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError:
        return False
    return True


def _check_free(host: str, port: int) -> None:
    if not _is_free(host, port):
        from gateway.serving.listen import find_port_holder

        holder = find_port_holder(port)
        holder_note = f" (in use by {holder})" if holder else ""
        raise UsageError(
            f"cannot listen on {host}:{port}{holder_note}; expected a free port of this machine (--host, --port)"
        )


def _run(main: Callable[[], Coroutine[Any, Any, int]] | Callable[[], Awaitable[int]]) -> int:
    import anyio

    return anyio.run(main, backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})
