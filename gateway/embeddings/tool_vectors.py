"""How near a query is to each tool of a view: vectors made aside, each once, and kept."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from gateway.embeddings.model import DIMENSIONS, NAME, SentenceModel
from gateway.embeddings.vector_store import VectorStore
from registry.catalog.catalog import Catalog
from registry.catalog.store import Registry
from registry.search.fusion import sense
from registry.views.view import View

log = logging.getLogger(__name__)

_AT_ONCE: Final = 32
"""Texts of one turn in a worker thread: about a fifth of a second."""
_GRACE_S: Final = 2.0
"""Hosts wait a second for a first list: until then nothing heavy is imported."""

_WORDS_ONLY: Final = "tools are found by their words only"


class Meanings:
    """Knows what tools are about, once `run` has read them; until then nobody is told anything.

    Attributes:
        error: Why it knows nothing, if something went wrong.
    """

    def __init__(self, registry: Registry, state_dir: Path | None, *, wanted: bool) -> None:
        self.error: str | None = None
        self._registry = registry
        self._store = VectorStore(state_dir, NAME, DIMENSIONS * 4)
        self._wanted = wanted
        self._model: SentenceModel | None = None
        self._vectors: dict[str, Any] = {}
        self._stir = anyio.Event()
        self._ready = False
        self._matrices: dict[str, tuple[View, Any]] = {}

    def replace(self, *, wanted: bool) -> None:
        """Take another configuration; what went wrong is tried again."""
        self._wanted, self.error = wanted, None
        self._stir.set()

    def row(self) -> dict[str, Any]:
        """The state of it, for operators."""
        state = "off" if not self._wanted else "failed" if self.error else "ready" if self._ready else "preparing"
        return {"embeddings": state, "error": self.error if self._wanted else None}

    async def run(self) -> None:
        """Embed what the catalog has and no vector yet, whenever it changes, until cancelled."""
        unsubscribe = self._registry.subscribe(lambda _change: self._stir.set())
        self._stir.set()
        try:
            await anyio.sleep(_GRACE_S)
            while True:
                await self._stir.wait()
                self._stir, self._ready = anyio.Event(), False
                if not self._wanted:
                    self._forget()
                if not self._wanted or self.error is not None:
                    continue
                try:
                    await self._read()
                    self._ready = not self._stir.is_set()
                except Exception as error:  # boundary: search goes on by words alone
                    self._failed(error)
                    log.exception(_WORDS_ONLY)
        finally:
            unsubscribe()

    async def nearness(self, view: View, query: str) -> Mapping[str, float] | None:
        """How near a query is to each tool of a view, by name; None until every one of them is known."""
        model = self._model
        if not self._wanted or model is None:
            return None
        try:
            return await anyio.to_thread.run_sync(self._near, model, view, query)
        except Exception as error:  # boundary: the model is foreign, and words are left to search by
            self._failed(error)
            log.exception(_WORDS_ONLY)
            return None

    def _near(self, model: SentenceModel, view: View, query: str) -> Mapping[str, float] | None:
        known = self._matrices.get(view.profile.name)
        if known is None or known[0] is not view:
            vectors = [self._vectors.get(_digest(sense(entry.wrapper))) for entry in view.entries]
            if any(one is None for one in vectors):
                return None
            self._matrices[view.profile.name] = known = (view, model.matrix(vectors))
        near = model.nearness(known[1], query)
        return {entry.name: one for entry, one in zip(view.entries, near, strict=True)}

    async def _read(self) -> None:
        texts = await anyio.to_thread.run_sync(_senses, self._registry.catalog)
        missing = [digest for digest in texts if digest not in self._vectors]
        if missing:
            if self._model is None:
                self._model = await anyio.to_thread.run_sync(SentenceModel)
            model: SentenceModel = self._model
            stored = await anyio.to_thread.run_sync(self._store.read, missing)
            self._vectors |= {digest: model.unpacked(one) for digest, one in stored.items()}
            missing = [digest for digest in missing if digest not in stored]
            for start in range(0, len(missing), _AT_ONCE):
                some = {digest: texts[digest] for digest in missing[start : start + _AT_ONCE]}
                self._vectors |= await anyio.to_thread.run_sync(self._embedded, model, some)
        for digest in self._vectors.keys() - texts.keys():
            del self._vectors[digest]

    def _embedded(self, model: SentenceModel, texts: Mapping[str, str]) -> dict[str, Any]:
        vectors = {digest: model.vector(text) for digest, text in texts.items()}
        self._store.write({digest: model.packed(one) for digest, one in vectors.items()})
        return vectors

    def _failed(self, error: Exception) -> None:
        self._model, self.error = None, f"{type(error).__name__}: {error}"

    def _forget(self) -> None:
        self._model, self.error = None, None
        self._vectors.clear()
        self._matrices.clear()


def _senses(catalog: Catalog) -> dict[str, str]:
    texts = map(sense, catalog.wrappers)
    return {_digest(text): text for text in texts}


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]
