"""One gateway made of several processes: workers on one machine, and replicas on several machines.

administration      `/admin`, `/metrics` and `/readyz` of a worker group.
relays              Approvals, call statistics and events, relayed between the first worker and the others.
roles               Process roles, and the configuration and communication of workers.
session_forwarding  Forwarding of a request to the process that has its session.
worker_group        A worker of a worker group: its shared state and its private socket.
worker_state        State shared by workers: counters in their parent, and a document of changes.
redis_store         The shared store in Valkey or Redis.
shared_store        The interface of the shared store, encryption of its values, and its status.
replicas            The other replicas: discovery, mutual TLS derived from a shared secret, and forwarding.
replica             This replica's part in the cluster.
shared_parts        The parts of a gateway whose state all replicas share.
shared_changes      Replicated state in which the latest value of a field wins.
shared_limits       Calls per minute and requests in flight, counted across all processes.
shared_sign_ins     Sign-ins to upstreams, shared by all replicas.
"""
