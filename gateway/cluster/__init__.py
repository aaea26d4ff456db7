"""One gateway made of several processes: workers on one machine, and replicas on several machines.

The workers on one machine form a worker group. Their parent process starts them and counts calls for them. The first
worker (index 0) makes changes and answers administrators for all. Replicas form a cluster and share their state through
a store in Valkey or Redis. A session stays in the process that created it, so a request for a session of another
process is forwarded to that process.

administration      `/admin`, `/metrics` and `/readyz` of a worker group.
relays              Approvals, call statistics and events, sent between the first worker and the others.
roles               Process roles, and the configuration and communication of workers.
session_forwarding  Forward a request to the process that has the request's session.
worker_group        A worker of a worker group: its shared state and its private socket.
worker_state        State shared by workers: counters in their parent, and a document with configuration and changes.
redis_store         The shared store in Valkey or Redis.
shared_store        The interface of the shared store, encryption of its values, and its status.
replicas            The other replicas: discovery, mutual TLS derived from a shared secret, and forwarding.
replica             This replica of a cluster: its connections, the state that it shares, and its metrics.
shared_parts        The parts of a gateway whose state all replicas share.
shared_changes      Replicated fields. If replicas write the same field, the latest value wins.
shared_limits       Calls per minute and requests in flight, counted across all processes.
shared_sign_ins     Sign-ins to upstreams, shared by all replicas.
"""
