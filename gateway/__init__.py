"""The shell of typegate: every socket, process, file, clock and task.

The map, in the direction in which imports run:

    cli, commands       the command line
    workers             several processes that serve as one
    serving             a running Gateway behind HTTP or a pipe, until a signal
    app                 composition root: Config in, running Gateway out
    fleet               every upstream with its link, listing and shape
    reloading           a changed configuration, applied to a running gateway
    downstream          what callers connect to: HTTP and stdio, both protocol eras
    admin               /admin/*, the probes and metrics
    config              the file: model, reading, checking
    access              who is calling
    telemetry           logs and metrics
    calls               one call from wrapper name to result; every other request to its owner
    hooks               what looks at calls on their way, and may change them
    discovery           what an upstream said becomes a listing
    operator_notes      operators' notes about tools
    meaning             search by what tools mean, where that extra is installed
    upstream            one link for each server behind us

`eras`, `errors`, `files`, `lines`, `wire`, `config.model`, `config.hooks`, `config.sections`,
`access.principal` and `access.seals` are leaves, open to all.
What tools *are* is known to the package `registry`, which does no I/O and imports nothing from here.
"""

__version__ = "0.1.0"
