"""The published JSON Schema explains every key of the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.config.model import json_schema


def documented_keys() -> Iterator[tuple[str, str]]:
    """Every key of every section, and its description."""
    schema = json_schema()
    for section, definition in {"": schema, **schema["$defs"]}.items():
        for key, member in definition.get("properties", {}).items():
            yield f"{section}.{key}", describe(member)


def describe(member: dict[str, Any]) -> str:
    # The title is made of the key itself, and the description of a section is not that of the key.
    return str(member.get("description", "")).strip()


def test_every_configuration_key_has_a_description() -> None:
    keys = dict(documented_keys())
    assert len(keys) > 90
    assert [key for key, text in keys.items() if not text] == []


def test_descriptions_are_complete_sentences() -> None:
    unfinished = [key for key, text in documented_keys() if not text.endswith((".", ")."))]
    assert unfinished == []


def test_descriptions_say_more_than_the_key() -> None:
    assert [key for key, text in documented_keys() if len(text.split()) < 3] == []
