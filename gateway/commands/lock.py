"""`typegate lock`, `diff` and `approve`."""

from __future__ import annotations

import getpass
import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gateway.commands import output
from gateway.commands.admin_client import (
    NotReached,
    ask_running_gateway,
    load_added_names,
    post_admin,
    request_admin,
    state_dir,
)
from gateway.protocol.gateway_errors import GatewayError
from registry.catalog.names import NAME_SEPARATOR

if TYPE_CHECKING:
    from gateway.config.model import Config
    from gateway.serving.app import Gateway

Answer = TypeVar("Answer")
# `approve --digest` requires at least this many characters.
_DIGEST_CHARS: Final = 16


class Refused(GatewayError):
    """The approval was refused. Exit code 1."""


def lock(args: Namespace) -> int:
    """Write the lock file; exit code 1 if a server was not reached.

    Raises:
        ConfigError: The configuration or the lock file cannot be used.
        NotReached: No gateway answers, or it cannot write the file.
    """
    missing: list[str] = []
    if args.config is None:
        done = ask_running_gateway(args, lambda url, token: post_admin(url, "/admin/changes", token, {"all": True}))
        approved, path = done["approved"], done["file"]
    else:
        approved, missing, path = _run_connected(args, _lock_all)
    if args.json:
        output.print_json({"file": path, "servers": approved, "notReached": missing})
    else:
        output.say(f"{path}: {len(approved)} server{'' if len(approved) == 1 else 's'} locked")
    for alias in missing:
        output.say(f"{alias}: not reached; its previous approvals stay in the file")
    return int(bool(missing))


def diff(args: Namespace) -> int:
    """Show every change by class, with the old and the new text.

    Raises:
        ConfigError: The configuration or the lock file cannot be used.
    """
    report = changes(args)
    rows = [row for row in report["changes"] if args.server in (None, row["server"])]
    if args.json:
        output.print_json({**report, "changes": rows})
    else:
        if report["file"] is None:
            output.say("there is no lock file; `typegate lock` writes one")
        elif not rows and not report.get("notReached"):
            output.say(f"nothing has changed since {report['file']} was written")
        show(rows)
    for text in report.get("warnings", ()):
        output.say(f"warning: {text}")
    return int(bool(report.get("notReached")))


def approve(args: Namespace) -> int:
    """Approve the current definitions of a server, or of one of its items, in the lock file.

    Raises:
        ConfigError: The configuration or the lock file cannot be used.
        NotReached: The item is unknown, or the file cannot be written.
    """
    server, _, item = args.name.partition(NAME_SEPARATOR)

    def digests_to_approve(rows: list[dict[str, Any]]) -> list[str]:
        """Show the changes to approve and return their digests, or return the digests from the command line."""
        if args.digests is not None:
            digests: list[str] = args.digests
            return digests
        selected = [row for row in rows if row["server"] == server and (not item or item in (row["name"], row["was"]))]
        selected = [row for row in selected if args.classes is None or {*row["classes"]} <= {*args.classes}]
        if not args.json:
            show(selected)
        return [row["digest"] for row in selected]

    if args.config is None:
        digests = digests_to_approve(changes(args)["changes"])
        body = {"server": server, "name": item or None, "classes": args.classes, "digests": digests}
        body = {key: value for key, value in body.items() if value is not None}
        done = ask_running_gateway(args, lambda url, token: post_admin(url, "/admin/changes", token, body))
    else:
        done = _run_connected(
            args, lambda gateway, _: _approve_one(gateway, server, item or None, args.classes, digests_to_approve)
        )
    if args.json:
        output.print_json(done)
    else:
        for name in done["approved"]:
            output.say(f"{name}: approved")
        if not done["approved"] and not done["left"]:
            output.say(f"{args.name}: nothing has changed")
    for name in done["left"]:
        output.say(f"{name}: not approved, because it has changes of other classes: `typegate diff {server}`")
    return int(bool(done["left"]))


def changes(args: Namespace) -> dict[str, Any]:
    """Return `file`, `changes` and `notReached` for a running gateway or a configuration."""
    if args.config is None:
        report = ask_running_gateway(args, lambda url, token: request_admin(url, "/admin/changes", token))
        if not isinstance(report, dict) or not isinstance(report.get("changes"), list):
            raise NotReached("the answer contains no list of changes; is that a typegate gateway?")
        return report
    return _run_connected(args, collect_changes)


def collect_changes(gateway: Gateway, missing: list[str]) -> dict[str, Any]:
    """Return the changes of a gateway in the form of `/admin/changes`.

    Args:
        missing: The servers that listed nothing.
    """
    listing_lock = gateway.lock
    locked_servers = listing_lock.lockfile.servers if listing_lock.lockfile is not None else {}
    strays = [
        alias for alias in locked_servers if alias not in gateway.fleet.servers and alias not in gateway.fleet.left_out
    ]
    path = str(listing_lock.path) if listing_lock.lockfile is not None else None
    return {
        "file": path,
        "changes": listing_lock.rows(),
        "notReached": missing,
        "strays": strays,
        "warnings": [
            *listing_lock.notes,
            *(f"{alias}: not reached, so its changes are unknown" for alias in missing),
            *(
                f"{alias}: in the lock file, but not in the configuration: `typegate lock` removes it"
                for alias in strays
            ),
        ],
    }


def describe_drift(report: dict[str, Any]) -> list[str]:
    """Describe what makes `check --frozen` fail: unaccepted changes, and lock entries of unknown servers."""
    unaccepted = [
        f"{row['wrapper']}: {row['state']}: {', '.join(row['classes'])}"
        for row in report["changes"]
        if row["state"] != "accepted"
    ]
    return [*unaccepted, *(f"{alias}: only in the lock file" for alias in report["strays"])]


def show(rows: Iterable[dict[str, Any]]) -> None:
    """Print changes in a readable form."""
    for row in rows:
        label = f"{row['was']} -> {row['wrapper']}" if row["was"] is not None else row["wrapper"]
        output.print_text(f"{label}  [{', '.join(row['classes'])}]  {row['state']}  {row['digest'][:_DIGEST_CHARS]}")
        for line in row["difference"]:
            output.print_text(f"    {line}")
        for flag in row["flags"] if row["flagged"] else ():
            output.print_text(f"    ! {flag['code'].replace('_', ' ')} in {flag['where']}: {flag['quoted']}")
        if row["advice"]:
            output.print_text(f"    ! {row['advice']}")


def _lock_all(gateway: Gateway, missing: list[str]) -> tuple[list[str], list[str], str]:
    from gateway.fleet.listing_lock import NotApproved

    try:
        approved = gateway.lock.approve_all([*gateway.fleet.servers, *gateway.fleet.left_out], by=_user())
    except NotApproved as error:
        raise Refused(str(error)) from None
    _say_notes(gateway)
    return approved, missing, str(gateway.lock.path)


def _approve_one(
    gateway: Gateway,
    server: str,
    item: str | None,
    classes: Any,
    select_digests: Callable[[list[dict[str, Any]]], list[str]],
) -> dict[str, Any]:
    from gateway.fleet.listing_lock import NotApproved

    link = gateway.fleet.links.get(server)
    if link is None:
        aliases = ", ".join(gateway.fleet.links) or "none"
        raise Refused(f"there is no server '{server}'; expected one of: {aliases}")
    try:
        digests = select_digests(gateway.lock.rows())
        approved, remaining = gateway.lock.approve(server, item=item, classes=classes, digests=digests, by=_user())
    except NotApproved as error:
        raise Refused(f"{error}{f' ({link.last_error})' if link.last_error else ''}") from None
    _say_notes(gateway)
    return {"file": str(gateway.lock.path), "approved": approved, "left": remaining}


def _user() -> str:
    """Return the name of the operating system's user, for the history of decisions."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"  # the user id of a container may have no name


def _say_notes(gateway: Gateway) -> None:
    for note in gateway.lock.notes:
        output.say(f"warning: {note}")


def _run_connected(args: Namespace, use: Callable[[Gateway, list[str]], Answer]) -> Answer:
    """Connect to the servers of a configuration without serving it, and call `use` once each has listed or failed.

    Args:
        args: The arguments, which name the configuration and the state directory.
        use: Receives the gateway and the servers that listed nothing.
    """
    import anyio

    from gateway.config.load import load
    from gateway.telemetry import logs

    folder = state_dir(args)
    config: Config = load(args.config, added=load_added_names(args.config))
    output.warn_about(config)
    # The command itself reports the changes, so silence the log messages about them.
    logs.start(logging.ERROR)
    logging.getLogger("gateway.fleet").setLevel(logging.CRITICAL)

    async def run() -> Answer:
        from gateway.commands.first_contact import wait_until_settled
        from gateway.serving.app import BorrowedState, open_gateway

        borrowed = BorrowedState(sign_in_dir=folder, snapshot_dir=folder, decisions_dir=folder)
        async with open_gateway(config, state_dir=None, borrowed=borrowed) as gateway:
            await wait_until_settled(gateway, say=lambda text: None)
            missing = [alias for alias in gateway.fleet.servers if gateway.lock.listing_of(alias) is None]
            for alias in missing:
                output.say(f"{alias}: {gateway.fleet.links[alias].last_error or 'the server listed nothing in time'}")
            return use(gateway, missing)

    return anyio.run(run, backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})
