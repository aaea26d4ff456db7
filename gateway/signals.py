"""Signals as a stream, also where the event loop takes none."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import anyio

# How often a loop that no signal wakes looks for one: soon enough for whoever has pressed Ctrl-C.
_LOOK_S: Final = 0.2

HANGUP: Final = getattr(signal, "SIGHUP", None)
"""The signal at which a configuration is read again; None on Windows, which has none."""


@contextmanager
def open_signals(*numbers: signal.Signals) -> Iterator[AsyncIterator[int]]:
    """Receive these signals, one after the other, in place of what they do by default."""
    if sys.platform != "win32":
        with anyio.open_signal_receiver(*numbers) as received:
            yield received
    else:
        with _handlers(*numbers) as noted:
            yield noted


@contextmanager
def _handlers(*numbers: signal.Signals) -> Iterator[AsyncIterator[int]]:
    """The same by handlers of the interpreter, which run between any two steps of it: they only note the number."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    async def received() -> AsyncIterator[int]:
        while True:
            while seen:
                yield seen.pop(0)
            await anyio.sleep(_LOOK_S)

    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
