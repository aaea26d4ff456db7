"""What would be written for a server: its entry, what it asks for, and what somebody should know before."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.errors import GatewayError

# Names as the registries allow them: nothing that a runner could take for an option, a path or a URL.
NPM_NAME: Final = re.compile(r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*", re.IGNORECASE)
PYPI_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
EXACT_VERSION: Final = re.compile(r"\d+[0-9A-Za-z.+!_-]*")
"""One version: no range, no tag, no address."""
IMAGE: Final = re.compile(
    r"[a-z0-9][a-z0-9._-]*(?::\d+)?(?:/[a-z0-9][a-z0-9._-]*)*(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?"
    r"(?:@sha256:[0-9a-f]{64})?"
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Of a text of a registry that is shown.
_MAX_NAME: Final = 214


class SourceRefused(GatewayError):
    """A server is not taken from where it was asked for; the text says why. Exit code 1."""


class SeveralFound(SourceRefused):
    """A word means several servers.

    Attributes:
        choices: Their names, each with what it is in the words of its publisher.
    """

    def __init__(self, message: str, choices: dict[str, str]) -> None:
        super().__init__(message)
        self.choices = choices


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A value that a server wants to be given.

    Attributes:
        name: Of the variable.
        about: What it is, in the words of its publisher.
        secret: Whether it is never to stand in a file that others read.
        required: Whether the server does not work without it.
        default: What it is where nobody says otherwise.
    """

    name: str
    about: str = ""
    secret: bool = False
    required: bool = False
    default: str | None = None


@dataclass(slots=True, kw_only=True)
class Proposal:
    """One server as it would be written.

    Attributes:
        alias: Its name here.
        origin: Where it comes from, with its version.
        entry: The entry; inputs stand in it as `${NAME}`.
        inputs: What it wants to be given.
        warnings: What somebody should know before.
    """

    alias: str
    origin: str
    entry: dict[str, Any]
    inputs: list[Input] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def npm_entry(name: str, version: str, arguments: list[str]) -> dict[str, Any]:
    """The entry that starts a package of npm in exactly this version.

    Raises:
        SourceRefused: Name or version are none.
    """
    if not NPM_NAME.fullmatch(name) or len(name) > _MAX_NAME:
        raise SourceRefused(f"{name[:_MAX_NAME]!r} is no name of a package of npm")
    return {"command": "npx", "args": ["-y", f"{name}@{exact(version)}", *arguments]}


def pypi_entry(name: str, version: str, arguments: list[str]) -> dict[str, Any]:
    """The entry that starts a package of PyPI in exactly this version.

    Raises:
        SourceRefused: Name or version are none.
    """
    if not PYPI_NAME.fullmatch(name) or len(name) > _MAX_NAME:
        raise SourceRefused(f"{name[:_MAX_NAME]!r} is no name of a package of PyPI")
    return {"command": "uvx", "args": [f"{name}@{exact(version)}", *arguments]}


def exact(version: object) -> str:
    """A version, if it is exactly one.

    Raises:
        SourceRefused: It is a range, a tag, or something else.
    """
    if not isinstance(version, str) or not EXACT_VERSION.fullmatch(version) or version.endswith((".x", ".X")):
        raise SourceRefused(f"{str(version)[:_MAX_NAME]!r} is no exact version")
    return version


def variable(name: object) -> str:
    """A name of a variable.

    Raises:
        SourceRefused: It is none.
    """
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name) or len(name) > _MAX_NAME:
        raise SourceRefused(f"{str(name)[:_MAX_NAME]!r} is no name of a variable")
    return name
