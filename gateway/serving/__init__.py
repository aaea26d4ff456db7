"""The long-running processes of the gateway.

app             The composition root: build a running gateway from a configuration.
admin_assembly  Build the admin API of a gateway.
listen          Bind the sockets of the gateway, check who can reach them, and find the admin token.
over_stdio      `typegate stdio --config`: serve one host over standard input and output.
bridge          `typegate stdio --url`: forward standard input and output to a running gateway.
over_http       `typegate serve`: sockets, signals and the order of shutdown.
worker          The worker process, which serves as assigned by its parent.
worker_parent   The parent of the workers: owns the port and restarts workers that have exited.
"""
