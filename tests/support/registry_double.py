"""A registry, npm and PyPI on loopback, which say what a test has them say."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "io.github.example/weather"
VARIABLES = ("TYPEGATE_REGISTRY_URL", "NPM_CONFIG_REGISTRY", "TYPEGATE_PYPI_URL")


class Double:
    """A registry, npm and PyPI in one; `pages` holds answers by path, `paths` the requested paths."""

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {}
        self.paths: list[str] = []
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                double.paths.append(self.path)
                found = double.pages.get(self.path, double.pages.get(self.path.partition("?")[0]))
                if callable(found):
                    found = found(self.path)
                if isinstance(found, str):
                    self.send_response(302)
                    self.send_header("Location", found)
                    self.end_headers()
                    return
                body = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(200 if found is not None else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def describe(self, status: str = "active", *, version: str = "latest", **server: Any) -> None:
        """Have the registry know the server."""
        document = {"name": NAME, "description": "Weather.", "version": "1.2.3", **server}
        meta = {"io.modelcontextprotocol.registry/official": {"status": status}}
        path = f"/v0.1/servers/{NAME.replace('/', '%2F')}/versions/{version}"
        self.pages[path] = {"server": document, "_meta": meta}


@contextmanager
def running_double() -> Iterator[Double]:
    """Serve them; `VARIABLES` have to hold their address."""
    found = Double()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.server.shutdown()
        found.server.server_close()
        thread.join(5)


def npm(**package: Any) -> dict[str, Any]:
    """Return the metadata of a package as the registry returns it."""
    return {"registryType": "npm", "identifier": "@example/weather", "version": "1.2.3",
            "transport": {"type": "stdio"}, **package}  # fmt: skip
