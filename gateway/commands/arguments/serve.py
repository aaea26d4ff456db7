"""The arguments of the commands that serve: `serve`, `stdio` and `demo`."""

from __future__ import annotations

from typing import Final

from gateway.commands.arguments import options
from gateway.commands.arguments.declaring import Commands

_SERVE: Final = """\
Serve a configuration over Streamable HTTP until SIGINT or SIGTERM.
A changed file is applied while it runs; SIGHUP applies it at once.

examples:
  typegate serve --config mcp.json
  typegate serve --config mcp.yaml --port 9000 --state-dir /var/lib/typegate
  typegate serve --config mcp.json --workers 4
"""

_STDIO: Final = """\
The same gateway over stdin and stdout, for hosts that only start processes; or a bridge to a running one.
With --config it connects to the servers itself; with --url it passes everything to a gateway that runs already.

TYPEGATE_API_KEY says who the host is, as the key of a caller does over HTTP: with --config one of gateway.auth.apiKeys,
with the profiles and rights of its entry; without it whoever starts the process is trusted, as `local`. With --url it
is sent as `Authorization: Bearer KEY`, unless a --header says otherwise.

examples:
  typegate stdio --config mcp.json
  typegate stdio --url http://127.0.0.1:8765/mcp --header 'Authorization: Bearer KEY'
"""

_DEMO: Final = """\
Serve two bundled servers, a calendar and a bank, and show how to call them.

examples:
  typegate demo
  typegate demo --port 9000
"""


def add_serving_commands(commands: Commands) -> None:
    """Declare the commands."""
    serve = commands.add("serve", _SERVE, "serve:serve")
    options.config(serve, uses_default=True)
    serve.add_argument("--host", help="address to listen on (default: the configuration's, 127.0.0.1)")
    serve.add_argument("--port", type=options.port, help="port to listen on, 0 for any (default: 8765)")
    about = f"processes that share the port, one for each core to use; 1 to {options.MAX_WORKERS} (default: 1)"
    serve.add_argument("--workers", type=options.workers, default=1, metavar="N", help=about)
    options.state(serve)
    options.verbose(serve)
    options.strict(serve)
    serve.add_argument("--insecure", action="store_true", help="allow other machines to call without an API key")

    stdio = commands.add("stdio", _STDIO, "serve:stdio")
    source = stdio.add_mutually_exclusive_group()
    options.config(source, uses_default=True)
    stdio.set_defaults(uses_default_config=True)
    source.add_argument("--url", help="the /mcp address of a running gateway")
    stdio.add_argument("--header", action="append", default=[], metavar="'K: V'", help="sent to --url; may be repeated")
    options.verbose(stdio)
    options.strict(stdio)
    stdio.add_argument("--profile", metavar="P", help="the profile to serve")
    options.state(stdio)

    demo = commands.add("demo", _DEMO, "serve:demo")
    demo.add_argument("--port", type=options.port, help="port to listen on (default: 8765, or a free one)")
    options.state(demo)
