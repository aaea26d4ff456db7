"""What a child says on its standard error, in our log: readable, and never a flood."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.upstream.transport.stdio import _STDERR_LINES_PER_S, _StderrLog


class Clock:
    """The time of the loop, as the test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now_s)


async def test_so_many_lines_a_second_are_logged_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with monkeypatch.context() as patched:
        clock = Clock(patched)
        log = _StderrLog("s")
        for second in range(2):
            clock.now_s = 100.5 + second
            for number in range(_STDERR_LINES_PER_S + 7):
                log.line(b"line %d" % number)
        log.close()
    said = [record.getMessage() for record in caplog.records]
    shown = [f"stderr: line {number}" for number in range(_STDERR_LINES_PER_S)]
    assert said == [*shown, "stderr: 7 lines dropped"] * 2
    assert log.last_line() == f"line {_STDERR_LINES_PER_S + 6}"
