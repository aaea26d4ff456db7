"""`typegate login` and `logout`: sign in to an upstream, with a browser here or elsewhere, and end it again."""

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
from gateway.commands.admin_client import admin_document, page_at
from gateway.commands.locations import NotReached, UsageError, added_over, state_dir
from gateway.commands.running import from_running

if TYPE_CHECKING:
    from gateway.app import Gateway

_CALLBACK: Final = "/oauth/callback"
# As long as the link is good.
_WAIT_S: Final = 600.0
# Whoever has just signed in looks back here at once.
_LOOK_S: Final = 0.5
_TAG: Final = re.compile(r"<(?:style|title)[^>]*>.*?</(?:style|title)>|<[^>]+>", re.DOTALL)


def login(args: Namespace) -> int:
    """Sign in to a server of a running gateway, or of a configuration; 0 once somebody has.

    Raises:
        NotReached: No gateway answers, or it has nobody to sign in to there.
    """
    if args.config is not None:
        return _login_alone(args)
    if args.status:
        return _show_status(args, _row(args))

    def sign_in(url: str, token: str) -> int:
        path = f"/admin/servers/{quote(args.server, safe='')}"
        began = admin_document(url, f"{path}/sign-in", token, _query(args), method="POST")
        before = _since(args, admin_document(url, path, token))

        def is_signed_in() -> bool:
            since = _since(args, admin_document(url, path, token))
            return since is not None and since != before

        def give(query: str) -> str | None:
            return _failure(*page_at(url, f"{_CALLBACK}?{query}"), args=args)

        return _wait(args, str(began["url"]), is_signed_in, give)

    return from_running(args, sign_in)


def logout(args: Namespace) -> int:
    """Sign out of a server.

    Raises:
        NotReached: No gateway answers, or nobody signs in there.
    """
    if args.config is not None:
        return _logout_alone(args)
    path = f"/admin/servers/{quote(args.server, safe='')}/sign-in"
    query = _query(args)
    ended = from_running(args, lambda url, token: admin_document(url, path, token, query, method="DELETE"))
    return _tell_ended(args, was_signed_in=bool(ended.get("signedOut")))


def _tell_ended(args: Namespace, *, was_signed_in: bool) -> int:
    output.say(f"signed out of {args.server}" if was_signed_in else f"nobody was signed in to {args.server}")
    return 0


def _row(args: Namespace) -> Any:
    path = f"/admin/servers/{quote(args.server, safe='')}"
    return from_running(args, lambda url, token: admin_document(url, path, token))


def _show_status(args: Namespace, row: Any) -> int:
    found = _of_user(args, row)
    if args.json:
        output.as_json({"name": row.get("name"), "state": row.get("state"), **found})
    else:
        shown = {**row, **found, "scopes": " ".join(found.get("scopes") or ())}
        for key in ("since", "lastRefresh", "expires"):
            if isinstance(moment := found.get(key), int | float):
                shown[key] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
        columns = ("name", "state", "signedIn", "issuer", "scopes", "since", "lastRefresh", "expires", "needed")
        output.table("sign-in", columns, [shown])
    return 0 if found.get("signedIn") else 1


def _query(args: Namespace) -> dict[str, str]:
    return {"principal": args.user} if args.user else {}


def _of_user(args: Namespace, row: Any) -> dict[str, Any]:
    """What a row says of the sign-in that is meant."""
    found: dict[str, Any] = (row.get("signIn") or {}) if isinstance(row, dict) else {}
    if not args.user:
        return found
    return next((user for user in found.get("users") or () if user["principal"] == args.user), {})


def _since(args: Namespace, row: Any) -> Any:
    return _of_user(args, row).get("since")


def _wait(args: Namespace, link: str, is_signed_in: Callable[[], bool], give: Callable[[str], str | None]) -> int:
    """Have somebody sign in with this link.

    Args:
        args: Of the command.
        link: To be opened in a browser.
        is_signed_in: Whether somebody has.
        give: Takes the query of an address that was pasted; returns why it is no use, or None.
    """
    opened = not args.no_browser and webbrowser.open(link)
    output.say(f"sign in to {args.server}" + (" in the browser, or open this link:" if opened else " at this link:"))
    print(link, flush=True)
    if not opened:
        output.say("then paste the address at which the browser ends here, if it cannot reach this machine")
    pasted = _pasted_lines()
    until_s = time.monotonic() + _WAIT_S
    while time.monotonic() < until_s:
        if is_signed_in():
            output.say(f"signed in to {args.server}")
            return 0
        try:
            line = pasted.get(timeout=_LOOK_S)
        except queue.Empty:
            continue
        if "state=" not in line:
            if line.strip():
                output.say("this is not the address at which a sign-in ends; expected one with state= and code=")
            continue
        query = urlsplit(line.strip()).query if "://" in line else line.strip().removeprefix("?")
        if (reason := give(query)) is not None:
            output.say(reason)
            return 1
    output.say("nobody has signed in within ten minutes")
    return 1


def _pasted_lines() -> queue.Queue[str]:
    """Lines of standard input as they come; a thread, since nothing else can wait for them everywhere."""
    lines: queue.Queue[str] = queue.Queue(maxsize=16)

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _failure(status: int, location: str, text: str, *, args: Namespace) -> str | None:
    if status in (302, 303):
        output.say("the server wants it in another way; open this link:")
        print(location, flush=True)
        return None
    if status == 200:
        return None
    said = " ".join(html.unescape(_TAG.sub(" ", text)).split())
    return said or f"the sign-in to {args.server} failed (HTTP {status})"


def _login_alone(args: Namespace) -> int:
    """Sign in without a running gateway: serve that one server here for as long as it takes."""
    import anyio

    from gateway.upstream.credentials import SignInFailed

    config, folder = _config_of(args), state_dir(args)
    codes: list[int] = []

    async def run() -> None:
        from gateway.serving.over_http import serve

        async with anyio.create_task_group() as group:

            async def ready(gateway: Gateway, url: str) -> None:
                sign_in = gateway.sign_ins.of(args.server, gateway.config.servers[args.server], user=args.user)
                if sign_in is None:
                    raise NotReached(f"nobody signs in to {args.server}: it has credentials of its own")
                await gateway.fleet.settled(10)
                if args.status:
                    from gateway.admin import rows

                    codes.append(
                        _show_status(args, rows.server_row(gateway.fleet, gateway.registry.catalog, args.server))
                    )
                else:
                    before = sign_in.row()["since"]
                    try:
                        link = (await sign_in.begin()).url
                    except SignInFailed as error:
                        raise NotReached(str(error)) from None

                    def give(query: str) -> str | None:
                        return _failure(*page_at(url, f"{_CALLBACK}?{query}"), args=args)

                    def is_signed_in() -> bool:
                        since = sign_in.row()["since"]
                        return since is not None and since != before

                    codes.append(await anyio.to_thread.run_sync(_wait, args, link, is_signed_in, give))
                group.cancel_scope.cancel()

            await serve(config, host="127.0.0.1", port=0, state_dir=folder, on_ready=ready)

    anyio.run(run)
    return codes[0] if codes else 1


def _logout_alone(args: Namespace) -> int:
    import anyio

    config, folder = _config_of(args), state_dir(args)

    async def run() -> bool:
        from gateway.app import open_gateway

        async with open_gateway(config, state_dir=None, sign_in_dir=folder) as gateway:
            sign_in = gateway.sign_ins.of(args.server, config.servers[args.server], user=args.user)
            return sign_in is not None and await gateway.sign_ins.sign_out(sign_in)

    return _tell_ended(args, was_signed_in=anyio.run(run))


def _config_of(args: Namespace) -> Any:
    from gateway.config.load import load

    path: Path = args.config
    config = load(path, added=added_over(path, state_dir(args)))
    if args.server not in config.servers:
        known = ", ".join(config.servers) or "none"
        raise UsageError(f"{path} has no server {args.server}; expected one of: {known}")
    only = {args.server: config.servers[args.server]}
    is_own = only[args.server].per_user and config.gateway.auth.required
    if is_own != bool(args.user):
        raise UsageError(
            f"each caller signs in to {args.server} for itself: say --user NAME" if is_own
            else f"all callers share the sign-in to {args.server}: leave --user out"
        )  # fmt: skip
    gateway = config.gateway.model_copy(update={"hooks": [], "profiles": {}, "groups": {}, "public_url": None})
    return replace(config, servers=only, left_out={}, gateway=gateway, path=None)
