"""One route of the admin API: its handler, how several processes' answers become one, and its documentation.

All three are given where the handler is written: a route without one of them cannot be declared.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

Method = Literal["GET", "POST", "DELETE"]
Document = dict[str, Any]
HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[Response]])

_ATTRIBUTE: Final = "__admin_route__"
_HEADINGS: Final = ("Returns:", "Query:", "Errors:")


class Merge(Enum):
    """What one process's answer means where several serve."""

    SAME = "every process would answer the same"
    CHANGE = "one process makes the change, and the others take it over"
    EVERYWHERE = "every process does it for itself"


@dataclass(frozen=True, slots=True)
class Combined:
    """Every process is asked, and `combine` makes one document of theirs; the first is that of the process asked."""

    combine: Callable[[Sequence[Document]], Document]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRoute:
    """One route.

    Attributes:
        method: The HTTP method.
        path: The path, with `{name}` for a part that varies.
        merge: How several processes' answers become one.
        status: Of an answer that is not an error.
        body: The model of the request's body; None where there is none.
        flushes: What other processes have counted is collected first.
        sections: The docstring of the handler by sections: `Summary`, `Returns`, and the lines of `Query` and `Errors`.
        handler: Answers it.
    """

    method: Method
    path: str
    merge: Merge | Combined
    status: int
    body: type[BaseModel] | None
    flushes: bool
    sections: dict[str, list[str]]
    handler: Callable[[Request], Awaitable[Response]]


def route(
    method: Method,
    path: str,
    *,
    merge: Merge | Combined,
    status: int = 200,
    body: type[BaseModel] | None = None,
    flushes: bool = False,
) -> Callable[[HandlerT], HandlerT]:
    """Declare a method as the handler of a route; OpenAPI has its docstring.

    Raises:
        TypeError: The docstring has no summary, or does not say what it returns.
    """

    def declare(handler: HandlerT) -> HandlerT:
        sections = _sections(handler.__doc__ or "")
        if not sections["Summary"] or "Returns" not in sections:
            raise TypeError(f"{handler.__qualname__} needs a docstring with a summary and what it returns")
        declared = partial(
            AdminRoute,
            method=method, path=path, merge=merge, status=status, body=body, flushes=flushes, sections=sections,
        )  # fmt: skip
        setattr(handler, _ATTRIBUTE, declared)
        return handler

    return declare


def routes_of(api: object) -> tuple[AdminRoute, ...]:
    """Every route that is declared on the class of `api`, in the order of its methods."""
    return tuple(
        getattr(member, _ATTRIBUTE)(handler=getattr(api, name))
        for name, member in vars(type(api)).items()
        if hasattr(member, _ATTRIBUTE)
    )


def _sections(docstring: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {"Summary": []}
    name = "Summary"
    for line in filter(None, map(str.strip, docstring.splitlines())):
        if line in _HEADINGS:
            name = line.removesuffix(":")
        sections.setdefault(name, []).extend([] if line in _HEADINGS else [line])
    return sections
