"""`typegate import`, `install` and `uninstall`."""

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
from gateway.commands.admin_client import UsageError, load_added_names, state_dir
from gateway.commands.first_contact import store_first_listings
from gateway.config.launch_identity import is_loop
from gateway.config.load import parse
from gateway.config.source import read
from gateway.config.upstream_types.registration import read_server
from gateway.config.variables import input_defaults, workspace_of
from gateway.onboarding import installing
from gateway.onboarding.host_file_edits import (
    FileChange,
    Installations,
    back_up,
    edit_entries,
    parse_values,
    plan_edit,
)
from gateway.onboarding.host_files import (
    HOSTS,
    ConvertedEntry,
    HostContext,
    HostFile,
    Machine,
    collect_settings,
    convert_entry,
    find_blocks,
    find_host,
)
from gateway.onboarding.installing import config_entry, is_gateway_entry, plan_installation, read_text, url_entry
from gateway.process.files import make_private_folder, write_whole
from gateway.process.secrets import SECRETS
from gateway.protocol.gateway_errors import ConfigError, GatewayError

_SECRETS = "secrets"


class NotConfirmed(GatewayError):
    """The user did not confirm a change of a file. Exit code 1."""


class _AnyVariable(dict[str, str]):
    """An environment in which every variable is set."""

    def __contains__(self, name: object) -> bool:
        return True

    def get(self, name: str, default: Any = None) -> Any:
        return "set"

    def __missing__(self, name: str) -> str:
        return "set"


@dataclass(slots=True)
class SecretFiles:
    """Secrets to store in files that the configuration refers to. Nothing is stored before `write`."""

    folder: Path
    values: dict[str, str] = field(default_factory=dict)

    def reference(self, alias: str, name: str, value: str) -> str:
        """Add a secret, and return the configuration text that refers to it."""
        SECRETS.hide([value])
        if os.environ.get(name) == value:
            # An environment variable already contains the secret, so refer to the variable instead of a file.
            return f"${{{name}}}"
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", f"{alias}-{name}")
        file = plain
        number = 2
        while self.values.get(file, value) != value:
            file, number = f"{plain}-{number}", number + 1
        self.values[file] = value
        return f"${{file:{self.folder / file}}}"

    def write(self) -> None:
        """Write the files, readable only by this user."""
        if self.values:
            make_private_folder(self.folder)
        for file, value in self.values.items():
            write_whole(self.folder / file, value.encode())


def import_servers(args: Namespace) -> int:
    """Import the servers of a host's file into the configuration.

    Raises:
        UsageError: The host or the file does not exist.
        ConfigError: A file cannot be used.
        Refused: The configuration was changed concurrently.
    """
    if args.config is None:
        raise UsageError("import needs the configuration to write to; expected --config FILE")
    host = find_host(args.source) if not Path(args.source).is_file() else None
    path = _host_file(host, args) if host is not None else Path(args.source)
    if not path.is_file():
        if host is None:
            raise UsageError(f"{args.source!r} is neither a file nor a host; expected a file or one of: {_names()}")
        raise UsageError(f"{host.title} has no file at {path}")
    secret_files = SecretFiles(state_dir(args).absolute() / _SECRETS)
    root = parse_values(read_text(path), path)
    converted = [
        convert_entry(
            name,
            entry,
            words,
            secret_files.reference,
            HostContext(
                workspace=_workspace(keys, path, host, args),
                inputs=input_defaults(root),
                settings=collect_settings(keys, path, root, host, machine=Machine.current()),
            ),
        )
        for keys, words, entries in find_blocks(root, host)
        for name, entry in entries.items()
        if isinstance(entry, dict)
    ]
    if not converted:
        output.say(f"{path}: contains no servers")
        return 0
    ours = parse_values(read_text(args.config), args.config) if args.config.is_file() else {}
    block = "servers" if isinstance(ours.get("servers"), dict) else "mcpServers"
    added = _select_new(converted, ours.get(block) or {}, args.config)
    if not added:
        return 0
    change = plan_edit(args.config, lambda text: edit_entries(text, args.config, (block,), added))
    if not confirm_change(change, args):
        return 0
    backup = back_up(state_dir(args), change)
    secret_files.write()
    change.apply()
    output.say(f"{args.config}: {len(added)} server{'' if len(added) == 1 else 's'} imported from {path}")
    if backup is not None:
        output.say(f"backup: {backup}")
    _report_left_out(args.config, added)
    if not args.no_check:
        store_first_listings(args.config, state_dir(args), say=output.say, only=added)
    return 0


def install(args: Namespace) -> int:
    """Add the gateway to a host's file.

    Raises:
        UsageError: The host is unknown, or neither a configuration nor an address is given.
        ConfigError: A file cannot be used.
        Refused: The file was changed concurrently, or must not be written.
    """
    host, path = _host_and_file(args)
    if (args.config is None) == (args.url is None):
        raise UsageError("install needs a configuration or an address; expected --config FILE or --url URL")
    # Treat every variable as set: the variables may be set only where the host starts the gateway.
    config = None
    if args.config is not None:
        added = load_added_names(args.config, state_dir(args))
        config = parse(read(args.config), path=args.config, environ=_AnyVariable(), added=added)
    entry = url_entry(host, args.url) if args.url is not None else config_entry(host, args.config, args.state_dir)
    planned = plan_installation(host, path, entry, name=args.name, config=config, keep=args.keep)
    for name in () if args.keep else planned.kept:
        advice = f"to replace it, run `typegate import {host.name} --config FILE` first"
        if args.url is not None:
            advice = f"if {args.url} serves it too, remove it from {path}"
        output.say(f"{name}: stays in the host's file; {advice}")
    if not planned.change.is_needed:
        output.say(f"{path}: already contains the gateway")
        return 0
    if not confirm_change(planned.change, args):
        return 0
    backup = planned.apply(Installations(state_dir(args)))
    output.say(f"{path}: written; restart {host.title}")
    output.say(f"backup: {backup}; `typegate uninstall {args.host}` restores it")
    if args.config is not None and not args.no_check:
        store_first_listings(args.config, state_dir(args), say=output.say)
    return 0


def uninstall(args: Namespace) -> int:
    """Restore a host's file as it was before `install`.

    Raises:
        UsageError: The host is unknown.
        Refused: The gateway was not installed, or the file has changed since.
    """
    host, path = _host_and_file(args)
    done = installing.uninstall(host, path, Installations(state_dir(args)), force=args.force)
    output.say(f"{path}: {done}")
    return 0


def _workspace(keys: Sequence[str], path: Path, host: HostFile | None, args: Namespace) -> Path | None:
    """Return the project folder that a host has open when it starts the servers; None if the folder varies."""
    if keys[0] == "projects":
        return Path(keys[1])
    is_of_user = host is not None and args.project is None
    return None if is_of_user else workspace_of(path.parent)


def _names() -> str:
    return ", ".join(host.name for host in HOSTS)


def _host_and_file(args: Namespace) -> tuple[HostFile, Path]:
    host = find_host(args.host)
    if host is None:
        raise UsageError(f"{args.host!r} is not a known host; expected one of: {_names()}")
    return host, args.file if args.file is not None else _host_file(host, args)


def _host_file(host: HostFile, args: Namespace) -> Path:
    path = host.file(Machine.current(), args.project)
    if path is None:
        raise UsageError(f"--project: {host.title} has no project files")
    return path


def _select_new(servers: list[ConvertedEntry], configured: Mapping[str, Any], config: Path) -> dict[str, Any]:
    """Return the entries to import, and report why the others are skipped."""
    selected: dict[str, Any] = {}
    for server in servers:
        if _is_gateway(server.entry, config):
            output.say(f"{server.written}: skipped, it is typegate itself")
            continue
        if server.alias in configured or server.alias in selected:
            same = (configured.get(server.alias) or selected.get(server.alias)) == server.entry
            why = "it is already configured" if same else "another server has this name"
            output.say(f"{server.written}: skipped, {why}")
            continue
        if server.refused:
            output.say(f"{server.written}: left out, {server.refused}")
            continue
        try:
            read_server(server.entry)
        except ValidationError as error:
            output.say(f"{server.written}: skipped, {error.errors()[0]['msg']}")
            continue
        if server.alias != server.written:
            output.say(f"{server.written}: imported as {server.alias}")
        for note in server.notes:
            output.say(f"{server.written}: {note}")
        selected[server.alias] = server.entry
    return selected


def _is_gateway(entry: Mapping[str, Any], config: Path) -> bool:
    command, args, cwd = entry.get("command"), entry.get("args") or [], entry.get("cwd")
    if not isinstance(command, str) or not all(isinstance(arg, str) for arg in args):
        return False
    return is_gateway_entry(entry) or is_loop(command, args, cwd=cwd if isinstance(cwd, str) else None, path=config)


def confirm_change(change: FileChange, args: Namespace) -> bool:
    """Show the difference, and return true if the file should be written.

    `--dry-run` and `--yes` decide without a question; otherwise the user is asked.

    Raises:
        NotConfirmed: The user cannot be asked, because standard input or output is not a terminal.
    """
    try:
        print(change.difference(), flush=True)
    except BrokenPipeError:
        # The reader of the output, such as `head`, has ended. With --yes, the change is already confirmed.
        if not args.yes:
            raise
        output.discard_output()
    if args.dry_run:
        return False
    if args.yes:
        return True
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NotConfirmed(
            f"{change.path} was not written, because standard input or output is not a terminal to ask for "
            "confirmation; add --yes to write it"
        )
    if ask_user(f"Write {change.path}? [y/N] ").strip().lower() in ("y", "yes"):
        return True
    output.say("nothing was written")
    return False


def ask_user(question: str, *, secret: bool = False) -> str:
    """Ask a question on the terminal, and return the answer; a secret is not echoed.

    Raises:
        NotConfirmed: The input has ended, for example with Ctrl-D.
    """
    try:
        return getpass.getpass(question) if secret else input(question)
    except EOFError:
        print()
        raise NotConfirmed("the question was not answered, so nothing was written") from None


def _report_left_out(path: Path, added: Mapping[str, Any]) -> None:
    """Report why the gateway would leave out imported servers."""
    try:
        config = parse(read(path), path=path, added=load_added_names(path))
    except ConfigError as error:
        output.say(str(error))
        return
    for alias in added:
        if alias in config.left_out and config.left_out[alias].faulty:
            output.say(f"{alias}: {config.left_out[alias].reason}")
