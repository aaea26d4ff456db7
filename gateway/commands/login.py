"""`typegate login` and `logout`: sign in to an upstream."""

from __future__ import annotations

import html
import queue
import re
import sys
import threading
import time
import webbrowser
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from gateway.commands import output
from gateway.commands.admin_client import (
    NotReached,
    UsageError,
    ask_running_gateway,
    get_page,
    load_added_names,
    request_admin,
    state_dir,
)

if TYPE_CHECKING:
    from gateway.serving.app import Gateway

_CALLBACK: Final = "/oauth/callback"
# The lifetime of the sign-in link.
_WAIT_S: Final = 600.0
# Short, because users look back at the terminal as soon as they have signed in.
_POLL_S: Final = 0.5
_TAG: Final = re.compile(r"<(?:style|title)[^>]*>.*?</(?:style|title)>|<[^>]+>", re.DOTALL)


def login(args: Namespace) -> int:
    """Sign in to a server of a running gateway or of a configuration; return 0 once the sign-in is complete.

    Raises:
        NotReached: No gateway answers, or the server does not require a sign-in.
    """
    if args.config is not None:
        return _login_alone(args)
    if args.status:
        return _show_status(args, _row(args))

    def sign_in(url: str, token: str) -> int:
        path = f"/admin/servers/{quote(args.server, safe='')}"
        began = request_admin(url, f"{path}/sign-in", token, _query(args), method="POST")
        before = _sign_in_time(args, request_admin(url, path, token))

        def is_signed_in() -> bool:
            since = _sign_in_time(args, request_admin(url, path, token))
            return since is not None and since != before

        def send_callback(query: str) -> str | None:
            return _failure(*get_page(url, f"{_CALLBACK}?{query}"), args=args)

        return _wait(args, str(began["url"]), is_signed_in, send_callback)

    return ask_running_gateway(args, sign_in)


def logout(args: Namespace) -> int:
    """Sign out of a server; raise `NotReached` if no gateway answers, or the server does not require a sign-in."""
    if args.config is not None:
        return _logout_alone(args)
    path = f"/admin/servers/{quote(args.server, safe='')}/sign-in"
    query = _query(args)
    ended = ask_running_gateway(args, lambda url, token: request_admin(url, path, token, query, method="DELETE"))
    return _report_sign_out(args, was_signed_in=bool(ended.get("signedOut")))


def _report_sign_out(args: Namespace, *, was_signed_in: bool) -> int:
    output.say(f"signed out of {args.server}" if was_signed_in else f"no user was signed in to {args.server}")
    return 0


def _row(args: Namespace) -> Any:
    path = f"/admin/servers/{quote(args.server, safe='')}"
    return ask_running_gateway(args, lambda url, token: request_admin(url, path, token))


def _show_status(args: Namespace, row: Any) -> int:
    status = _sign_in_status(args, row)
    if args.json:
        output.print_json({"name": row.get("name"), "state": row.get("state"), **status})
    else:
        cells = {**row, **status, "scopes": " ".join(status.get("scopes") or ())}
        for key in ("since", "lastRefresh", "expires"):
            if isinstance(moment := status.get(key), int | float):
                cells[key] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
        columns = ("name", "state", "signedIn", "issuer", "scopes", "since", "lastRefresh", "expires", "needed")
        output.print_table("sign-in", columns, [cells])
    return 0 if status.get("signedIn") else 1


def _query(args: Namespace) -> dict[str, str]:
    return {"principal": args.user} if args.user else {}


def _sign_in_status(args: Namespace, row: Any) -> dict[str, Any]:
    """Return the sign-in status in a server row: of the user that `--user` names, or of the shared sign-in."""
    shared_status: dict[str, Any] = (row.get("signIn") or {}) if isinstance(row, dict) else {}
    if not args.user:
        return shared_status
    return next((user for user in shared_status.get("users") or () if user["principal"] == args.user), {})


def _sign_in_time(args: Namespace, row: Any) -> Any:
    return _sign_in_status(args, row).get("since")


def _wait(
    args: Namespace, link: str, is_signed_in: Callable[[], bool], send_callback: Callable[[str], str | None]
) -> int:
    """Show or open the sign-in link, and wait until the sign-in is complete.

    Args:
        send_callback: Sends the query of a pasted address to the gateway. Returns the reason if it is rejected.
    """
    opened = not args.no_browser and webbrowser.open(link)
    output.say(f"sign in to {args.server}" + (" in the browser, or open this link:" if opened else " at this link:"))
    print(link, flush=True)
    if not opened:
        output.say("if the browser cannot reach this machine, paste here the address that the browser shows at the end")
    pasted = _pasted_lines()
    until_s = time.monotonic() + _WAIT_S
    while time.monotonic() < until_s:
        if is_signed_in():
            output.say(f"signed in to {args.server}")
            return 0
        try:
            line = pasted.get(timeout=_POLL_S)
        except queue.Empty:
            continue
        if "state=" not in line:
            if line.strip():
                output.say(
                    "this is not the address at which the sign-in ends; expected an address with state= and code="
                )
            continue
        query = urlsplit(line.strip()).query if "://" in line else line.strip().removeprefix("?")
        if (reason := send_callback(query)) is not None:
            output.say(reason)
            return 1
    output.say("the sign-in was not completed within ten minutes")
    return 1


def _pasted_lines() -> queue.Queue[str]:
    """Return a queue that a thread fills with lines of standard input, so that reads can time out on every platform."""
    lines: queue.Queue[str] = queue.Queue(maxsize=16)

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _failure(status: int, location: str, text: str, *, args: Namespace) -> str | None:
    if status in (302, 303):
        output.say("the server requires another sign-in step; open this link:")
        print(location, flush=True)
        return None
    if status == 200:
        return None
    page_text = " ".join(html.unescape(_TAG.sub(" ", text)).split())
    return page_text or f"the sign-in to {args.server} failed (HTTP {status})"


def _login_alone(args: Namespace) -> int:
    """Sign in without a running gateway: serve only this server until the sign-in is complete."""
    import anyio

    from gateway.upstream.upstream_credentials import SignInFailed

    config, folder = _config_of(args), state_dir(args)
    codes: list[int] = []

    async def run() -> None:
        from gateway.serving.listen import ServeOptions
        from gateway.serving.over_http import serve

        async with anyio.create_task_group() as group:

            async def ready(gateway: Gateway, url: str) -> None:
                sign_in = gateway.sign_ins.get(args.server, gateway.config.servers[args.server], user=args.user)
                if sign_in is None:
                    raise NotReached(f"{args.server} does not require a sign-in: it has configured credentials")
                await gateway.fleet.settled(10)
                if args.status:
                    from gateway.admin import rows

                    codes.append(
                        _show_status(args, rows.server_row(gateway.fleet, gateway.registry.catalog, args.server))
                    )
                else:
                    before = sign_in.row()["since"]
                    try:
                        link = (await sign_in.create_link()).url
                    except SignInFailed as error:
                        raise NotReached(str(error)) from None

                    def send_callback(query: str) -> str | None:
                        return _failure(*get_page(url, f"{_CALLBACK}?{query}"), args=args)

                    def is_signed_in() -> bool:
                        since = sign_in.row()["since"]
                        return since is not None and since != before

                    codes.append(await anyio.to_thread.run_sync(_wait, args, link, is_signed_in, send_callback))
                group.cancel_scope.cancel()

            await serve(config, ServeOptions(host="127.0.0.1", state_dir=folder), on_ready=ready)

    anyio.run(run)
    return codes[0] if codes else 1


def _logout_alone(args: Namespace) -> int:
    import anyio

    config, folder = _config_of(args), state_dir(args)

    async def run() -> bool:
        from gateway.serving.app import BorrowedState, open_gateway

        async with open_gateway(config, state_dir=None, borrowed=BorrowedState(sign_in_dir=folder)) as gateway:
            sign_in = gateway.sign_ins.get(args.server, config.servers[args.server], user=args.user)
            return sign_in is not None and await gateway.sign_ins.sign_out(sign_in)

    return _report_sign_out(args, was_signed_in=anyio.run(run))


def _config_of(args: Namespace) -> Any:
    from gateway.config.load import load

    path: Path = args.config
    config = load(path, added=load_added_names(path, state_dir(args)))
    if args.server not in config.servers:
        aliases = ", ".join(config.servers) or "none"
        raise UsageError(f"{path} has no server {args.server}; expected one of: {aliases}")
    only = {args.server: config.servers[args.server]}
    is_own = only[args.server].per_user and config.gateway.auth.required
    if is_own != bool(args.user):
        raise UsageError(
            f"each caller has its own sign-in to {args.server}; expected --user NAME"
            if is_own
            else f"all callers share the sign-in to {args.server}; expected no --user"
        )
    gateway = config.gateway.model_copy(update={"hooks": [], "profiles": {}, "groups": {}, "public_url": None})
    return replace(config, servers=only, left_out={}, gateway=gateway, path=None)
