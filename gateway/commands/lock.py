"""`typegate lock`, `diff` and `approve`: what servers list, against what was approved."""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gateway.commands import output
from gateway.commands.admin_client import admin_change, admin_document
from gateway.commands.locations import NotReached, added_over, state_dir
from gateway.commands.running import from_running
from gateway.errors import GatewayError
from registry.catalog.names import NAME_SEPARATOR

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.config.model import Config

Answer = TypeVar("Answer")


# As many as `approve --digest` takes, at least.
_DIGEST_CHARS: Final = 16


class Refused(GatewayError):
    """Nothing was approved. Exit code 1."""


def lock(args: Namespace) -> int:
    """Write the lock file; exit code 1 if a server could not be asked.

    Raises:
        ConfigError: The configuration or the lock file cannot be used.
        NotReached: No gateway answers, or it cannot write the file.
    """
    missing: list[str] = []
    if args.config is None:
        done = from_running(args, lambda url, token: admin_change(url, "/admin/changes", token, {"all": True}))
        approved, path = done["approved"], done["file"]
    else:
        approved, missing, path = _connected(args, _lock_all)
    if args.json:
        output.as_json({"file": path, "servers": approved, "notReached": missing})
    else:
        output.say(f"{path}: {len(approved)} server{'' if len(approved) == 1 else 's'} locked")
    for alias in missing:
        output.say(f"{alias}: not reached; what was approved of it before stays in the file")
    return int(bool(missing))


def diff(args: Namespace) -> int:
    """Show every change by class, with what was and what is.

    Raises:
        ConfigError: The configuration or the lock file cannot be used.
    """
    found = changes(args)
    rows = [row for row in found["changes"] if args.server in (None, row["server"])]
    if args.json:
        output.as_json({**found, "changes": rows})
    else:
        if found["file"] is None:
            output.say("there is no lock file; `typegate lock` writes one")
        elif not rows and not found.get("notReached"):
            output.say(f"nothing has changed since {found['file']} was written")
        show(rows)
    for text in found.get("warnings", ()):
        output.say(f"warning: {text}")
    return int(bool(found.get("notReached")))


def approve(args: Namespace) -> int:
    """Take what a server lists now into the lock file.

    Raises:
        ConfigError: The configuration or the lock file cannot be used.
        NotReached: There is nothing like that to approve, or the file cannot be written.
    """
    server, _, item = args.name.partition(NAME_SEPARATOR)

    def shown(rows: list[dict[str, Any]]) -> list[str]:
        """Show what is about to be approved, unless that was done before; returns the digests of it."""
        if args.digests is not None:
            digests: list[str] = args.digests
            return digests
        found = [row for row in rows if row["server"] == server and (not item or item in (row["name"], row["was"]))]
        found = [row for row in found if args.classes is None or {*row["classes"]} <= {*args.classes}]
        if not args.json:
            show(found)
        return [row["digest"] for row in found]

    if args.config is None:
        digests = shown(changes(args)["changes"])
        body = {"server": server, "name": item or None, "classes": args.classes, "digests": digests}
        body = {key: value for key, value in body.items() if value is not None}
        done = from_running(args, lambda url, token: admin_change(url, "/admin/changes", token, body))
    else:
        done = _connected(args, lambda gateway, _: _approve_one(gateway, server, item or None, args.classes, shown))
    if args.json:
        output.as_json(done)
    else:
        for name in done["approved"]:
            output.say(f"{name}: approved")
        if not done["approved"] and not done["left"]:
            output.say(f"{args.name}: nothing has changed")
    for name in done["left"]:
        output.say(f"{name}: not approved, because it has changed in other ways too: `typegate diff {server}`")
    return int(bool(done["left"]))


def changes(args: Namespace) -> dict[str, Any]:
    """Every change of a running gateway's servers, or of those of a configuration: `file`, `changes`, `notReached`."""
    if args.config is None:
        found = from_running(args, lambda url, token: admin_document(url, "/admin/changes", token))
        if not isinstance(found, dict) or not isinstance(found.get("changes"), list):
            raise NotReached("the gateway answered with no changes; is that a typegate gateway?")
        return found
    return _connected(args, changes_of)


def changes_of(gateway: Gateway, missing: list[str]) -> dict[str, Any]:
    """The changes of a gateway whose servers were asked, as `/admin/changes` shows them."""
    kept = gateway.lock
    known = kept.lockfile.servers if kept.lockfile is not None else {}
    strays = [alias for alias in known if alias not in gateway.fleet.servers and alias not in gateway.fleet.left_out]
    path = str(kept.path) if kept.lockfile is not None else None
    return {
        "file": path,
        "changes": kept.rows(),
        "notReached": missing,
        "strays": strays,
        "warnings": [
            *kept.notes,
            *(f"{alias}: not reached, so that nothing is known of its changes" for alias in missing),
            *(
                f"{alias}: the lock file has it, the configuration has not: `typegate lock` drops it"
                for alias in strays
            ),
        ],
    }


def drift(found: dict[str, Any]) -> list[str]:
    """What a frozen check fails on, in words: every change that is not accepted, and entries of unknown servers."""
    told = [
        f"{row['wrapper']}: {row['state']}: {', '.join(row['classes'])}"
        for row in found["changes"]
        if row["state"] != "accepted"
    ]
    return [*told, *(f"{alias}: it is in the lock file only" for alias in found["strays"])]


def show(rows: Iterable[dict[str, Any]]) -> None:
    """Print changes for people."""
    for row in rows:
        named = f"{row['was']} -> {row['wrapper']}" if row["was"] is not None else row["wrapper"]
        output.text(f"{named}  [{', '.join(row['classes'])}]  {row['state']}  {row['digest'][:_DIGEST_CHARS]}")
        for line in row["difference"]:
            output.text(f"    {line}")
        if row["advice"]:
            output.text(f"    ! {row['advice']}")


def _lock_all(gateway: Gateway, missing: list[str]) -> tuple[list[str], list[str], str]:
    from gateway.lock.listing_lock import NotApproved

    try:
        approved = gateway.lock.approve_all([*gateway.fleet.servers, *gateway.fleet.left_out])
    except NotApproved as error:
        raise Refused(str(error)) from None
    _say_notes(gateway)
    return approved, missing, str(gateway.lock.path)


def _approve_one(
    gateway: Gateway, server: str, item: str | None, classes: Any, shown: Callable[[list[dict[str, Any]]], list[str]]
) -> dict[str, Any]:
    from gateway.lock.listing_lock import NotApproved

    link = gateway.fleet.links.get(server)
    if link is None:
        known = ", ".join(gateway.fleet.links) or "none"
        raise Refused(f"there is no server '{server}'; expected one of: {known}")
    try:
        digests = shown(gateway.lock.rows())
        approved, left = gateway.lock.approve(server, item=item, classes=classes, digests=digests)
    except NotApproved as error:
        raise Refused(f"{error}{f' ({link.last_error})' if link.last_error else ''}") from None
    _say_notes(gateway)
    return {"file": str(gateway.lock.path), "approved": approved, "left": left}


def _say_notes(gateway: Gateway) -> None:
    for note in gateway.lock.notes:
        output.say(f"warning: {note}")


def _connected(args: Namespace, use: Callable[[Gateway, list[str]], Answer]) -> Answer:
    """Start the gateway of a configuration without serving it, and use it once every server was asked.

    Args:
        args: With a configuration, and a state directory for the snapshot.
        use: Given the gateway, and the servers that did not list anything.
    """
    import anyio

    from gateway.config.load import load
    from gateway.telemetry import logs

    folder = state_dir(args)
    config: Config = load(args.config, added=added_over(args.config))
    output.warn_of(config)
    # What servers have changed is told by the command itself.
    logs.start(logging.ERROR)
    logging.getLogger("gateway.fleet").setLevel(logging.CRITICAL)

    async def run() -> Answer:
        from gateway.app import open_gateway
        from gateway.commands.first_contact import until_settled

        async with open_gateway(config, state_dir=None, sign_in_dir=folder, leaves_snapshot_in=folder) as gateway:
            await until_settled(gateway, say=lambda text: None)
            missing = [alias for alias in gateway.fleet.servers if gateway.lock.listing_of(alias) is None]
            for alias in missing:
                output.say(f"{alias}: {gateway.fleet.links[alias].last_error or 'nothing was listed in time'}")
            return use(gateway, missing)

    return anyio.run(run, backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})
