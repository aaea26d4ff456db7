"""`typegate serve --workers N`: several processes that serve as one.

The parent (`gateway.serving.worker_parent`) owns the listening sockets, starts the workers and restarts those that
died. It serves nothing. Each worker is a whole gateway with connections to upstreams of its own. What one process
cannot know alone goes over Unix sockets that only this user can open:

- A session of the handshake era lives in one worker, and its id says in which; requests that arrive elsewhere are
  carried there (`peers`).
- What administrators have changed, and the text of the configuration in use, is one document that the first worker
  writes and all others take (`shared_state`).
- A request to the admin API is answered for all workers together (`administration`, `metrics_ledger`).
- Failures of calls at any worker are relayed to the first one (`call_stats_relay`).

An `assignment` is what the parent hands to a worker, a `role` what its gateway has to know of it. `team` exists before
the gateway, `member` is built with it. `single_process_only` refuses what several processes cannot serve.

The first worker keeps the clusters of failures and the counters of workers that have ended: they are lost when it
ends, as with a single process. What administrators have changed is lost when all workers end.

Request states and ids of tasks need no shared memory: every worker signs with the same key.
"""
