"""The media type of a body (RFC 9110, section 8.3.1 "Media Type")."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

# Servers send one or two.
_MAX_TYPES: Final = 128


@lru_cache(maxsize=_MAX_TYPES)
def media_type(value: str) -> str:
    """Return the type that a Content-Type header names: without its parameters, in lower case.

    Of a header that stands there twice, as behind some proxies, the first one counts.
    """
    return value.partition(";")[0].partition(",")[0].strip().lower()
