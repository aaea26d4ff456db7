"""`typegate serve --workers N`: several processes that serve as one.

The parent (`parent.py`) owns the listening sockets, starts the workers and starts again what has died.
It serves nothing. A worker (`worker.py`) is a whole gateway with connections to upstreams of its own.
What one process alone can know is brought together over sockets that only this user can reach:

- a session of the handshake era lives in one worker, and its id says in which; requests that come in
  elsewhere are carried there (`peers.py`)
- what an administrator has changed, and the text of the configuration in use, is one document that
  the first worker writes and all others take (`present.py`)
- what an administrator asks is answered for all workers together (`administration.py`, `merging.py`)

The first worker holds the classes of failures and what ended workers have counted: they go with it, as they
go with a single process. What administrators have changed goes only when all workers end.

Request states and the names of tasks need no memory: every worker has the same key for them.
"""
