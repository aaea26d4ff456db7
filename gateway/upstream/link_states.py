"""The states of a link, each with what only it has.

Connecting → Ready, when a connection is negotiated and listed; Connecting → Waiting, when the attempt failed;
Connecting → Starting, when the upstream is a process, until it is ready or has failed;
Connecting → SignInNeeded, when the upstream wants somebody to sign in, and back when somebody has;
Ready → Connecting, when the connection was found to be lost; Waiting → Connecting, when the time is over, the
upstream accepts connections again, or somebody wants it refreshed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import anyio

from gateway.upstream.credentials import SignInSource
from gateway.upstream.session import UpstreamSession
from gateway.upstream.transport.process_start import ProcessStart


@dataclass(frozen=True, slots=True, eq=False)
class Connecting:
    """An attempt is being made, or begins as soon as the connection before it is left."""

    name: ClassVar = "connecting"
    session: ClassVar[None] = None


@dataclass(frozen=True, slots=True, eq=False)
class Starting:
    """A process is starting, or waits for its turn to start.

    Attributes:
        start: How far it is.
    """

    name: ClassVar = "starting"
    session: ClassVar[None] = None
    start: ProcessStart


@dataclass(slots=True, eq=False)
class Ready:
    """There is a session.

    Attributes:
        session: What calls are sent to.
        scope: Of the whole connection; cancelled to leave it from outside its owner.
        served: A call has had an answer on it.
    """

    name: ClassVar = "ready"
    session: UpstreamSession
    scope: anyio.CancelScope
    served: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """The last attempt failed.

    Attributes:
        scope: Of the wait; cancelled to make the next attempt at once.
    """

    name: ClassVar = "waiting"
    session: ClassVar[None] = None
    scope: anyio.CancelScope


@dataclass(frozen=True, slots=True)
class SignInNeeded:
    """Somebody has to sign in: nothing is tried before.

    Attributes:
        scope: Of the wait; cancelled to make the next attempt at once.
        source: What to do about it.
    """

    name: ClassVar = "signInNeeded"
    session: ClassVar[None] = None
    scope: anyio.CancelScope
    source: SignInSource


LinkState = Connecting | Starting | Ready | Waiting | SignInNeeded
