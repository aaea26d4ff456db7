"""Where the command line finds the state directory and the admin token; errors of usage."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import sys
import tempfile
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.access.admin_token import FILE_NAME, UntrustedFile, kept_token
from gateway.errors import GatewayError
from gateway.files import expand_home

if TYPE_CHECKING:
    from gateway.config.unmatched_rules import AddedNames


DEFAULT_CONFIGS: Final = ("mcp.yaml", "mcp.json", ".mcp.json")
"""Files in the working directory that are the configuration where none is named; the first one counts."""


class UsageError(GatewayError):
    """The command line cannot be used as given. Exit code 2."""


class NotReached(GatewayError):
    """A running gateway did not answer, or refused. Exit code 1."""


def default_config(args: Namespace) -> Path | None:
    """Return the configuration in the working directory for a command that was given none, if it uses one.

    Raises:
        UsageError: There is none, and the command cannot do without.
    """
    if not getattr(args, "uses_default_config", False) or getattr(args, "url", None) or getattr(args, "schema", False):
        return None
    found = next((path for name in DEFAULT_CONFIGS if (path := Path(name)).is_file()), None)
    if found is None:
        names = f"{', '.join(DEFAULT_CONFIGS[:-1])} and {DEFAULT_CONFIGS[-1]}"
        raise UsageError(f"no configuration: there is none of {names} in {Path.cwd()}; expected --config FILE")
    return found


def default_state_dir() -> Path:
    """TYPEGATE_STATE_DIR, or `typegate` where the system keeps the state of programs."""
    if chosen := os.environ.get("TYPEGATE_STATE_DIR"):
        return expand_home(chosen)
    # XDG Base Directory Specification: a relative path is to be ignored.
    base = os.environ.get("XDG_STATE_HOME", "")
    if Path(base).is_absolute():
        return Path(base) / "typegate"
    usual = expand_home("~/.local/state")
    return usual / "typegate" if usual.is_absolute() else _temporary_state_dir()


def _temporary_state_dir() -> Path:
    """The state directory of a user without a home: one of its own below the folder for temporary files.

    Raises:
        UsageError: Somebody else has made it.
    """
    # Windows has no such numbers, and a folder for temporary files for each user.
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    path = Path(tempfile.gettempdir()) / f"typegate-{user}"
    with suppress(FileNotFoundError):
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != user:
            raise UsageError(
                f"{path} is not a directory of this user, who has no home; expected --state-dir, or TYPEGATE_STATE_DIR"
            )
    return path


def state_dir(args: Namespace) -> Path:
    """The state directory that these arguments choose."""
    chosen: Path | None = args.state_dir
    return expand_home(chosen) if chosen is not None else default_state_dir()


def added_over(path: Path, folder: Path | None = None) -> AddedNames:
    """What administrators of the gateway that serves a configuration have added to it.

    Args:
        path: The file.
        folder: The state directory; None for the usual one.
    """
    from gateway.config.overlay import Overlay, added_names  # late: what needs no configuration starts sooner

    return added_names(Overlay(folder if folder is not None else default_state_dir(), path, writes=False).changes)


def admin_token(args: Namespace) -> str:
    """The administrator's token, from the environment or from where the gateway keeps it.

    Raises:
        UsageError: It is in neither place, or may be somebody else's.
    """
    if token := os.environ.get("TYPEGATE_ADMIN_TOKEN"):
        return token
    path = state_dir(args) / FILE_NAME
    try:
        if token := kept_token(path):
            return token
    except UntrustedFile as error:
        raise UsageError(str(error)) from None
    raise UsageError(
        f"no admin token in TYPEGATE_ADMIN_TOKEN or {path}; expected one of them, "
        "the --state-dir of the running gateway, or --config FILE to look without one"
    )


def program_command() -> str:
    """The command that starts this same program in another terminal."""
    running = Path(sys.argv[0])
    if running.name.removesuffix(".exe") == "typegate" and running.exists():
        found = shutil.which("typegate")
        # Another installation may come first on the PATH; the short name is right only where it is this one.
        if found and Path(found).resolve() == running.resolve():
            return "typegate"
        return shlex.quote(str(running.absolute()))
    return f"{shlex.quote(sys.executable)} -m gateway"
