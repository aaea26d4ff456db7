"""What the parent tells a worker that it starts: one line of JSON, the first on its standard input."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from gateway import wire

FIRST = 0
"""The worker that writes files and orders what administrators change."""
READY = b"ready\n"
"""What a worker says on its standard output once it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One worker's place among all of them.

    Attributes:
        index: Which one it is.
        count: How many there are.
        again: It takes the place of one that has ended; the others know what has changed since the start.
        listener: The descriptor of the socket that it accepts callers on.
        shown: The address that callers were told.
        sockets: The directory of the private sockets.
        secret: What every request on those must know.
        signing_key: The key that all workers sign with, in hexadecimal digits.
        text: The configuration, as it was read from `path`.
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

    def line(self) -> bytes:
        """The assignment as it is handed over."""
        return wire.dumps(asdict(self)) + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Assignment:
        """The assignment again.

        Raises:
            ValueError: The line is none.
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
        """Where a worker hears the others."""
        return Path(self.sockets) / f"{index}.sock"


def prefix_of(index: int) -> str:
    """What the ids of a worker's sessions begin with."""
    return f"{index}-"


def owner_of(session_id: str, count: int) -> int | None:
    """The worker that gave out a session's id; None where none of so many did."""
    number, dash, _ = session_id.partition("-")
    if not dash or not number.isascii() or not number.isdecimal() or len(number) > 4 or str(int(number)) != number:
        return None
    return int(number) if int(number) < count else None
