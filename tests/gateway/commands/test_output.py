"""Terminal escapes in text from others have no effect on a terminal."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from gateway.commands import call, output
from gateway.telemetry import logs

ESCAPES = "a\x1b[2Jb\x9b31mc\u202ed\U000e0041e\rf\x7f"
STEERING = "\x1b\x9b\u202e\U000e0041\r\x7f"


class Terminal(io.StringIO):
    """A standard stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@contextmanager
def on_a_terminal() -> Iterator[Terminal]:
    """Connect both standard streams to one terminal."""
    shown = Terminal()
    with redirect_stdout(shown), redirect_stderr(shown):
        yield shown


def steers(text: str) -> bool:
    return any(char in text for char in STEERING)


def test_terminal_escapes_in_text_json_and_messages_are_neutralized() -> None:
    with on_a_terminal() as terminal:
        output.print_text(ESCAPES)
        output.print_json({"k": ESCAPES, "é": "é\n"})
        output.say(f"error -32000: {ESCAPES}")
    shown = terminal.getvalue()
    assert not steers(shown)
    assert "é" in shown
    begin, end = shown.index("{"), shown.rindex("}") + 1
    assert json.loads(shown[begin:end]) == {"k": ESCAPES, "é": "é\n"}


def test_terminal_escapes_in_progress_and_tables_are_neutralized() -> None:
    notice = {"method": "notifications/progress", "params": {"progress": ESCAPES, "total": 2, "message": ESCAPES}}
    with on_a_terminal() as terminal:
        call._show_notice(notice)
        output.print_table("t", ["a"], [{"a": ESCAPES}])
    # The table contains no control characters except for its own colours.
    assert not any(char in terminal.getvalue() for char in "\x9b\u202e\U000e0041\r\x7f")


def test_pipe_receives_the_text_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_text(ESCAPES)
    assert capsys.readouterr().out == f"{ESCAPES}\n"


def test_terminal_escapes_in_log_lines_are_neutralized() -> None:
    record = logging.LogRecord("gateway", logging.WARNING, "", 0, "lost: %s", (ESCAPES + "\nforged",), None)
    line = logs._Line().format(record)
    assert not steers(line)
    assert "\n" not in line
    try:
        raise ValueError(ESCAPES)
    except ValueError:
        record.exc_info = sys.exc_info()
    assert not steers(logs._Line().format(record))


def test_table_with_long_words_is_wrapped_instead_of_cropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    columns = ["id", "state", "principal", "wrapper", "arguments"]
    row = dict(zip(columns, ["d58885124eb3", "waiting", "ci", "calendar__send_email"], strict=False))
    row["arguments"] = '{"to": ["robin@example.com"], "subject": "Hello", "body": "Hi"}'
    with on_a_terminal() as terminal:
        output.print_table("approvals", columns, [row])
    lines = [line.removesuffix(" │") for line in terminal.getvalue().splitlines() if line.startswith("│")]
    shown = "".join(line.rpartition("│ ")[2] for line in lines)
    assert "".join(shown.split()) == "".join(row["arguments"].split())


def test_table_shrinks_a_column_that_can_wrap_instead_of_the_widest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = {
        "name": "calendar-mcp__get_calendar_events",
        "status": "ready",
        "reason": "renamed by " * 5 + "configuration",
    }
    with on_a_terminal() as terminal:
        output.print_table("wrappers", list(row), [row])
    [first, *_] = [line for line in terminal.getvalue().splitlines() if line.startswith("│")]
    assert row["name"] in first
    assert first.endswith("│")
