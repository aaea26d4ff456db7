"""One route of the admin API: its handler, how several processes' answers become one, and its documentation.

All three are given where the handler is written: a route without one of them cannot be declared.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

Method = Literal["GET", "POST", "DELETE"]
Document = dict[str, Any]
HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[Response]])

_ATTRIBUTE: Final = "__admin_route__"


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
class Operation:
    """What OpenAPI says of a route.

    Attributes:
        summary: One line.
        returns: What the answer holds.
        status: Of an answer that is not an error.
        query: Query parameters, each with its meaning.
        body: The model of the request's body; None where there is none.
        errors: Further statuses, each with its reason.
    """

    summary: str
    returns: str
    status: int = 200
    query: dict[str, str] = field(default_factory=dict)
    body: type[BaseModel] | None = None
    errors: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRoute:
    """One route.

    Attributes:
        method: The HTTP method.
        path: The path, with `{name}` for a part that varies.
        merge: How several processes' answers become one.
        operation: Its documentation.
        handler: Answers it.
        flushes: What other processes have counted is collected first.
    """

    method: Method
    path: str
    merge: Merge | Combined
    operation: Operation
    handler: Callable[[Request], Awaitable[Response]]
    flushes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    method: Method
    path: str
    merge: Merge | Combined
    operation: Operation
    flushes: bool


def route(
    method: Method, path: str, *, merge: Merge | Combined, operation: Operation, flushes: bool = False
) -> Callable[[HandlerT], HandlerT]:
    """Declare a method as the handler of a route."""

    def declare(handler: HandlerT) -> HandlerT:
        setattr(
            handler,
            _ATTRIBUTE,
            _Declared(method=method, path=path, merge=merge, operation=operation, flushes=flushes),
        )
        return handler

    return declare


def routes_of(api: object) -> tuple[AdminRoute, ...]:
    """Every route that is declared on the class of `api`, in the order of its methods."""
    found = []
    for name, member in vars(type(api)).items():
        declared = getattr(member, _ATTRIBUTE, None)
        if isinstance(declared, _Declared):
            found.append(
                AdminRoute(
                    method=declared.method,
                    path=declared.path,
                    merge=declared.merge,
                    operation=declared.operation,
                    handler=getattr(api, name),
                    flushes=declared.flushes,
                )
            )
    return tuple(found)
