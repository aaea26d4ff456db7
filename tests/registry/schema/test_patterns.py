"""Patterns are run as their authors mean them, whichever syntax they are written in."""

from __future__ import annotations

import pytest

from registry.schema import schemas
from registry.schema.patterns import runnable_pattern


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (r"^[\w-.]+$", "a-b.c", "a b"),
        (r"^[a-\d]+$", "a-1", "b"),
        ("^[^]$", "\n", ""),
        (r"^\0$", "\0", "0"),
        (r"^a{$", "a{", "a"),
        (r"^a{,3}$", "a{,3}", "aa"),
        (r"^\d+\Z", "12", "12a"),
        (r"^[\b]$", "\b", "b"),
        (r"^\uD83D\uDE00$", "😀", "x"),
        (r"^[\uD800-\uDBFF][\uDC00-\uDFFF]$", "😀", "x"),
        (r"^[^\x00-\x1F\uD800-\uDFFF]*$", "abc", "a\x01"),
        (r"^[\0-\x1f]$", "\x05", "a"),
        (r"^\ä$", "ä", "a"),
        ("^a(?#remark)b$", "ab", "a"),
        (r"^(?<year>\d{4})$", "2026", "26"),
        (r"^\/\-\_\@$", "/-_@", "/"),
        (r"^\p{Letter}+$", "é", "1"),
        ("^.{2,5000}$", "x" * 5_000, "x" * 5_001),
        (r"^[\p{L}\p{N}_-]{1,50}$", "é" * 50, "é" * 51),
        (r"^[\s\S]{3}$", "a\nb", "a\nbc"),
        (r"^(?!.*\.\.)[\w./]+$", "a/b.c", "a/../b"),
        (r"^(?=.*[A-Z])(?=.*\d).{8,}$", "Abcdefg1", "abcdefg1"),
    ],
)
def test_a_pattern_matches_what_its_author_means(pattern: str, matching: str, other: str) -> None:
    compiled = schemas.compile_schema({"type": "string", "pattern": pattern})
    assert compiled.unchecked_patterns == ()
    assert compiled.is_valid(matching)
    assert not compiled.is_valid(other)


def test_a_counted_pattern_and_declared_lengths_hold_together() -> None:
    compiled = schemas.compile_schema({"pattern": r"^\w{2,40}$", "minLength": 5, "maxLength": 99})
    assert [length for length in range(60) if compiled.is_valid("a" * length)] == list(range(5, 41))


@pytest.mark.parametrize("pattern", [r"^(?!.*\.\.)", r"^(?!.*(\.\.|//))[\w./-]+$", r"^(?=.*[A-Z])(?!\s*$).{8,}$"])
def test_look_ahead_at_the_beginning_is_cheap_for_any_text(pattern: str) -> None:
    runnable = runnable_pattern(pattern)
    assert runnable is not None
    assert not runnable.quadratic
    assert schemas.compile_schema({"pattern": pattern}).is_valid("Ab" * 2_000 + "c")


@pytest.mark.parametrize("pattern", ["(?=(a+)+b)x", "^(?!a)b|c", r"^(?:(?!x).)*$", r"^(a*)(?=.*b)\1$", "^a*(?=.*b)x"])
def test_look_around_that_may_be_tried_everywhere_is_known(pattern: str) -> None:
    runnable = runnable_pattern(pattern)
    assert runnable is not None
    assert runnable.quadratic


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "(?(1)a|b)", "a" * 5_000, "(?:a{1000}){1000}"])
def test_what_no_engine_takes_is_left_out(pattern: str) -> None:
    assert runnable_pattern(pattern) is None
    assert schemas.compile_schema({"pattern": pattern}).unchecked_patterns == (pattern,)
