"""The drafts of JSON Schema, and the URIs that name them, in each form in which servers write these."""

from __future__ import annotations

import re
from typing import Final

DRAFT_7: Final = "http://json-schema.org/draft-07/schema#"
"""The draft that every client knows."""

_URI: Final = re.compile(
    r"https?://(?:www\.)?json-schema\.org/(?:draft-0(?P<number>[3-7])|draft/(?P<date>2019-09|2020-12))"
    r"/(?:hyper-)?schema/?(?:\.json)?#?/?",
    re.IGNORECASE,
)
# Draft 5 is draft 4 with clarifications.
_BY_NUMBER: Final = {"3": "draft-04", "4": "draft-04", "5": "draft-04", "6": "draft-06", "7": "draft-07"}
_CLASSES: Final = {
    "draft-04": "Draft4Validator",
    "draft-06": "Draft6Validator",
    "draft-07": "Draft7Validator",
    "2019-09": "Draft201909Validator",
    "2020-12": "Draft202012Validator",
}
_LONE_REFERENCES: Final = frozenset({"draft-04", "draft-06", "draft-07"})
_TUPLES_IN_ITEMS: Final = _LONE_REFERENCES | {"2019-09"}


def draft_of(declared: object) -> str | None:
    """Return the draft that a `$schema` names, such as `draft-07` or `2020-12`; None for another dialect."""
    found = _URI.fullmatch(declared.strip()) if isinstance(declared, str) else None
    return None if found is None else found["date"] or _BY_NUMBER[found["number"]]


def uri_of(draft: str) -> str:
    """Return the URI of a draft as its specification writes it."""
    if draft.startswith("draft-"):
        return f"http://json-schema.org/{draft}/schema#"
    return f"https://json-schema.org/draft/{draft}/schema"


def compiler_of(draft: str | None) -> str:
    """Return the class of `jsonschema_rs` that compiles a draft; unknown dialects count as 2020-12."""
    return _CLASSES[draft or "2020-12"]


def has_lone_references(draft: str | None) -> bool:
    """Return whether a reference stands for all that is beside it, as before 2019-09."""
    return draft in _LONE_REFERENCES


def has_tuples_in_items(draft: str | None) -> bool:
    """Return whether `items` may be a list, one schema for each position, as before 2020-12."""
    return draft in _TUPLES_IN_ITEMS
