"""Logs on standard error: a message and fields, one line for each event."""

from __future__ import annotations

import logging
from typing import Any, Final

from gateway.secrets import SECRETS
from registry.schema.display_text import clean, is_hidden

FIELDS: Final = ("server", "epoch", "tool", "wrapper", "via", "principal", "outcome", "duration_ms", "worker")


class _Line(logging.Formatter):
    """`time LEVEL message server=… epoch=…`; never more than one line but for a traceback.

    Texts of upstreams are in it: without secrets, and without what moves the cursor of a terminal.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z")

    def format(self, record: logging.LogRecord) -> str:
        # Cleaned first: a hidden character inside a secret would keep it from being found.
        return SECRETS.scrub(clean(super().format(record)))

    def formatMessage(self, record: logging.LogRecord) -> str:
        # No message forges a line, or steers the terminal that it is read in: errors quote what others sent.
        line = super().formatMessage(record)
        if not line.isprintable():
            line = "".join(char if char.isprintable() else "?" for char in line)
        given = ((name, getattr(record, name, None)) for name in FIELDS)
        return " ".join((line, *(f"{name}={value!a}" for name, value in given if value is not None)))

    def formatException(self, ei: Any) -> str:
        trace = super().formatException(ei)
        return "".join("?" if char == "\r" or is_hidden(char) else char for char in trace)


class _OfWorker(logging.Filter):
    """Names the worker in every line."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = worker

    def filter(self, record: logging.LogRecord) -> bool:
        record.worker = self._worker
        return True


def start(level: int = logging.INFO, *, calls: bool = False, worker: int | None = None) -> None:
    """Write to standard error from now on: ours from this level, other libraries' warnings.

    Args:
        level: Of our own messages.
        calls: One line for each call too: who called what, which way, how it ended. Never what was in it.
        worker: Which of several processes this is.
    """
    # Standard error: over stdio, standard output belongs to the protocol.
    handler = logging.StreamHandler()
    handler.setFormatter(_Line())
    if worker is not None:
        handler.addFilter(_OfWorker(worker))
    logging.getLogger().addHandler(handler)
    logging.getLogger("gateway").setLevel(level)
    logging.getLogger("gateway.calls").setLevel(level if calls else max(level, logging.WARNING))
