"""A receiver of webhooks for tests: a real HTTP server that stores the requests and answers as configured."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gateway.hooks.adapters.webhook import verify

SECRET = "a-secret-of-the-test-only"


@dataclass(slots=True)
class Receiver:
    """The received requests, and the answer: a function from the body to status, body and headers."""

    answer: Callable[[dict[str, Any]], tuple[int, bytes, dict[str, str]]]
    got: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    verified: list[bool] = field(default_factory=list)
    connections: set[tuple[str, int]] = field(default_factory=set)
    url: str = ""


@contextmanager
def receiver(answer: Any = None) -> Iterator[Receiver]:
    """Receive on a free port. An answer that is not a function is the JSON value of every response."""
    if not callable(answer):
        value = {} if answer is None else answer
        found = Receiver(lambda body: (200, json.dumps(value).encode(), {}))
    else:
        found = Receiver(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.connections.add(self.client_address)
            found.verified.append(verify(SECRET, headers, data, now_s=time.time()))
            found.headers.append(headers)
            body = json.loads(data)
            found.got.append(body)
            status, content, more = found.answer(body)
            self.send_response(status)
            for name, value in {"content-length": str(len(content)), **more}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Log nothing: a handler that raises drops its connection intentionally."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
