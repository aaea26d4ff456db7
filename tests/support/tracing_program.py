"""Run `python -m gateway ...`, and record which of the project's files run between two SIGUSR2.

    python tests/support/tracing_program.py FIFO -m gateway serve ...

At each signal one text is written to the named pipe FIFO: an empty one when the recording has begun, then a JSON list
of paths in order, one for each call of a function of `gateway` or `registry`.
"""

from __future__ import annotations

import json
import runpy
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Install the recorder, then become the program."""
    fifo, arguments = Path(sys.argv[1]), sys.argv[2:]
    prefixes = tuple(f"{ROOT / package}/" for package in ("gateway", "registry"))
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(prefixes):
            calls.append(str(Path(name).relative_to(ROOT)))

    def switch(_number: int, _frame: FrameType | None) -> None:
        if sys.getprofile() is None:
            fifo.write_text("", encoding="utf-8")
            sys.setprofile(note)
        else:
            sys.setprofile(None)
            fifo.write_text(json.dumps(calls), encoding="utf-8")
            calls.clear()

    signal.signal(signal.SIGUSR2, switch)
    sys.argv = arguments[arguments.index("gateway") :]
    runpy.run_module("gateway", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
