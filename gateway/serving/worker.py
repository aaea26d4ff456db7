"""A worker process, which serves with the configuration that its parent sends over standard input."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.cluster.roles import READY, WorkerConfig
from gateway.config.load import loaded
from gateway.config.overlay import Overlay, added_names
from gateway.protocol.gateway_errors import ConfigError
from gateway.serving.listen import DRAIN_S
from gateway.telemetry import logs

if TYPE_CHECKING:
    from gateway.serving.app import Gateway

# Seconds for the whole shutdown: the time for calls in flight, and 6 s for the rest.
_END_S: Final = DRAIN_S + 6.0
# Seconds between two signals. Without a pause, the system may deliver both signals as one.
_BETWEEN_SIGNALS_S: Final = 0.2


def main() -> int:
    """Serve until a signal arrives or the parent exits, and return the exit code."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 1  # the parent has already exited
    worker_config = WorkerConfig.read(line)
    # Ignore SIGHUP. Only the first worker reloads the configuration, for all workers, and it installs its own handler
    # once it is serving.
    signal.signal(signal.SIGHUP, lambda number, frame: None)
    orphaned = threading.Event()
    threading.Thread(target=_follow_parent, args=(orphaned, worker_config), daemon=True).start()
    logs.start(calls=worker_config.verbose, worker=worker_config.index, form=worker_config.log_format)
    try:
        return _serve(worker_config)
    except KeyboardInterrupt:
        return 130
    except ConfigError as error:
        print(f"typegate: {error}", file=sys.stderr)
        return 2
    finally:
        if orphaned.is_set():
            _remove_sockets(worker_config)


def _serve(worker_config: WorkerConfig) -> int:
    import anyio

    from gateway.cluster.worker_group import WorkerGroup
    from gateway.serving.listen import ServeOptions
    from gateway.serving.over_http import Listeners, serve_on

    listener = socket.socket(fileno=worker_config.listener)
    # Local upstreams that this worker starts must not inherit the socket.
    listener.set_inheritable(False)
    admin_listener = socket.socket(fileno=worker_config.admin_listener) if worker_config.admin_listener >= 0 else None
    if admin_listener is not None:
        admin_listener.set_inheritable(False)
    path = Path(worker_config.path) if worker_config.path is not None else None
    added = added_names(Overlay(Path(worker_config.state_dir), path, writes=False).changes)
    config = loaded(worker_config.text, path=path, strict=worker_config.strict, added=added)

    def ready(gateway: Gateway, url: str) -> None:
        # Writing fails if the parent has exited, which `_follow_parent` handles.
        try:
            os.write(sys.stdout.fileno(), READY)
        except OSError:
            return

    run = partial(
        serve_on,
        Listeners(callers=listener, admin=admin_listener),
        config,
        ServeOptions(
            host=worker_config.host,
            state_dir=Path(worker_config.state_dir),
            insecure=worker_config.insecure,
            strict=worker_config.strict,
        ),
        token=worker_config.token,
        on_ready=ready,
        worker_group=WorkerGroup(worker_config),
    )
    return anyio.run(run, backend="asyncio", backend_options={"use_uvloop": True})


def _follow_parent(orphaned: threading.Event, worker_config: WorkerConfig) -> None:
    """Wait until standard input ends, which happens whenever the parent exits, and then shut down."""
    while os.read(0, 4096):
        pass
    orphaned.set()
    _remove_sockets(worker_config)  # SIGTERM may end this process before `main` can clean up
    os.kill(os.getpid(), signal.SIGTERM)
    if worker_config.drain_delay > _BETWEEN_SIGNALS_S:
        # A second signal ends the drain delay, which has no purpose without a parent. If no delay is configured, no
        # second signal is sent: it could arrive after the signal handlers are removed, and end the process before its
        # cleanup.
        time.sleep(_BETWEEN_SIGNALS_S)
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_S)
    os._exit(1)


def _remove_sockets(worker_config: WorkerConfig) -> None:
    """Remove the socket of the parent, and the directory of the private sockets if no worker's socket is left in it."""
    try:
        worker_config.parent_socket.unlink(missing_ok=True)
        Path(worker_config.sockets).rmdir()
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main())
