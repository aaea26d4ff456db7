"""Arguments and results that fit a JSON Schema, so that each call is one that its server has to accept."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
from corpus.samples import sample
from support.clients import installed

_GENERATOR = ("hypothesis-jsonschema==0.23.1", "hypothesis==6.150.0")
_GENERATING_S = 3_000
# Integers up to this size are the same number to every client.
_SAFE_INTEGER = 2**53


def objects_for(schemas: Sequence[Mapping[str, Any]], count: int) -> list[list[dict[str, Any]]]:
    """Return for each schema up to `count` different objects that fit it, often the smallest one first.

    They are generated, the same in each run; where a schema cannot be read by the generator, objects are made by hand.
    """
    wanted = [{**schema, "type": "object"} for schema in schemas]
    python = installed.venv("generator", _GENERATOR)
    # A few more than needed, because some do not fit or cannot be sent by every client.
    plan = json.dumps({"count": count + 3, "schemas": wanted})
    program = Path(__file__).with_name("generator.py")
    done = subprocess.run(
        [python, program], input=plan, capture_output=True, text=True, check=True, timeout=_GENERATING_S
    )
    return [
        _chosen([*values, sample(schema, schema, False), sample(schema, schema, True)], schema, count)
        for schema, values in zip(wanted, json.loads(done.stdout), strict=True)
    ]


def _chosen(values: Sequence[Any], schema: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    different = {json.dumps(value, sort_keys=True): value for value in values}.values()
    return [value for value in different if isinstance(value, dict) and _fits(value, schema)][:count]


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    if not _is_portable(value):
        return False
    # `\\d`, `\\w` and `\\s` match more characters in Python than in ECMA-262, whose patterns JSON Schema has.
    if not json.dumps(value, ensure_ascii=False).isascii() and '"pattern"' in json.dumps(schema):
        return False
    try:
        validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        fits: bool = validator(schema).is_valid(value)
    except Exception:  # noqa: BLE001 - the reference validator cannot apply the schema, so nothing is known
        return False
    return fits


def _is_portable(value: Any) -> bool:
    """Return whether clients in Python and in JavaScript write the same JSON for a value."""
    match value:
        case bool() | None | str():
            return True
        case int():
            return abs(value) < _SAFE_INTEGER
        case float():
            return abs(value) < _SAFE_INTEGER and not value.is_integer()
        case list():
            return all(map(_is_portable, value))
        case dict():
            return "__proto__" not in value and all(map(_is_portable, value.values()))
    return False
