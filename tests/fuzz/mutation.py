"""Bytes that are nearly right: mutations of sound inputs, the same for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

MAX_BYTES = 64 * 1024
"""The limit for one input, so that mutations that double it do not slow the run down."""
_DEEPER = 0.8
_OTHER_KEY = 0.15
_MAX_DEPTH = 12
_VALUES: Sequence[Any] = (
    None, True, False, 0, -1, 1, 3.5, 10**30, "", "a", "null", "3", "true", "\u202e", "[]", "{}", "#", "#/$defs/f",
    "(a+)+$",
    "^(?!.*x)", "[", "a" * 5000, [], {}, [[]], [None], ["a", "b"], {"type": "string"}, {"$ref": "#"}, [1, "1", 1.0],
)  # fmt: skip
_KEYS: Sequence[str] = (
    "type", "properties", "required", "items", "enum", "const", "pattern", "anyOf", "oneOf", "allOf", "not", "$ref",
    "$defs",
    "additionalProperties", "patternProperties", "minLength", "maximum", "format", "default", "description",
    "arguments",
    "params", "method", "id", "a", "", "__proto__", "\u0000", "dependentSchemas", "unevaluatedProperties",
    "$dynamicRef", "$id",
)  # fmt: skip
# Tokens that are difficult for parsers: line ends, zeros, signs, lengths, quotes, nesting, escapes, half a character.
TOKENS: Sequence[bytes] = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b",", b"0", b"-1", b"+1", b"0x10", b"1e999", b"NaN", b"\x0b",
    b"18446744073709551616", b"\"", b"\\", b"\\u0000", b"\\ud800", b"{", b"}", b"[", b"]", b"{}", b"[]", b"null",
    b"true",
    b"\xff", b"\xc3", b"\xe2\x80\xae", b"\xef\xbb\xbf", b"\xf0\x9f\x98\x80", b"data: ", b"event: ", b"id: ", b"retry: ",
    b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"\r\n\r\n",
    b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: x\r\n", b"Expect: 100-continue\r\n", b"Host: a\r\n",
    b"0\r\n\r\n", b"5\r\nhello\r\n", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"GET /smuggled HTTP/1.1\r\n\r\n", b"${X}",
    b"${file:/etc/passwd}", b"&a", b"*a", b"<<: ", b"- ", b"$ref", b"#/$defs/a", b"pattern", b"(a+)+$", b"__proto__",
)  # fmt: skip


def mutated_json(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds, which are JSON, with up to eight values replaced, moved or removed."""
    value = json.loads(rng.choice(seeds))
    for _ in range(rng.randrange(9)):
        value = _with_other_value(rng, value, seeds, depth=0)
    return json.dumps(value).encode()[:MAX_BYTES]


def mutated(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds with up to eight mutations; sometimes none."""
    data = rng.choice(seeds)
    for _ in range(rng.randrange(9)):
        data = rng.choice(_WAYS)(rng, data, seeds)[:MAX_BYTES]
    return data


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """The same bytes in any number of pieces, as a network delivers them."""
    if rng.random() < 0.3:
        return [data]
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 6)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]


def _with_other_value(rng: random.Random, value: Any, seeds: Sequence[bytes], depth: int) -> Any:
    if isinstance(value, dict) and value and rng.random() < _DEEPER:
        key = rng.choice(list(value))
        if rng.random() < _OTHER_KEY:
            return {(rng.choice(_KEYS) if name == key else name): inner for name, inner in value.items()}
        return {**value, key: _with_other_value(rng, value[key], seeds, depth + 1)}
    if isinstance(value, list) and value and rng.random() < _DEEPER:
        place = rng.randrange(len(value))
        return [*value[:place], _with_other_value(rng, value[place], seeds, depth + 1), *value[place + 1 :]]
    ways = (
        lambda: rng.choice(_VALUES),
        lambda: json.loads(rng.choice(seeds)) if depth < _MAX_DEPTH else None,
        lambda: [value],
        lambda: {rng.choice(_KEYS): value},
        lambda: json.dumps(value),
    )
    return rng.choice(ways)()


def _place(rng: random.Random, data: bytes) -> int:
    return rng.randrange(len(data) + 1)


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = _place(rng, data)
    return start, min(len(data), start + rng.choice((1, 2, 4, 16, 64, 512)))


def _with_flip(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    start = _place(rng, data)
    return data[:start] + bytes((rng.randrange(256),)) + data[start + 1 :]


def _with_token(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    start = _place(rng, data)
    return data[:start] + rng.choice(TOKENS) + data[start:]


def _without_part(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _with_part_again(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 2, 8, 100)) + data[end:]


def _with_part_of_another(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    other = rng.choice(seeds)
    start, end = _span(rng, other)
    place = _place(rng, data)
    return data[:place] + other[start:end] + data[place:]


def _cut(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    return data[: _place(rng, data)]


def _line_moved(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    line = lines.pop(rng.randrange(len(lines)))
    lines.insert(rng.randrange(len(lines) + 1), line)
    return b"\n".join(lines)


def _with_other_case(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[start:end].swapcase() + data[end:]


_WAYS: Sequence[Callable[[random.Random, bytes, Sequence[bytes]], bytes]] = (
    _with_flip, _with_token, _without_part, _with_part_again, _with_part_of_another, _cut, _line_moved,
    _with_other_case,
)  # fmt: skip
