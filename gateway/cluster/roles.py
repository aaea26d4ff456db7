"""Process roles, and the configuration and communication of workers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import anyio

from gateway.access.quotas import Sharing
from gateway.calls.approval_store import ApprovalBackend, ApprovalStore
from gateway.calls.call_stats import Failure
from gateway.calls.result_store import Fetch
from gateway.cluster.session_forwarding import ForwardingOptions, forward_request
from gateway.config.model import Config
from gateway.config.server import ServerConfig
from gateway.http.http_client import HttpClient
from gateway.http.http_request import RequestHead
from gateway.http.responder import Responder
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import ConfigError, GatewayError
from gateway.upstream.oauth.token_store import TokenStore

log = logging.getLogger(__name__)

OnFailure = Callable[[str, str, str, Failure, str], None]
"""Called with the wrapper, server, tool, failure and caller of a failed call."""
OnCleared = Callable[[str, str], None]
"""Called with a server and a tool whose failure notes were removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRole:
    """The role of a process among the processes of one gateway.

    Attributes:
        instance: The id of the gateway, shared by all its processes.
        name: The name of this process, unique within the gateway.
        new_session_id: Creates a session id that identifies this process as the owner of the session; None to use
            random ids.
        signing_key: The signing key shared by all processes.
        writes: True if this process writes the files of the state directory.
        admits: Raises `ConfigError` for a server that cannot be used by several processes.
        on_failure: Called for each failed call instead of recording the failure in this process; None to record it in
            this process.
        on_cleared: Called when a call has removed the failure notes of a tool.
        share_approvals: Wraps the approval store of this process so that approvals are shared; None to use the approval
            store of this process alone.
        sign_ins: The store of sign-ins; None to use the state directory.
        sharing: The counters of calls that are shared with other processes; None to count in this process alone.
        on_approvals_changed: Called after each change of questions, decisions or approvals.
        fetch_result: Fetches a stored result from another process; None if there is no other process.
    """

    instance: str
    name: str
    new_session_id: Callable[[], str] | None
    signing_key: bytes
    writes: bool
    admits: Callable[[str, ServerConfig], None]
    on_failure: OnFailure | None
    on_cleared: OnCleared
    share_approvals: Callable[[ApprovalStore], ApprovalBackend] | None
    sign_ins: TokenStore | None = None
    sharing: Sharing | None = None
    on_approvals_changed: Callable[[], None] = lambda: None
    fetch_result: Fetch | None = None


FIRST = 0
"""The index of the worker that writes files and makes the changes of administrators."""
# Maximum number of digits in a worker's index; no machine runs ten thousand workers.
_MAX_DIGITS = 4
READY = b"ready\n"
"""The line that a worker writes to standard output when it is ready to serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The configuration of a worker, which the parent process writes to the worker's standard input.

    Attributes:
        index: The index of this worker.
        count: The number of workers.
        listener: The file descriptor of the listening socket for callers.
        admin_listener: The file descriptor of the listening socket for administrators; -1 for none.
        public_url: The address of the gateway that callers see.
        sockets: The directory of the private sockets.
        secret: The secret that every request on a private socket must present.
        signing_key: The signing key shared by all workers, in hexadecimal digits.
        text: The text of the configuration, as read from `path`.
        drain_delay: Seconds for which a worker continues to serve before it shuts down.
    """

    index: int
    count: int
    listener: int
    public_url: str
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
    admin_listener: int = -1
    strict: bool = False
    drain_delay: float = 0.0
    log_format: Literal["text", "json"] = "text"

    def line(self) -> bytes:
        """Return the configuration as one line of JSON."""
        return json_bytes.dumps(asdict(self)) + b"\n"

    @classmethod
    def read(cls, line: bytes) -> WorkerConfig:
        """Parse the line that `line` returns.

        Raises:
            ValueError: The line is not a worker configuration.
        """
        try:
            return cls(**json_bytes.loads(line))
        except TypeError as error:
            raise ValueError(f"not a worker configuration ({error})") from None

    @property
    def prefix(self) -> str:
        """Return the prefix of this worker's session ids."""
        return prefix_of(self.index)

    def socket_of(self, index: int) -> Path:
        """Return the path of the private socket of a worker."""
        return Path(self.sockets) / f"{index}.sock"

    @property
    def parent_socket(self) -> Path:
        """Return the path of the socket on which the parent serves the shared store."""
        return Path(self.sockets) / "parent.sock"


def prefix_of(index: int) -> str:
    """Return the prefix of a worker's session ids."""
    return f"{index}-"


def owner_of(session_id: str, count: int) -> int | None:
    """Return the index of the worker that issued a session id; None if none of `count` workers did."""
    number, dash, _ = session_id.partition("-")
    # Accept only prefixes in the form that `prefix_of` writes.
    if (
        not dash
        or not number.isascii()
        or not number.isdecimal()
        or len(number) > _MAX_DIGITS
        or str(int(number)) != number
    ):
        return None
    return int(number) if int(number) < count else None


ASK_S: Final = 5.0
"""Time limit for another worker's answer: a worker may hang, and an administrator is waiting."""
_MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of an answer: enough for the rows of 100,000 wrappers. It can be large, as workers trust each other."""
# Connecting to a local socket takes less than a millisecond, so a worker that needs longer is not running.
_CONNECT_S: Final = 2.0


RESULTS_TARGET: Final = "/shared/results/"
"""The beginning of the path at which a worker returns a stored result; the id of the result follows."""


class PeerLost(GatewayError):
    """Another worker did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply of a worker."""

    status: int
    headers: dict[str, str]
    body: bytes


class Peers:
    """The other workers of the worker group (implements `SessionForwarder`)."""

    def __init__(self, worker_config: WorkerConfig) -> None:
        self._count = worker_config.count
        self._index = worker_config.index
        # The secret takes the place of the host name, so the receiving worker verifies it in the Host header.
        self._base = f"http://{worker_config.secret}"
        self._clients = {
            index: HttpClient(connect_timeout_s=_CONNECT_S, unix_path=str(worker_config.socket_of(index)))
            for index in range(worker_config.count)
            if index != worker_config.index
        }

    @property
    def other_workers(self) -> tuple[int, ...]:
        """Return the indexes of the other workers."""
        return tuple(self._clients)

    def close(self) -> None:
        """Close all idle connections."""
        for client in self._clients.values():
            client.close()

    def owner(self, session_id: str | None) -> int | None:
        """Return the index of the other worker that has a session; None if this worker has it or no worker does."""
        owner = owner_of(session_id, self._count) if session_id is not None else None
        return None if owner == self._index else owner

    async def request(
        self,
        index: int,
        method: str,
        target: str,
        *,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        within_s: float = ASK_S,
    ) -> Reply:
        """Send a request to another worker, and return its reply.

        Raises:
            PeerLost: The worker is not running, or does not answer in time.
        """
        try:
            with anyio.fail_after(within_s):
                async with self._clients[index].send(method, self._base + target, headers or {}, body) as response:
                    content = await response.read(_MAX_ANSWER_BYTES)
                    return Reply(status=response.status, headers=dict(response.headers), body=content)
        except (GatewayError, TimeoutError, ValueError) as error:
            raise PeerLost(f"worker {index} does not answer ({str(error) or 'too slow'})") from None

    async def request_all(
        self,
        method: str,
        target: str,
        *,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        within_s: float = ASK_S,
    ) -> dict[int, Reply]:
        """Send a request to all other workers, and return the replies of those that answer, by index."""
        replies: dict[int, Reply] = {}

        async def ask(index: int) -> None:
            try:
                replies[index] = await self.request(
                    index, method, target, headers=headers, body=body, within_s=within_s
                )
            except PeerLost as error:
                log.debug("%s", error)

        async with anyio.create_task_group() as group:
            for index in self._clients:
                group.start_soon(ask, index)
        return dict(sorted(replies.items()))

    async def fetch_result(self, prefix: str, result_id: str) -> bytes | None:
        """Fetch a stored result from another worker, in the form of `ResultStore.packed`.

        Args:
            prefix: The prefix of the worker's session ids, which is also the worker's name.

        Returns:
            None if there is no such worker, or the worker does not answer.
        """
        index = owner_of(prefix, self._count)
        if index is None or index not in self._clients:
            return None
        try:
            reply = await self.request(index, "GET", RESULTS_TARGET + result_id)
        except PeerLost:
            return None
        return reply.body if reply.status == 200 else None

    async def forward(self, owner: int, head: RequestHead, body: bytes, responder: Responder) -> None:
        """Forward a request to another worker, and stream its response to the caller."""
        failure = await forward_request(self._clients[owner], self._base, head, body, responder, ForwardingOptions())
        if failure is not None:
            log.debug("request not forwarded to worker %d", owner, extra={"reason": str(failure)})


Rule = Callable[[Config], Iterable[str]]
"""Yields the reasons why a configuration cannot be used with several workers."""


def _private_processes(config: Config) -> Iterable[str]:
    names = [alias for alias, server in config.servers.items() if not may_be_copied(server)]
    if names:
        yield _private_process_error(names)


def _private_hooks(config: Config) -> Iterable[str]:
    for hook in config.gateway.hooks:
        if hook.use in _SINGLE_PROCESS_HOOKS:
            reason = _SINGLE_PROCESS_HOOKS[hook.use]
            yield f"--workers: the hook {hook.name} ({hook.use}) {reason}. Remove the hook or --workers"


_SINGLE_PROCESS_HOOKS: Final = {
    "rate_limit": "counts per process, so a caller would have the full rate limit in each worker",
    "audit_log": "writes and rotates a file, which several processes cannot share",
}


def _clusters(config: Config) -> Iterable[str]:
    if config.gateway.cluster is not None:
        yield "--workers: it cannot be combined with gateway.cluster. Start more replicas instead"


RULES: tuple[Rule, ...] = (_private_processes, _private_hooks, _clusters)
"""The rules that `check_shareable` applies."""


def may_be_copied(server: ServerConfig) -> bool:
    """Return whether each worker may connect to a server separately. With stdio, each worker starts a process."""
    return server.type != "stdio" or server.copies


def check_shareable(config: Config, *, file: str) -> None:
    """Check that a configuration can be used with several workers.

    Raises:
        ConfigError: The configuration cannot be used with several workers; the text contains every reason.
    """
    if sys.platform == "win32":
        raise ConfigError("several workers need Linux or macOS; remove --workers", file=file)
    reasons = [reason for rule in RULES for reason in rule(config)]
    if reasons:
        raise ConfigError("\n".join(reasons), file=file)


def check_server(alias: str, server: ServerConfig) -> None:
    """Check that a server which an administrator adds can be used with several workers.

    Raises:
        ConfigError: The server would run in several processes, which its entry does not allow.
    """
    if not may_be_copied(server):
        raise ConfigError(_private_process_error([alias]), file="request", key=alias)


def _private_process_error(names: list[str]) -> str:
    many = len(names) > 1
    return (
        f"--workers: {', '.join(names)} {'are processes' if many else 'is a process'} (stdio), and each worker would "
        f"start {'its own copies' if many else 'its own copy'}, so state left by one call may be missing in the next. "
        'Set "copies": true in the server\'s entry if it has no such state, or remove --workers'
    )
