"""The queries of the admin API: which parameters a route knows, filters of its rows, and pages."""

from __future__ import annotations

from typing import Any, Final

from starlette.datastructures import QueryParams

from gateway.admin.documents import Refusal
from gateway.admin.routes import AdminRoute, Document
from gateway.config.section import suggestion

MAX_ROWS: Final = 1_000
"""Of one page: what a browser shows without getting slow."""
# More rows than any list has.
_MAX_CURSOR: Final = 10**9
# Further ones are no question that somebody has asked.
_MAX_PARAMETERS: Final = 64


def check_query(route: AdminRoute, query: QueryParams) -> None:
    """Refuse parameters that the route does not know, and numbers that are none.

    Raises:
        Refusal: There is one.
    """
    known = route.parameters
    if len(query.multi_items()) > _MAX_PARAMETERS:
        raise Refusal(400, f"expected at most {_MAX_PARAMETERS} parameters")
    for name in query:
        if name not in known:
            expected = suggestion(name, list(known)) if known else "none"
            raise Refusal(400, f"unknown parameter {name[:_MAX_PARAMETERS]!r}; expected {expected}")
    if route.rows is not None:
        number_in(query, "limit", least=1, most=MAX_ROWS)
        number_in(query, "cursor", least=0, most=_MAX_CURSOR)


def chosen_rows(route: AdminRoute, query: QueryParams, document: Document) -> Document:
    """The document with those of its rows that the query wants; with `next` and `total` where it asks for pages."""
    if route.rows is None or route.rows not in document:
        return document
    rows: list[dict[str, Any]] = document[route.rows]
    for name in route.filters:
        if (wanted := query.get(name)) is not None:
            rows = [row for row in rows if _holds(row, name, wanted)]
    if "limit" not in query and "cursor" not in query:
        return document if rows is document[route.rows] else {**document, route.rows: rows}
    start, limit = int(query.get("cursor", 0)), int(query.get("limit", MAX_ROWS))
    following = str(start + limit) if start + limit < len(rows) else None
    return {**document, route.rows: rows[start : start + limit], "next": following, "total": len(rows)}


def _holds(row: dict[str, Any], name: str, wanted: str) -> bool:
    if name == "q":
        folded = wanted.casefold()
        return any(isinstance(value, str) and folded in value.casefold() for value in row.values())
    if name == "status":
        return wanted in (row.get("status"), row.get("state"))
    return row.get(name) == wanted


def number_in(query: QueryParams, name: str, *, least: int, most: int) -> int | None:
    """A number of a query; None where it is not given.

    Raises:
        Refusal: It is none, or out of range.
    """
    text = query.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and least <= int(text) <= most:
        return int(text)
    raise Refusal(400, f"{name} is out of range; expected a number from {least} to {most}")
