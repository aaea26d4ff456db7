"""Recognise an entry that starts this program again with the configuration that it stands in.

A host's file names us as one of its servers. Served by us, each start would start the next one, without end.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from gateway.config.source import read, values
from gateway.errors import ConfigError
from gateway.files import expand_home

# Gateways behind gateways that somebody meant: more is a circle that changes its name on the way.
_LONGEST_CHAIN: Final = 8
# Several for each of those gateways: shells, package runners, interpreters.
_MOST_ANCESTORS: Final = 64
# typegate, typegate.exe, typegate@1.0, typegate==1.0
_PROGRAM: Final = re.compile(r"typegate(?:\.exe)?(?:\[[\w,]*\])?(?:(?:@|==)[\w.]+)?", re.IGNORECASE)
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash"})


def leads_back(command: str, args: Sequence[str], *, cwd: str | None, path: Path) -> bool:
    """Whether a program is this one, with the configuration at `path`, or with one that leads there.

    Args:
        command: The program.
        args: Its arguments.
        cwd: Where it starts.
        path: The configuration that it is an entry of.
    """
    seen: set[Path] = set()
    waiting = list(_served_by([command, *args], cwd))
    while waiting and len(seen) < _LONGEST_CHAIN:
        other = waiting.pop()
        if _same(other, path):
            return True
        if other not in seen:
            seen.add(other)
            waiting += _behind(other)
    return False


def check_ancestors(path: Path) -> None:
    """Refuse to serve a configuration below a gateway that serves it, whatever script or runner stands in between.

    Known of ancestors is what Linux tells; elsewhere only entries themselves are looked at.

    Raises:
        ConfigError: A gateway that serves it has started this process, by way of its servers.
    """
    above = [served for words, cwd in _ancestors() if _is_gateway(words) for served in _served_by(words, cwd)]
    if any(_same(one, path) for one in above):
        what = "one of its servers leads back to itself: it is being served by the gateway that has started this one"
        raise ConfigError(f"{what}; expected no entry that starts typegate with this file", file=str(path))
    if len(above) >= _LONGEST_CHAIN:
        what = f"{len(above)} gateways have started one another; expected at most {_LONGEST_CHAIN}"
        raise ConfigError(what, file=str(path))


def _ancestors() -> Iterator[tuple[list[str], str | None]]:
    """The command line of each process above this one, and its working directory; None where that is hidden."""
    pid = os.getppid()
    for _ in range(_MOST_ANCESTORS):
        try:
            folder = Path(f"/proc/{pid}")
            words = os.fsdecode((folder / "cmdline").read_bytes()).split("\0")[:-1]
            # The name of the program may hold anything but stands in parentheses.
            parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        try:
            yield words, os.readlink(folder / "cwd")
        except OSError:
            # A gateway does not let its servers see it; most of them start where it has started.
            yield words, None
        pid = parent


def _is_gateway(words: Sequence[str]) -> bool:
    """Whether this is the interpreter that runs a gateway, and not a shell or a runner that has started it."""
    program, *rest = words or [""]
    if Path(program).name.startswith("python"):
        while rest and rest[0].startswith("-") and rest[0] != "-m":
            rest = rest[1:]
        return rest[:2] == ["-m", "gateway"] or bool(rest and _PROGRAM.fullmatch(Path(rest[0]).name))
    return _PROGRAM.fullmatch(Path(program).name) is not None


def _served_by(words: Sequence[str], cwd: str | None) -> Iterator[Path]:
    """The configurations that a command line serves; none where it does not start this program."""
    if Path(words[0]).name in _SHELLS:
        try:
            words = [part for word in words for part in shlex.split(word)]
        except ValueError:
            return
    start = next((at for at, word in enumerate(words) if _PROGRAM.fullmatch(Path(word).name)), None)
    if start is None:
        start = next((at for at, pair in enumerate(pairwise(words)) if pair == ("-m", "gateway")), None)
    if start is None or not {"stdio", "serve"} & set(words[start:]):
        return
    rest = words[start:]
    for word, value in zip(rest, [*rest[1:], ""], strict=True):
        named = value if word == "--config" else word.removeprefix("--config=") if "--config=" in word else ""
        if named:
            yield (Path(cwd) if cwd is not None else Path()).joinpath(expand_home(named))


def _behind(path: Path) -> Iterator[Path]:
    """The configurations that entries of another one serve; it may be of any form."""
    try:
        root = values(read(path), file=str(path))
    except ConfigError:
        return
    for key in ("mcpServers", "servers"):
        block = root.get(key)
        for entry in block.values() if isinstance(block, dict) else ():
            if isinstance(entry, dict) and not entry.get("disabled"):
                yield from _of_entry(entry)


def _of_entry(entry: Mapping[str, Any]) -> Iterator[Path]:
    command, args, cwd = entry.get("command"), entry.get("args") or [], entry.get("cwd")
    if isinstance(command, str) and command and isinstance(args, list) and all(isinstance(one, str) for one in args):
        yield from _served_by([command, *args], cwd if isinstance(cwd, str) else None)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.absolute() == other.absolute()
