"""Vectors on disk, by name of the model and digest of the text, so that no text is embedded twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger(__name__)

FILE_NAME: Final = "vectors.sqlite"
# About 160 MB at 1.5 kB for each vector: the tools of a large installation over many versions.
MAX_ROWS: Final = 100_000
# For the lock of another gateway that writes; a batch of theirs takes milliseconds.
_LOCK_TIMEOUT_S: Final = 5.0
_TABLE: Final = "create table if not exists vectors (model text, digest text, vector blob, primary key (model, digest))"
# Parameters of one statement: SQLite allows 999 where it was built with its old default.
_BATCH_SIZE: Final = 500


class VectorStore:
    """One file in the state directory, shared by every gateway that uses it; without a directory nothing is stored.

    If the file cannot be read or written there is a warning, and texts are embedded again.
    """

    def __init__(self, state_dir: Path | None, model: str, size_bytes: int) -> None:
        self._path = state_dir / FILE_NAME if state_dir is not None else None
        self._model = model
        self._size_bytes = size_bytes

    def read(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Return those of these vectors that are stored."""
        wanted, found = list(digests), dict[str, bytes]()

        def select(base: sqlite3.Connection) -> None:
            for start in range(0, len(wanted), _BATCH_SIZE):
                some = wanted[start : start + _BATCH_SIZE]
                marks = ",".join("?" * len(some))
                query = f"select digest, vector from vectors where model = ? and digest in ({marks})"
                found.update(base.execute(query, (self._model, *some)))

        self._with_file(select)
        return {digest: vector for digest, vector in found.items() if len(vector) == self._size_bytes}

    def write(self, vectors: Mapping[str, bytes]) -> None:
        """Store vectors; beyond `MAX_ROWS` the oldest are deleted."""

        def insert(base: sqlite3.Connection) -> None:
            rows = [(self._model, digest, vector) for digest, vector in vectors.items()]
            base.executemany("insert or replace into vectors values (?, ?, ?)", rows)
            oldest = "select rowid from vectors order by rowid desc limit -1 offset ?"
            base.execute(f"delete from vectors where rowid in ({oldest})", (MAX_ROWS,))

        self._with_file(insert)

    def _with_file(self, act: Callable[[sqlite3.Connection], None]) -> None:
        if self._path is None:
            return
        import sqlite3  # late: most gateways have no vectors, and a host waits for what is imported

        try:
            with closing(sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT_S)) as base, base:
                self._path.chmod(0o600)
                base.execute(_TABLE)
                act(base)
        except (sqlite3.Error, OSError) as error:
            log.warning("the stored vectors are not used: %s", error)
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                # The file is damaged. It is only a cache, so it is deleted and built again.
                with suppress(OSError):
                    self._path.unlink()
