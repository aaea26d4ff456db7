"""Write logs to standard error: one line for each event, with a message and fields."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final, Literal

from gateway.process.secrets import SECRETS
from gateway.telemetry.trace_context import CURRENT
from registry.schema.display_text import clean, is_hidden

FIELDS: Final = (
    "server",
    "epoch",
    "tool",
    "wrapper",
    "via",
    "principal",
    "outcome",
    "duration_ms",
    "path",
    "reason",
    "worker",
    "trace_id",
    "span_id",
)
"""The names of fields in `extra` that log lines show. Fields with other names are dropped."""

Form = Literal["text", "json"]


def _redact_value(value: object) -> object:
    # Scrub the value before `repr` escapes its characters, because an escaped secret would not be detected.
    return SECRETS.scrub(clean(value)) if isinstance(value, str) else value


class _Line(logging.Formatter):
    """Format a record as one line, `time LEVEL message server=… epoch=…`, followed by the traceback if there is one.

    Messages and fields may quote upstreams, so secrets and terminal control characters are removed.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z")

    def format(self, record: logging.LogRecord) -> str:
        # Remove hidden characters first, because a hidden character inside a secret would prevent its detection.
        return SECRETS.scrub(clean(super().format(record)))

    def formatMessage(self, record: logging.LogRecord) -> str:
        # Messages may quote text from the network, which must not forge log lines or control the terminal.
        line = super().formatMessage(record)
        if not line.isprintable():
            line = "".join(char if char.isprintable() else "?" for char in line)
        fields = ((name, getattr(record, name, None)) for name in FIELDS)
        return " ".join((line, *(f"{name}={_redact_value(value)!a}" for name, value in fields if value is not None)))

    def formatException(self, ei: Any) -> str:
        trace = super().formatException(ei)
        return "".join("?" if char == "\r" or is_hidden(char) else char for char in trace)


class _Json(logging.Formatter):
    """Format a record as a JSON object: `time`, `level`, `logger`, `message`, fields, and `error` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        # Remove hidden characters first, because a hidden character inside a secret would prevent its detection.
        cleaned = {name: clean(value) if isinstance(value, str) else value for name, value in line.items()}
        return json.dumps(SECRETS.scrub_value(cleaned), default=str)


class _NoClosedTls(logging.Filter):
    """Drop uvloop's error about a write to a TLS connection that the peer has just closed. The error has no effect."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not (record.name == "asyncio" and isinstance(error, RuntimeError) and "handler is closed" in str(error))


class _TraceFields(logging.Filter):
    """Add the trace id and the span id of the current request to log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        span = CURRENT.get()
        if span is not None:
            record.trace_id, record.span_id = span.trace_id, span.span_id
        return True


class _WorkerField(logging.Filter):
    """Add the number of the worker to every record."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = worker

    def filter(self, record: logging.LogRecord) -> bool:
        record.worker = self._worker
        return True


def start(level: int = logging.INFO, *, calls: bool = False, worker: int | None = None, form: Form = "text") -> None:
    """Start logging to standard error. Other libraries log only warnings and errors.

    Args:
        level: The level of the gateway's own messages.
        calls: Whether to log a line for each call, with the caller, the tool, the route and the outcome, but without
            the content.
        worker: The number of this worker, if there are several.
        form: The format of the lines: text for people, or JSON for log collectors.
    """
    # Do not log to standard output, which transports protocol messages when a host connects over stdio.
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _Line())
    handler.addFilter(_NoClosedTls())
    handler.addFilter(_TraceFields())
    if worker is not None:
        handler.addFilter(_WorkerField(worker))
    logging.getLogger().addHandler(handler)
    logging.getLogger("gateway").setLevel(level)
    logging.getLogger("gateway.calls").setLevel(level if calls else max(level, logging.WARNING))
