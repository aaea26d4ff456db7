"""The media type of a body (RFC 9110, section 8.3.1 "Media Type")."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

# Servers send one or two.
_MAX_TYPES: Final = 128


@lru_cache(maxsize=_MAX_TYPES)
def media_type(value: str) -> str:
    """The type that a Content-Type header names: without its parameters, in lower case."""
    return value.partition(";")[0].strip().lower()
