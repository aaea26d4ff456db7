"""`typegate add`: a server from a registry, a package, a bundle or an address comes in with an exact version."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from gateway.commands import output
from gateway.commands.hosts import Vault, agreed, answer_to
from gateway.commands.locations import UsageError, added_over, state_dir
from gateway.config.edit import literal
from gateway.config.entries import sound_alias
from gateway.config.load import parse
from gateway.config.model import Config
from gateway.config.source import read
from gateway.errors import GatewayError
from gateway.host_files.changes import FileChange, change_of, keep_backup
from gateway.host_files.text import values_of, with_entries
from gateway.server_sources.bundles import bundle_proposal
from gateway.server_sources.mcp_registry import registry_proposal
from gateway.server_sources.packages import alias_of, npm_proposal, pypi_proposal
from gateway.server_sources.proposal import Input, Proposal

_BUNDLES = "bundles"
_SECRETS = "secrets"


class NotAdded(GatewayError):
    """The server does not work as it would be written. Exit code 1."""


def add(args: Namespace) -> int:
    """Resolve, show, ask, check, lock and write.

    Raises:
        UsageError: What is wanted cannot be told.
        SourceRefused: It is not there, or not to be trusted.
        NotAdded: It does not start, or lists nothing.
        ConfigError: The configuration cannot be used.
    """
    if args.config is None:
        raise UsageError("add needs the file to write; expected --config FILE")
    proposal = _proposal(args)
    alias = sound_alias(args.name) if args.name else proposal.alias
    ours = values_of(read(args.config), args.config) if args.config.is_file() else {}
    block = "servers" if isinstance(ours.get("servers"), dict) else "mcpServers"
    if alias in (ours.get(block) or {}):
        raise UsageError(f"there is a server '{alias}' already; expected another --name")
    vault = Vault(state_dir(args).absolute() / _SECRETS)
    given = _given(args.set)
    _show(proposal, alias)
    entry = _answered(proposal, alias, given, vault, asks=not args.yes and sys.stdin.isatty() and not args.dry_run)
    change = change_of(args.config, lambda text: with_entries(text, args.config, (block,), {alias: entry}))
    if not agreed(change, args):
        return 0
    vault.write()
    if not args.no_check:
        _check(change, alias, state_dir(args))
    keep_backup(state_dir(args), change)
    change.make()
    output.say(f"{args.config}: {alias} added")
    return 0


def _proposal(args: Namespace) -> Proposal:
    what, more = args.what, list(args.arguments)
    kind, _, rest = what.partition(":")
    folder = state_dir(args).absolute() / _BUNDLES
    if kind in ("npm", "pypi") and rest:
        return npm_proposal(rest, more) if kind == "npm" else pypi_proposal(rest, more)
    if what.partition("?")[0].endswith((".mcpb", ".dxt")):
        if "://" not in what and not Path(what).is_file():
            raise UsageError(f"there is no file {what}")
        return bundle_proposal(what, sha256=args.sha256, folder=lambda: folder)
    if kind in ("http", "https") and rest.startswith("//"):
        from urllib.parse import urlsplit

        name = _name_of_host(urlsplit(what).hostname or "")
        return Proposal(alias=alias_of(name), origin=what, entry={"type": "http", "url": literal(what)})
    if "://" in what or what.startswith((".", "/")):
        raise UsageError(f"{what!r} is nothing to add; expected NAME, npm:PACKAGE, pypi:PACKAGE, FILE.mcpb or a URL")
    return registry_proposal(what, base=args.registry, arguments=more, bundle_dir=lambda: folder)


def _name_of_host(host: str) -> str:
    """Return the telling part of a host's name; an address is no name, and a digit cannot begin one."""
    try:
        address = ip_address(host)
    except ValueError:
        parts = [part for part in host.split(".") if part not in ("www", "mcp", "api")]
        return parts[0] if parts else host
    return "localhost" if address.is_loopback else f"host-{re.sub('[.:]+', '-', host)}"


def _show(proposal: Proposal, alias: str) -> None:
    """Say what would run, before anything of it does."""
    entry = proposal.entry
    output.say(f"{alias}: {proposal.origin}")
    if "command" in entry:
        line = [str(entry["command"]), *map(str, entry.get("args", []))]
        output.say(f"runs: {' '.join(map(shlex.quote, line))}")
    else:
        output.say(f"connects to: {entry['url']}")
    for name in (*entry.get("env", {}), *entry.get("headers", {})):
        output.say(f"is given: {name}")
    output.warn(proposal.warnings)


def _given(pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {name!r} has no value; expected NAME=VALUE")
        found[name] = value
    return found


def _answered(proposal: Proposal, alias: str, given: Mapping[str, str], vault: Vault, *, asks: bool) -> dict[str, Any]:
    """The entry with a value, a reference or a default in place of each input."""
    known = {one.name for one in proposal.inputs}
    entry = proposal.entry
    for name in given:
        if name not in known:
            if "url" in entry:
                raise UsageError(f"--set {name}: it asks for {', '.join(sorted(known)) or 'nothing'}")
            # A variable that its publisher has not told of.
            entry = {**entry, "env": {**entry.get("env", {}), name: f"${{{name}}}"}}
    inputs = [*proposal.inputs, *(Input(name=name, secret=True) for name in given if name not in known)]
    stands_for: dict[str, str] = {}
    for one in inputs:
        value = given.get(one.name)
        if value is None and one.name in os.environ:
            continue
        if value is None and asks and (one.required or one.secret):
            question = f"{one.name}{f' ({one.about})' if one.about else ''}: "
            value = answer_to(question, secret=one.secret) or None
        if value is not None:
            stands_for[one.name] = vault.reference(alias, one.name, value) if one.secret else literal(value)
        elif one.default is not None:
            stands_for[one.name] = literal(one.default)
        elif not one.required:
            stands_for[one.name] = f"${{{one.name}:-}}"
        else:
            output.say(
                f"set the variable {one.name}{f': {one.about}' if one.about else ''}, or give --set {one.name}=…"
            )
    written: dict[str, Any] = _put_in(entry, {f"${{{name}}}": text for name, text in stands_for.items()})
    return written


def _put_in(value: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for placeholder, text in texts.items():
            value = value.replace(placeholder, text)
        return value
    if isinstance(value, list):
        return [_put_in(one, texts) for one in value]
    return {key: _put_in(one, texts) for key, one in value.items()} if isinstance(value, dict) else value


def _check(change: FileChange, alias: str, folder: Path) -> None:
    """Connect to the new server alone, without exposing it; and lock what it lists, where there is a lock file.

    Raises:
        NotAdded: It does not work.
        ConfigError: The changed configuration cannot be used.
    """
    import anyio

    from gateway.telemetry import logs

    config = parse(change.after.decode("utf-8"), path=change.path, added=added_over(change.path))
    if alias in config.left_out:
        raise NotAdded(f"{config.left_out[alias].reason}; --no-check writes it nevertheless")
    logs.start(logging.ERROR)
    logging.getLogger("gateway.fleet").setLevel(logging.CRITICAL)

    async def run() -> None:
        from gateway.admin.rows import flagged_rows
        from gateway.app import open_gateway
        from gateway.commands.first_contact import until_settled

        alone: Config = replace(config, servers={alias: config.servers[alias]})
        async with open_gateway(alone, state_dir=None, leaves_snapshot_in=folder) as gateway:
            await until_settled(gateway, say=output.say)
            if gateway.lock.listing_of(alias) is None:
                reason = gateway.fleet.links[alias].last_error or "nothing was listed in time"
                raise NotAdded(f"{alias}: {reason}; --no-check writes it nevertheless")
            for row in flagged_rows(gateway.registry.catalog):
                output.say(f"warning: {row['tool']}: its text seems to instruct a model: {row['detail']}")
            if gateway.lock.lockfile is not None:
                gateway.lock.approve(alias)
                output.say(f"{gateway.lock.path}: {alias} locked")

    try:
        anyio.run(run, backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})
    except BaseExceptionGroup as group:
        found = next((one for one in group.exceptions if isinstance(one, GatewayError)), None)
        if found is None:
            raise
        raise found from None
