"""What one gateway has to know of the processes that serve together with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.calls.call_stats import Failure
from gateway.config.server import ServerConfig

OnFailure = Callable[[str, str, str, Failure, str], None]
"""Takes a failed call: wrapper, server, tool, its class, and whose it was."""
OnCleared = Callable[[str, str], None]
"""Takes a server and a tool whose notes of failures are true no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRole:
    """One worker's part.

    Attributes:
        instance: The id of the gateway that all workers are together.
        session_prefix: What the ids of its sessions begin with.
        signing_key: The key that all workers sign with.
        writes: It is the one that keeps the files of the state directory.
        admits: Raises `ConfigError` for a server that several processes cannot serve.
        on_failure: Takes failures in place of the worker's own statistics; None where those are the ones that count.
        on_cleared: Takes notes that a call has made untrue.
    """

    instance: str
    session_prefix: str
    signing_key: bytes
    writes: bool
    admits: Callable[[str, ServerConfig], None]
    on_failure: OnFailure | None
    on_cleared: OnCleared
