"""Patterns match as their authors meant, in either syntax."""

from __future__ import annotations

import pytest

from registry.schema import schemas
from registry.schema.patterns import compile_cost, runnable_pattern


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
def test_pattern_matches_as_its_author_meant(pattern: str, matching: str, other: str) -> None:
    compiled = schemas.compile_schema({"type": "string", "pattern": pattern})
    assert compiled.unchecked_patterns == ()
    assert compiled.is_valid(matching)
    assert not compiled.is_valid(other)


def test_counted_pattern_and_length_keywords_apply_together() -> None:
    compiled = schemas.compile_schema({"pattern": r"^\w{2,40}$", "minLength": 5, "maxLength": 99})
    assert [length for length in range(60) if compiled.is_valid("a" * length)] == list(range(5, 41))


@pytest.mark.parametrize("pattern", [r"^(?!.*\.\.)", r"^(?!.*(\.\.|//))[\w./-]+$", r"^(?=.*[A-Z])(?!\s*$).{8,}$"])
def test_leading_lookahead_has_linear_cost(pattern: str) -> None:
    runnable = runnable_pattern(pattern)
    assert runnable is not None
    assert not runnable.quadratic
    assert schemas.compile_schema({"pattern": pattern}).is_valid("Ab" * 2_000 + "c")


@pytest.mark.parametrize("pattern", ["(?=(a+)+b)x", "^(?!a)b|c", r"^(?:(?!x).)*$", r"^(a*)(?=.*b)\1$", "^a*(?=.*b)x"])
def test_lookaround_at_every_position_has_quadratic_cost(pattern: str) -> None:
    runnable = runnable_pattern(pattern)
    assert runnable is not None
    assert runnable.quadratic


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "(?(1)a|b)", "a" * 5_000, "(?:a{1000}){1000}"])
def test_pattern_no_engine_accepts_is_skipped(pattern: str) -> None:
    assert runnable_pattern(pattern) is None
    assert schemas.compile_schema({"pattern": pattern}).unchecked_patterns == (pattern,)


_HEX = "[0-9a-fA-F]"
_UUID = f"^{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}$"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_NUMBER = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = (
    f"(({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{1,7}}:|({_GROUP}:){{1,6}}:{_GROUP}|({_GROUP}:){{1,5}}(:{_GROUP}){{1,2}}"
    f"|({_GROUP}:){{1,4}}(:{_GROUP}){{1,3}}|({_GROUP}:){{1,3}}(:{_GROUP}){{1,4}}|({_GROUP}:){{1,2}}(:{_GROUP}){{1,5}}"
    f"|{_GROUP}:((:{_GROUP}){{1,6}})|:((:{_GROUP}){{1,7}}|:)|fe80:(:[0-9a-fA-F]{{0,4}}){{0,4}}%[0-9a-zA-Z]{{1,}})"
)


# Patterns that zod 4 writes for its formats, and patterns for identifiers of common APIs.
@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (_UUID, "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        (
            "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
            "|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$",
            "123e4567-e89b-12d3-a456-426614174000",
            "123e4567-e89b-92d3-a456-426614174000",
        ),
        (f"^(?:{_NUMBER}\\.){{3}}{_NUMBER}$", "10.0.0.255", "10.0.0.256"),
        (f"^{_IPV6}$", "2001:db8::1", "2001:db8"),
        (f"^{_IPV6}\\/(12[0-8]|1[01][0-9]|[1-9]?[0-9])$", "2001:db8::/32", "2001:db8::/129"),
        (f"^(?=.{{1,253}}\\.?$){_LABEL}(?:\\.{_LABEL})*\\.?$", "a-b.example.org", "-a.example.org"),
        (f"^({_LABEL}\\.)+[a-zA-Z]{{2,}}$", "example.org", "example"),
        (
            r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
            "ann@example.org",
            "ann..b@example.org",
        ),
        (
            r"^\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d"
            r"|2[0-8]))T(?:(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?:Z|([+-](?:[01]\d|2[0-3]):[0-5]\d)))$",
            "2026-04-30T12:00:00Z",
            "2026-04-31T12:00:00Z",
        ),
        (r"^arn:(aws|aws-cn):[a-z0-9-]{1,63}:[a-z0-9-]{0,63}:\d{12}:[\w+=,.@/-]{1,1011}$",
         "arn:aws:iam:eu-west-1:123456789012:user/ann", "arn:aws:iam:eu-west-1:12:user/ann"),
        (r"^(?:[0-9A-F]{2}:){5}[0-9A-F]{2}$|^(?:[0-9a-f]{2}:){5}[0-9a-f]{2}$", "0a:1b:2c:3d:4e:5f", "0a:1b"),
        (r"^\d{4}[- ]?\d{4}[- ]?\d{4}[- ]?\d{4}$", "4111 1111 1111 1111", "4111"),
        (r"^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "81ARZ3NDEKTSV4RRFFQ69G5FAV"),
        ("^[A-Z]{2}[0-9]{2}(?:[ ]?[A-Z0-9]{4}){3,7}(?:[ ]?[A-Z0-9]{1,3})?$", "DE89 3704 0044 0532 0130 00", "DE8"),
    ],
)  # fmt: skip
def test_identifier_patterns_with_several_counts_are_checked(pattern: str, matching: str, other: str) -> None:
    compiled = schemas.compile_schema({"type": "string", "pattern": pattern})
    assert compiled.unchecked_patterns == ()
    assert compiled.is_valid(matching)
    assert not compiled.is_valid(other)


def test_sequential_counts_add_and_nested_counts_multiply() -> None:
    one = compile_cost("a{50}b") - compile_cost("b")
    assert compile_cost("a{50}b" * 3) - compile_cost("b" * 3) == 3 * one
    assert compile_cost("(?:a{50}){50}b") > 40 * one
    assert compile_cost("(?:(?:(?:a{999999999}){999999999}){999999999}){999999999}") < 1 << 20


def test_every_property_may_have_its_own_counted_pattern() -> None:
    properties = {f"id{number}": {"pattern": f"{_UUID}|^{number}$"} for number in range(300)}
    assert schemas.compile_schema({"properties": properties}).unchecked_patterns == ()


def test_expensive_patterns_do_not_disable_cheap_ones() -> None:
    dear = {f"a{number}": {"pattern": rf"^\p{{L}}{{1,{number}}}-\p{{L}}{{1,64}}$"} for number in range(30, 60)}
    compiled = schemas.compile_schema({"properties": {**dear, "id": {"pattern": _UUID}}})
    assert _UUID not in compiled.unchecked_patterns
    assert not compiled.is_valid({"id": "no"})
