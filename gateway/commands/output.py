"""Print results: tables on a terminal, tab-separated lines in a pipe, JSON on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from registry.schema.display_text import is_hidden

if TYPE_CHECKING:
    from gateway.config.model import Config


# Longer words are broken: addresses and file names, which no terminal has room for in every column.
_MAX_WORD: Final = 24
# The longest wrapper name by default.
_MAX_NAME: Final = 48


def say(text: str) -> None:
    """A message for the person, on standard error; it may quote others, so it steers no terminal."""
    print(f"typegate: {_visible(text)}", file=sys.stderr, flush=True)


def warn(warnings: Iterable[str]) -> None:
    """Warnings of a configuration, on standard error."""
    for text in warnings:
        say(f"warning: {text}")


def warn_of(config: Config) -> None:
    """What a configuration says in vain, and which servers are left out, on standard error."""
    warn(config.warnings)
    for alias, left_out in config.left_out.items():
        say(f"{alias}: {left_out.reason}")


def text(value: str) -> None:
    """Text of an upstream on standard output: without control characters on a terminal, as it is in a pipe."""
    print(_visible(value) if sys.stdout.isatty() else value)


def as_json(value: object) -> None:
    """A value as JSON on standard output: indented on a terminal, one line in a pipe."""
    if not sys.stdout.isatty():
        print(json.dumps(value, default=str))
        return
    shown = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    # JSON itself escapes the controls of ASCII only.
    escapes = {ord(char): json.dumps(char)[1:-1] for char in set(shown) if char != "\n" and is_hidden(char)}
    print(shown.translate(escapes))


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    *,
    narrow: Sequence[str] | None = None,
    header: bool = False,
) -> None:
    """The named columns of `rows`: a table on a terminal, lines with tabs in a pipe.

    Args:
        title: Of the table.
        columns: The members of each row to show.
        rows: The rows.
        narrow: Those to show on a terminal that has no room for all.
        header: In a pipe too, the first line names the columns.
    """
    # Tabs: `cut` and `awk` take them apart without counting columns.
    if not sys.stdout.isatty():
        if header:
            print("\t".join(columns))
        for row in rows:
            print("\t".join(_cell(row.get(column)) for column in columns))
        return
    from rich.console import Console  # late: pipes and `typegate stdio` need not wait for it
    from rich.table import Table
    from rich.text import Text

    console = Console()
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = _least_widths(columns, cells)
    # Each column has a border and a space on either side.
    if narrow is not None and sum(widths) + 3 * len(widths) + 1 > console.width:
        columns = narrow
        cells = [[_cell(row.get(column)) for column in columns] for row in rows]
        widths = _least_widths(columns, cells)
    drawn = Table(title=f"{title} ({len(rows)})", title_justify="left", header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        drawn.add_column(column, overflow="fold", min_width=width)
    for line in cells:
        drawn.add_row(*(Text(cell) for cell in line))
    console.print(drawn)


def _least_widths(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    """Return for each column the width below which words would be broken."""
    widths = [
        max(len(column), *(min(len(word), _MAX_WORD) for line in cells for word in line[place].split() or [""]), 0)
        for place, column in enumerate(columns)
    ]
    # Names stand first, and are copied: a break inside would be copied too.
    first = max((len(line[0]) for line in cells), default=0)
    return [max(widths[0], min(first, _MAX_NAME)), *widths[1:]]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list | tuple):
        return str(len(value))
    return _visible(str(value), " ").replace("\n", " ").replace("\t", " ")


def _visible(value: str, instead: str = "\ufffd") -> str:
    """A text without what a terminal obeys or does not show."""
    # Not halves of surrogate pairs: the streams escape them, and that is all there is to see of a broken name.
    unseen = (char for char in set(value) if char == "\r" or is_hidden(char))
    return value.translate({ord(char): instead for char in unseen if not "\ud800" <= char <= "\udfff"})
