"""Schemas as bounded values: canonical form, digest, size limits, and compiled validators cached by digest."""

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

# Of the 721 tools of real servers in `tests/corpus`, the largest schema has 35 KB and the deepest 16 levels. Bounds of
# some thirty and ten times that refuse no honest tool, and are cheap to walk.
MAX_SCHEMA_BYTES: Final = 1 << 20
# Recursive walks over an admitted schema (lowering, repairs) rely on it: 200 levels fit into Python's stack.
MAX_SCHEMA_DEPTH: Final = 200
# Objects and lists with references expanded. A compiler expands them, so doubling definitions are stopped here.
MAX_SCHEMA_VISITS: Final = 100_000

# 64 bits: among a million distinct schemas the chance of a collision is below 10^-7, and digests stay short in logs.
_DIGEST_DIGITS: Final = 16
# What is quoted of an encoder's complaint.
_MAX_REASON: Final = 200
# Where counting the members of every `enum` stops: no value can be checked quickly against so many.
_MAX_WEIGHT: Final = 10_000_000
# Compiled schemas, of some 15 KB each: more than the tools of the 38 servers in `tests/corpus`. A miss only compiles
# again.
_MAX_VALIDATORS: Final = 1024


def canonical_json(value: object) -> bytes:
    """Return the same bytes for equal JSON values, whatever the order of their keys.

    Raises:
        SchemaRejected: The value is nested too deeply, or is not JSON at all.
    """
    try:
        return orjson.dumps(value, default=unpacked, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        pass  # integers beyond 64 bits, or nested beyond orjson's limit: the slower encoder takes both
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=unpacked).encode()
    except RecursionError:
        raise SchemaRejected("too_deep", "nested too deeply to be written as JSON") from None
    except (TypeError, ValueError) as error:
        raise SchemaRejected("not_json", f"not a JSON value: {str(error)[:_MAX_REASON]}") from None


def compact_json(value: object) -> str:
    """Return compact JSON with keys in their original order, for people and models to read.

    Raises:
        SchemaRejected: As `canonical_json`.
    """
    if isinstance(value, PackedDefinition):
        return value.text.decode()
    try:
        return orjson.dumps(value, default=unpacked).decode()
    except TypeError:
        return canonical_json(value).decode()


def digest(value: object) -> str:
    """Return 16 hexadecimal digits that depend on the value but not on the order of its keys.

    Raises:
        SchemaRejected: As `canonical_json`.
    """
    return digest_of_canonical(canonical_json(value))


def digest_of_canonical(text: bytes) -> str:
    """Return the digest of a value from its canonical form."""
    return sha256(text).hexdigest()[:_DIGEST_DIGITS]


def check_bounds(schema: object) -> None:
    """Reject a schema that costs too much to hold or to compile, without recursion.

    Specification 2026-07-28, server/tools: implementations bound depth, size and time.

    Raises:
        SchemaRejected: `too_large`, `too_deep`, `too_complex` or `not_json`.
    """
    measured = measure(schema)
    if measured.has_references and SchemaDocument(schema).visits(MAX_SCHEMA_VISITS) > MAX_SCHEMA_VISITS:
        raise SchemaRejected("too_complex", f"more than {MAX_SCHEMA_VISITS} visits with its $refs expanded")


@dataclass(slots=True)
class Measurements:
    """Sizes of a JSON value, as one walk over it found them.

    Attributes:
        visits: The number of objects and lists.
        size: About the bytes that it takes as JSON.
        options: The members of every `enum`.
    """

    visits: int = 0
    size: int = 0
    depth: int = 0
    options: int = 0
    has_references: bool = False


def measure(value: object, *, max_depth: int = MAX_SCHEMA_DEPTH) -> Measurements:
    """Walk a value with an explicit stack, and stop at the first bound that it exceeds.

    Raises:
        SchemaRejected: `too_large`, `too_deep`, `too_complex` or `not_json`.
    """
    found = Measurements()
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
        stack.extend((child, depth + 1) for child in children)
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


# Every call asks for one: a plain dictionary is read without a lock, at a tenth of the cost of one that notes uses.
VALIDATORS: Final[dict[str, Validator | SchemaRejected]] = {}
"""The compiled forms of the schemas that were used last, by digest; for who would have to read the schema first."""
_validators_lock = Lock()  # compiled in worker threads, too


def validator(schema: object, schema_digest: str) -> Validator:
    """Return the compiled form of a schema, from the cache if its digest is known.

    Raises:
        SchemaRejected: The schema is out of bounds or cannot be compiled.
    """
    known = VALIDATORS.get(schema_digest)
    if known is None:
        try:
            check_bounds(schema)
            # Outside the lock: two threads may compile the same schema, and neither waits for a large one.
            known = compile_schema(schema)
        except SchemaRejected as rejected:
            known = rejected  # kept as well, or a bad schema would be compiled again for each call
        with _validators_lock:
            if len(VALIDATORS) >= _MAX_VALIDATORS:
                del VALIDATORS[next(iter(VALIDATORS))]
            VALIDATORS[schema_digest] = known
    if isinstance(known, SchemaRejected):
        # A new exception each time: a raised one keeps the frames of its traceback alive.
        raise SchemaRejected(known.code, known.detail)
    return known


def compile_schema(schema: object) -> Validator:
    """Compile a schema that is within bounds; an unknown dialect counts as 2020-12.

    A pattern that no engine here supports does not prevent it; see `Validator.unchecked_patterns`.

    Raises:
        SchemaRejected: `invalid_schema`, `remote_ref` or `broken_ref`, or as `check_bounds`.
    """
    if not isinstance(schema, dict | bool):
        raise SchemaRejected("invalid_schema", "a schema is an object or a boolean")
    measured = measure(schema)
    visits, branches = measured.visits, 0
    weight = visits + measured.options
    if measured.has_references:
        document = SchemaDocument(schema)
        document.require_resolvable()
        visits = document.visits(MAX_SCHEMA_VISITS)
        weight = document.visits(_MAX_WEIGHT, with_options=True)
        branches = document.reference_count if document.is_recursive else 0
    return Validator(schema, visits=visits, weight=weight, branches=branches, has_references=measured.has_references)
