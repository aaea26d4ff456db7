"""Placeholders in strings of the configuration."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.variables import expand
from gateway.errors import ConfigError


def expanded(text: str, folder: Path = Path(), **environ: str) -> Any:
    return expand({"key": text}, environ=environ, file="gw.json", folder=folder, secrets=set())["key"]


def fault(text: str, folder: Path = Path()) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        expanded(text, folder)
    assert caught.value.key == "key"
    assert "expected" in str(caught.value)
    return caught.value


def test_a_variable_is_replaced_anywhere_in_a_string() -> None:
    assert expanded("Bearer ${A}-${B}!", A="x", B="y") == "Bearer x-y!"


def test_a_default_stands_in_for_a_variable_that_is_unset_or_empty() -> None:
    assert expanded("${A:-b:-c}") == "b:-c"
    assert expanded("${A:-b}", A="") == "b"
    assert expanded("${A:-}") == ""
    assert expanded("${A:-b}", A="a") == "a"


def test_a_variable_that_is_set_but_empty_is_empty() -> None:
    assert expanded("${A}", A="") == ""


def test_the_spelling_of_vs_code_and_cursor_works_too() -> None:
    assert expanded("${env:A}", A="x") == "x"


def test_a_missing_variable_names_file_key_and_variable() -> None:
    text = str(fault("${GITHUB_TOKEN}"))
    assert text.startswith("gw.json: key: ")
    assert "GITHUB_TOKEN is not set" in text


@pytest.mark.parametrize("text", ["${}", "${a b}", "${1A}", "${A-b}"])
def test_an_unknown_form_is_an_error_that_shows_the_known_ones(text: str) -> None:
    assert "${NAME:-default}" in str(fault(text))


@pytest.mark.parametrize("text", ["$A", "$", "${A", "a}b", "100$"])
def test_what_is_no_placeholder_stays(text: str) -> None:
    assert expanded(text) == text


def test_two_dollars_stand_for_one() -> None:
    assert expanded("$${A}") == "${A}"


def test_what_a_variable_holds_is_not_expanded_again() -> None:
    assert expanded("${A}", A="${B}") == "${B}"


def test_a_secret_file_loses_only_its_last_line_break(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(" s3cret \n")
    assert expanded("Bearer ${file:token}", tmp_path) == "Bearer  s3cret "
    assert expanded(f"${{file:{tmp_path}/token}}") == " s3cret "


def test_a_secret_file_that_cannot_be_read_is_named_without_its_content(tmp_path: Path) -> None:
    assert "gone" in str(fault("${file:gone}", tmp_path))
    assert "cannot be read" in str(fault("${file:.}", tmp_path))
    (tmp_path / "raw").write_bytes(b"\xff\xfe")
    assert "UTF-8" in str(fault("${file:raw}", tmp_path))
    (tmp_path / "big").write_bytes(b"x" * 70_000)
    assert "too big" in str(fault("${file:big}", tmp_path))


def test_strings_at_any_depth_are_replaced_and_the_path_is_told() -> None:
    root = {"a": [{"b.c": ["${X}", 1, None, True]}]}
    assert expand(root, environ={"X": "y"}, file="f", folder=Path(), secrets=set()) == {
        "a": [{"b.c": ["y", 1, None, True]}]
    }
    with pytest.raises(ConfigError) as caught:
        expand(root, environ={}, file="f", folder=Path(), secrets=set())
    assert caught.value.key == 'a[0]["b.c"][0]'


@given(st.text().filter(lambda text: "${" not in text))
def test_text_without_placeholders_is_untouched(text: str) -> None:
    assert expanded(text) == text
