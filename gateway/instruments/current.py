"""The span of the request that is running, where requests are traced: for logs, and for what happens on the way."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final, Protocol


class Span(Protocol):
    """A span of a request."""

    @property
    def recorded(self) -> bool:
        """Whether anything is kept of it."""

    @property
    def fields(self) -> Mapping[str, str]:
        """The trace context for whoever is called; empty where the caller's own is passed on as it came."""

    @property
    def trace_id(self) -> str:
        """The id of its trace, 32 hexadecimal digits."""

    @property
    def span_id(self) -> str:
        """Its own id, 16 hexadecimal digits."""

    def event(self, name: str, **attributes: str | int | float | bool) -> None:
        """Note that something has happened."""

    def failed(self, kind: str) -> None:
        """Note that it has ended in an error: the code of a JSON-RPC error, or `tool_error`."""

    def set(self, name: str, value: str | int | float | bool) -> None:
        """Give it an attribute."""


CURRENT: Final[ContextVar[Span | None]] = ContextVar("typegate_span", default=None)


def note_event(name: str, **attributes: str | int | float | bool) -> None:
    """Note that something has happened to the request that is running; nothing where it is not traced."""
    span = CURRENT.get()
    if span is not None:
        span.event(name, **attributes)
