"""The form of the file: what is no configuration at all is told in one line."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.load import load, parse
from gateway.config.source import MAX_FILE_BYTES, values
from gateway.errors import ConfigError


def message(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "expected" in text
    assert "\n" not in text
    return text


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "gw"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "no such file" in message(tmp_path / "gone.json")


def test_a_directory_is_no_configuration(tmp_path: Path) -> None:
    assert "is a directory" in message(tmp_path)


def test_a_file_that_is_too_big_is_not_read_to_its_end(tmp_path: Path) -> None:
    assert "too big" in message(written(tmp_path, b" " * (MAX_FILE_BYTES + 1)))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    assert "UTF-8" in message(written(tmp_path, b"\xff\xfe{}"))


@pytest.mark.parametrize("content", ["", " \n\t", "# only a comment\n", "---\n", "\ufeff"])
def test_an_empty_file_is_called_empty(tmp_path: Path, content: str) -> None:
    assert "is empty" in message(written(tmp_path, content))


@pytest.mark.parametrize(("content", "what"), [("[]", "a list"), ("hello", "text"), ("- a\n- b", "a list")])
def test_a_root_that_is_no_object_is_called_what_it_is(tmp_path: Path, content: str, what: str) -> None:
    assert f"is {what};" in message(written(tmp_path, content))


def test_an_object_without_servers_says_what_is_missing(tmp_path: Path) -> None:
    text = message(written(tmp_path, '{"mcp_server": {}}'))
    assert "has no mcpServers" in text
    assert "did you mean it by mcp_server?" in text
    assert "has no mcpServers" in message(written(tmp_path, "{}"))


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    assert load(written(tmp_path, '\ufeff{"mcpServers": {}}'), {}).servers == {}


def test_broken_json_is_shown_with_line_and_column(tmp_path: Path) -> None:
    assert "line 2, column 18" in message(written(tmp_path, '{\n  "mcpServers": {]\n}'))


def test_a_comment_before_the_fault_does_not_move_its_line(tmp_path: Path) -> None:
    content = '// one\n/* two\nthree */ {\n  "mcpServers": {]\n}'
    assert "line 4, column 18" in message(written(tmp_path, content))


def test_broken_yaml_is_shown_with_line_and_column(tmp_path: Path) -> None:
    assert "line 3, column 1" in message(written(tmp_path, "mcpServers:\n  a: [\n"))


def test_a_key_that_stands_twice_is_an_error_in_json(tmp_path: Path) -> None:
    content = '{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}'
    assert "mcpServers.a: the key stands twice" in message(written(tmp_path, content))


def test_a_key_that_stands_twice_is_an_error_in_yaml(tmp_path: Path) -> None:
    text = message(written(tmp_path, "mcpServers:\n  a: {command: x}\n  a: {command: y}\n"))
    assert "line 3" in text
    assert "duplicate" in text


def test_what_yaml_has_beyond_json_is_refused_with_its_key(tmp_path: Path) -> None:
    dated = "mcpServers:\n  a:\n    command: x\n    defaults: {date: 2026-01-01}\n"
    assert "mcpServers.a.defaults.date: is a date" in message(written(tmp_path, dated))
    assert "mcpServers: a key here is a number" in message(written(tmp_path, "mcpServers:\n  1: {command: x}\n"))


def test_aliases_that_stand_for_millions_of_values_are_refused_quickly(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "too many values" in message(written(tmp_path, "\n".join([*lines, "mcpServers: {}"])))


def test_a_value_that_holds_itself_is_refused(tmp_path: Path) -> None:
    assert "expected" in message(written(tmp_path, "mcpServers: &a\n  b: *a\n"))


@pytest.mark.heavy
@pytest.mark.parametrize("content", ["[" * 500 + "]" * 500, "[" * 100_000])
def test_deep_nesting_is_refused(content: str, tmp_path: Path) -> None:
    message(written(tmp_path, '{"mcpServers": ' + content + "}"))
    message(written(tmp_path, "mcpServers: " + content[:5_000]))


def test_an_integer_beyond_64_bits_stays_what_it_is() -> None:
    assert values('{"a": 123456789012345678901234567890}', file="f")["a"] == 123456789012345678901234567890


@given(st.text(max_size=200) | st.text(alphabet='{}[]",:#-&*/\\ \nab1', max_size=200))
def test_no_text_ends_in_anything_but_a_config_or_a_config_error(text: str) -> None:
    with suppress(ConfigError):
        assert parse(text, environ={}).servers == {}
