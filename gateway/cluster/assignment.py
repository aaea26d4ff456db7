"""What the parent hands to a worker that it starts: one line of JSON, the first on its standard input."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from gateway import wire

FIRST = 0
"""The worker that writes files and carries out what administrators change."""
# Digits of a worker's number; no machine runs ten thousand workers.
_MAX_DIGITS = 4
READY = b"ready\n"
"""What a worker writes to its standard output once it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One worker's place among all of them.

    Attributes:
        index: Which one it is.
        count: How many there are.
        again: It replaces one that has ended; the others know what has changed since the start.
        listener: The descriptor of the socket that it accepts callers on.
        admin_listener: That of the socket for administrators; -1 where it has none.
        shown: The address that callers were given.
        sockets: The directory of the private sockets.
        secret: What every request on those must present.
        signing_key: The key that all workers sign with, in hexadecimal digits.
        text: The configuration, as it was read from `path`.
        drain_delay: Seconds for which a worker that is to end goes on serving first.
    """

    index: int
    count: int
    again: bool
    listener: int
    shown: str
    host: str
    sockets: str
    secret: str
    signing_key: str
    token: str
    text: str
    path: str | None
    state_dir: str
    insecure: bool
    verbose: bool
    admin_listener: int = -1
    strict: bool = False
    drain_delay: float = 0.0
    log_format: Literal["text", "json"] = "text"

    def line(self) -> bytes:
        """The assignment as it is handed over."""
        return wire.dumps(asdict(self)) + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Assignment:
        """Read an assignment.

        Raises:
            ValueError: The line is not one.
        """
        try:
            return cls(**wire.loads(line))
        except TypeError as error:
            raise ValueError(f"this is no assignment ({error})") from None

    @property
    def prefix(self) -> str:
        """What the ids of its sessions begin with."""
        return prefix_of(self.index)

    def socket_of(self, index: int) -> Path:
        """The socket on which a worker answers the others."""
        return Path(self.sockets) / f"{index}.sock"

    @property
    def parent_socket(self) -> Path:
        """The socket on which the parent counts the calls of all workers."""
        return Path(self.sockets) / "parent.sock"


def prefix_of(index: int) -> str:
    """What the ids of a worker's sessions begin with."""
    return f"{index}-"


def owner_of(session_id: str, count: int) -> int | None:
    """The worker that gave out a session's id; None where none of `count` workers did."""
    number, dash, _ = session_id.partition("-")
    # Only the form that `prefix_of` writes: an id in any other is not one of ours.
    if (
        not dash
        or not number.isascii()
        or not number.isdecimal()
        or len(number) > _MAX_DIGITS
        or str(int(number)) != number
    ):
        return None
    return int(number) if int(number) < count else None
