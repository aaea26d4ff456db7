"""The clients of the full server, and how the server can ask them before it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from scripted import META, MODERN, notification

Answer = dict[str, Any]
Send = Callable[[Answer], Awaitable[None]]


@dataclass(slots=True, kw_only=True, eq=False)
class Peer:
    """The peer: a connection of the handshake era, or the sender of one modern request."""

    send: Send
    level: str | None = None
    declared: Answer = field(default_factory=dict)
    watched: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True, eq=False)
class Listen:
    """One open subscriptions/listen."""

    message_id: Any
    wanted: Answer
    send: Send


@dataclass(slots=True, kw_only=True, eq=False)
class Asked:
    """One request and the way to say something before its answer."""

    message: Answer
    peer: Peer
    emit: Send
    headers: dict[str, str]
    modern: bool

    @property
    def params(self) -> Answer:
        """Its params."""
        return self.message.get("params") or {}

    @property
    def meta(self) -> Answer:
        """Its `_meta`."""
        return self.params.get("_meta") or {}

    @property
    def arguments(self) -> Answer:
        """The arguments of a call."""
        return self.params.get("arguments") or {}

    @property
    def declared(self) -> Answer:
        """The capabilities of the other end."""
        return (self.meta.get(META + "clientCapabilities") or {}) if self.modern else self.peer.declared


class More(Exception):
    """A modern request cannot be completed before these were answered."""

    def __init__(self, wanted: Answer, state: str) -> None:
        super().__init__("input required")
        self.result = {"resultType": "input_required", "inputRequests": wanted, "requestState": state}


def acknowledgement(message: Answer) -> Answer:
    """Return the first frame of a subscriptions/listen stream: everything wanted is honoured."""
    wanted = (message.get("params") or {}).get("notifications", {})
    params = {"notifications": wanted, "_meta": {META + "subscriptionId": message["id"]}}
    return notification("notifications/subscriptions/acknowledged", params)


def wanting(message: Answer) -> str | None:
    """Say what a modern request's envelope lacks, if anything."""
    meta = (message.get("params") or {}).get("_meta") or {}
    if meta.get(META + "protocolVersion") != MODERN:
        return "protocolVersion"
    return None if isinstance(meta.get(META + "clientCapabilities"), dict) else "clientCapabilities"
