"""Refused credentials by address: which of them are lines of the record, and which are only counted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

# Of one address: the first ones of a minute are lines, the others are counted.
_MAX_REFUSALS: Final = 10
_REFUSALS_S: Final = 60.0
_MAX_ADDRESSES: Final = 1_024


class Refusals:
    """Counts them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of_addresses: OrderedDict[str, list[float]] = OrderedDict()

    def more(self, address: str) -> int | None:
        """How many refusals of an address a line stands for beside its own; None where there is to be no line."""
        now_s = self._clock()
        count, began_s, untold = self._of_addresses.pop(address, [0.0, now_s, 0.0])
        if not 0 <= now_s - began_s < _REFUSALS_S:
            count, began_s = 0.0, now_s
        told = count < _MAX_REFUSALS
        self._of_addresses[address] = [count + 1, began_s, 0.0 if told else untold + 1]
        if len(self._of_addresses) > _MAX_ADDRESSES:
            self._of_addresses.popitem(last=False)
        return int(untold) if told else None
