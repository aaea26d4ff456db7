"""The shell of typegate: every socket, process, file, clock and task.

The folders, from the outside to the inside. Imports run in this direction only:

    cli, commands   the command line
    serving         a running gateway behind HTTP or standard streams, until a signal; `app` is the composition root
    cluster         several processes that serve as one
    admin           `/admin/*` and its web page (`page/`), probes and metrics
    fleet           every upstream in use: links, listings, snapshot, lock, reload
    onboarding      where servers come from, and the files of hosts
    downstream      MCP as a server: HTTP and stdio, both protocol eras
    calls           one call, from a name to a result
    hooks           code that sees and changes calls
    upstream        one link for each upstream; `transport/`, `graphql/`, `oauth/`
    audit           the audit log
    http            HTTP/1.1 server and client without any MCP concept
    access          who calls, and what proves it
    telemetry       logs, durations and traces
    config          the configuration file: model, validation, editing
    embeddings      search by meaning, where that extra is installed
    process         files, secrets, signals, tasks, memory
    protocol        errors, JSON-RPC, protocol versions, JSON bytes

`registry` knows what tools are; it does no I/O and imports nothing from here. `demo` is two small servers that know
nothing of the gateway.

The life of one `tools/call` over HTTP, file by file:

    http/server_connection      bytes become a request: bounds, framing, pipelining, deadlines
    downstream/router           Host and Origin (`http/origins`), then the part that answers for the path
    downstream/http_callers     principal and profile from the header block; an unknown token waits for its issuer
                                (`access/oauth`)
    downstream/endpoint         media types; the body is parsed once, classified by `protocol/jsonrpc`, and compared
                                with its headers
    http/responder              a task that writes the response, or a stream before it
    downstream/mcp_server       the method, and the caller with every way to reach it
    calls/pipeline              pins the catalog, resolves the name, applies policy, prepares the arguments
                                (`registry.arguments.prepare`; slow checks run in a process of `thorough_checks`), runs
                                hooks
    calls/forwarding            chooses the connection, and declares the caller's capabilities
    upstream/link               breaker, concurrency, deadline, readiness; a new epoch is resolved and checked again
    upstream/mcp_session        envelope and headers of the upstream's protocol version
    upstream/transport/*        the request on the wire, and its response

On the way back the pipeline adapts the result to the caller's version (`calls/results`), runs hooks in reverse, and
adds a hint to an upstream's error about arguments (`calls/advice/error_hints`); `mcp_server` and `responder` write
it. `invoke_tool` enters the pipeline with the wrapper that it names, so that it bypasses nothing; stdio enters at
`downstream/mcp_server`.

One discovery: `upstream/link` opens a connection (epoch + 1), `mcp_session` lists every page, `fleet/discovery` has
each item checked alone (`registry.intake`), `fleet/listings` puts it into `registry.catalog.registry`, which builds a
catalog and swaps it as a whole; `downstream/list_changes` announces it to each caller, and `fleet/snapshot` stores
it.
"""

__version__ = "0.2.0"
