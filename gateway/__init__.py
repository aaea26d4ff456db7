"""The shell of typegate: every socket, process, file, clock and task.

The rooms, from the outside to the inside; imports run in this direction only:

    cli, commands       the command line
    serving             a running gateway behind HTTP or standard streams, until a signal
    app                 the composition root: a Config in, a running Gateway out
    cluster             several processes that serve as one
    admin               /admin/* and its web page (`page/`), the probes, /metrics, and what OpenAPI says of them
    host_files          the files of hosts, in which servers stand and the gateway is put
    server_sources      registries, packages and bundles that servers come from
    telemetry           logs and metrics
    fleet               every upstream with its link and its configuration; `shared_listings`: what everybody is
                        listed, `own_listings`: what single callers are; `catalog_updates`: catalogs of many tools,
                        built beside the loop
    reload              a changed configuration file, applied to a running gateway
    downstream          what callers connect to: `http/` and stdio, both protocol eras
    calls               one call from a name to a result; every other request to its owner
    hooks               what looks at calls on their way and may change them
    discovery           what an upstream listed becomes a listing
    snapshot            the last good listings on disk
    lock                what was approved of servers, and what is held until it is
    upstream            one link for each server behind us; `transport/`, `graphql/`
    operator_notes      notes about tools
    access              who calls, and what proves it
    audit               the record of calls, refusals and changes
    instruments         what is measured meanwhile: durations, spans
    config              the file: model, types of upstreams, reading, checking, editing
    embeddings          search by meaning, where that extra is installed

`errors`, `wire` (JSON as bytes), `jsonrpc` (what a message is), `protocol` (versions, envelope, headers), `lines`,
`files`, `extras` (optional parts of this package), `memory`, `signals`, `secrets` (what no text may repeat),
`worker_thread` (work that would hold up the event loop), `owned_tasks` (work that does not end with its caller) and
the models of `config` are leaves, open to all.
What tools *are* is known to the package `registry`, which does no I/O and imports nothing from here. `demo` is two
small servers that know nothing of us.

One call over HTTP, file by file:

    downstream/http/protocol    bytes become a request: bounds, framing, pipelining, deadlines
    downstream/http/router      Host and Origin (`host_check`), then who answers for the path
    downstream/http/callers     principal and profile by the `request`'s head; a token that nobody knows yet waits for
                                its issuer (`access/oauth`) once its body is there
    downstream/http/endpoint    media types; then the body is parsed once, classified by `jsonrpc`, and compared with
                                its headers
    downstream/http/responder   a task that will write the response, or a stream before it
    downstream/server           the method; the caller with every way to reach it
    calls/pipeline              pins the catalog, resolves the name, policy, `registry.arguments.prepare` (repair,
                                defaults, check; what may take long, in a process of `thorough_checks`), hooks
    calls/forwarding            on which connection, with which of the caller's capabilities
    upstream/link               breaker, concurrency, deadline, readiness; another epoch is resolved and checked again
    upstream/mcp_session        envelope and headers of the upstream's protocol version
    upstream/transport/*        the request on the wire, and the response that belongs to it

and back: the pipeline adapts the result to the caller's version (`calls/results`), runs hooks in reverse, adds to an
upstream's complaint what the schema knows (`calls/error_hints`); `server` and `responder` write it. `invoke_tool`
enters the pipeline with the wrapper that it names, so that nothing is bypassed; stdio enters at `downstream/server`.

One discovery: `upstream/link` opens a connection (epoch + 1), `mcp_session` lists every page, `discovery` has each item
looked at alone (`registry.intake`), `shared_listings` puts it into `registry.catalog.store`, which builds a catalog and
swaps it whole; `downstream/changes` announces it to each caller in the way of its era, and `snapshot` keeps it.
"""

__version__ = "0.1.0"
