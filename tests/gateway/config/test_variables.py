"""Placeholders in strings of the configuration."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.load import parse
from gateway.config.variables import expand, input_defaults, variables_in
from gateway.protocol.gateway_errors import ConfigError


def expanded(text: str, folder: Path = Path(), **environ: str) -> Any:
    return expand({"key": text}, environ=environ, file="gw.json", folder=folder, secrets=set())["key"]


def fault(text: str, folder: Path = Path()) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        expanded(text, folder)
    assert caught.value.key == "key"
    assert "expected" in str(caught.value)
    return caught.value


def test_variable_is_replaced_anywhere_in_a_string() -> None:
    assert expanded("Bearer ${A}-${B}!", A="x", B="y") == "Bearer x-y!"


def test_default_replaces_an_unset_or_empty_variable() -> None:
    assert expanded("${A:-b:-c}") == "b:-c"
    assert expanded("${A:-b}", A="") == "b"
    assert expanded("${A:-}") == ""
    assert expanded("${A:-b}", A="a") == "a"


@pytest.mark.parametrize("text", ["${A:-${B}}", "x ${env:A:-y${B:-z}}"])
def test_placeholder_in_a_default_is_an_error(text: str) -> None:
    assert "has a placeholder in its default" in str(fault(text))


def test_empty_variable_expands_to_an_empty_string() -> None:
    assert expanded("${A}", A="") == ""


def test_env_prefix_of_vs_code_and_cursor_is_accepted() -> None:
    assert expanded("${env:A}", A="x") == "x"


def test_missing_variable_error_names_file_key_and_variable() -> None:
    text = str(fault("${GITHUB_TOKEN}"))
    assert text.startswith("gw.json: key: ")
    assert "GITHUB_TOKEN is not set" in text


@pytest.mark.parametrize("text", ["${}", "${a b}", "${1A}", "${A-b}"])
def test_unknown_placeholder_form_is_an_error_listing_the_known_forms(text: str) -> None:
    assert "${NAME:-default}" in str(fault(text))


@pytest.mark.parametrize("text", ["$A", "$", "${A", "a}b", "100$"])
def test_text_that_is_not_a_placeholder_is_unchanged(text: str) -> None:
    assert expanded(text) == text


def test_two_dollar_signs_escape_a_variable() -> None:
    assert expanded("$${A}") == "${A}"


def test_expanded_value_is_not_expanded_again() -> None:
    assert expanded("${A}", A="${B}") == "${B}"


def test_secret_file_loses_only_its_final_newline(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(" s3cret \n")
    assert expanded("Bearer ${file:token}", tmp_path) == "Bearer  s3cret "
    assert expanded(f"${{file:{tmp_path}/token}}") == " s3cret "


def test_unreadable_secret_file_is_named_without_its_content(tmp_path: Path) -> None:
    assert "gone" in str(fault("${file:gone}", tmp_path))
    assert "cannot be read" in str(fault("${file:.}", tmp_path))
    (tmp_path / "raw").write_bytes(b"\xff\xfe")
    assert "UTF-8" in str(fault("${file:raw}", tmp_path))
    (tmp_path / "big").write_bytes(b"x" * 70_000)
    assert "too large" in str(fault("${file:big}", tmp_path))


def test_strings_at_any_depth_are_expanded_and_errors_give_the_path() -> None:
    root = {"a": [{"b.c": ["${X}", 1, None, True]}]}
    assert expand(root, environ={"X": "y"}, file="f", folder=Path(), secrets=set()) == {
        "a": [{"b.c": ["y", 1, None, True]}]
    }
    with pytest.raises(ConfigError) as caught:
        expand(root, environ={}, file="f", folder=Path(), secrets=set())
    assert caught.value.key == 'a[0]["b.c"][0]'


@given(st.text().filter(lambda text: "${" not in text))
def test_text_without_placeholders_is_unchanged(text: str) -> None:
    assert expanded(text) == text


def test_editor_variables_are_resolved_relative_to_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "project" / ".vscode"
    assert expanded("${workspaceFolder}${pathSeparator}a${/}b", folder) == f"{tmp_path}/project/a/b"
    assert expanded("${workspaceFolder:api}", folder) == f"{tmp_path}/project"
    assert expanded("${workspaceFolderBasename}", folder) == "project"
    assert expanded("${workspaceFolderBasename}", tmp_path / "other") == "other"
    assert expanded("${userHome}/x", folder) == f"{Path.home()}/x"
    assert expanded("${cwd}", folder) == str(Path.cwd())


def test_plugin_root_is_the_folder_of_its_file_by_default(tmp_path: Path) -> None:
    assert expanded("${CLAUDE_PLUGIN_ROOT}/server.py", tmp_path / ".claude-plugin") == f"{tmp_path}/server.py"
    assert expanded("${CLAUDE_PROJECT_DIR:-.}/x", tmp_path) == f"{tmp_path}/x"
    assert expanded("${CLAUDE_PLUGIN_ROOT}", tmp_path, CLAUDE_PLUGIN_ROOT="/p") == "/p"


def test_opencode_placeholders_are_read_only_in_opencode_files(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")

    def read(text: str, *, braces: bool) -> Any:
        given = {"environ": {"A": "{env:B}", "B": "b"}, "file": "gw.json", "folder": tmp_path, "secrets": set()}
        return expand({"key": text}, braces=braces, **given)["key"]  # type: ignore[arg-type]

    assert read("Bearer {env:B} {file:key} {file:./key}", braces=True) == "Bearer b s3cret s3cret"
    # Inserted values are not expanded again, and the gateway's own forms keep their meaning.
    assert read("{env:A} ${env:B} ${B} $${B}", braces=True) == "{env:B} b b ${B}"
    assert read("{env:B}", braces=False) == "{env:B}"


def test_variables_without_braces_are_expanded_for_gemini_and_qwen(tmp_path: Path) -> None:
    for name in (".gemini", ".qwen"):
        assert expanded("$A/${A}/$B/$1/pa$$A", tmp_path / name, A="a") == "a/a/$B/$1/pa$a"
    assert expanded("$A", tmp_path / ".cursor", A="a") == "$A"


def test_input_uses_the_default_from_its_editor() -> None:
    root = {"inputs": [{"id": "region", "default": "eu"}, {"id": "key"}, {"id": 3, "default": "x"}, "x"]}
    assert input_defaults(root) == {"region": "eu"}
    assert input_defaults({"inputs": {}}) == {}
    given = {"file": "gw.json", "folder": Path(), "secrets": set(), "inputs": input_defaults(root)}
    assert expand({"k": "${input:region}"}, environ={}, **given)["k"] == "eu"  # type: ignore[arg-type]
    assert expand({"k": "${input:region}"}, environ={"REGION": "us"}, **given)["k"] == "us"  # type: ignore[arg-type]


ENV_FILE = """\
\ufeff# A comment
PLAIN=value
export EXPORTED = spaced  # a remark
QUOTED="a # b\\nc"
SINGLE='a\\nb "c"'
EMPTY=
API_KEY: k9f8e7d6c5b4a3928170
WITH_HASH="x#y"
LINES="one
two"
not a line
URL=https://h.test/?a=b=c
"""


def test_env_file_is_parsed_as_editors_parse_it(tmp_path: Path) -> None:
    (tmp_path / ".vscode").mkdir()
    (tmp_path / "case.env").write_text(ENV_FILE, encoding="utf-8")
    secrets, files = set[str](), set[Path]()
    found = variables_in("case.env", file="gw.json", key="k", folder=tmp_path / ".vscode", secrets=secrets, files=files)
    assert found == {
        "PLAIN": "value", "EXPORTED": "spaced", "QUOTED": "a # b\nc", "SINGLE": 'a\\nb "c"', "EMPTY": "",
        "API_KEY": "k9f8e7d6c5b4a3928170", "WITH_HASH": "x#y", "LINES": "one\ntwo", "URL": "https://h.test/?a=b=c",
    }  # fmt: skip
    assert "k9f8e7d6c5b4a3928170" in secrets
    assert "value" not in secrets
    # A change of the file counts as a change of the configuration.
    assert files == {tmp_path / "case.env"}


def test_missing_env_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gw\.json: k: gone\.env cannot be read \(No such file") as caught:
        variables_in("gone.env", file="gw.json", key="k", folder=tmp_path, secrets=set(), files=set())
    assert caught.value.key == "k"


def entry_of(entry: dict[str, Any], folder: Path | None = None, **environ: str) -> Any:
    path = None if folder is None else folder / "mcp.json"
    config = parse(json.dumps({"mcpServers": {"up": entry}}), environ=environ, path=path)
    return config.servers["up"]


def test_env_of_the_entry_has_precedence_over_the_environment(tmp_path: Path) -> None:
    entry = {"command": "${DIR}/up", "args": ["--header", "X:${TOKEN}", "${env:N}", "${GONE:-d}"]}
    env = {"TOKEN": "own", "DIR": "/opt", "N": 3, "GONE": None}
    server = entry_of({**entry, "env": env}, TOKEN="environment", GONE="")
    assert (server.command, server.args) == ("/opt/up", ["--header", "X:own", "3", "d"])
    (tmp_path / "own.env").write_text("TOKEN=file\nMORE=more\n")
    server = entry_of(
        {"command": "up", "args": ["${TOKEN}", "${MORE}"], "envFile": "own.env"}, tmp_path, TOKEN="environment"
    )
    assert server.args == ["file", "more"]


def test_env_of_an_entry_may_refer_to_itself_and_the_environment() -> None:
    env = {
        "HEADER": "Bearer ${TOKEN}", "TOKEN": "${REAL}", "REAL": "r", "PATH": "/opt/bin:${PATH}",
        "A": "${B:-a}", "B": "${A:-b}",
    }  # fmt: skip
    server = entry_of({"command": "up", "args": ["${HEADER}"], "env": env}, PATH="/bin", TOKEN="environment")
    assert server.args == ["Bearer r"]
    assert (server.env["HEADER"], server.env["PATH"]) == ("Bearer r", "/opt/bin:/bin")


def test_network_server_expands_env_of_its_entry_too() -> None:
    entry = {
        "url": "https://h.example.test/mcp",
        "headers": {"Authorization": "Bearer ${T}"},
        "env": {"T": "own-token"},
    }
    assert entry_of(entry).headers == {"Authorization": "Bearer own-token"}


def test_each_missing_variable_of_an_entry_is_reported_once() -> None:
    with pytest.raises(ConfigError) as caught:
        entry_of({"command": "up", "args": ["${A}", "${C}"], "env": {"A": "${B}"}})
    assert [line.partition(" is not set")[0].rpartition(" ")[2] for line in str(caught.value).splitlines()] == [
        "B",
        "C",
    ]
