"""The parent of the workers: owns the port, serves the shared store, and restarts workers that have exited."""

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process, TaskStatus

import gateway
from gateway.access.signing import Signer
from gateway.cluster import roles
from gateway.cluster.parent_store import serving_store
from gateway.cluster.roles import FIRST, READY, WorkerConfig
from gateway.config.model import Config
from gateway.config.overlay import Overlay
from gateway.process.files import prepare_state_dir
from gateway.serving.listen import (
    DRAIN_S,
    ServeOptions,
    admin_token,
    bind,
    bind_admin,
    check_exposure,
    config_source,
    mcp_url,
    unbind_admin,
)
from gateway.telemetry.logs import Form
from gateway.upstream.breaker import delay_s
from gateway.upstream.oauth.token_store import encryption_from
from gateway.upstream.transport.process_start import protect_this_process

log = logging.getLogger(__name__)

# Seconds for a worker to exit: for its calls in flight, for uvicorn (1 s), and for local upstreams to exit.
_END_S: Final = DRAIN_S + 5.0
# A worker that ran for more seconds than this is restarted at once, because a failed start did not cause its exit.
_HEALTHY_S: Final = 10.0
# The maximum restart delay in seconds. It is short because fewer workers serve during the delay.
_MAX_RESTART_DELAY_S: Final = 5.0
# Timeout for the start of a worker, in seconds. A start takes several seconds with a slow disk, a large snapshot of
# listings, or hooks that start programs.
_START_S: Final = 60.0


class StartFailed(Exception):
    """A worker exited during the first start, before it was serving. The worker has logged the reason.

    Attributes:
        code: The exit code for the parent.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of the workers.

    Attributes:
        count: The number of workers.
        verbose: Log one line for each call.
        log_format: The format of log lines.
    """

    count: int
    verbose: bool = False
    log_format: Form = "text"


async def serve_workers(
    config: Config, options: ServeOptions, workers: WorkerOptions, *, text: str, on_ready: Callable[[str], None]
) -> int:
    """Serve with several processes until SIGINT or SIGTERM, and return the exit code.

    Args:
        text: The text of the configuration.
        on_ready: Called with the URL of the MCP endpoint once all workers are serving.

    Raises:
        ConfigError: The address is in use, other machines could use the gateway without API keys, or the configuration
            requires a single process.
    """
    source = config_source(config)
    host, state_dir = options.host, options.state_dir
    check_exposure(config, host=host, insecure=options.insecure)
    roles.check_shareable(config, file=source)
    # Local upstreams that workers start must not be able to read the secrets in the memory of this process.
    protect_this_process()
    # Determine the encryption key once here, so that not every worker logs about it.
    encryption_from()
    prepare_state_dir(state_dir)
    Overlay(state_dir, config.path, writes=False).check()
    token = admin_token(config, state_dir)
    listeners = _listeners(host, options.port, source, workers.count)
    admin_listener = bind_admin(config)
    # The sockets are not in the state directory, because the path of a Unix socket is limited to about 100 characters.
    sockets = tempfile.mkdtemp(prefix="typegate-")
    worker_config = WorkerConfig(
        index=FIRST,
        count=workers.count,
        listener=-1,
        public_url=mcp_url(host, listeners[0]),
        host=host,
        sockets=sockets,
        secret=secrets.token_hex(32),
        signing_key=Signer(state_dir).key.hex(),
        token=token,
        text=text,
        path=str(config.path) if config.path is not None else None,
        state_dir=str(state_dir),
        insecure=options.insecure,
        verbose=workers.verbose,
        strict=options.strict,
        log_format=workers.log_format,
        drain_delay=config.gateway.drain_delay,
    )
    end_s = _END_S + config.gateway.drain_delay
    slots = [
        WorkerSlot(replace(worker_config, index=index, listener=listener.fileno()), end_s=end_s)
        for index, listener in enumerate(listeners)
    ]
    if admin_listener is not None:
        # The first worker serves the admin API. The parent also has the socket open, so that connections wait while the
        # first worker restarts.
        first = replace(slots[FIRST].worker_config, admin_listener=admin_listener.fileno())
        slots[FIRST] = WorkerSlot(first, end_s=end_s)
    try:
        # The parent serves the state that the workers share until the last worker has exited.
        async with serving_store(worker_config):
            return await _serve(slots, listeners, worker_config.public_url, on_ready)
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
            await _run_all(slots, signals, lambda: on_ready(url))
        except* StartFailed as failed:
            codes.extend(_codes(failed))
        finally:
            with anyio.CancelScope(shield=True):
                # Close the sockets first, so that new connections are refused at once instead of waiting to be
                # accepted.
                for listener in listeners:
                    listener.close()
                async with anyio.create_task_group() as ending:
                    for slot in slots:
                        ending.start_soon(slot.stop)
    killed = any(slot.killed for slot in slots)
    return codes[0] if codes else int(killed)


async def _run_all(
    slots: list[WorkerSlot], signals: AsyncIterator[signal.Signals], on_ready: Callable[[], None]
) -> None:
    """Run every worker until SIGINT or SIGTERM."""
    async with anyio.create_task_group() as group:

        async def start() -> None:
            async with anyio.create_task_group() as starting:
                for slot in slots:
                    starting.start_soon(group.start, slot.run)
            on_ready()

        group.start_soon(start)
        async for number in signals:
            if number != signal.SIGHUP:
                break
            slots[FIRST].request_reload()
        group.cancel_scope.cancel()


class WorkerSlot:
    """Runs one worker process, and restarts the worker whenever it exits.

    Attributes:
        killed: Whether `stop` had to kill the worker.
    """

    def __init__(self, worker_config: WorkerConfig, *, end_s: float) -> None:
        """Create the slot.

        Args:
            worker_config: The configuration of the worker.
            end_s: How long the worker may take to exit, in seconds.
        """
        self.worker_config = worker_config
        self._end_s = end_s
        self._process: Process | None = None
        self._serves = False
        self.killed = False

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Run the worker, and restart it whenever it exits, until cancelled.

        Args:
            task_status: Receives `started` when the worker serves for the first time.

        Raises:
            StartFailed: The worker exited before it was serving for the first time.
            OSError: The first process could not be started.
        """
        attempt, reported = 0, False
        while True:
            began_s = anyio.current_time()
            try:
                process = await self._start()
            except OSError as error:
                if not reported:
                    raise
                log.error("worker %d not started: %s", self.worker_config.index, error)
                await anyio.sleep(_MAX_RESTART_DELAY_S)
                continue
            served = self._serves = await _wait_until_serving(process)
            if served and not reported:
                reported = True
                task_status.started()
            code = await process.wait()
            self._serves = False
            await process.aclose()
            if not reported:
                log.error("worker %d exited before it was serving (%s)", self.worker_config.index, _describe_exit(code))
                raise StartFailed(code if code > 0 else 1)
            lived_s = anyio.current_time() - began_s
            attempt = 0 if served and lived_s > _HEALTHY_S else attempt + 1
            log.warning("worker %d exited (%s), restarting", self.worker_config.index, _describe_exit(code))
            if attempt > 1:
                await anyio.sleep(min(_MAX_RESTART_DELAY_S, delay_s(attempt - 2, random.random())))

    def request_reload(self) -> None:
        """Make the worker reload the configuration if it is already serving."""
        if self._serves and self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGHUP)

    async def stop(self) -> None:
        """Terminate the process and wait for its exit; kill the process if it does not exit in time."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
        with anyio.move_on_after(self._end_s):
            await process.wait()
        if process.returncode is None:
            log.error("worker %d did not exit in time, killing", self.worker_config.index)
            self.killed = True
            process.kill()
            await process.wait()
        await process.aclose()

    async def _start(self) -> Process:
        root = str(Path(gateway.__file__).parents[1])
        env = dict(os.environ)
        if Path(root).name not in ("site-packages", "dist-packages"):
            # Make an uninstalled checkout importable.
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (root, env.get("PYTHONPATH"))))
        command = [sys.executable, "-P", "-m", "gateway.serving.worker"]
        with anyio.CancelScope(shield=True):
            # Without the shield, a cancellation before `_process` is set would leave the process running.
            process = await anyio.open_process(
                [*command, f"{self.worker_config.index + 1}/{self.worker_config.count}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None,
                env=env,
                # Use a new session, so that Ctrl-C in a terminal signals only the parent, which stops the workers.
                start_new_session=True,
                pass_fds=tuple(
                    fd for fd in (self.worker_config.listener, self.worker_config.admin_listener) if fd >= 0
                ),
            )
            self._process = process
        assert process.stdin is not None
        try:
            with anyio.fail_after(_START_S):
                await process.stdin.send(self.worker_config.line())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, TimeoutError):
            log.warning("worker %d did not read its configuration, killing", self.worker_config.index)
            process.kill()
        return process


def _codes(group: BaseExceptionGroup[StartFailed]) -> Iterator[int]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _codes(error)
        else:
            yield error.code


async def _wait_until_serving(process: Process) -> bool:
    """Wait until the worker is serving, and return true. Return false if it exited, or was killed for slowness."""
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


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _listeners(host: str, port: int, source: str, workers: int) -> list[socket.socket]:
    """Return a socket for each worker.

    The parent keeps the sockets open, so that connections that an exiting worker has not accepted wait for the
    restarted worker.
    """
    if sys.platform != "linux":
        # Only Linux distributes connections over several sockets with one address. Elsewhere, all workers share one
        # socket.
        first = bind(host, port, source)
        return [first, *(first.dup() for _ in range(workers - 1))]
    first = bind(host, port, source, shared=True)
    port = first.getsockname()[1]
    return [first, *(bind(host, port, source, shared=True) for _ in range(workers - 1))]
