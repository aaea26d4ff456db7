"""FastMCP's proxy as its documentation sets it up; one client for all callers is its quickest form."""

import sys

from fastmcp import Client
from fastmcp.server import create_proxy
from fastmcp.server.providers.proxy import FastMCPProxy


def main() -> None:
    """Serve `argv[1]` at port `argv[2]`; `shared` keeps one connection to it."""
    url, port, *options = sys.argv[1:]
    if "shared" in options:
        client = Client(url)
        proxy = FastMCPProxy(client_factory=lambda: client, name="bench")
    else:
        proxy = create_proxy(url, name="bench")
    proxy.run(
        transport="http", host="127.0.0.1", port=int(port), path="/mcp", show_banner=False, log_level="ERROR",
        uvicorn_config={"access_log": False},
    )  # fmt: skip


if __name__ == "__main__":
    main()
