"""Processes that run until they are stopped.

`over_http` serves callers on a socket that `listen` has bound, and drains at a signal; `worker_parent` and `worker` do
so with several processes. `over_stdio` serves the one host that started the process, and `bridge` connects such a host
with a gateway that runs elsewhere. `admin_assembly` puts the admin API together, and `admin_listener` gives it an
address of its own; `callback_listener` is where a browser comes back to after a sign-in.
"""
