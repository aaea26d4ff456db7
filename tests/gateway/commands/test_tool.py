"""`typegate tool set` and `unset` change nothing but the given keys (row T6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gateway.cli import main
from gateway.config.load import load
from gateway.config.source import values

YAML_FILE = """\
# my servers
mcpServers:
    zeta:   # comes first on purpose
        command: "python"   # quoted
        args: [-m, gateway.demo.bank]
        # after the arguments
    alpha:
        command: 'python'
        tools:
            # about the balance
            get_bank_balance:
                arguments:
                    - {name: old, type: string}   # stays
gateway:
    names: {maxLength: 40}
"""


def run(path: Path, action: str, server: str, *arguments: str) -> int:
    base = ["tool", action, "--config", str(path), "--server", server, "--tool", "get_bank_balance"]
    return main([*base, *arguments])


def tool_entry(path: Path, server: str) -> Any:
    document = YAML(typ="safe").load(path.read_text())
    return document["mcpServers"][server].get("tools", {}).get("get_bank_balance")


def written(tmp_path: Path, text: str = YAML_FILE, name: str = "gateway.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_argument_is_split_at_its_first_two_colons(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert run(path, "set", "zeta", "--argument", "date:string:format: YYYY-MM-DD", "--required", "date") == 0
    assert tool_entry(path, "zeta") == {
        "arguments": [{"name": "date", "type": "string", "description": "format: YYYY-MM-DD", "required": True}]
    }
    assert load(path).servers["zeta"].tools["get_bank_balance"].arguments


def test_comments_order_and_quotes_of_the_file_are_kept(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert run(path, "set", "zeta", "--argument", "date:string:") == 0
    after = path.read_text().splitlines()
    missing = [line for line in YAML_FILE.splitlines() if line not in after]
    assert missing == []
    assert run(path, "unset", "zeta") == 0
    assert path.read_text() == YAML_FILE


def test_known_argument_is_changed_and_a_new_one_added(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert run(path, "set", "alpha", "--argument", "old:integer:How old.", "--argument", "new:array:") == 0
    assert tool_entry(path, "alpha")["arguments"] == [
        {"name": "old", "type": "integer", "description": "How old."},
        {"name": "new", "type": "array"},
    ]
    assert "# stays" in path.read_text()
    assert "# about the balance" in path.read_text()
    assert run(path, "unset", "alpha", "--argument", "old") == 0
    assert tool_entry(path, "alpha")["arguments"] == [{"name": "new", "type": "array"}]


def test_overrides_are_set_and_unset_one_by_one(tmp_path: Path) -> None:
    path = written(tmp_path)
    options = ["--description", "Balance.", "--name", "balance", "--mode", "replace", "--hidden", "--no-pinned"]
    assert run(path, "set", "zeta", *options) == 0
    assert tool_entry(path, "zeta") == {
        "name": "balance", "description": "Balance.", "mode": "replace", "hidden": True, "pinned": False,
    }  # fmt: skip
    assert run(path, "unset", "zeta", "--key", "hidden", "--key", "pinned", "--key", "mode") == 0
    assert tool_entry(path, "zeta") == {"name": "balance", "description": "Balance."}


def test_json_keeps_indentation_and_order(tmp_path: Path) -> None:
    text = json.dumps({"mcpServers": {"b": {"command": "x", "tools": {}}, "a": {"command": "é"}}}, indent="\t")
    path = written(tmp_path, text + "\n", "gateway.json")
    path.chmod(0o640)
    assert run(path, "set", "a", "--description", "Balance.") == 0
    after = path.read_text()
    assert after.startswith('{\n\t"mcpServers": {\n\t\t"b"')
    assert json.loads(after)["mcpServers"]["a"]["tools"] == {"get_bank_balance": {"description": "Balance."}}
    assert list(json.loads(after)["mcpServers"]) == ["b", "a"]
    assert "é" in json.loads(after)["mcpServers"]["a"]["command"]
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("server", "arguments", "expected"),
    [
        ("zeta", ["--argument", "date"], "NAME:TYPE:DESCRIPTION"),
        ("zeta", ["--argument", "date:day:x"], "string, number, integer, boolean, array, object"),
        ("zeta", ["--argument", ":string:x"], "NAME:TYPE:DESCRIPTION"),
        ("zeta", [], "nothing to set"),
        ("zeta", ["--description", "x", "--required", "date"], "--required date"),
        ("zeta", ["--argument", "a:string:", "--argument", "a:string:"], "twice"),
        ("nobody", ["--description", "x"], "zeta, alpha"),
    ],
)
def test_wrong_form_exits_2_with_the_expected_form_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], server: str, arguments: list[str], expected: str
) -> None:
    path = written(tmp_path)
    assert run(path, "set", server, *arguments) == 2
    assert expected in capsys.readouterr().err
    assert path.read_text() == YAML_FILE


JSONC = """\
{ // mine
  "servers": {
    "a": {"command": "x", "args": ["//no", 1.5e3, true, null], "é\\"}": [{}]}, // the first
    "b": {
      "command": "y", /* why */
      "tools": {
        // about this one
        "get_bank_balance": {"hidden": true},
        "other": {"pinned": true}, // stays
      },
    },
  },
}
"""


@pytest.mark.parametrize("server", ["a", "b"])
def test_comments_and_format_of_json_survive_set_and_unset(tmp_path: Path, server: str) -> None:
    path = written(tmp_path, JSONC, "mcp.json")
    assert run(path, "set", server, "--argument", "day:string:x", "--description", "Balance.") == 0
    after = path.read_text()
    for comment in ("// mine", "// the first", "/* why */", "// about this one", "// stays"):
        assert comment in after
    entry = values(after, file="x")["servers"][server]["tools"]["get_bank_balance"]
    assert entry["description"] == "Balance."
    assert run(path, "unset", server, "--argument", "day") == 0
    assert "arguments" not in values(path.read_text(), file="x")["servers"][server]["tools"]["get_bank_balance"]
    assert run(path, "unset", server) == 0
    left = values(path.read_text(), file="x")["servers"][server].get("tools", {})
    assert left == ({"other": {"pinned": True}} if server == "b" else {})
    assert values(path.read_text(), file="x")["servers"]["a"]["args"] == ["//no", 1500.0, True, None]


def test_comment_inside_a_changed_value_is_reported_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = '{"arguments": [{"name": "a", /* why */ "type": "string"}, {"name": "b", "type": "string"}]}'
    text = f'{{"mcpServers": {{"a": {{"command": "x", "tools": {{"get_bank_balance": {entry}}}}}}}}}'
    path = written(tmp_path, text, "gateway.json")
    assert run(path, "unset", "a", "--argument", "a") == 2
    assert "comments" in capsys.readouterr().err
    assert path.read_text() == text
    # A value next to a comment can be changed.
    assert run(path, "set", "a", "--argument", "a:integer:", "--argument", "c:string:") == 0
    assert "/* why */" in path.read_text()


@pytest.mark.parametrize("name", ["gateway.yaml", "gateway.json"])
def test_message_tells_whether_the_file_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = written(tmp_path, '{"mcpServers": {"a": {"command": "x"}}}', name)
    for option, outcome in (("x", "written"), ("x", "unchanged"), ("y", "written")):
        before = path.read_text()
        assert run(path, "set", "a", "--description", option) == 0
        assert outcome in capsys.readouterr().err
        assert (path.read_text() != before) == (outcome == "written")
        assert load(path).servers["a"].tools["get_bank_balance"].description == option


@pytest.mark.parametrize("name", ["gateway.yaml", "gateway.json"])
def test_text_that_looks_like_a_variable_is_kept_literally(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, '{"mcpServers": {"a": {"command": "x"}}}', name)
    text = "costs ${PRICE} or $${PRICE:-1}, and ${ alone"
    assert run(path, "set", "a", "--description", text, "--argument", f"a:string:{text}") == 0
    tool = load(path, {}).servers["a"].tools["get_bank_balance"]
    assert tool.description == text
    assert tool.arguments[0]["description"] == text


FLOW = """\
mcpServers: {
  # the only one
  a: {
    command: x,  # a program
    tools: {
      other: {hidden: true},  # stays
      get_bank_balance: {
        # about the argument
        arguments: [{name: old, type: string}],  # stays too
      },
    },
  },
}
"""


def test_comments_in_yaml_flow_style_are_kept(tmp_path: Path) -> None:
    path = written(tmp_path, FLOW)
    assert run(path, "set", "a", "--argument", "day:string:x", "--description", "y") == 0
    for comment in ("# the only one", "# a program", "# stays\n", "# about the argument", "# stays too"):
        assert comment in path.read_text()
    assert tool_entry(path, "a")["description"] == "y"


AS_PEOPLE_WRITE = """\
# top
x-env: &env {A: b}  # an anchor
x-more: &unused
  K: v  # never used
mcpServers:
  zeta:   # first
    command:   "python"   # quoted
    env:   { A: b ,  C: 'd' }   # after a flow mapping
    args: [-m,  # within a flow list
      x]  # after it
    headers:
      {X: y}  # below its key
    tools: {other: {hidden: true}}  # after tools
    # between
  alpha: {command: python, env: {A: b}}  # after a server
  # before the next

  anchored:
    env: *env  # an alias
    tools:   # above
      other: &o {hidden: true}  # after a tool
      third: *o  # another alias
      # about the balance
      get_bank_balance:
        supplement: >-  # folded
          # not a comment
          text
        examples: [{a: 1}]  # after a flow list
        arguments:   # of it
        - {name: old, type: string}   # after an argument
        # before an argument
        - name: other  # in lines
          type: string
          # at the end of an argument
      # after all
    deny: [x]  # after the tools
  # at the end of the servers
gateway:
    names: {maxLength: 40}  # after a section
    profiles: {}

# bottom
"""


@pytest.mark.parametrize("server", ["zeta", "alpha", "anchored"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_only_the_set_keys_change_in_the_file(tmp_path: Path, server: str, line_break: str) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_bytes(AS_PEOPLE_WRITE.replace("\n", line_break).encode())
    options = ["--description", "It's a #: 1", "--hidden", "--argument", "old:integer:x: y", "--argument", "new:array:"]
    assert run(path, "set", server, *options) == 0
    after = path.read_bytes().decode()
    assert after.count("\n") == after.count(line_break)
    before, now = AS_PEOPLE_WRITE.splitlines(), after.splitlines()
    # An entry in flow style is changed within its line.
    changed = {
        "zeta": ["    tools: {other: {hidden: true}}  # after tools"],
        "alpha": ["  alpha: {command: python, env: {A: b}}  # after a server"],
        "anchored": ["        - {name: old, type: string}   # after an argument"],
    }[server]
    assert [line for line in before if line not in now] == changed
    assert all(line.rpartition("#")[2] in "\n".join(now) for line in changed)
    entry = values(after, file="x.yaml")["mcpServers"][server]["tools"]["get_bank_balance"]
    assert entry["description"] == "It's a #: 1"
    assert [one["type"] for one in entry["arguments"] if one["name"] in ("old", "new")] == ["integer", "array"]
    assert run(path, "unset", server) == 0
    comments = [line.rpartition("#")[2] for line in before if "#" in line]
    # Those in the lines of the entry go with it; all others stay.
    gone = ["folded", "after a flow list", "of it", "after an argument", "in lines"] if server == "anchored" else []
    kept = "\n".join(path.read_text().splitlines())
    assert [one.strip() for one in comments if one not in kept] == gone


def test_tool_referenced_by_a_yaml_alias_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = AS_PEOPLE_WRITE.replace("third: *o", "get_it: *o").replace("other: &o", "get_bank_balance: &o", 1)
    text = text.replace("      get_bank_balance:\n", "      fourth:\n")
    path = written(tmp_path, text)
    assert run(path, "set", "anchored", "--description", "x") == 2
    assert "an anchor or a merge key" in capsys.readouterr().err
    assert path.read_text() == text


def test_yaml_alias_is_replaced_by_the_set_values(tmp_path: Path) -> None:
    text = AS_PEOPLE_WRITE.replace("      get_bank_balance:\n", "      fourth:\n").replace(
        "third: *o", "get_bank_balance: *o"
    )
    path = written(tmp_path, text)
    assert run(path, "set", "anchored", "--description", "x") == 0
    assert tool_entry(path, "anchored") == {"hidden": True, "description": "x"}
    assert "# another alias" in path.read_text()
    assert "other: &o {hidden: true}  # after a tool\n" in path.read_text()


def test_unknown_argument_cannot_be_unset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path)
    assert run(path, "unset", "alpha", "--argument", "older") == 2
    assert "expected one of: old" in capsys.readouterr().err
    assert path.read_text() == YAML_FILE


def test_symlink_to_the_file_is_kept(tmp_path: Path) -> None:
    real = written(tmp_path)
    link = tmp_path / "link.yaml"
    link.symlink_to(real)
    assert run(link, "set", "zeta", "--description", "x") == 0
    assert link.is_symlink()
    assert tool_entry(real, "zeta") == {"description": "x"}
