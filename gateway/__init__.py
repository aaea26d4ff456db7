"""typegate, an MCP gateway. This package does all input and output: sockets, processes, files, clocks and tasks.

These are the folders, from the outermost to the innermost. Each imports only from folders that are listed after it:

    cli, commands   the command line
    serving         run a gateway over HTTP or standard streams until a signal arrives; `app` constructs all parts
    cluster         several processes that serve as one gateway
    admin           `/admin/*` and its web page (`page/`), health probes and metrics
    fleet           all upstreams together: their connections, tool lists, lock file, and changes of the configuration
    onboarding      add servers to the configuration, and the gateway to the configuration files of hosts
    downstream      MCP as a server: HTTP and stdio, in all supported protocol versions
    calls           process one call, from the name of a wrapper to the result
    hooks           run code of the operator that sees and changes calls
    upstream        the connection to one upstream (`link`); `transport/`, `graphql/`, `openapi/`, `oauth/`
    audit           the audit log
    http            an HTTP/1.1 server and client that do not depend on MCP
    access          identify callers by API keys and access tokens, and limit their calls
    telemetry       logs, durations and traces
    config          the configuration file: model, validation, editing
    embeddings      search for tools by meaning, if the extra `embeddings` is installed
    process         files, secrets, signals, tasks, memory
    protocol        errors, JSON-RPC, protocol versions, JSON bytes

The package `registry` defines tools, catalogs and policies. It does no I/O and imports nothing from `gateway`. `demo`
contains two small MCP servers, which do not use the rest of `gateway`.

How one `tools/call` over HTTP is processed, file by file:

    http/server_connection      reads a request from the bytes: size limits, framing, pipelining, deadlines
    downstream/admission        checks Host and Origin (`http/origins`), chooses the handler by path, and determines
                                the caller and the profile from the headers; if the token has not been verified yet,
                                the request waits for the verification (`access/oauth`)
    downstream/endpoint         checks media types; parses the body once, classifies it with `protocol/jsonrpc`, and
                                compares it with the headers
    http/responder              writes the response, or starts an event stream before the response is known
    downstream/mcp_server       dispatches by method, and describes the caller: its view, capabilities and notifications
    calls/pipeline              resolves the name in the caller's current catalog, prepares the arguments
                                (`registry.arguments.prepare`; slow checks run in a process of `thorough_checks`),
                                applies policy, runs hooks
    calls/forwarding            chooses the connection, and declares the caller's capabilities to the upstream
    upstream/link               applies circuit breaker, concurrency limit and deadline; if the upstream has reconnected
                                (a new epoch), the pipeline resolves and checks the call again
    upstream/mcp_session        adds the metadata and headers of the upstream's protocol version
    upstream/transport/*        sends the request and reads the response

After the response, the pipeline adapts the result to the caller's protocol version (`calls/results`), runs hooks in
reverse order, and adds a hint to an upstream's error about arguments (`calls/advice/error_hints`). `mcp_server` and
`responder` write the response. `invoke_tool` calls the pipeline with the wrapper that its arguments name, so that every
check applies. Requests over stdio start at `downstream/mcp_server`.

How the tools of an upstream are discovered: `upstream/link` opens a connection and increments the epoch, and
`mcp_session` fetches every page of the lists. `fleet/discovery` checks each item separately (`registry.intake`).
`fleet/listings` passes the result to `registry.catalog.registry`, which builds a new catalog and replaces the old one
in one step. `downstream/sessions` notifies callers, and `fleet/snapshot` stores the lists for the next start.
"""

__version__ = "0.2.0"
