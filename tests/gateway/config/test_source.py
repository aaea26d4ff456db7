"""A file that is not a valid configuration is reported in one line."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.load import load, parse
from gateway.config.source import MAX_FILE_BYTES, values
from gateway.protocol.gateway_errors import ConfigError


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


def test_missing_file_is_named(tmp_path: Path) -> None:
    assert "no such file" in message(tmp_path / "gone.json")


def test_directory_is_refused(tmp_path: Path) -> None:
    assert "is a directory" in message(tmp_path)


def test_file_over_the_size_limit_is_not_fully_read(tmp_path: Path) -> None:
    assert "too large" in message(written(tmp_path, b" " * (MAX_FILE_BYTES + 1)))


def test_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    assert "UTF-8" in message(written(tmp_path, b"\xff\xfe{}"))


@pytest.mark.parametrize("content", ["", " \n\t", "# only a comment\n", "---\n", "\ufeff"])
def test_empty_file_is_reported_as_empty(tmp_path: Path, content: str) -> None:
    assert "is empty" in message(written(tmp_path, content))


@pytest.mark.parametrize(("content", "what"), [("[]", "a list"), ("hello", "text"), ("- a\n- b", "a list")])
def test_root_that_is_not_an_object_is_reported_by_its_type(tmp_path: Path, content: str, what: str) -> None:
    assert f"is {what};" in message(written(tmp_path, content))


def test_object_without_servers_names_the_missing_key(tmp_path: Path) -> None:
    text = message(written(tmp_path, '{"mcp_server": {}}'))
    assert "has no mcpServers" in text
    assert "is mcp_server a misspelling of it?" in text
    assert "has no mcpServers" in message(written(tmp_path, "{}"))


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    assert load(written(tmp_path, '\ufeff{"mcpServers": {}}'), {}).servers == {}


def test_invalid_json_is_reported_with_line_and_column(tmp_path: Path) -> None:
    assert "line 2, column 18" in message(written(tmp_path, '{\n  "mcpServers": {]\n}'))


def test_comment_before_an_error_does_not_shift_its_line(tmp_path: Path) -> None:
    content = '// one\n/* two\nthree */ {\n  "mcpServers": {]\n}'
    assert "line 4, column 18" in message(written(tmp_path, content))


def test_invalid_yaml_is_reported_with_line_and_column(tmp_path: Path) -> None:
    assert "line 3, column 1" in message(written(tmp_path, "mcpServers:\n  a: [\n"))


def test_duplicate_key_is_an_error_in_json(tmp_path: Path) -> None:
    content = '{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}'
    assert "mcpServers.a: the key is given twice" in message(written(tmp_path, content))


def test_duplicate_key_is_an_error_in_yaml(tmp_path: Path) -> None:
    text = message(written(tmp_path, "mcpServers:\n  a: {command: x}\n  a: {command: y}\n"))
    assert "line 3" in text
    assert "duplicate" in text


def test_yaml_types_beyond_json_are_refused_naming_the_key(tmp_path: Path) -> None:
    dated = "mcpServers:\n  a:\n    command: x\n    defaults: {date: 2026-01-01}\n"
    assert "mcpServers.a.defaults.date: is a date" in message(written(tmp_path, dated))
    assert "mcpServers: a key here is a number" in message(written(tmp_path, "mcpServers:\n  1: {command: x}\n"))


def test_yaml_alias_bomb_is_refused_quickly(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "too many values" in message(written(tmp_path, "\n".join([*lines, "mcpServers: {}"])))


def test_self_referencing_yaml_value_is_refused(tmp_path: Path) -> None:
    assert "expected" in message(written(tmp_path, "mcpServers: &a\n  b: *a\n"))


@pytest.mark.heavy
@pytest.mark.parametrize("content", ["[" * 500 + "]" * 500, "[" * 100_000])
def test_deep_nesting_is_refused(content: str, tmp_path: Path) -> None:
    message(written(tmp_path, '{"mcpServers": ' + content + "}"))
    message(written(tmp_path, "mcpServers: " + content[:5_000]))


def test_integer_beyond_64_bits_is_kept_exactly() -> None:
    assert values('{"a": 123456789012345678901234567890}', file="f")["a"] == 123456789012345678901234567890


@given(st.text(max_size=200) | st.text(alphabet='{}[]",:#-&*/\\ \nab1', max_size=200))
def test_any_text_yields_a_config_or_a_config_error(text: str) -> None:
    with suppress(ConfigError):
        assert parse(text, environ={}).servers == {}
