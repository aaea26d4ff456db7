"""`typegate import`, `install` and `uninstall`: servers of hosts come in, the gateway goes into the files of hosts."""

from __future__ import annotations

import getpass
import os
import re
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway.commands import output
from gateway.commands.first_contact import leave_snapshot
from gateway.commands.locations import UsageError, added_over, state_dir
from gateway.config.leads_back import leads_back
from gateway.config.load import parse
from gateway.config.source import read
from gateway.config.upstream_types.registration import read_server
from gateway.config.variables import input_defaults, workspace_of
from gateway.errors import ConfigError, GatewayError
from gateway.files import make_private_folder, write_whole
from gateway.host_files import installing
from gateway.host_files.changes import FileChange, Installations, change_of, keep_backup
from gateway.host_files.entries import Adopted, adopt, blocks_in
from gateway.host_files.hosts import HOSTS, HostFile, Machine, host_named, settings_of
from gateway.host_files.installing import config_entry, installation, is_ours, text_of, url_entry
from gateway.host_files.text import values_of, with_entries
from gateway.secrets import SECRETS

_SECRETS = "secrets"


class NotConfirmed(GatewayError):
    """Nobody has agreed to a change of a file. Exit code 1."""


class _Anything(dict[str, str]):
    """An environment in which everything is set."""

    def __contains__(self, name: object) -> bool:
        return True

    def get(self, name: str, default: Any = None) -> Any:
        """See `dict.get`."""
        return "set"

    def __missing__(self, name: str) -> str:
        return "set"


@dataclass(slots=True)
class Vault:
    """Files with secrets that are referred to; written only once the configuration is."""

    folder: Path
    values: dict[str, str] = field(default_factory=dict)

    def reference(self, alias: str, name: str, value: str) -> str:
        """Keep a secret, and return the text that stands for it."""
        SECRETS.hide([value])
        if os.environ.get(name) == value:
            # Set where the gateway would run as well: it is a variable already.
            return f"${{{name}}}"
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", f"{alias}-{name}")
        file = plain
        number = 2
        while self.values.get(file, value) != value:
            file, number = f"{plain}-{number}", number + 1
        self.values[file] = value
        return f"${{file:{self.folder / file}}}"

    def write(self) -> None:
        """Write the files, each for this user alone."""
        if self.values:
            make_private_folder(self.folder)
        for file, value in self.values.items():
            write_whole(self.folder / file, value.encode())


def import_servers(args: Namespace) -> int:
    """Take the servers of a host's file into the configuration.

    Raises:
        UsageError: There is no such host or file.
        ConfigError: A file cannot be used.
        Refused: The configuration has changed in the meantime.
    """
    if args.config is None:
        raise UsageError("import needs the file to write; expected --config FILE")
    host = host_named(args.source) if not Path(args.source).is_file() else None
    path = _host_file(host, args) if host is not None else Path(args.source)
    if not path.is_file():
        if host is None:
            raise UsageError(f"{args.source!r} is no file, and no host; expected one of: {_names()}")
        raise UsageError(f"{host.title} has no file at {path}")
    vault = Vault(state_dir(args).absolute() / _SECRETS)
    root = values_of(text_of(path), path)
    found = [
        adopt(
            name,
            entry,
            words,
            vault.reference,
            workspace=_workspace(keys, path, host, args),
            inputs=input_defaults(root),
            settings=settings_of(keys, path, root, host, machine=Machine.this()),
        )
        for keys, words, entries in blocks_in(root, host)
        for name, entry in entries.items()
        if isinstance(entry, dict)
    ]
    if not found:
        output.say(f"{path}: there are no servers in it")
        return 0
    ours = values_of(text_of(args.config), args.config) if args.config.is_file() else {}
    block = "servers" if isinstance(ours.get("servers"), dict) else "mcpServers"
    taken = _taken(found, ours.get(block) or {}, args.config)
    if not taken:
        return 0
    change = change_of(args.config, lambda text: with_entries(text, args.config, (block,), taken))
    if not agreed(change, args):
        return 0
    backup = keep_backup(state_dir(args), change)
    vault.write()
    change.make()
    output.say(f"{args.config}: {len(taken)} server{'' if len(taken) == 1 else 's'} taken in from {path}")
    if backup is not None:
        output.say(f"how it was: {backup}")
    _tell_faults(args.config, taken)
    if not args.no_check:
        leave_snapshot(args.config, state_dir(args), say=output.say, only=taken)
    return 0


def install(args: Namespace) -> int:
    """Put the gateway into a host's file.

    Raises:
        UsageError: There is no such host, or neither a configuration nor an address is given.
        ConfigError: A file cannot be used.
        Refused: It has changed in the meantime, or is never written.
    """
    host, path = _host_and_file(args)
    if (args.config is None) == (args.url is None):
        raise UsageError("install needs what to put in; expected --config FILE or --url URL")
    # What its variables stand for does not matter here: they may be set where the host starts the gateway.
    config = None
    if args.config is not None:
        added = added_over(args.config, state_dir(args))
        config = parse(read(args.config), path=args.config, environ=_Anything(), added=added)
    entry = url_entry(host, args.url) if args.url is not None else config_entry(host, args.config, args.state_dir)
    planned = installation(host, path, entry, name=args.name, config=config, keep=args.keep)
    for name in () if args.keep else planned.staying:
        output.say(f"{name}: stays in the file; `typegate import {host.name} --config FILE` takes it in first")
    if not planned.change.is_needed:
        output.say(f"{path}: the gateway is in it already")
        return 0
    if not agreed(planned.change, args):
        return 0
    backup = planned.make(Installations(state_dir(args)))
    output.say(f"{path}: written; {host.title} has to be started again")
    output.say(f"how it was: {backup}; `typegate uninstall {args.host}` restores it")
    if args.config is not None and not args.no_check:
        leave_snapshot(args.config, state_dir(args), say=output.say)
    return 0


def uninstall(args: Namespace) -> int:
    """Give a host its file back.

    Raises:
        UsageError: There is no such host.
        Refused: Nothing was installed, or the file has changed since.
    """
    host, path = _host_and_file(args)
    done = installing.uninstall(host, path, Installations(state_dir(args)), force=args.force)
    output.say(f"{path}: {done}")
    return 0


def _workspace(keys: Sequence[str], path: Path, host: HostFile | None, args: Namespace) -> Path | None:
    """Return the folder that a host has open where it uses the servers of a block; None where that differs."""
    if keys[0] == "projects":
        return Path(keys[1])
    is_of_user = host is not None and args.project is None
    return None if is_of_user else workspace_of(path.parent)


def _names() -> str:
    return ", ".join(host.name for host in HOSTS)


def _host_and_file(args: Namespace) -> tuple[HostFile, Path]:
    host = host_named(args.host)
    if host is None:
        raise UsageError(f"{args.host!r} is no host; expected one of: {_names()}")
    return host, args.file if args.file is not None else _host_file(host, args)


def _host_file(host: HostFile, args: Namespace) -> Path:
    path = host.file(Machine.this(), args.project)
    if path is None:
        raise UsageError(f"--project: {host.title} has no file in projects")
    return path


def _taken(found: list[Adopted], known: Mapping[str, Any], config: Path) -> dict[str, Any]:
    """The entries that are new; every other one is told with the reason."""
    taken: dict[str, Any] = {}
    for one in found:
        if _is_gateway(one.entry, config):
            output.say(f"{one.written}: skipped, it is typegate itself")
            continue
        if one.alias in known or one.alias in taken:
            same = (known.get(one.alias) or taken.get(one.alias)) == one.entry
            why = "it is there already" if same else "another one has this name"
            output.say(f"{one.written}: skipped, {why}")
            continue
        if one.refused:
            output.say(f"{one.written}: left out, {one.refused}")
            continue
        try:
            read_server(one.entry)
        except ValidationError as error:
            output.say(f"{one.written}: skipped, {error.errors()[0]['msg']}")
            continue
        if one.alias != one.written:
            output.say(f"{one.written}: is called {one.alias} here")
        for note in one.notes:
            output.say(f"{one.written}: {note}")
        taken[one.alias] = one.entry
    return taken


def _is_gateway(entry: Mapping[str, Any], config: Path) -> bool:
    command, args, cwd = entry.get("command"), entry.get("args") or [], entry.get("cwd")
    if not isinstance(command, str) or not all(isinstance(one, str) for one in args):
        return False
    return is_ours(entry) or leads_back(command, args, cwd=cwd if isinstance(cwd, str) else None, path=config)


def agreed(change: FileChange, args: Namespace) -> bool:
    """Show the difference and ask whether to write it.

    Returns:
        Whether to write; never with `--dry-run`, always with `--yes`.

    Raises:
        NotConfirmed: Nobody can be asked, because standard input or output is not a terminal.
    """
    print(change.difference())
    if args.dry_run:
        return False
    if args.yes:
        return True
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NotConfirmed(
            f"{change.path} was not written, because standard input or output is not a terminal where you could be "
            "asked; add --yes to write it"
        )
    if answer_to(f"Write {change.path}? [y/N] ").strip().lower() in ("y", "yes"):
        return True
    output.say("nothing was written")
    return False


def answer_to(question: str, *, secret: bool = False) -> str:
    """Ask a question on the terminal; a secret is not echoed.

    Raises:
        NotConfirmed: The input has ended, as with Ctrl-D.
    """
    try:
        return getpass.getpass(question) if secret else input(question)
    except EOFError:
        print()
        raise NotConfirmed("the question was not answered, so nothing was written") from None


def _tell_faults(path: Path, taken: Mapping[str, Any]) -> None:
    """Say what has to be done before a server that was taken in can be served."""
    try:
        config = parse(read(path), path=path, added=added_over(path))
    except ConfigError as error:
        output.say(str(error))
        return
    for alias in taken:
        if alias in config.left_out and config.left_out[alias].faulty:
            output.say(f"{alias}: {config.left_out[alias].reason}")
