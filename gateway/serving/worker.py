"""One worker's process: serves as its parent has assigned, and ends when the parent does."""

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

from gateway.cluster.assignment import READY, Assignment
from gateway.config.load import loaded
from gateway.config.overlay import Overlay, added_names
from gateway.errors import ConfigError
from gateway.serving.listen import DRAIN_S
from gateway.telemetry import logs

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.config.model import Config

# The longest that a drain takes, and some seconds for what follows it.
_END_S: Final = DRAIN_S + 6.0
# Two signals at once would be one.
_BETWEEN_SIGNALS_S: Final = 0.2


def main() -> int:
    """Serve until a signal, or until the parent has ended. Returns the exit code."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 1  # the parent has ended already
    assignment = Assignment.read(line)
    # The first worker reads the configuration again for all, and only once it serves.
    signal.signal(signal.SIGHUP, lambda number, frame: None)
    orphaned = threading.Event()
    threading.Thread(target=_follow_parent, args=(orphaned, assignment), daemon=True).start()
    logs.start(calls=assignment.verbose, worker=assignment.index, form=assignment.log_format)
    try:
        return _serve(assignment)
    except KeyboardInterrupt:
        return 130
    except ConfigError as error:
        print(f"typegate: {error}", file=sys.stderr)
        return 2
    finally:
        if orphaned.is_set():
            _tidy(assignment)


def _serve(assignment: Assignment) -> int:
    import anyio

    from gateway.cluster import single_process_only
    from gateway.cluster.team import Team
    from gateway.serving.listen import check_reach
    from gateway.serving.over_http import serve_on

    listener = socket.socket(fileno=assignment.listener)
    # Servers that this worker starts must not hold the port.
    listener.set_inheritable(False)
    admin_listener = socket.socket(fileno=assignment.admin_listener) if assignment.admin_listener >= 0 else None
    if admin_listener is not None:
        admin_listener.set_inheritable(False)
    path = Path(assignment.path) if assignment.path is not None else None
    added = added_names(Overlay(Path(assignment.state_dir), path, writes=False).changes)
    config = loaded(assignment.text, path=path, strict=assignment.strict, added=added)

    def check(config: Config) -> None:
        check_reach(config, host=assignment.host, insecure=assignment.insecure)
        single_process_only.check(config, file=str(path or "command line"))

    def ready(gateway: Gateway, url: str) -> None:
        # The parent may be gone, which a thread notices.
        try:
            os.write(sys.stdout.fileno(), READY)
        except OSError:
            return

    run = partial(
        serve_on,
        listener,
        config,
        host=assignment.host,
        state_dir=Path(assignment.state_dir),
        token=assignment.token,
        check=check,
        on_ready=ready,
        team=Team(assignment),
        admin_listener=admin_listener,
    )
    return anyio.run(run, backend="asyncio", backend_options={"use_uvloop": True})


def _follow_parent(orphaned: threading.Event, assignment: Assignment) -> None:
    """End when the parent does: its end of our standard input closes, however it ends."""
    while os.read(0, 4096):
        pass
    orphaned.set()
    _tidy(assignment)  # the signal may end this process before it has learnt to tidy up
    os.kill(os.getpid(), signal.SIGTERM)
    if assignment.drain_delay > _BETWEEN_SIGNALS_S:
        # Nobody waits for this process any more: the second signal ends a delay that is meant for balancers. Without
        # one it could come when nobody catches it any more, and end the process before it has tidied up.
        time.sleep(_BETWEEN_SIGNALS_S)
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_S)
    os._exit(1)


def _tidy(assignment: Assignment) -> None:
    """Remove the directory of the private sockets, once no worker has one in it any more."""
    try:
        assignment.parent_socket.unlink(missing_ok=True)
        Path(assignment.sockets).rmdir()
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main())
