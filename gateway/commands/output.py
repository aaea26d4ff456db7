"""Print results: tables on a terminal, tab-separated lines in a pipe, or JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from registry.schema.display_text import is_hidden

if TYPE_CHECKING:
    from gateway.config.model import Config


# Longer words, such as URLs and file names, are broken, because a terminal has no room for them in every column.
_MAX_WORD: Final = 24
# The default maximum length of wrapper names.
_MAX_NAME: Final = 48


def say(text: str) -> None:
    """Print a message on standard error, without terminal control characters, since it may quote upstreams."""
    print(f"typegate: {_visible(text)}", file=sys.stderr, flush=True)


def discard_output() -> None:
    """Redirect standard output to the null device after its reader has closed it, as `| head` does.

    Otherwise Python would raise again when it flushes standard output at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(warnings: Iterable[str]) -> None:
    """Print warnings on standard error."""
    for text in warnings:
        say(f"warning: {text}")


def warn_about(config: Config) -> None:
    """Print the warnings of a configuration, and the servers that are left out, on standard error."""
    warn(config.warnings)
    for alias, left_out in config.left_out.items():
        say(f"{alias}: {left_out.reason}")


def print_text(value: str) -> None:
    """Print upstream text on standard output: without control characters on a terminal, unchanged in a pipe."""
    print(_visible(value) if sys.stdout.isatty() else value)


def print_json(value: object) -> None:
    """Print a value as JSON on standard output: indented on a terminal, one line in a pipe."""
    if not sys.stdout.isatty():
        print(json.dumps(value, default=str))
        return
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    # json.dumps escapes only the ASCII control characters.
    escapes = {ord(char): json.dumps(char)[1:-1] for char in set(text) if char != "\n" and is_hidden(char)}
    print(text.translate(escapes))


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    *,
    narrow: Sequence[str] | None = None,
    header: bool = False,
) -> None:
    """Print `columns` of `rows`: as a table on a terminal, as tab-separated lines in a pipe.

    Args:
        narrow: The columns to show on a terminal that has no room for all.
        header: Print the column names in a pipe, too.
    """
    # Separate columns by tabs, because `cut` and `awk` can split lines at tabs.
    if not sys.stdout.isatty():
        if header:
            print("\t".join(columns))
        for row in rows:
            print("\t".join(_cell(row.get(column)) for column in columns))
        return
    from rich.console import Console  # imported lazily: not needed in a pipe
    from rich.table import Table
    from rich.text import Text

    console = Console()
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = _least_widths(columns, cells)
    # Each column has a border, and a space on either side.
    if narrow is not None and sum(widths) + 3 * len(widths) + 1 > console.width:
        columns = narrow
        cells = [[_cell(row.get(column)) for column in columns] for row in rows]
        widths = _least_widths(columns, cells)
    widths = _fitting_widths(columns, cells, widths, console.width - 3 * len(columns) - 1)
    drawn = Table(title=f"{title} ({len(rows)})", title_justify="left", header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        drawn.add_column(column, overflow="fold", width=width)
    for line in cells:
        drawn.add_row(*(Text(cell) for cell in line))
    console.print(drawn)


def _least_widths(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    """Return the minimum width of each column at which no word of up to `_MAX_WORD` characters is broken."""
    widths = [
        max(len(column), *(min(len(word), _MAX_WORD) for line in cells for word in line[place].split() or [""]), 0)
        for place, column in enumerate(columns)
    ]
    # The first column contains names, which people copy. A wrapped name would be copied with a line break.
    first = max((len(line[0]) for line in cells), default=0)
    return [max(widths[0], min(first, _MAX_NAME)), *widths[1:]]


def _fitting_widths(
    columns: Sequence[str], cells: Sequence[Sequence[str]], least: Sequence[int], room: int
) -> list[int]:
    """Return the widths of the columns so that they fill at most `room` characters.

    rich itself would shrink the widest column below its minimum width, and crop the last column.
    """
    widths = list(least)
    spare = room - sum(widths)
    # Break words in the last columns first, because the first columns contain names.
    for place in reversed(range(1, len(widths))):
        cut = min(max(-spare, 0), widths[place] - len(columns[place]))
        widths[place] -= cut
        spare += cut
    desired = [max(width, *(len(line[place]) for line in cells), 0) - width for place, width in enumerate(widths)]
    # Widen the columns that lack the least first, so that short texts stay on one line.
    by_shortfall = sorted(range(len(widths)), key=desired.__getitem__)
    for done, place in enumerate(by_shortfall):
        added = min(desired[place], max(spare, 0) // (len(widths) - done))
        widths[place] += added
        spare -= added
    return widths


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list | tuple):
        return str(len(value))
    return _visible(str(value), " ").replace("\n", " ").replace("\t", " ")


def _visible(value: str, instead: str = "\ufffd") -> str:
    """Replace the characters in a text that control a terminal or are invisible."""
    # Lone surrogates are kept: the streams escape them, so that broken names remain recognizable.
    unseen = (char for char in set(value) if char == "\r" or is_hidden(char))
    return value.translate({ord(char): instead for char in unseen if not "\ud800" <= char <= "\udfff"})
