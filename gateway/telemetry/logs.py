"""Logs on standard error: a message and fields, one line for each event."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final, Literal

from gateway.instruments.current import CURRENT
from gateway.secrets import SECRETS
from registry.schema.display_text import clean, is_hidden

FIELDS: Final = (
    "server", "epoch", "tool", "wrapper", "via", "principal", "outcome", "duration_ms", "worker",
    "trace_id", "span_id",
)  # fmt: skip


Form = Literal["text", "json"]


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


class _Json(logging.Formatter):
    """One JSON object for each event: `time`, `level`, `logger`, `message`, fields, and `error` for a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"), "level": record.levelname, "logger": record.name,
            "message": record.getMessage(),
        }  # fmt: skip
        line |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        # Cleaned first: a hidden character inside a secret would keep it from being found.
        cleaned = {name: clean(value) if isinstance(value, str) else value for name, value in line.items()}
        return json.dumps(SECRETS.scrub_value(cleaned), default=str)


class _OfTrace(logging.Filter):
    """Names the trace in lines about a request that is traced."""

    def filter(self, record: logging.LogRecord) -> bool:
        span = CURRENT.get()
        if span is not None:
            record.trace_id, record.span_id = span.trace_id, span.span_id
        return True


class _OfWorker(logging.Filter):
    """Names the worker in every line."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = worker

    def filter(self, record: logging.LogRecord) -> bool:
        record.worker = self._worker
        return True


def start(level: int = logging.INFO, *, calls: bool = False, worker: int | None = None, form: Form = "text") -> None:
    """Write to standard error from now on: ours from this level, other libraries' warnings.

    Args:
        level: Of our own messages.
        calls: One line for each call too: who called what, which way, how it ended. Never what was in it.
        worker: Which of several processes this is.
        form: Of each line: for people, or JSON for whatever collects logs.
    """
    # Standard error: over stdio, standard output belongs to the protocol.
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _Line())
    handler.addFilter(_OfTrace())
    if worker is not None:
        handler.addFilter(_OfWorker(worker))
    logging.getLogger().addHandler(handler)
    logging.getLogger("gateway").setLevel(level)
    logging.getLogger("gateway.calls").setLevel(level if calls else max(level, logging.WARNING))
