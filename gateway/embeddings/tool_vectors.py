"""How similar a query is to each tool of a view: vectors are computed in the background, each once, and stored."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from cachetools import LRUCache

from gateway.embeddings.model import ADAPTED_NAME, DIMENSIONS, SentenceModel
from gateway.embeddings.vector_store import VectorStore
from registry.catalog.catalog import Catalog
from registry.catalog.store import Registry
from registry.search.embedding_text import embedding_text
from registry.views.view import View

log = logging.getLogger(__name__)

# Texts embedded in one turn of a worker thread: about a fifth of a second, after which a cancellation is noticed.
_BATCH_SIZE: Final = 32
# Hosts wait a second for the first list: until then nothing heavy is imported.
_START_DELAY_S: Final = 2.0
# Hexadecimal digits of a SHA-256, so 128 bits: no two texts of one catalog will ever have the same.
_DIGEST_CHARS: Final = 32
# One for each profile, and for callers with limited rights; each takes a MiB and a half for a thousand tools.
_MAX_MATRICES: Final = 32
_WORDS_ONLY: Final = "tools are found by their words only"


class ToolVectors:
    """A vector for each tool of the catalog, computed by `run`; until all are there a search goes by words alone.

    Attributes:
        error: Why there are no vectors, if something went wrong.
    """

    def __init__(self, registry: Registry, state_dir: Path | None, *, enabled: bool) -> None:
        self.error: str | None = None
        self._registry = registry
        self._store = VectorStore(state_dir, ADAPTED_NAME, DIMENSIONS * 4)
        self._enabled = enabled
        self._model: SentenceModel | None = None
        self._vectors: dict[str, Any] = {}
        self._changed = anyio.Event()
        self._ready = False
        self._matrices: LRUCache[object, tuple[View, Any]] = LRUCache(_MAX_MATRICES)

    def replace(self, *, enabled: bool) -> None:
        """Use another configuration; what failed is tried again."""
        self._enabled, self.error = enabled, None
        self._changed.set()

    def row(self) -> dict[str, Any]:
        """Its state, for operators."""
        state = "off" if not self._enabled else "failed" if self.error else "ready" if self._ready else "preparing"
        return {"embeddings": state, "error": self.error if self._enabled else None}

    async def run(self) -> None:
        """Embed the tools that have no vector yet, at every change of the catalog, until cancelled."""
        unsubscribe = self._registry.subscribe(lambda _change: self._changed.set())
        self._changed.set()
        try:
            await anyio.sleep(_START_DELAY_S)
            while True:
                await self._changed.wait()
                self._changed, self._ready = anyio.Event(), False  # before the work: it may change again
                if not self._enabled:
                    self._clear()
                if not self._enabled or self.error is not None:
                    continue
                try:
                    await self._embed_missing()
                    self._ready = not self._changed.is_set()
                except Exception as error:  # boundary: search goes on by words alone
                    self._disable(error)
                    # Packages and models of others fail in many ways; the traceback is theirs, and for the curious.
                    log.error("%s: %s: %s", _WORDS_ONLY, type(error).__name__, error)
                    log.debug("where it failed", exc_info=error)
        finally:
            unsubscribe()

    async def similarities(self, view: View, query: str) -> Mapping[str, float] | None:
        """Return the similarity of a query to each tool of a view, by name; None until every tool has a vector."""
        model = self._model
        if not self._enabled or model is None:
            return None
        try:
            return await anyio.to_thread.run_sync(self._compare, model, view, query)
        except Exception as error:  # boundary: the model is foreign, and words are left to search by
            self._disable(error)
            log.exception(_WORDS_ONLY)
            return None

    def _compare(self, model: SentenceModel, view: View, query: str) -> Mapping[str, float] | None:
        known = self._matrices.get(view.key)
        if known is None or known[0] is not view:
            vectors = [self._vectors.get(_digest(embedding_text(entry.wrapper))) for entry in view.entries]
            if any(vector is None for vector in vectors):
                return None
            self._matrices[view.key] = known = (view, model.matrix(vectors))
        similarities = model.similarities(known[1], query)
        return {entry.name: value for entry, value in zip(view.entries, similarities, strict=True)}

    async def _embed_missing(self) -> None:
        texts = await anyio.to_thread.run_sync(_texts_by_digest, self._registry.catalog)
        missing = [digest for digest in texts if digest not in self._vectors]
        if missing:
            if self._model is None:
                self._model = await anyio.to_thread.run_sync(SentenceModel)
            model: SentenceModel = self._model
            stored = await anyio.to_thread.run_sync(self._store.read, missing)
            self._vectors |= {digest: model.unpacked(vector) for digest, vector in stored.items()}
            missing = [digest for digest in missing if digest not in stored]
            for start in range(0, len(missing), _BATCH_SIZE):
                batch = {digest: texts[digest] for digest in missing[start : start + _BATCH_SIZE]}
                self._vectors |= await anyio.to_thread.run_sync(self._embed, model, batch)
        for digest in self._vectors.keys() - texts.keys():
            del self._vectors[digest]

    def _embed(self, model: SentenceModel, texts: Mapping[str, str]) -> dict[str, Any]:
        vectors = {digest: model.vector(text) for digest, text in texts.items()}
        self._store.write({digest: model.packed(vector) for digest, vector in vectors.items()})
        return vectors

    def _disable(self, error: Exception) -> None:
        self._model, self.error = None, f"{type(error).__name__}: {error}"

    def _clear(self) -> None:
        self._model, self.error = None, None
        self._vectors.clear()
        self._matrices.clear()


def _texts_by_digest(catalog: Catalog) -> dict[str, str]:
    texts = map(embedding_text, catalog.wrappers)
    return {_digest(text): text for text in texts}


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
