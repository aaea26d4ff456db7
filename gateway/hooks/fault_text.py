"""What is told of an exception that a hook has raised, without what it repeats of a call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from gateway.hooks.hook import Call, Result
from gateway.secrets import SECRETS

# Of an exception's own text: a sentence or two, where some libraries put a whole document.
_MAX_ERROR_CHARS: Final = 500
# A call of which more is compared with an exception's text would hold up others.
_MAX_VALUES_CHARS: Final = 100_000
# Shorter values are in every text by chance, and tell nothing.
_MIN_TELLING_CHARS: Final = 3
_WORD: Final = re.compile(r"[\w.@+-]{3,}")


def words_of(error: BaseException, call: Call | None = None, result: Result | None = None) -> str:
    """Return what an exception says, as the end of a sentence, without what it repeats of a call.

    Args:
        error: The exception.
        call: The call whose argument values are left out.
        result: A result whose values are left out.
    """
    text = str(error).strip()[:_MAX_ERROR_CHARS]
    if not text:
        return ""
    values = list(_texts_in([call.args if call is not None else None, result.value if result is not None else None]))
    if sum(map(len, values)) > _MAX_VALUES_CHARS:
        return " (what it says is left out: the call is too large to be kept out of it)"
    for value in sorted(filter(_is_telling, values), key=len, reverse=True):
        text = text.replace(value, "…")
    known = "\n".join(values)
    # And parts of values: a word of an address, the beginning of a text.
    text = _WORD.sub(lambda word: "…" if word[0] in known else word[0], text)
    return f": {SECRETS.scrub(' '.join(text.split()))}"


def _texts_in(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, str):
            yield item
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield str(item)


def _is_telling(value: str) -> bool:
    return len(value) >= _MIN_TELLING_CHARS


def where_raised(error: BaseException) -> str:
    """File and line where it was raised. Its text is `words_of`: it may hold arguments or results."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename.rsplit('/', 1)[-1]}:{error.lineno}"  # and not where it was compiled
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" at {trace.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
