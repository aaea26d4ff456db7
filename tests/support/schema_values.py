"""Values for JSON Schemas, drawn at random but equal for equal seeds."""

from __future__ import annotations

import string
from random import Random
from typing import Any

_FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T10:20:30Z",
    "time": "10:20:30Z",
    "email": "ada@example.com",
    "uri": "https://example.com/a?b=c",
    "url": "https://example.com/a",
    "uuid": "7f3c1c1e-6a0b-4a53-9c55-0d6b1e5b8f10",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "hostname": "example.com",
}
# Characters that have to be encoded in some part of a request.
_LETTERS = string.ascii_letters + string.digits + " -_.~!$&'()*+,;=:@%?/#[]\"<>{}|^`éß漢"
_MAX_DEPTH = 5


class SchemaValues:
    """Draws values of one schema document, which need not be valid for its rarer keywords."""

    def __init__(self, root: dict[str, Any], seed: int) -> None:
        self._root = root
        self._random = Random(seed)

    def value(self, schema: Any, depth: int = 0) -> Any:
        """Return a value of a schema."""
        if not isinstance(schema, dict):
            return "x"
        if "$ref" in schema:
            schema = {**self._root["$defs"][schema["$ref"].rpartition("/")[2]], **schema}
            del schema["$ref"]
            return self.value(schema, depth)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._random.choice([option for option in schema["enum"] if option is not None])
        for keyword in ("oneOf", "anyOf"):
            if schema.get(keyword):
                options = [option for option in schema[keyword] if option != {"type": "null"}]
                rest = {key: member for key, member in schema.items() if key != keyword}
                return self._joined(rest, self._random.choice(options or [{}]), depth)
        if schema.get("allOf"):
            rest = {key: member for key, member in schema.items() if key != "allOf"}
            for part in schema["allOf"]:
                rest = self._merged(rest, part)
            return self.value(rest, depth)
        return self._typed(schema, depth)

    def _joined(self, rest: dict[str, Any], option: Any, depth: int) -> Any:
        return self.value(self._merged(rest, option), depth)

    def _merged(self, one: dict[str, Any], other: Any) -> dict[str, Any]:
        while isinstance(other, dict) and "$ref" in other:
            other = self._root["$defs"][other["$ref"].rpartition("/")[2]]
        if not isinstance(other, dict):
            return one
        merged = {**one, **other}
        for keyword in ("properties", "required", "allOf"):
            if keyword in one and keyword in other:
                both = one[keyword], other[keyword]
                merged[keyword] = {**both[0], **both[1]} if keyword == "properties" else [*both[0], *both[1]]
        return merged

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = next((each for each in kind if each != "null"), "string")
        match kind:
            case "object":
                return self._members(schema, depth)
            case "array":
                most = min(schema.get("maxItems", 3), 3)
                least = max(schema.get("minItems", 1), 1)
                count = 1 if depth > _MAX_DEPTH else self._random.randint(least, max(least, most))
                items = [self.value(schema.get("items", {}), depth + 1) for _ in range(count)]
                return [item for at, item in enumerate(items) if item not in items[:at]]
            case "integer":
                return self._number(schema)
            case "number":
                return float(self._number(schema))
            case "boolean":
                return self._random.choice([True, False])
        return self._text(schema)

    def _members(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        needed = set(schema.get("required", ()))
        found: dict[str, Any] = {}
        for name, below in schema.get("properties", {}).items():
            if name in needed or (depth < _MAX_DEPTH and self._random.random() < 0.6):
                found[name] = self.value(below, depth + 1)
        return found

    def _number(self, schema: dict[str, Any]) -> int:
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + ("exclusiveMinimum" in schema))
        most = schema.get("maximum", least + 50)
        return self._random.randint(int(least), max(int(least), int(min(most, least + 50))))

    def _text(self, schema: dict[str, Any]) -> str:
        if schema.get("contentEncoding") == "base64":
            return "AAEC/w=="
        if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        least = max(schema.get("minLength", 1), 1)
        count = min(self._random.randint(least, least + 8), schema.get("maxLength", least + 8))
        letters = string.ascii_lowercase if "pattern" in schema else _LETTERS
        return "".join(self._random.choice(letters) for _ in range(count))
