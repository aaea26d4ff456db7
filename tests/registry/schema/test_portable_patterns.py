"""Portable patterns compile in ECMAScript (with `u`) and Python, and match no less."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.schema.portable_patterns import portable

PIECES = (
    "a", "Z", "0", "-", "_", "/", ".", "^", "$", "|", "(", ")", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i)",
    "(?P<n>", "(?<n>", "(?P=n)", "\\k<n>", "(?#x)", "[", "]", "[^", "*", "+", "?", "{", "}", "{2}", "{1,3}", "{,3}",
    "\\d", "\\w", "\\S", "\\b", "\\A", "\\Z", "\\z", "\\1", "\\-", "\\_", "\\/", "\\.", "\\p{L}", "\\u0041", "\\x41",
    "\\uD83D\\uDE00", "\\uD800", "\\u{1F600}", "\\cA", "\\0", "\\e", "é", "\n", "&&", "~", "\\h", "\\Q", "++", ",",
)  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        (r"^(?P<year>[0-9]{4})-x$", r"^([0-9]{4})-x$"),
        (r"^(?<y>a)\k<y>$", r"^(a)(?:\1)$"),
        (r"\A\d+\z", r"^\d+$"),
        (r"\A\d+\Z", r"^\d+(?=\n?$)"),
        (r"^\d{4}\-\d{2}$", r"^\d{4}-\d{2}$"),
        (r"^[\w-.]+$", r"^[\w\-.]+$"),
        (r"(?i)^ab[c-e]$", "^[aA][bB][c-eCDE]$"),
        (r"(?i:ab)c", "(?:[aA][bB])c"),
        ("(?s)^a.b$", r"^a[\s\S]b$"),
        ("a++b", "a+b"),
        ("(?>a|b)c", "(?:a|b)c"),
        ("x{", r"x\{"),
        (r"^\/\_\@\ $", r"^\/_@ $"),
        (r"\uD83D\uDE00", "\U0001f600"),
        (r"[^\x00-\x1F\uD800-\uDFFF]", r"[^\x00-\x1f]"),
        ("(?#remark)a", "a"),
    ],
)
def test_other_dialects_are_rewritten_to_the_common_syntax(pattern: str, written: str) -> None:
    assert portable(pattern) == written
    assert portable(written) is not None


@pytest.mark.parametrize(
    "pattern",
    [
        "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}$",
        r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
        r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$",
        r"^$|^(?:[0-9a-zA-Z+/]{4})*$",
        r"^[^\W_]+$",
        r"(?<=a)b",
        "^é+$",
    ],
)
def test_pattern_valid_in_both_engines_is_unchanged(pattern: str) -> None:
    assert portable(pattern) == pattern


@pytest.mark.parametrize(
    "pattern",
    [r"^\p{L}+$", "(?x) a b", "(?m)^a$", "[[:alpha:]]", "[]a]", "[^]", "a{,3}", "(?<!a{1,3})b", r"(a)\2", "[z-a]",
     "(", "a)", r"\i\c*", "a**", "^*", "(?=a)*", "(?R)", "(?(1)a|b)", r"\Qa\E", "a{2}{3}", "[a-z&&[^b]]", "a" * 5000],
)  # fmt: skip
def test_pattern_unsupported_by_one_engine_has_no_portable_form(pattern: str) -> None:
    assert portable(pattern) is None


@pytest.mark.heavy
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), min_size=50, max_size=50))
def test_portable_pattern_compiles_in_both_engines(patterns: list[str]) -> None:
    written = [found for pattern in patterns if (found := portable(pattern)) is not None]
    for pattern in written:
        re.compile(pattern)
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    program = "for (const p of JSON.parse(require('fs').readFileSync(0, 'utf8'))) new RegExp(p, 'u')"
    done = subprocess.run([node, "-e", program], input=json.dumps(written), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
