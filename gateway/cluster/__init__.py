"""Several processes that serve as one: workers of one machine, and gateways on many.

Workers (`typegate serve --workers N`):

The parent (`gateway.serving.worker_parent`) owns the listening sockets, starts the workers and restarts those that
died. It serves no caller. Each worker is a whole gateway with connections to upstreams of its own. What one process
cannot know alone goes over Unix sockets that only this user can open:

- A session of the handshake era lives in one worker, and its id says in which; requests that arrive elsewhere are
  carried there (`peers`).
- What administrators have changed, and the text of the configuration in use, is one document that the first worker
  writes and all others take (`shared_state`).
- A request to the admin API is answered for all workers together (`administration`, `metrics_ledger`).
- Failures of calls at any worker are relayed to the first one (`call_stats_relay`), and so are calls that wait for a
  person (`approvals_relay`). Administrators who watch one worker see what happens in each (`events_relay`).
- Calls per minute are counted by the parent (`parent_store`), as those of replicas are by their store, and so are
  requests in flight (`shared_running`).

An `assignment` is what the parent hands to a worker, a `role` what its gateway has to know of it. `team` exists before
the gateway, `member` is built with it. `single_process_only` refuses what several processes cannot serve.

The first worker keeps the clusters of failures and the counters of workers that have ended: they are lost when it
ends, as with a single process. What administrators have changed is lost when all workers end.

Request states and ids of tasks need no shared memory: every worker signs with the same key.

Gateways of a cluster (`gateway.cluster`; a `pod`), each with state of its own:

- As with workers, the id of a session of the handshake era says who has it, and requests that arrive elsewhere are
  carried there (`pods`, `carrying`), over TLS whose certificates come from the secret that all gateways have
  (`peer_credentials`). An owner that is gone is a session that is gone: 404.
- Changes by administrators, approvals and revoked keys are fields that every replica has in memory (`shared_changes`,
  `shared_parts`, `shared_book`); calls per minute are counted together (`shared_limits`). They meet in a store
  (`store`, `redis_store`), in which everything is encrypted (`sealing`) and for which only calls of a caller that is
  close to its quota wait; `status` tells how it does.
- Sign-ins to upstreams are refreshed by one gateway and known to all (`shared_sign_ins`).
- `cluster_routes` tell administrators and Prometheus of all this.
- Ids of tasks and states of requests are signed with a key from the same secret: any gateway takes them.
"""
