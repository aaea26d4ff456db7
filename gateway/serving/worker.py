"""The worker process, which serves as assigned by its parent."""

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

# The longest drain, and 6 s for the rest of the shutdown.
_END_S: Final = DRAIN_S + 6.0
# Two signals sent without a pause may be delivered as one.
_BETWEEN_SIGNALS_S: Final = 0.2


def main() -> int:
    """Serve until a signal arrives or the parent exits, and return the exit code."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 1  # the parent has already exited
    worker_config = WorkerConfig.read(line)
    # Ignore SIGHUP: the first worker reloads the configuration for all, and handles the signal only once it serves.
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
    # Servers that this worker starts must not inherit the port.
    listener.set_inheritable(False)
    admin_listener = socket.socket(fileno=worker_config.admin_listener) if worker_config.admin_listener >= 0 else None
    if admin_listener is not None:
        admin_listener.set_inheritable(False)
    path = Path(worker_config.path) if worker_config.path is not None else None
    added = added_names(Overlay(Path(worker_config.state_dir), path, writes=False).changes)
    config = loaded(worker_config.text, path=path, strict=worker_config.strict, added=added)

    def ready(gateway: Gateway, url: str) -> None:
        # The parent may have exited, which `_follow_parent` handles.
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
    """Shut down when the parent exits, for whatever reason: its end of the standard input pipe closes then."""
    while os.read(0, 4096):
        pass
    orphaned.set()
    _remove_sockets(worker_config)  # the signal may end this process before `main` can clean up
    os.kill(os.getpid(), signal.SIGTERM)
    if worker_config.drain_delay > _BETWEEN_SIGNALS_S:
        # Without a parent, the drain delay for load balancers has no purpose, and a second signal ends it. Without a
        # delay, a second signal could arrive when it is no longer caught and end the process before its cleanup.
        time.sleep(_BETWEEN_SIGNALS_S)
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_S)
    os._exit(1)


def _remove_sockets(worker_config: WorkerConfig) -> None:
    """Remove the directory of the workers' private sockets if it is empty otherwise."""
    try:
        worker_config.parent_socket.unlink(missing_ok=True)
        Path(worker_config.sockets).rmdir()
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main())
