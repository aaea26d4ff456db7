"""Canonical JSON, digests, size limits and cached validators of schemas."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock
from typing import Any, Final

import orjson

from registry.errors import SchemaRejected
from registry.schema.packed_definition import PackedDefinition, unpacked
from registry.schema.references import REFERENCE_KEYWORDS, SchemaDocument
from registry.schema.validators import Validator

# Among the 721 tools of real servers in `tests/corpus`, the largest schema has 35 KB and the deepest has 16 levels.
# Limits of about 30 and 12 times as much refuse no honest tool and are cheap to check.
MAX_SCHEMA_BYTES: Final = 1 << 20
# Recursive functions on accepted schemas (lowering, repairs) rely on this limit: 200 levels fit into Python's stack.
MAX_SCHEMA_DEPTH: Final = 200
# Maximum number of objects and lists, with references expanded as a compiler would expand them. This limit stops
# definitions that expand exponentially.
MAX_SCHEMA_VISITS: Final = 100_000

# 64 bits: the chance of a collision among a million schemas is below 10^-7, and digests stay short in logs.
_DIGEST_DIGITS: Final = 16
# Maximum number of characters that are quoted from an error message of the encoder.
_MAX_REASON: Final = 200
# Counting `enum` members stops at this number: comparing with more members is never fast.
_MAX_WEIGHT: Final = 10_000_000
_CONTAINERS: Final = (dict, list, tuple)
# Maximum number of cached validators, about 15 KB each: more than the number of tools of the 38 servers in
# `tests/corpus`. A validator that was dropped is compiled again.
_MAX_VALIDATORS: Final = 1024


def canonical_json(value: object) -> bytes:
    """Return a canonical encoding: equal JSON values yield the same bytes, whatever the order of their keys.

    Raises:
        SchemaRejected: The value is nested too deeply or is not a JSON value.
    """
    try:
        return orjson.dumps(value, default=unpacked, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        pass  # integers beyond 64 bits, or nested beyond orjson's limit: the slower encoder accepts both
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=unpacked).encode()
    except RecursionError:
        raise SchemaRejected("too_deep", "nested too deeply to be written as JSON") from None
    except (TypeError, ValueError) as error:
        raise SchemaRejected("not_json", f"not a JSON value: {str(error)[:_MAX_REASON]}") from None


def compact_json(value: object) -> str:
    """Return compact JSON with keys in their original order, for people and models.

    Raises:
        SchemaRejected: See `canonical_json`.
    """
    if isinstance(value, PackedDefinition):
        return value.text.decode()
    try:
        return orjson.dumps(value, default=unpacked).decode()
    except TypeError:
        return canonical_json(value).decode()


def digest(value: object) -> str:
    """Return a digest of 16 hexadecimal digits that does not depend on the order of keys.

    Raises:
        SchemaRejected: See `canonical_json`.
    """
    return digest_of_canonical(canonical_json(value))


def digest_of_canonical(text: bytes) -> str:
    """Return the digest of a value given in canonical form."""
    return sha256(text).hexdigest()[:_DIGEST_DIGITS]


def check_bounds(schema: object) -> SchemaBounds:
    """Reject a schema that is too expensive to store or to compile. The check does not use recursion.

    The specification (2026-07-28, server/tools) asks implementations to bound depth, size and time.

    Raises:
        SchemaRejected: `too_large`, `too_deep`, `too_complex` or `not_json`.
    """
    bounds = _bounds_of(schema)
    if bounds.visits > MAX_SCHEMA_VISITS:
        raise SchemaRejected("too_complex", f"more than {MAX_SCHEMA_VISITS} visits with its $refs expanded")
    return bounds


@dataclass(slots=True)
class Measurements:
    """Sizes of a JSON value.

    Attributes:
        visits: The number of objects and lists.
        size: The approximate size as JSON, in bytes.
        options: The number of members of all `enum` lists.
    """

    visits: int = 0
    size: int = 0
    depth: int = 0
    options: int = 0
    has_references: bool = False


@dataclass(frozen=True, slots=True)
class SchemaBounds:
    """The result of measuring a schema, so that the schema does not have to be traversed again.

    Attributes:
        document: The schema with its resolved references; None if it has no references.
        visits: The number of objects and lists with references expanded.
    """

    measured: Measurements
    document: SchemaDocument | None
    visits: int


def _bounds_of(schema: object) -> SchemaBounds:
    measured = measure(schema)
    document = SchemaDocument(schema) if measured.has_references else None
    visits = document.visits(MAX_SCHEMA_VISITS) if document is not None else measured.visits
    return SchemaBounds(measured, document, visits)


def measure(value: object, *, max_depth: int = MAX_SCHEMA_DEPTH) -> Measurements:
    """Measure a value with an explicit stack; stop at the first limit that it exceeds.

    Raises:
        SchemaRejected: `too_large`, `too_deep`, `too_complex` or `not_json`.
    """
    measured = Measurements()
    if not isinstance(value, _CONTAINERS):
        measured.size = _scalar_size(value)
    # Only objects and lists are put on the stack, because most values are neither.
    stack: list[tuple[Any, int]] = [(value, 1)] if isinstance(value, _CONTAINERS) else []
    visits, size, deepest = 0, measured.size, 0
    while stack:
        node, depth = stack.pop()
        children: Any = node
        if isinstance(node, dict):
            children = node.values()
            size += 2 + 4 * len(node)
            for key in node:
                if not isinstance(key, str):
                    raise SchemaRejected("not_json", "an object key is not a string")
                size += len(key)
            if isinstance(options := node.get("enum"), list):
                measured.options += len(options)
            if not measured.has_references:
                measured.has_references = not REFERENCE_KEYWORDS.isdisjoint(node)
        else:
            size += 2 + len(node)
        visits += 1
        deepest = max(deepest, depth)
        if depth > max_depth:
            raise SchemaRejected("too_deep", f"nested more than {max_depth} levels")
        if visits > MAX_SCHEMA_VISITS:
            raise SchemaRejected("too_complex", f"more than {MAX_SCHEMA_VISITS} objects and lists")
        for child in children:
            if isinstance(child, str):
                size += len(child) + 2
            elif isinstance(child, _CONTAINERS):
                stack.append((child, depth + 1))
            else:
                size += _scalar_size(child)
        if size > MAX_SCHEMA_BYTES:
            raise SchemaRejected("too_large", f"more than {MAX_SCHEMA_BYTES} bytes")
    if size > MAX_SCHEMA_BYTES:
        raise SchemaRejected("too_large", f"more than {MAX_SCHEMA_BYTES} bytes")
    measured.visits, measured.size, measured.depth = visits, size, deepest
    return measured


def _scalar_size(node: object) -> int:
    if isinstance(node, str):
        return len(node) + 2
    if node is None or isinstance(node, bool):
        return 4
    if isinstance(node, int):
        # Writing an int of a million digits takes quadratic time, so its digits count.
        return 1 + node.bit_length() // 3
    if isinstance(node, float):
        if not math.isfinite(node):
            raise SchemaRejected("not_json", "a number is not finite")
        return 4
    raise SchemaRejected("not_json", f"a {type(node).__name__} is not a JSON value")


# Every call reads this cache. Reading a plain dictionary needs no lock, and takes a tenth of the time of an LRU cache.
VALIDATORS: Final[dict[str, Validator | SchemaRejected]] = {}
"""Recently compiled schemas, or the errors of compiling, by digest; for callers that have not read the schema yet."""
_validators_lock = Lock()  # worker threads compile, too


def validator(schema: object, schema_digest: str, bounds: SchemaBounds | None = None) -> Validator:
    """Return the compiled form of a schema, from the cache if the digest is known.

    Args:
        bounds: The result of `check_bounds` for this schema, if known.

    Raises:
        SchemaRejected: The schema exceeds a limit or cannot be compiled.
    """
    cached = VALIDATORS.get(schema_digest)
    if cached is None:
        try:
            # Outside the lock, so that no thread waits for a large schema; two threads may compile the same schema.
            cached = compile_schema(schema, check_bounds(schema) if bounds is None else bounds)
        except SchemaRejected as rejected:
            cached = rejected  # cached as well, so that a bad schema is not compiled again for each call
        with _validators_lock:
            if len(VALIDATORS) >= _MAX_VALIDATORS:
                del VALIDATORS[next(iter(VALIDATORS))]
            VALIDATORS[schema_digest] = cached
    if isinstance(cached, SchemaRejected):
        # Raise a new exception each time, because a raised exception keeps the frames of its traceback alive.
        raise SchemaRejected(cached.code, cached.detail)
    return cached


def compile_schema(schema: object, bounds: SchemaBounds | None = None) -> Validator:
    """Compile a schema that is within the limits; an unknown dialect is treated as 2020-12.

    Patterns that no engine supports are left out; see `Validator.unchecked_patterns`.

    Args:
        bounds: The result of `check_bounds` for this schema, if known.

    Raises:
        SchemaRejected: `invalid_schema`, `remote_ref`, `broken_ref` or a code of `check_bounds`.
    """
    if not isinstance(schema, dict | bool):
        raise SchemaRejected("invalid_schema", "a schema is an object or a boolean")
    bounds = _bounds_of(schema) if bounds is None else bounds
    measured, document, visits, branches = bounds.measured, bounds.document, bounds.visits, 0
    weight = visits + measured.options
    if document is not None:
        document.require_resolvable()
        if measured.options or visits > MAX_SCHEMA_VISITS:
            weight = document.visits(_MAX_WEIGHT, with_options=True)
        branches = document.reference_count if document.is_recursive else 0
    return Validator(schema, visits=visits, weight=weight, branches=branches, has_references=document is not None)
