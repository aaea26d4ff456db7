"""YAML documents become the values of JSON (row F5)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gateway.upstream.openapi.openapi_schemas import DocumentRefused, parse_document

# YAML 1.2.2, section 10.3.2, and the tags of YAML 1.1 that documents have.
SCALARS: dict[str, Any] = {
    "~": None,
    "null": None,
    "": None,
    "True": True,
    "false": False,
    "yes": "yes",
    "on": "on",
    "12": 12,
    "-0": 0,
    "+3": 3,
    "017": 17,
    "0o17": 15,
    "0x1F": 31,
    "1e3": 1000.0,
    ".5": 0.5,
    "1.": 1.0,
    "-.INF": -math.inf,
    "12345678901234567890123": 12345678901234567890123,
    "1_000": "1_000",
    "1:30": "1:30",
    "1.2.3": "1.2.3",
    "2020-01-01": "2020-01-01",
    "'12'": "12",
    '"true"': "true",
    "! 12": "12",
    "!!str 12": "12",
    "!!int '12'": 12,
    "!!timestamp 2020-01-01": "2020-01-01",
    "!!binary aGk=": "aGk=",
}


def parsed(text: str) -> dict[str, Any]:
    return parse_document(text.encode(), "api.yaml")


@pytest.mark.parametrize("text", SCALARS)
def test_scalars_are_those_of_the_core_schema(text: str) -> None:
    value = parsed(f"a: {text}")["a"]
    assert value == SCALARS[text]
    assert type(value) is type(SCALARS[text])


def test_keys_are_text_and_the_first_of_a_repeated_key_is_used() -> None:
    assert parsed("200: a\nnull: b\n1.10: c\n'200': d\n? e\n: f\n") == {"200": "a", "null": "b", "1.10": "c", "e": "f"}


def test_aliases_share_values_and_merge_keys_do_not_replace_members() -> None:
    found = parsed("x: &x {a: 1, b: [2]}\ny: *x\nz: {a: 9, <<: [*x, {c: 3}]}\nk: &k e\n*k : *k\n'<<': q\n")
    assert found["y"] is found["x"]
    assert found["z"] == {"a": 9, "b": [2], "c": 3}
    assert (found["e"], found["<<"]) == ("e", "q")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\n---\nb: 2\n", "at line 2, column 1: a second document begins"),
        ("a: *b\n", "at line 1, column 4: nothing has the anchor b"),
        ("a: !b 1\n", "at line 1, column 4: the tag !b is not supported"),
        ("a: !b {}\n", "at line 1, column 4: the tag !b is not supported"),
        ("? {c: d}\n: 1\n", "a list or an object is used as a key"),
        ("a: {<<: 1}\n", "a merge key has a value that is not an object"),
        ("a: [1\nb: 2\n", "at line 2, column 2: did not find expected"),
        ("a: '\x07'\n", "control characters are not allowed"),
        ("a: " + "9" * 5_000, "is neither JSON nor YAML"),
        ("--- " + "{a: " * 100_000, "is nested more than 190 levels"),
        ("a: &a [" + "1," * 9_000 + "]\nb: [" + "*a," * 9_000 + "]\n", "has more than 2000000 values"),
        ("a: &a [1]\nb: &a [*a]\n", "at line 2, column 8: is nested more than 190 levels"),
    ],
)
def test_malformed_and_hostile_documents_are_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(DocumentRefused) as refused:
        parsed(text)
    assert words in str(refused.value)
