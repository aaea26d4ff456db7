"""What one gateway has to know of the processes that serve together with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.calls.approval_book import ApprovalBook, Book
from gateway.calls.call_stats import Failure
from gateway.config.server import ServerConfig
from gateway.upstream.oauth.store import Store as SignIns

OnFailure = Callable[[str, str, str, Failure, str], None]
"""Takes a failed call: wrapper, server, tool, its class, and whose it was."""
OnCleared = Callable[[str, str], None]
"""Takes a server and a tool whose notes of failures are true no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One process's part.

    Attributes:
        instance: The id of the gateway that all processes are together.
        name: What tells this process from the others.
        new_session_id: Makes the id of a session, which says that this process has it; None for one that does not.
        signing_key: The key that all processes sign with.
        writes: It is the one that keeps the files of the state directory.
        admits: Raises `ConfigError` for a server that several processes cannot serve.
        on_failure: Takes failures in place of the worker's own statistics; None where those are the ones that count.
        on_cleared: Takes notes that a call has made untrue.
        book: Makes of its own book of approvals the one that is asked; None where it is that one.
        sign_ins: Where sign-ins are kept, where that is not the state directory.
    """

    instance: str
    name: str
    new_session_id: Callable[[], str] | None
    signing_key: bytes
    writes: bool
    admits: Callable[[str, ServerConfig], None]
    on_failure: OnFailure | None
    on_cleared: OnCleared
    book: Callable[[ApprovalBook], Book] | None
    sign_ins: SignIns | None = None
