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

CHAIN_VARIABLE: Final = "TYPEGATE_CONFIG_CHAIN"
"""The configurations that are being served above a process that a gateway has started, outermost first."""
# Gateways behind gateways that somebody meant: more is a circle that changes its name on the way.
_LONGEST_CHAIN: Final = 8
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


def check_chain(path: Path, environ: Mapping[str, str]) -> None:
    """Refuse to serve a configuration below itself.

    Raises:
        ConfigError: A gateway that serves it has started this process, by way of its servers.
    """
    above = _chain(environ)
    if str(path.resolve()) in above:
        what = "one of its servers leads back to itself: it is being served by the gateway that has started this one"
        raise ConfigError(f"{what}; expected no entry that starts typegate with this file", file=str(path))
    if len(above) >= _LONGEST_CHAIN:
        what = f"{len(above)} gateways have started one another; expected at most {_LONGEST_CHAIN}"
        raise ConfigError(what, file=str(path))


def chain_with(path: Path, environ: Mapping[str, str]) -> str:
    """What the variable is to hold for processes that the gateway of this configuration starts."""
    return os.pathsep.join([*_chain(environ), str(path.resolve())])


def _chain(environ: Mapping[str, str]) -> list[str]:
    return [one for one in environ.get(CHAIN_VARIABLE, "").split(os.pathsep) if one]


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
            yield (Path(cwd) if cwd is not None else Path()).joinpath(Path(named).expanduser())


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
