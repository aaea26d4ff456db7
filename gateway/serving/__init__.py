"""The long-running processes of the gateway, and the commands that serve hosts.

app             The composition root: construct and start all parts of a gateway from a configuration.
admin_assembly  Build the admin API of a gateway.
listen          Bind the sockets of the gateway, refuse unsafe addresses, and determine the admin token.
over_stdio      `typegate stdio --config`: serve one host over standard input and output.
bridge          `typegate stdio --url`: forward standard input and output to a running gateway.
over_http       `typegate serve`: sockets, signals and the order of shutdown.
worker          A worker process, one of several that serve callers on the same port.
worker_parent   The parent of the workers: owns the port, and restarts workers that have exited.
"""
