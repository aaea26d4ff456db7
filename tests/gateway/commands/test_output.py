"""What others have written is shown on a terminal, and steers none."""

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
    """Both standard streams lead to one terminal."""
    shown = Terminal()
    with redirect_stdout(shown), redirect_stderr(shown):
        yield shown


def steers(text: str) -> bool:
    return any(char in text for char in STEERING)


def test_neither_a_text_nor_json_nor_a_message_steers_a_terminal() -> None:
    with on_a_terminal() as terminal:
        output.text(ESCAPES)
        output.as_json({"k": ESCAPES, "é": "é\n"})
        output.say(f"error -32000: {ESCAPES}")
    shown = terminal.getvalue()
    assert not steers(shown)
    assert "é" in shown
    begin, end = shown.index("{"), shown.rindex("}") + 1
    assert json.loads(shown[begin:end]) == {"k": ESCAPES, "é": "é\n"}


def test_progress_of_a_call_and_cells_of_a_table_do_not_either() -> None:
    notice = {"method": "notifications/progress", "params": {"progress": ESCAPES, "total": 2, "message": ESCAPES}}
    with on_a_terminal() as terminal:
        call._show_notice(notice)
        output.table("t", ["a"], [{"a": ESCAPES}])
    # The table has colours of its own.
    assert not any(char in terminal.getvalue() for char in "\x9b\u202e\U000e0041\r\x7f")


def test_a_pipe_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    output.text(ESCAPES)
    assert capsys.readouterr().out == f"{ESCAPES}\n"


def test_a_line_of_the_log_quotes_no_escapes() -> None:
    record = logging.LogRecord("gateway", logging.WARNING, "", 0, "lost: %s", (ESCAPES + "\nforged",), None)
    line = logs._Line().format(record)
    assert not steers(line)
    assert "\n" not in line
    try:
        raise ValueError(ESCAPES)
    except ValueError:
        record.exc_info = sys.exc_info()
    assert not steers(logs._Line().format(record))
