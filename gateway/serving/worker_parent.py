"""The parent of the workers: owns the port, starts them, restarts those that died, and ends them in order."""

from __future__ import annotations

import logging
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process, TaskStatus

import gateway
from gateway.access.signing import Signer
from gateway.cluster import single_process_only
from gateway.cluster.assignment import FIRST, READY, Assignment
from gateway.cluster.parent_store import counting_for_workers
from gateway.config.model import Config
from gateway.config.overlay import Overlay
from gateway.files import prepare_state_dir
from gateway.serving.admin_listener import bind_admin, unbind_admin
from gateway.serving.listen import DRAIN_S, admin_token, bind, check_reach, source_of, url_of
from gateway.telemetry.logs import Form
from gateway.upstream.backoff import delay_s
from gateway.upstream.oauth.encryption import encryption_from
from gateway.upstream.transport.separation import protect_this_process

log = logging.getLogger(__name__)

# A drain, uvicorn's own second, and what child processes of upstreams take to end.
_END_S: Final = DRAIN_S + 5.0
# A worker that served for this long did not die of its start: the next attempt is made at once.
_HEALTHY_S: Final = 10.0
# One worker less is served badly enough: nobody should wait longer for it than this.
_MAX_RESTART_DELAY_S: Final = 5.0
# Imports on a slow disk, a large snapshot, hooks that start: several seconds in practice.
_START_S: Final = 60.0


class StartFailed(Exception):
    """A worker ended before all of them served; it has logged why."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


async def serve_workers(
    config: Config,
    *,
    text: str,
    workers: int,
    host: str,
    port: int,
    state_dir: Path,
    insecure: bool,
    verbose: bool,
    log_format: Form = "text",
    on_ready: Callable[[str], None],
    strict: bool = False,
) -> int:
    """Serve with so many processes until SIGINT or SIGTERM. Returns the exit code.

    Args:
        config: What to serve.
        text: The text that it was read from.
        workers: How many processes.
        host: The address to listen on.
        port: The port.
        state_dir: Where state is kept.
        insecure: Others may call without a key.
        verbose: One line in the log for each call.
        log_format: Of each line in the log.
        on_ready: Called with the address once all workers serve.
        strict: A fault in the entry of one server keeps a changed file from being used.

    Raises:
        ConfigError: The address is taken or open to others, or the configuration needs one process.
    """
    source = source_of(config)
    check_reach(config, host=host, insecure=insecure)
    single_process_only.check(config, file=source)
    # No worker's server may read what this process holds for all of them.
    protect_this_process()
    # Said once, and made before several processes make one each.
    encryption_from()
    prepare_state_dir(state_dir)
    Overlay(state_dir, config.path, writes=False).check()
    token = admin_token(config, state_dir)
    listeners = _listeners(host, port, source, workers)
    admin_listener = bind_admin(config)
    # Not in the state directory: the path of a Unix socket may have about a hundred characters.
    sockets = tempfile.mkdtemp(prefix="typegate-")
    assignment = Assignment(
        index=FIRST, count=workers, again=False, listener=-1, shown=url_of(host, listeners[0]), host=host,
        sockets=sockets, secret=secrets.token_hex(32), signing_key=Signer(state_dir).key.hex(), token=token, text=text,
        path=str(config.path) if config.path is not None else None, state_dir=str(state_dir), insecure=insecure,
        verbose=verbose, strict=strict, log_format=log_format, drain_delay=config.gateway.drain_delay,
    )  # fmt: skip
    end_s = _END_S + config.gateway.drain_delay
    slots = [
        WorkerSlot(replace(assignment, index=index, listener=listener.fileno()), end_s=end_s)
        for index, listener in enumerate(listeners)
    ]
    if admin_listener is not None:
        # The first worker answers for all. The parent keeps the socket: while that one starts again, others wait.
        first = replace(slots[FIRST].assignment, admin_listener=admin_listener.fileno())
        slots[FIRST] = WorkerSlot(first, end_s=end_s)
    try:
        # Until the last worker has ended, so that none of them counts alone.
        async with counting_for_workers(assignment):
            return await _serve(slots, listeners, assignment.shown, on_ready)
    finally:
        for listener in listeners:
            listener.close()
        unbind_admin(admin_listener, config)
        shutil.rmtree(sockets, ignore_errors=True)


async def _serve(
    slots: list[WorkerSlot], listeners: list[socket.socket], url: str, on_ready: Callable[[str], None]
) -> int:
    codes: list[int] = []
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        try:
            await _keep_all(slots, signals, lambda: on_ready(url))
        except* StartFailed as failed:
            codes.extend(_codes(failed))
        finally:
            with anyio.CancelScope(shield=True):
                # First: callers are refused at once, instead of waiting for a process that never accepts them.
                for listener in listeners:
                    listener.close()
                async with anyio.create_task_group() as ending:
                    for slot in slots:
                        ending.start_soon(slot.end)
    killed = any(slot.killed for slot in slots)
    return codes[0] if codes else int(killed)


async def _keep_all(
    slots: list[WorkerSlot], signals: AsyncIterator[signal.Signals], on_ready: Callable[[], None]
) -> None:
    """Keep every slot running until a signal asks for the end."""
    async with anyio.create_task_group() as group:

        async def start() -> None:
            async with anyio.create_task_group() as starting:
                for slot in slots:
                    starting.start_soon(group.start, slot.keep)
            on_ready()

        group.start_soon(start)
        async for number in signals:
            if number != signal.SIGHUP:
                break
            slots[FIRST].hang_up()
        group.cancel_scope.cancel()


class WorkerSlot:
    """One worker's place: the process that runs there, and each that replaces it."""

    def __init__(self, assignment: Assignment, *, end_s: float) -> None:
        """Keep a worker with this assignment.

        Args:
            assignment: What it is to do.
            end_s: How long it may take to end, in seconds.
        """
        self.assignment = assignment
        self._end_s = end_s
        self._process: Process | None = None
        self._serves = False
        self.killed = False

    async def keep(self, *, task_status: TaskStatus[None]) -> None:
        """Run a worker, and another one whenever it ends, until cancelled; reports when the first one serves.

        Raises:
            StartFailed: The first one ended before it served.
        """
        attempt, reported = 0, False
        while True:
            began_s = anyio.current_time()
            try:
                process = await self._start()
            except OSError as error:
                if not reported:
                    raise
                log.error("worker %d cannot be started: %s", self.assignment.index, error)
                await anyio.sleep(_MAX_RESTART_DELAY_S)
                continue
            served = self._serves = await _comes_to_serve(process)
            if served and not reported:
                reported = True
                task_status.started()
            code = await process.wait()
            self._serves = False
            await process.aclose()
            if not reported:
                log.error("worker %d ended before it served (%s)", self.assignment.index, _ending(code))
                raise StartFailed(code if code > 0 else 1)
            lived_s = anyio.current_time() - began_s
            attempt = 0 if served and lived_s > _HEALTHY_S else attempt + 1
            log.warning("worker %d has ended (%s) and is started again", self.assignment.index, _ending(code))
            if attempt > 1:
                await anyio.sleep(min(_MAX_RESTART_DELAY_S, delay_s(attempt - 2, random.random())))
            self.assignment = replace(self.assignment, again=True)

    def hang_up(self) -> None:
        """Have the configuration read again; a worker that does not serve yet reads it anyway."""
        if self._serves and self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGHUP)

    async def end(self) -> None:
        """Return once no process is left: asked to end, and killed where that takes too long."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
        with anyio.move_on_after(self._end_s):
            await process.wait()
        if process.returncode is None:
            log.error("worker %d did not end and is killed", self.assignment.index)
            self.killed = True
            process.kill()
            await process.wait()
        await process.aclose()

    async def _start(self) -> Process:
        root = str(Path(gateway.__file__).parents[1])
        env = dict(os.environ)
        if Path(root).name not in ("site-packages", "dist-packages"):
            # A checkout that is run without being installed.
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (root, env.get("PYTHONPATH"))))
        command = [sys.executable, "-P", "-m", "gateway.serving.worker"]
        with anyio.CancelScope(shield=True):
            # Shielded: a process that was started and not noted would be left behind.
            process = await anyio.open_process(
                [*command, f"{self.assignment.index + 1}/{self.assignment.count}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None,
                env=env,
                # A terminal's signals reach the parent alone, which ends the workers in order.
                start_new_session=True,
                pass_fds=tuple(fd for fd in (self.assignment.listener, self.assignment.admin_listener) if fd >= 0),
            )
            self._process = process
        assert process.stdin is not None
        try:
            with anyio.fail_after(_START_S):
                await process.stdin.send(self.assignment.line())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, TimeoutError):
            log.warning("worker %d did not take its assignment", self.assignment.index)
            process.kill()
        return process


def _codes(group: BaseExceptionGroup[StartFailed]) -> Iterator[int]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _codes(error)
        else:
            yield error.code


async def _comes_to_serve(process: Process) -> bool:
    """Whether the worker comes to serve; False once it has ended instead."""
    assert process.stdout is not None
    output = b""
    with anyio.move_on_after(_START_S):
        try:
            async for part in process.stdout:
                output += part
                if READY in output:
                    return True
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False
        return False
    process.kill()
    return False


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _listeners(host: str, port: int, source: str, workers: int) -> list[socket.socket]:
    """A socket for each worker. The parent keeps them: what a dying worker has not accepted waits for the next one."""
    if sys.platform != "linux":
        # Elsewhere connections are not spread over sockets with one address: all accept on one.
        first = bind(host, port, source)
        return [first, *(first.dup() for _ in range(workers - 1))]
    first = bind(host, port, source, shared=True)
    port = first.getsockname()[1]
    return [first, *(bind(host, port, source, shared=True) for _ in range(workers - 1))]
