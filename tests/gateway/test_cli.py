"""The command line: output, streams and exit codes."""

import io
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main, parser
from gateway.commands import admin_client, output
from gateway.commands.serve import page_url
from gateway.config.load import parse
from gateway.config.model import json_schema
from gateway.protocol.versions import header_value

ROOT = Path(__file__).parents[2]
OK = {"resultType": "complete", "content": [{"type": "text", "text": "sent"}], "isError": False}


class Answers(ThreadingHTTPServer):
    """A server that gives its prepared answers in turn and keeps what it was asked."""

    daemon_threads = True

    def __init__(self, *answers: tuple[int, str, str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = list(answers)
        self.requests: list[tuple[str, dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/mcp"


class Handler(BaseHTTPRequestHandler):
    server: Answers

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(size)) if size else None
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, headers, body))
        status, kind, text = self.server.answers.pop(0)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = _answer


@contextmanager
def answering(*answers: tuple[int, str, str]) -> Iterator[Answers]:
    with Answers(*answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(5)


def rpc(**answer: object) -> tuple[int, str, str]:
    return 200, "application/json", json.dumps({"jsonrpc": "2.0", "id": 1, **answer})


@pytest.mark.parametrize(
    "line",
    [
        ["nope"],
        ["serve"],
        ["serve", "--config", "gone.json"],
        ["serve", "--config", "gone.json", "--port", "x"],
        ["stdio"],
        ["stdio", "--config", "a", "--url", "b"],
        ["stdio", "--url", "http://127.0.0.1:1/mcp", "--header", "secret"],
        ["stdio", "--config", "gone.json", "--header", "a: b"],
        ["check"],
        ["check", "--config", "gone.json"],
        ["call"],
        ["call", "x", "{"],
        ["call", "x", "[]"],
        ["call", "x", "{}", "-a", "novalue"],
        ["call", "x", "{}", "--timeout", "-1"],
        ["call", "x", "{}", "--url", "ftp://h/"],
        ["tools", "--format", "xml"],
    ],
)
def test_wrong_usage_is_one_line_on_stderr_and_exit_2(
    line: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(line) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("typegate")
    assert err.count("\n") == 1
    assert "secret" not in err


@pytest.mark.parametrize(
    "command", ["serve", "stdio", "demo", "check", "servers", "tools", "call", "audit", "approvals"]
)
def test_help_of_every_command_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"examples:\n  typegate {command}" in capsys.readouterr().out


def handlers(command: ArgumentParser) -> Iterator[str]:
    if (handler := command.get_default("handler")) is not None:
        yield handler
    for action in command._actions:
        for nested in action.choices.values() if isinstance(action.choices, dict) else ():
            yield from handlers(nested)


def test_every_command_names_an_existing_function() -> None:
    for handler in handlers(parser()):
        module, _, function = handler.partition(":")
        assert callable(getattr(import_module(f"gateway.commands.{module}"), function)), handler


def test_check_schema_prints_the_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_call_sends_one_stateless_request_with_its_headers(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(rpc(result=OK)) as server:
        line = ["call", "c__send", '{"to": []}', "-a", 'n="3"', "-a", "t=a=b", "--api-key", "k"]
        assert main([*line, "--url", server.url]) == 0
    [(path, headers, body)] = server.requests
    assert path == "/mcp"
    assert headers["authorization"] == "Bearer k"
    assert headers["accept"] == "application/json, text/event-stream"
    assert headers["mcp-protocol-version"] == "2026-07-28"
    assert (headers["mcp-method"], headers["mcp-name"]) == ("tools/call", "c__send")
    assert body["params"]["arguments"] == {"to": [], "n": "3", "t": "a=b"}
    assert body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert capsys.readouterr().out == "sent\n"


def test_event_stream_shows_progress_on_stderr_and_the_result_on_stdout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = {"method": "notifications/progress", "params": {"progress": 1, "total": 2, "message": "half"}}
    events = [progress, {"id": 1, "result": OK}]
    stream = ": hello\n\n" + "".join(f"event: message\ndata: {json.dumps(event)}\n\n" for event in events)
    with answering((200, "text/event-stream", stream)) as server:
        assert main(["call", "x", "--url", server.url]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("sent\n", "typegate: progress 1/2 half\n")


def test_error_result_is_printed_and_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(rpc(result={**OK, "isError": True}), rpc(result={**OK, "isError": True})) as server:
        assert main(["call", "x", "--url", server.url]) == 1
        assert capsys.readouterr().out == "sent\n"
        assert main(["call", "x", "--url", server.url, "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["isError"] is True


def test_protocol_error_exits_1_with_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(rpc(error={"code": -32602, "message": "no such tool"})) as server:
        assert main(["call", "x", "--url", server.url]) == 1
    assert capsys.readouterr().err == "typegate: error -32602: no such tool\n"


def test_call_is_repeated_with_header_arguments_after_a_mismatch() -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    mismatch = rpc(error={"code": -32020, "message": "Mcp-Param-Region is missing"})
    listed = rpc(result={"tools": [{"name": "x", "inputSchema": schema}]})
    with answering(mismatch, listed, rpc(result=OK)) as server:
        assert main(["call", "x", '{"region": "Zürich"}', "--url", server.url]) == 0
    assert server.requests[2][1]["mcp-param-region"] == header_value("Zürich")
    assert header_value("Zürich") == "=?base64?WsO8cmljaA==?="


@pytest.mark.parametrize(
    "answer",
    [
        (200, "text/html", "<html>"),
        (200, "application/json", "[]"),
        (404, "text/plain", ""),
        (401, "a/b", ""),
    ],
)
def test_answer_that_is_not_from_a_gateway_is_reported_in_one_line(
    answer: tuple[int, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(answer) as server:
        assert main(["call", "x", "--url", server.url]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_refused_connection_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert main(["call", "x", "--url", f"http://127.0.0.1:{closed.getsockname()[1]}/mcp"]) == 1
    err = capsys.readouterr().err
    assert "no gateway answers" in err
    assert err.count("\n") == 1


def test_servers_uses_the_token_of_the_state_directory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TYPEGATE_ADMIN_TOKEN", raising=False)
    (tmp_path / "admin-token").write_text("tok\n")
    (tmp_path / "admin-token").chmod(0o600)
    rows = [{"name": "bank", "type": "stdio", "state": "ready", "tools": 1, "auth": False, "lastError": None}]
    answer = (200, "application/json", json.dumps({"servers": rows}))
    with answering(answer, answer) as server:
        line = ["servers", "--url", server.url, "--state-dir", str(tmp_path)]
        assert main(line) == 0
        assert capsys.readouterr().out == "bank\tstdio\tready\t-\t1\t-\t-\tno\t-\n"
        assert main([*line, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == rows
    assert server.requests[0][0] == "/admin/servers"
    assert server.requests[0][1]["authorization"] == "Bearer tok"


def test_missing_token_message_names_where_to_set_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TYPEGATE_ADMIN_TOKEN", raising=False)
    assert main(["tools", "--state-dir", str(tmp_path)]) == 2
    assert "TYPEGATE_ADMIN_TOKEN" in capsys.readouterr().err


def test_prompt_format_shows_type_and_necessity_of_each_argument(capsys: pytest.CaptureFixture[str]) -> None:
    schema = {
        "type": "object",
        "properties": {"to": {"type": "string", "description": "Whom."}, "n": {"type": ["integer", "null"]}},
        "required": ["to"],
    }
    listed = [
        {"name": "c__send", "description": "Send.", "inputSchema": schema},
        {"name": "b__x", "inputSchema": {"type": "object"}},
    ]
    with answering(rpc(result={"tools": listed})) as server:
        assert main(["tools", "--format", "prompt", "--url", server.url]) == 0
    assert capsys.readouterr().out == (
        "c__send: Send.\n  to (string, required): Whom.\n  n (integer or null, optional)\n\n"
        "b__x:\n  no declared arguments\n"
    )


def test_port_in_use_is_reported_before_anything_starts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        line = ["demo", "--port", str(taken.getsockname()[1]), "--state-dir", str(tmp_path)]
        assert main(line) == 2
    assert "cannot listen" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("listen", "url", "page"),
    [
        (None, "http://127.0.0.1:8765/mcp", "http://127.0.0.1:8765/admin/"),
        (None, "http://0.0.0.0:80/mcp", "http://127.0.0.1:80/admin/"),
        (None, "http://[::]:80/mcp", "http://[::1]:80/admin/"),
        (None, "http://[fe80::1]:80/mcp", "http://[fe80::1]:80/admin/"),
        (8766, "http://127.0.0.1:8765/mcp", "http://127.0.0.1:8766/admin/"),
        ("unix:/run/admin.sock", "http://127.0.0.1:8765/mcp", None),
    ],
)
def test_page_address_follows_the_admin_listener(listen: Any, url: str, page: str | None) -> None:
    admin = {} if listen is None else {"listen": listen}
    config = parse(json.dumps({"mcpServers": {}, "gateway": {"admin": admin}}), path=Path("mcp.json"), environ={})
    assert page_url(config, url) == page


ROWS = [{"name": "bank", "state": "ready"}, {"name": "calendar-mcp", "state": "waiting"}]


def admin(*rows: dict[str, Any]) -> tuple[int, str, str]:
    return 200, "application/json", json.dumps({"servers": rows})


@pytest.mark.parametrize(
    ("wanted", "names"), [("BANK", ["bank"]), ("c*-mcp", ["calendar-mcp"]), ("a", ["bank", "calendar-mcp"])]
)
def test_rows_are_filtered_by_text_or_pattern_with_optional_header(
    wanted: str, names: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TYPEGATE_ADMIN_TOKEN", "t")
    with answering(admin(*ROWS)) as server:
        assert main(["servers", wanted, "--header", "--url", server.url]) == 0
    head, *lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert head[0] == "name"
    assert [line[0] for line in lines] == names


TYPED = {
    "day": {"type": "string"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "count": {"type": ["integer", "string"]},
    "on": {"type": "boolean"},
}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("day=2024", "2024"),
        ("day=007", "007"),
        ('day="quoted"', "quoted"),
        ("note=null", "null"),
        ("note=1e5", "1e5"),
        ("count=3", 3),
        ("on=true", True),
        ("unknown=3", 3),
    ],
)
def test_argument_is_parsed_by_the_schema(given: str, sent: object) -> None:
    listed = rpc(result={"tools": [{"name": "x", "inputSchema": {"type": "object", "properties": TYPED}}]})
    answers = [rpc(result=OK)] if "quoted" in given or given == "day=007" else [listed, rpc(result=OK)]
    with answering(*answers) as server:
        assert main(["call", "x", "-a", given, "--url", server.url]) == 0
    assert list(server.requests[-1][2]["params"]["arguments"].values()) == [sent]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_every_shell_contains_the_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("typegate", "serve", "check", "strict"))


@pytest.mark.heavy
def test_closed_output_pipe_is_not_a_failure() -> None:
    line = f'"{sys.executable}" -m gateway check --schema | head -1; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "{\n0\n"
    assert done.stderr == ""


def test_tables_fit_80_columns_without_breaking_names(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a-server-with-a-long-name__and_a_tool_of_48_char"
    row = {"name": name, "status": "ready", "tokens": 123, "reason": "longer than 48 characters", "server": "s" * 30}
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    with redirect_stdout(shown):
        output.print_table("wrappers", ("name", "server", "tool"), [row], narrow=("name", "status", "tokens", "reason"))
    lines = shown.getvalue().splitlines()
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines) <= 80
    assert any(name in line for line in lines)


def test_demo_is_found_by_its_note_and_a_stale_note_is_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TYPEGATE_ADMIN_TOKEN", raising=False)
    (tmp_path / "demo").mkdir()
    for folder, token in ((tmp_path, "own"), (tmp_path / "demo", "demos")):
        (folder / "admin-token").write_text(token)
        (folder / "admin-token").chmod(0o600)
    with answering(admin(ROWS[0]), (401, "application/json", "{}"), admin(ROWS[1])) as server:
        (tmp_path / "demo" / "address").write_text(server.url)
        line = ["servers", "--state-dir", str(tmp_path), "--url", server.url]
        assert main(line) == 0
        assert main(line) == 0
    assert [head["authorization"] for _, head, _ in server.requests] == ["Bearer demos", "Bearer demos", "Bearer own"]
    assert [row.split("\t")[0] for row in capsys.readouterr().out.splitlines()] == ["bank", "calendar-mcp"]


@pytest.mark.parametrize("line", ["call a__b {} --url u", "call a__b --url u {}", "call --url u a__b {}"])
def test_optional_argument_may_be_anywhere(line: str) -> None:
    args = parser().parse_args(line.split())
    assert (args.name, args.json_arguments, args.url) == ("a__b", "{}", "u")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "check --confg x",
            "typegate check: there is no option --confg; did you mean --config? (`typegate check --help`",
        ),
        ("check --confg=x", "typegate check: there is no option --confg; did you mean --config?"),
        ("policy explain --principl a", "there is no option --principl; did you mean --principal?"),
        ("server", "typegate: there is no command server; did you mean servers or serve? (`typegate --help`"),
        ("key nwe x", "typegate key: there is no action nwe; did you mean new? (`typegate key --help`"),
        ("xyzzy", "typegate: there is no command xyzzy (`typegate --help`"),
        ("check {file}", "typegate check: one argument too many: {file}; did you mean --config {file}?"),
        ("check nothing", "typegate check: one argument too many: nothing ("),
        ("call a__b --url u {} x", "typegate call: one argument too many: x ("),
        ("audit --since 2h verifi", "argument action: invalid choice: 'verifi' (choose from"),
        ("call --zzz a__b {}", "typegate call: there is no option --zzz (`typegate call --help`"),
        ("add", "the following arguments are required: WHAT ("),
    ],
)
def test_misspelled_command_line_gets_a_suggestion(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("{}")
    assert main(line.replace("{file}", str(file)).split()) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(message.replace("{file}", str(file))) or message in printed.err, printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)


def test_list_of_commands_truncates_no_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = " ".join(capsys.readouterr().out.partition("commands:")[2].split())
    assert "tokens of each tool list in each dialect, and the state of the servers." in listed
    assert "Add a server to the configuration, pinned to an exact version." in listed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["-a", "to=a", "-a", "to=b"],
            """-a to is given twice; expected one value, which may be a list: to='["a", "b"]'""",
        ),
        (['{"to": "a", "to": "b"}'], 'the arguments are not JSON ("to" occurs twice in one object); expected'),
    ],
)
def test_repeated_option_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["call", "a__b", *arguments, "--url", "http://127.0.0.1:9/mcp"]) == 2
    assert capsys.readouterr().err.startswith(f"typegate: {message}")


def test_program_without_arguments_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: typegate ")


def test_configuration_in_the_working_directory_is_the_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check"]) == 2
    assert "there is none of mcp.yaml, mcp.json and .mcp.json in" in capsys.readouterr().err
    # Each file takes precedence over the one that was written before it.
    for name in (".mcp.json", "mcp.json", "mcp.yaml"):
        (tmp_path / name).write_text("{mcpServers: {}}" if name.endswith("yaml") else '{"mcpServers": {}}')
        assert main(["check"]) == 0
        assert capsys.readouterr().err.startswith(f"typegate: {name}: contains no servers")


@pytest.mark.parametrize("command", ["add", "import", "install", "check"])
def test_help_examples_can_be_parsed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  typegate ")]
    assert shown
    for line in shown:
        example = re.split(r" {2,}| \| | > ", line)[0]
        assert parser().parse_args(shlex.split(example)[1:]).handler


def test_arguments_after_two_dashes_go_to_the_server_program() -> None:
    for line in (
        "add pypi:clock --config a.json --name clock -- --local-timezone UTC",
        "add --name clock --config a.json pypi:clock -- --local-timezone UTC",
    ):
        parsed = parser().parse_args(line.split())
        assert (parsed.what, parsed.name, parsed.arguments) == ("pypi:clock", "clock", ["--local-timezone", "UTC"])
    assert parser().parse_args(["add", "pypi:clock"]).arguments == []


def test_port_in_use_names_its_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {}}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--config", str(config), "--port", str(taken.getsockname()[1])]) == 2
    printed = capsys.readouterr().err
    assert "in use by" in printed if sys.platform == "linux" else "cannot listen on" in printed
    assert sys.platform != "linux" or f"(process {os.getpid()})" in printed


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_tables_break_no_word(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    row = {
        "name": "calendar-mcp", "type": "stdio", "state": "connecting", "protocol": "2025-11-25", "tools": 12,
        "quarantined": 3, "repaired": 1, "auth": False, "lastError": "cannot connect (Connection refused)",
    }  # fmt: skip
    columns = tuple(row)
    with redirect_stdout(shown):
        output.print_table("servers", columns, [row], narrow=("name", "type", "state", "tools", "lastError"))
    words = set(re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue()).replace("│", " ").split())
    assert {"calendar-mcp", "connecting", "connect", "refused)", "lastError"} <= words


def is_able_to_lose_its_user() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("setpriv") is not None


@pytest.mark.skipif(not is_able_to_lose_its_user(), reason="only root can become a user that no file knows")
@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ("check --config mcp.json", 0, ""),
        ("servers --config mcp.json", 0, ""),
        ("lock --config mcp.json", 0, "0 servers locked"),
        ("stdio --config mcp.json", 0, ""),
        ("key list", 2, "no admin token in TYPEGATE_ADMIN_TOKEN or"),
        ("audit", 2, "there is no audit log at"),
        ("login up --config mcp.json", 2, "up"),
        ("import cursor --config mcp.json", 2, "Cursor has no file at"),
        ("install cursor --config mcp.json", 1, "+++ /.cursor/mcp.json"),
    ],
)
@pytest.mark.heavy
def test_every_command_works_for_a_user_without_home_and_passwd_entry(
    tmp_path: Path, words: str, code: int, expected: str
) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    user = ["setpriv", "--reuid=54321", "--clear-groups"]
    # The interpreter, this checkout and the folder of the test may be those of root.
    able = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    command = [*user, *able, "env", "-i", f"PATH={os.environ['PATH']}", f"TMPDIR={tmp_path}", sys.executable]
    done = subprocess.run(
        [*command, "-m", "gateway", *words.split()],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert expected in done.stdout + done.stderr
    assert done.returncode == code, done.stdout + done.stderr


def test_temporary_state_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"typegate-{os.geteuid()}"
    assert admin_client._temporary_state_dir() == own
    own.symlink_to(tmp_path)
    with pytest.raises(admin_client.UsageError, match="expected --state-dir"):
        admin_client._temporary_state_dir()
