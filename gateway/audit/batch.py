"""Lines on their way from those that wait into a file: written in a thread, whether or not anybody waits for it."""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from threading import Lock
from typing import Final, NamedTuple

from gateway.audit.lines import Line
from gateway.audit.writing import NotWritten, RecordFile

# Lines written at a time, which takes half a millisecond, and the pause after them: calls wait for the interpreter
# meanwhile, and one in a hundred would wait for all lines of a tenth of a second.
_SLICE: Final = 256
_PAUSE_S: Final = 0.000_1


class Written(NamedTuple):
    """What has become of a batch.

    Attributes:
        lines: How many lines were written, from the first on.
        deleted: How many files were deleted for their size.
        error: Why the rest is not written; None where there is no rest.
    """

    lines: int
    deleted: int
    error: str | None = None


class Batch:
    """Lines that are written together.

    Attributes:
        lines: The lines.
        lost: How many others could not be kept before them, which the last line tells; 0 for none, and no such line.
        written: What has become of it; None until its thread has ended.
    """

    def __init__(self, lines: deque[Line], lost: int) -> None:
        self.lines = lines
        self.lost = lost
        self.written: Written | None = None
        # Of whoever is first, and never released: the thread that writes, or who takes the lines back.
        self._taken = Lock()

    def withdraw(self) -> bool:
        """Take the lines back, unless a thread has begun to write them; whether it has worked."""
        return self._taken.acquire(blocking=False)

    def write(self, file: RecordFile, in_order: Lock) -> None:
        """Append as many lines as can be written, and let calls and other processes go on in between.

        Args:
            file: Where they go.
            in_order: Held meanwhile: a thread that nobody waits for any more goes on, and what comes later follows it.
        """
        with in_order:
            if self._taken.acquire(blocking=False):
                try:
                    self.written = self._write(file)
                finally:
                    # Those that follow are not to wait for what a fault of ours has ended.
                    self.written = self.written or Written(0, 0)

    def rest(self) -> deque[Line]:
        """The lines that were not written, without the one that tells of lost ones: it is made anew."""
        rest = deque(islice(self.lines, self.written.lines if self.written else 0, None))
        if self.lost:
            rest.pop()
        return rest

    def _write(self, file: RecordFile) -> Written:
        lines, written, deleted = list(self.lines), 0, 0
        while written < len(lines):
            if written:
                time.sleep(_PAUSE_S)
            part = lines[written : written + _SLICE]
            try:
                deleted += file.append([line.text() for line in part])
            except NotWritten as error:
                return Written(written, deleted, str(error))
            written += len(part)
        return Written(written, deleted)
