"""Schemas as values: digest, bounds, compiled validators cached by digest."""

from __future__ import annotations

import json
import math
from hashlib import sha256
from threading import Lock
from typing import Any, Final

import orjson
from cachetools import LRUCache

from registry.errors import SchemaRejected
from registry.schema.references import REFERENCE_KEYWORDS, Document
from registry.schema.validators import MAX_CHECK_COST, Validator, compile_validator

MAX_SCHEMA_BYTES: Final = 1 << 20
MAX_SCHEMA_DEPTH: Final = 200
MAX_SCHEMA_VISITS: Final = 100_000


def canonical(value: object) -> bytes:
    """Return the same bytes for equal JSON values, whatever the order of their keys.

    Raises:
        SchemaRejected: the value is nested too deeply, or is not JSON at all.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        pass
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    except RecursionError:
        raise SchemaRejected("too_deep", "nested too deeply to be written as JSON") from None
    except (TypeError, ValueError) as error:
        raise SchemaRejected("not_json", f"not a JSON value: {str(error)[:200]}") from None


def text_of(value: object) -> str:
    """Return compact JSON in the author's own order of keys, for people and models to read.

    Raises:
        SchemaRejected: as `canonical`.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return canonical(value).decode()


def digest(value: object) -> str:
    """Return 16 hex digits that depend on the value and not on the order of its keys.

    Raises:
        SchemaRejected: as `canonical`.
    """
    return digest_of(canonical(value))


def digest_of(text: bytes) -> str:
    """Return the digest of what `canonical` gave."""
    return sha256(text).hexdigest()[:16]


def check_bounds(schema: object) -> None:
    """Refuse a schema that costs too much to hold or to compile, without recursion.

    Specification 2026-07-28, server/tools: implementations bound depth, size and time.

    Raises:
        SchemaRejected: `too_large`, `too_deep`, `too_complex` or `not_json`.
    """
    measured = measure(schema)
    if measured.has_references and Document(schema).visits(MAX_SCHEMA_VISITS) > MAX_SCHEMA_VISITS:
        raise SchemaRejected("too_complex", f"more than {MAX_SCHEMA_VISITS} visits with its $refs expanded")


class Measure:
    """What one walk over a JSON value found."""

    __slots__ = ("depth", "has_references", "options", "size", "visits")

    def __init__(self) -> None:
        self.visits = 0
        self.size = 0
        self.depth = 0
        self.options = 0  # members of every `enum`
        self.has_references = False


def measure(value: object, *, max_depth: int = MAX_SCHEMA_DEPTH) -> Measure:
    """Walk a value with an explicit stack and stop at the first bound that it breaks.

    Raises:
        SchemaRejected: `too_large`, `too_deep`, `too_complex` or `not_json`.
    """
    found = Measure()
    stack: list[tuple[object, int]] = [(value, 1)]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, dict):
            children: Any = node.values()
            found.size += 2 + 4 * len(node)
            for key in node:
                if not isinstance(key, str):
                    raise SchemaRejected("not_json", "an object key is not a string")
                found.size += len(key)
            if isinstance(options := node.get("enum"), list):
                found.options += len(options)
            if not found.has_references:
                found.has_references = not REFERENCE_KEYWORDS.isdisjoint(node)
        elif isinstance(node, list | tuple):
            children = node
            found.size += 2 + len(node)
        else:
            found.size += _scalar_size(node)
            continue
        found.visits += 1
        found.depth = max(found.depth, depth)
        if depth > max_depth:
            raise SchemaRejected("too_deep", f"nested more than {max_depth} levels")
        if found.visits > MAX_SCHEMA_VISITS:
            raise SchemaRejected("too_complex", f"more than {MAX_SCHEMA_VISITS} objects and lists")
        if found.size > MAX_SCHEMA_BYTES:
            raise SchemaRejected("too_large", f"more than {MAX_SCHEMA_BYTES} bytes")
        for child in children:
            stack.append((child, depth + 1))
    if found.size > MAX_SCHEMA_BYTES:
        raise SchemaRejected("too_large", f"more than {MAX_SCHEMA_BYTES} bytes")
    return found


def _scalar_size(node: object) -> int:
    if isinstance(node, str):
        return len(node) + 2
    if node is None or isinstance(node, bool):
        return 4
    if isinstance(node, int):
        # An int of a million digits costs quadratic time to write, so it counts for what it holds.
        return 1 + node.bit_length() // 3
    if isinstance(node, float):
        if not math.isfinite(node):
            raise SchemaRejected("not_json", "a number is not finite")
        return 4
    raise SchemaRejected("not_json", f"a {type(node).__name__} is not a JSON value")


_validators: LRUCache[str, Validator | SchemaRejected] = LRUCache(2048)
_validators_lock = Lock()  # compiling may happen in a worker thread, reading on the loop


def validator(schema: object, digest: str) -> Validator:
    """Return the compiled form of a schema, from the cache where its digest is known.

    Raises:
        SchemaRejected: the schema is out of bounds or cannot be compiled.
    """
    with _validators_lock:
        known = _validators.get(digest)
    if known is None:
        try:
            check_bounds(schema)
            known = compile_schema(schema)
        except SchemaRejected as rejected:
            known = rejected
        with _validators_lock:
            _validators[digest] = known
    if isinstance(known, SchemaRejected):
        raise SchemaRejected(known.code, known.detail)
    return known


def compile_schema(schema: object) -> Validator:
    """Compile a schema that is within bounds; unknown dialects count as 2020-12.

    A pattern that no engine here reads is left out of the check, for its upstream may well read it.

    Raises:
        SchemaRejected: `invalid_schema`, `remote_ref` or `broken_ref`, or as `check_bounds`.
    """
    if not isinstance(schema, dict | bool):
        raise SchemaRejected("invalid_schema", "a schema is an object or a boolean")
    measured = measure(schema)
    visits, branches = measured.visits, 0
    weight = visits + measured.options
    if measured.has_references:
        document = Document(schema)
        document.require_resolvable()
        visits = document.visits(MAX_SCHEMA_VISITS)
        weight = document.visits(MAX_CHECK_COST, with_options=True)
        branches = document.reference_count if document.is_recursive else 0
    return compile_validator(schema, visits=visits, weight=weight, branches=branches)
