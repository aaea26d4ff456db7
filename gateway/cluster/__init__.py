"""One gateway made of several processes: workers on one machine, and replicas on several machines.

The workers on one machine form a worker group. Their parent process starts them. The first worker (index 0) makes
changes and answers administrators for all. Replicas form a cluster. The processes share their state through a store:
the parent process of workers, or Valkey or Redis for replicas. A session stays in the process that created it, so a
request for a session of another process is forwarded to that process.

administration      `/admin`, `/metrics` and `/readyz` of a worker group, with the failures and events of all workers.
roles               Process roles, and the configuration and communication of workers.
session_forwarding  Forward a request to the process that has the request's session.
worker_group        A worker of a worker group: the state that it shares, and its private socket.
shared_store        The interface of the shared store, encryption of its values, and its status.
parent_store        The shared store in the parent process of workers.
redis_store         The shared store in Valkey or Redis.
replicas            The other replicas: discovery, mutual TLS derived from a shared secret, and forwarding.
replica             This replica of a cluster: its connections, the sign-ins that it shares, and its metrics.
shared_state        The state that a process shares with the others: its parts, and approvals.
shared_changes      Replicated fields. If processes write the same field, the latest value wins.
shared_limits       Calls per minute and requests in flight, counted across all processes.
"""
