"""Import from and installation into the files of nine hosts, restored byte for byte."""

from __future__ import annotations

import io
import json
import os
import pty
import stat
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.host_samples import SAMPLES

from gateway.cli import main
from gateway.config.load import load
from gateway.onboarding.host_file_edits import edit_entries, parse_values
from gateway.process.secrets import SECRETS

VARIABLES = {"SEARCH_API_KEY", "PERPLEXITY_KEY", "FIGMA_TOKEN", "JIRA_TOKEN"}
BLOCKS = {"vscode": "servers", "codex": "mcp_servers", "opencode": "mcp"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, and nothing of the real one."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TYPEGATE_STATE_DIR", str(tmp_path / "state"))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return folder


def host_file(home: Path, host: str) -> Path:
    place, content, _ = SAMPLES[host]
    path = home / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode())
    return path


@pytest.mark.parametrize("host", SAMPLES)
def test_every_server_of_a_host_is_imported_and_can_be_served(
    host: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, config = host_file(home, host), tmp_path / "gw.json"
    before = path.read_bytes()
    assert main(["import", host, "--config", str(config), "--no-check", "--yes"]) == 0
    assert path.read_bytes() == before
    for name in VARIABLES:
        monkeypatch.setenv(name, "set")
    loaded = load(config, strict=True)
    _, _, aliases = SAMPLES[host]
    assert {*loaded.servers, *loaded.left_out} == aliases
    assert not loaded.warnings
    # A second time nothing is new.
    text = config.read_bytes()
    assert main(["import", host, "--config", str(config), "--no-check", "--yes"]) == 0
    assert config.read_bytes() == text


def test_host_keys_and_placeholders_are_translated(home: Path, tmp_path: Path) -> None:
    config = tmp_path / "gw.json"
    for host in SAMPLES:
        host_file(home, host)
        assert main(["import", host, "--config", str(config), "--no-check", "--yes"]) == 0
    servers = json.loads(config.read_text())["mcpServers"]
    assert servers["files"]["args"][-1] == "/tmp/$${literal}"
    assert servers["docs"]["headers"] == {"Authorization": "Bearer ${DOCS_TOKEN:-none}"}
    assert servers["perplexity"]["env"] == {"PERPLEXITY_API_KEY": "${PERPLEXITY_KEY}"}
    assert servers["figma"]["headers"] == {"X-Region": "us-east-1", "Authorization": "Bearer ${FIGMA_TOKEN}"}
    assert servers["figma"]["allow"] == ["read"]
    assert servers["context"]["connectTimeout"] == 20
    assert (servers["maps"]["url"], servers["maps"]["callTimeout"]) == ("https://maps.example.test/mcp", 30)
    assert servers["old"]["type"] == "sse"
    assert servers["py"]["env"] == {"KEY_FILE": "${HOME}/key"}
    assert servers["web"]["deny"] == {"tools": ["post"]}
    assert servers["remote"]["deny"] == {"tools": ["drop_table"]}
    assert (servers["jira"]["command"], servers["jira"]["args"]) == ("uvx", ["mcp-jira==1.0", "--read-only"])
    assert servers["jira"]["env"] == {"JIRA_TOKEN": "${JIRA_TOKEN}"}
    assert servers["sentry"]["disabled"] is True


VSCODE_PROJECT = """\
{
  "inputs": [
    {"id": "api-key", "type": "promptString", "password": true},
    {"id": "region", "type": "pickString", "options": ["eu", "us"], "default": "eu"}
  ],
  "servers": {
    "local": {
      "type": "stdio",
      "command": "${workspaceFolder}/bin/server",
      "args": ["--name", "${workspaceFolderBasename}", "--port", 3000, "${input:region}", "${userHome}/x"],
      "cwd": "sub",
      "envFile": "local.env",
      "env": {"PORT": 3000, "DEBUG": true, "HOME": null, "KEY": "${input:api-key}"}
    },
    "web": {"type": "streamableHttp", "url": "https://h.example.test/mcp", "headers": {"X-Version": 2}}
  }
}
"""


def test_project_file_is_imported_with_paths_of_its_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project, config = tmp_path / "project", tmp_path / "gw" / "gw.json"
    (project / ".vscode").mkdir(parents=True)
    config.parent.mkdir()
    (project / ".vscode" / "mcp.json").write_text(VSCODE_PROJECT)
    (project / "local.env").write_text("FROM_FILE=yes\nPORT=1\n")
    line = ["import", "vscode", "--project", str(project), "--config", str(config), "--no-check", "--yes"]
    assert main(line) == 0
    assert "set the variable API_KEY; the host asks its user for it" in capsys.readouterr().err
    monkeypatch.setenv("API_KEY", "k")
    loaded = load(config, strict=True)
    local: Any = loaded.servers["local"]
    assert local.command == f"{project}/bin/server"
    assert local.args == ["--name", "project", "--port", "3000", "eu", f"{home}/x"]
    assert local.cwd == f"{project}/sub"
    assert local.env == {"FROM_FILE": "yes", "PORT": "3000", "DEBUG": "true", "HOME": None, "KEY": "k"}
    web: Any = loaded.servers["web"]
    assert (web.type, web.headers) == ("http", {"X-Version": "2"})
    assert not loaded.warnings


def test_project_file_can_be_served_unchanged(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, config = tmp_path / "project", tmp_path / "gw.json"
    (project / ".vscode").mkdir(parents=True)
    path = project / ".vscode" / "mcp.json"
    path.write_text(VSCODE_PROJECT)
    (project / "local.env").write_text("FROM_FILE=yes\nPORT=1\n")
    monkeypatch.setenv("API_KEY", "k")
    assert main(["import", str(path), "--config", str(config), "--no-check", "--yes"]) == 0
    assert load(config).servers == load(path, strict=True).servers


def test_plugin_and_cline_keys_are_understood(home: Path, tmp_path: Path) -> None:
    plugin, config = tmp_path / "plugin", tmp_path / "gw.json"
    plugin.mkdir()
    entries = {
        "own": {"command": "${CLAUDE_PLUGIN_ROOT}/server", "args": ["${CLAUDE_PROJECT_DIR:-.}"]},
        "cline": {"type": "streamableHttp", "url": "https://h.example.test/mcp", "timeout": 60, "autoApprove": []},
        "copilot": {"type": "local", "command": "x", "args": ["{env:HOME}"]},
    }
    (plugin / ".mcp.json").write_text(json.dumps({"mcpServers": entries}))
    assert main(["import", str(plugin / ".mcp.json"), "--config", str(config), "--no-check", "--yes"]) == 0
    loaded: Any = load(config, strict=True)
    assert loaded.servers["own"].command == f"{plugin}/server"
    assert loaded.servers["own"].args == [str(plugin)]
    assert (loaded.servers["cline"].type, loaded.servers["cline"].call_timeout) == ("http", 60)
    assert not loaded.warnings


def test_secrets_are_stored_in_private_files_and_never_shown(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, secret = tmp_path / "gw.json", "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    host_file(home, "claude-desktop")
    assert main(["import", "claude-desktop", "--config", str(config), "--no-check", "--yes"]) == 0
    printed = capsys.readouterr()
    assert secret not in config.read_text() + printed.out + printed.err
    loaded: Any = load(config).servers["Git-Hub"]
    assert loaded.env == {"GITHUB_TOKEN": secret}
    kept = tmp_path / "state" / "secrets" / "Git-Hub-GITHUB_TOKEN"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert main(["install", "claude-desktop", "--config", str(config), "--no-check", "--yes"]) == 0
    assert secret not in capsys.readouterr().out


@pytest.mark.parametrize("host", ["claude-desktop", "opencode", "codex"])
def test_install_diff_contains_no_secrets_of_the_host(host: str, home: Path, tmp_path: Path) -> None:
    secret, flag = "ghp_Z1y2X3w4V5u6T7s8R9q0P1o2N3m4L5k6J7i8", "k8J7h6G5f4D3s2A1q0W9e8R7"
    path, config = host_file(home, host), tmp_path / "gw.json"
    written = {
        "claude-desktop": {
            "mcpServers": {"a": {"command": "x", "args": ["--token", flag], "env": {"API_KEY": secret}}}
        },
        "opencode": {"mcp": {"a": {"command": ["x", "--api-key", flag], "environment": {"API_KEY": secret}}}},
    }
    toml = f'[mcp_servers.a]\ncommand = "x"\nargs = ["--token={flag}"]\n[mcp_servers.a.env]\nAPI_KEY = "{secret}"\n'
    path.write_text(json.dumps(written[host], indent=1) if host in written else toml, encoding="utf-8")
    config.write_text('{"mcpServers": {"a": {"command": "x"}}}', encoding="utf-8")
    # In a separate process, in which no other code has read the file.
    line = [sys.executable, "-m", "gateway", "install", host, "--config", str(config), "--dry-run"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert "typegate" in done.stdout
    assert "API_KEY" in done.stdout
    assert secret not in done.stdout + done.stderr
    assert flag not in done.stdout + done.stderr


@pytest.mark.parametrize("host", SAMPLES)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_install_replaces_the_servers_and_uninstall_restores_every_byte(
    host: str, ends: str, home: Path, tmp_path: Path
) -> None:
    path, config = host_file(home, host), tmp_path / "gw.json"
    path.write_bytes(path.read_bytes().replace(b"\n", ends.encode()))
    os.chmod(path, 0o640)
    before = path.read_bytes()
    assert main(["import", host, "--config", str(config), "--no-check", "--yes"]) == 0
    assert main(["install", host, "--config", str(config), "--no-check", "--yes"]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    text = path.read_bytes().decode()
    assert (text.count("\r\n") == text.count("\n")) == (ends == "\r\n")
    root = parse_values(text.replace("\r\n", "\n"), path)
    assert set(root[BLOCKS.get(host, "mcpServers")]) == {"typegate"}
    comments = [line.strip() for line in SAMPLES[host][1].splitlines() if line.strip().startswith(("//", "#"))]
    assert all(comment in text for comment in comments if "design tool" not in comment)
    assert main(["install", host, "--config", str(config), "--no-check", "--yes"]) == 0
    assert path.read_bytes().decode() == text
    assert main(["uninstall", host]) == 0
    assert path.read_bytes() == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert main(["uninstall", host]) == 1


@pytest.mark.parametrize("host", SAMPLES)
def test_missing_host_file_is_created_and_removed_again(host: str, home: Path, tmp_path: Path) -> None:
    config = tmp_path / "gw.json"
    config.write_text('{"mcpServers": {"a": {"command": "true"}}}')
    path = home / SAMPLES[host][0].removesuffix("c" if host == "opencode" else "")
    assert main(["install", host, "--config", str(config), "--no-check", "--yes"]) == 0
    block = parse_values(path.read_text(), path)[BLOCKS.get(host, "mcpServers")]
    words = block["typegate"]["command"]
    line = words if isinstance(words, list) else [words, *block["typegate"]["args"]]
    assert line[-3:] == ["stdio", "--config", str(config)]
    assert main(["uninstall", host]) == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("cursor", {"url": "http://127.0.0.1:8765/mcp"}),
        ("windsurf", {"serverUrl": "http://127.0.0.1:8765/mcp"}),
        ("claude-code", {"type": "http", "url": "http://127.0.0.1:8765/mcp"}),
        ("gemini", {"httpUrl": "http://127.0.0.1:8765/mcp"}),
        ("opencode", {"type": "remote", "url": "http://127.0.0.1:8765/mcp", "enabled": True}),
    ],
)
def test_running_gateway_is_installed_by_url(host: str, expected: dict[str, Any], home: Path) -> None:
    path = host_file(home, host)
    assert main(["install", host, "--url", "http://127.0.0.1:8765/mcp", "--no-check", "--yes"]) == 0
    root = parse_values(path.read_text(), path)
    assert root[BLOCKS.get(host, "mcpServers")]["typegate"] == expected


def test_entries_beside_the_gateway_url_are_kept_with_advice(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = "http://127.0.0.1:8765/mcp"
    host_file(home, "gemini")
    assert main(["install", "gemini", "--url", address, "--no-check", "--yes"]) == 0
    printed = capsys.readouterr().err
    assert f"stays in the host's file; if {address} serves it too, remove it from" in printed
    assert "typegate import" not in printed
    # Another entry with the same address is the gateway itself, so nothing is said about it.
    main(["install", "gemini", "--url", address, "--name", "again", "--no-check", "--yes"])
    assert "typegate: typegate: stays" not in capsys.readouterr().err


def test_file_changed_since_install_is_not_overwritten(home: Path, tmp_path: Path) -> None:
    path, config = host_file(home, "vscode"), tmp_path / "gw.json"
    assert main(["import", "vscode", "--config", str(config), "--no-check", "--yes"]) == 0
    assert main(["install", "vscode", "--config", str(config), "--no-check", "--yes"]) == 0
    changed = path.read_text().replace("// asked once", "// asked twice")
    path.write_text(changed)
    assert main(["uninstall", "vscode"]) == 1
    assert path.read_text() == changed
    assert main(["uninstall", "vscode", "--force"]) == 0
    text = path.read_text()
    assert "// asked twice" in text
    assert set(parse_values(text, path)["servers"]) == {"perplexity", "github"}


def test_gateway_url_is_removed_from_a_changed_file(home: Path) -> None:
    path = host_file(home, "gemini")
    before = parse_values(path.read_text(), path)
    assert (
        main(["install", "gemini", "--url", "http://127.0.0.1:8765/mcp", "--name", "gate", "--no-check", "--yes"]) == 0
    )
    path.write_text(path.read_text().replace("{", '{"added": 1,', 1))
    assert main(["uninstall", "gemini"]) == 1
    assert main(["uninstall", "gemini", "--force"]) == 0
    assert parse_values(path.read_text(), path) == {"added": 1, **before}


def test_concurrent_change_of_the_file_is_refused(home: Path, tmp_path: Path) -> None:
    path, config = host_file(home, "cursor"), tmp_path / "gw.json"
    config.write_text('{"mcpServers": {}}')

    class Output(io.StringIO):
        """Changes the file while the difference is shown."""

        def flush(self) -> None:
            path.write_text('{"mcpServers": {}}')

    with redirect_stdout(Output()) as shown:
        assert main(["install", "cursor", "--config", str(config), "--no-check", "--yes"]) == 1
    assert f"+++ {path}" in shown.getvalue()
    assert path.read_text() == '{"mcpServers": {}}'
    assert main(["uninstall", "cursor"]) == 1


def test_dry_run_writes_nothing(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, config = host_file(home, "cursor"), tmp_path / "gw.json"
    before = path.read_bytes()
    assert main(["import", "cursor", "--config", str(config), "--dry-run", "--no-check", "--yes"]) == 0
    assert not config.exists()
    assert '+    "linear": {' in capsys.readouterr().out
    config.write_text('{"mcpServers": {}}')
    assert main(["install", "cursor", "--config", str(config), "--dry-run", "--no-check", "--yes"]) == 0
    assert path.read_bytes() == before
    assert not (tmp_path / "state").exists()


def test_administrator_policy_file_is_never_written(tmp_path: Path, home: Path) -> None:
    policy, config = tmp_path / "managed-mcp.json", tmp_path / "gw.json"
    policy.write_text("{}")
    config.write_text('{"mcpServers": {}}')
    assert main(["install", "claude-code", "--file", str(policy), "--config", str(config), "--no-check", "--yes"]) == 1
    assert policy.read_text() == "{}"


def test_gateway_entry_is_not_imported(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, config = host_file(home, "cursor"), tmp_path / "gw.json"
    own = {"command": "/opt/bin/typegate", "args": ["stdio", "--config", "/elsewhere.json"]}
    path.write_text(json.dumps({"mcpServers": {"gateway": own, "a": {"command": "true"}}}))
    assert main(["import", "cursor", "--config", str(config), "--no-check", "--yes"]) == 0
    assert set(load(config).servers) == {"a"}
    assert "gateway: skipped, it is typegate itself" in capsys.readouterr().err


def test_comments_and_order_of_the_target_file_are_kept(home: Path, tmp_path: Path) -> None:
    path, config = host_file(home, "qwen"), tmp_path / "gw.yaml"
    text = "# ours\nmcpServers:\n  a:   # first\n    command: 'true'\ngateway:\n  names: {maxLength: 40} # short\n"
    config.write_text(text)
    assert main(["import", str(path), "--config", str(config), "--no-check", "--yes"]) == 0
    added = config.read_text()
    assert [line for line in added.splitlines() if line in text.splitlines()] == text.splitlines()
    assert set(load(config).servers) == {"a", "web"}
    backup = next((tmp_path / "state" / "backups").iterdir())
    assert backup.read_text() == text
    fresh = tmp_path / "fresh.yaml"
    assert main(["import", str(path), "--config", str(fresh), "--no-check", "--yes"]) == 0
    assert YAML(typ="safe").load(fresh.read_text()) == {
        "mcpServers": {"web": {"url": "https://web.example.test/mcp", "deny": {"tools": ["post"]}}}
    }
    assert "{" not in fresh.read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["import", "nobody", "--config", "x.json"], "is neither a file nor a host"),
        (["install", "nobody", "--config", "x.json"], "is not a known host"),
        (["install", "cursor"], "expected --config FILE"),
        (["install", "windsurf", "--project", ".", "--url", "http://a.test/mcp"], "has no project files"),
        (["import", "cursor", "--config", "x.json"], "has no file at"),
        (["import", "cursor"], "expected --config FILE"),
        (["uninstall", "cursor"], "there is no recorded change"),
    ],
)
def test_wrong_usage_is_reported_in_one_sentence(
    line: list[str], message: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line) in (1, 2)
    printed = capsys.readouterr().err
    assert message in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("name", ["mcp.json", "mcp.toml", "mcp.yaml"])
def test_adding_and_removing_an_entry_restores_the_file(name: str) -> None:
    path = Path(name)
    text = {
        "mcp.json": '{\n  // one\n  "a": {"x": {"command": "c"}}, "b": 1\n}\n',
        "mcp.toml": '# one\nb = 1\n\n[a.x] # two\ncommand = "c"\n\n[z]\nq = 1 # three\n',
        "mcp.yaml": "# one\na:\n  x: # two\n    command: c\nb: 1\n",
    }[name]
    put = edit_entries(text, path, ("a",), {"y": {"command": "d", "args": ["1"]}})
    assert parse_values(put, path)["a"]["y"] == {"command": "d", "args": ["1"]}
    assert edit_entries(put, path, ("a",), {}, ["y"]) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "mcp.toml",
            "# about x\n[a.x] # one\ncommand = 'c'\n\n# about y\n[a.y]\nenv = {K = 'v'} # two\n[a.y.more]\nk = 1\n\n"
            "# about z\n[a.z]\ncommand = 'd' # three\n# about p\n[p]\nq = 1 # four\n",
        ),
        ("mcp.toml", "# top\na = {y = {command = 'c'}, z = {command = 'd'}} # one\n# about p\n[p]\nq = 1 # four\n"),
        (
            "mcp.yaml",
            "a: # one\n  x: {command: c} # two\n  # about y\n  y:\n    command: c\n    env: {K: v}\n  # about z\n"
            "  z: {command:   'd', args: [1,\n    2]} # three\n# about p\np: {q:  1} # four\n",
        ),
        (
            "mcp.json",
            '{\n  "a": {\n    // about y\n    "y": {"command": "c"},\n    /* about z */\n    "z": {"command": "d"}, '
            '// three\n  },\n  "p": {"q":  1}, // four\n}\n',
        ),
    ],
)
def test_comments_beside_a_changed_or_removed_entry_are_kept(name: str, text: str) -> None:
    path = Path(name)
    entry = {"command": "new", "env": {"K": "w"}}
    for put, drop in (({"y": entry}, []), ({"n": entry}, ["y"]), ({}, ["y"])):
        after = edit_entries(text, path, ("a",), put, drop)
        lines = after.splitlines()
        of_y = [line for line in text.splitlines() if "two" in line or "'c'" in line or '"c"' in line]
        missing = [line for line in text.splitlines() if line not in lines and line not in of_y]
        assert not [line for line in missing if "#" in line or "//" in line or "/*" in line], after
        found = parse_values(after, path)["a"]
        assert found.get("y") == put.get("y")
        assert found.get("n") == put.get("n")


@pytest.fixture(autouse=True)
def _no_secrets_of_others() -> None:
    SECRETS.hide(set())


def test_nothing_is_written_without_a_terminal_to_confirm(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, config = tmp_path / "theirs.json", tmp_path / "ours.json"
    source.write_text('{"mcpServers": {"bank": {"command": "bank"}}}')
    config.write_text('{"mcpServers": {}}')
    assert main(["import", str(source), "--config", str(config)]) == 1
    assert main(["install", "cursor", "--config", str(config)]) == 1
    printed = capsys.readouterr()
    assert '"bank": {"command": "bank"}' in printed.out
    assert printed.err.count("add --yes to write it") == 2
    assert config.read_text() == '{"mcpServers": {}}'
    assert not (home / ".cursor/mcp.json").exists()


@pytest.mark.parametrize(("answer", "code", "written"), [(b"y\n", 0, True), (b"\n", 0, False), (b"\x04", 1, False)])
@pytest.mark.heavy
def test_terminal_user_confirms_and_ctrl_d_declines(
    answer: bytes, code: int, written: bool, home: Path, tmp_path: Path
) -> None:
    source, config = tmp_path / "theirs.json", tmp_path / "ours.json"
    source.write_text('{"mcpServers": {"bank": {"command": "bank"}}}')
    config.write_text('{"mcpServers": {}}')
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gateway", "import", str(source), "--config", str(config)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while b"[y/N]" not in seen:
            seen += os.read(ours, 4096)
        os.write(ours, answer)
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other side of the terminal is closed
                break
            seen += part
        assert process.wait(10) == code, seen.decode()
    os.close(ours)
    assert ("bank" in config.read_text()) is written
    assert b"Traceback" not in seen


def test_lists_in_other_host_files_are_imported_with_the_servers(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project, config = tmp_path / "project", tmp_path / "gw.json"
    (project / ".claude").mkdir(parents=True)
    (home / ".claude").mkdir()
    up = {"command": "up"}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": dict.fromkeys(("gh", "off", "away", "open"), up)}))
    (project / ".claude" / "settings.local.json").write_text('{"permissions": {"deny": ["mcp__gh__delete_repo"]}}')
    (home / ".claude" / "settings.json").write_text('{"deniedMcpServers": [{"serverName": "off"}]}')
    (home / ".claude.json").write_text(json.dumps({"projects": {str(project): {"disabledMcpServers": ["away"]}}}))
    line = ["import", "claude-code", "--project", str(project), "--config", str(config), "--no-check", "--yes"]
    assert main(line) == 0
    assert json.loads(config.read_text())["mcpServers"] == {
        "gh": {**up, "deny": {"tools": ["delete_repo"]}},
        "off": {**up, "disabled": True},
        "away": {**up, "disabled": True},
        "open": up,
    }
    assert "off: is disabled by deniedMcpServers" in capsys.readouterr().err


def test_tools_disabled_in_opencode_are_denied(home: Path, tmp_path: Path) -> None:
    path, config = host_file(home, "opencode"), tmp_path / "gw.json"
    entry = {"type": "local", "command": ["up"]}
    root = {"mcp": {"gh": entry, "off": entry}, "tools": {"gh_delete_*": False, "off_*": False, "bash": False}}
    path.write_text(json.dumps(root))
    assert main(["import", "opencode", "--config", str(config), "--no-check", "--yes"]) == 0
    assert json.loads(config.read_text())["mcpServers"] == {
        "gh": {"command": "up", "args": [], "deny": {"tools": ["delete_*"]}},
        "off": {"command": "up", "args": [], "disabled": True},
    }


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"excludeTools": ["delete_repo"]}, {}),
        ({"includeTools": ["list_repos"]}, {"allow": ["list_repos", "delete_repo"]}),
        ({"disallowed_tools": "delete_repo"}, {"deny": ["delete_repo"]}),
        ({"disabled": True}, {}),
    ],
)
def test_install_is_refused_if_the_gateway_would_show_hidden_tools(
    theirs: dict[str, Any], ours: dict[str, Any], home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, config = host_file(home, "gemini"), tmp_path / "gw.json"
    path.write_text(json.dumps({"mcpServers": {"gh": {"command": "up", **theirs}}}))
    config.write_text(json.dumps({"mcpServers": {"gh": {"command": "up", **ours}}}))
    before = path.read_bytes()
    assert main(["install", "gemini", "--config", str(config), "--no-check", "--yes"]) == 1
    assert path.read_bytes() == before
    assert "would see what the file hides: gh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"excludeTools": ["delete_repo"]}, {"deny": {"tools": ["delete_*"]}}),
        ({"excludeTools": ["delete_repo"]}, {"allow": ["list_repos"]}),
        ({"excludeTools": ["delete_repo"]}, {"tools": {"delete_repo": {"hidden": True}}}),
        ({"includeTools": ["list_repos", "read"]}, {"allow": ["read"]}),
        ({"disabled": True}, {"disabled": True}),
    ],
)
def test_install_proceeds_if_the_gateway_restricts_at_least_as_much(
    theirs: dict[str, Any], ours: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    path, config = host_file(home, "gemini"), tmp_path / "gw.json"
    path.write_text(json.dumps({"mcpServers": {"gh": {"command": "up", **theirs}}}))
    config.write_text(json.dumps({"mcpServers": {"gh": {"command": "up", **ours}, "other": {"command": "x"}}}))
    assert main(["install", "gemini", "--config", str(config), "--no-check", "--yes"]) == 0
    assert set(json.loads(path.read_text())["mcpServers"]) == {"typegate"}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        # Claude Code.
        (
            {"oauth": {"clientId": "c", "callbackPort": 8080, "scopes": "a b",
                       "authServerMetadataUrl": "https://as.test/t/.well-known/openid-configuration"}},
            {"auth": {"type": "oauth", "clientId": "c", "scopes": "a b", "issuer": "https://as.test/t"}},
        ),
        ({"headersHelper": "/opt/token --for gh"}, {"headersCommand": "/opt/token --for gh"}),
        ({"headersHelper": "echo $X | jq ."}, {"headersCommand": ["sh", "-c", "echo $X | jq ."]}),
        # Gemini CLI, OpenCode, Cursor, LiteLLM.
        ({"oauth": {"enabled": True, "scopes": ["a"]}}, {"auth": {"type": "oauth", "scopes": ["a"]}}),
        ({"oauth": False}, {"auth": {"type": "none"}}),
        (
            {"auth": {"CLIENT_ID": "c", "CLIENT_SECRET": "${CS}", "scopes": ["a"]}},
            {"auth": {"type": "oauth", "clientId": "c", "clientSecret": "${CS}", "scopes": ["a"]}},
        ),
        (
            {"auth_type": "bearer_token", "auth_value": "${TOKEN}", "static_headers": {"X-Region": "eu"}},
            {"headers": {"X-Region": "eu", "Authorization": "Bearer ${TOKEN}"}},
        ),
        # A header that is written out counts before a sign-in.
        (
            {"oauth": {"clientId": "c"}, "headers": {"Authorization": "Bearer ${TOKEN}"}},
            {"headers": {"Authorization": "Bearer ${TOKEN}"}},
        ),
    ],
)  # fmt: skip
def test_sign_in_settings_of_a_host_are_imported(
    entry: dict[str, Any], expected: dict[str, Any], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, config = tmp_path / "theirs.json", tmp_path / "ours.json"
    source.write_text(json.dumps({"mcpServers": {"gh": {"url": "https://h.example.test/mcp", **entry}}}))
    assert main(["import", str(source), "--config", str(config), "--no-check", "--yes"]) == 0
    assert json.loads(config.read_text())["mcpServers"]["gh"] == {"url": "https://h.example.test/mcp", **expected}
    monkeypatch.setenv("CS", "secret-of-the-client")
    monkeypatch.setenv("TOKEN", "token-of-the-header")
    assert not load(config, strict=True).warnings
    assert load(source, strict=True).servers == load(config).servers


def test_client_secret_is_stored_in_a_private_file(home: Path, tmp_path: Path) -> None:
    source, config = tmp_path / "theirs.json", tmp_path / "ours.json"
    oauth = {"clientId": "c", "clientSecret": "Zq7-secret-of-the-client"}
    source.write_text(json.dumps({"mcpServers": {"gh": {"url": "https://h.example.test/mcp", "oauth": oauth}}}))
    assert main(["import", str(source), "--config", str(config), "--no-check", "--yes"]) == 0
    assert "Zq7" not in config.read_text()
    loaded: Any = load(config, strict=True).servers["gh"]
    assert loaded.auth.client_secret == "Zq7-secret-of-the-client"


def test_import_writes_the_file_although_its_output_is_closed(tmp_path: Path) -> None:
    source, config = tmp_path / "host.json", tmp_path / "gw.json"
    source.write_text(json.dumps({"mcpServers": {"a": {"command": "true"}}}))
    line = [sys.executable, "-m", "gateway", "import", str(source), "--config", str(config), "--no-check", "--yes"]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(line, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert done.returncode == 0, done.stderr
    assert "1 server imported" in done.stderr
    assert "a" in json.loads(config.read_text())["mcpServers"]
