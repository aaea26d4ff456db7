"""One route of the admin API: its handler, how several processes' answers become one, and its documentation.

All three are given where the handler is written: a route without one of them cannot be declared.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from gateway.config.admin import Role

Method = Literal["GET", "POST", "DELETE"]
Document = dict[str, Any]
HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[Response]])

REPEATED: Final = "typegate.repeated"
"""The member of a scope that marks a request which another process has passed on to this one too."""
_ATTRIBUTE: Final = "__admin_route__"
WHOLE: Final = "typegate.whole"
"""The member of a scope that marks a request of which the rows are chosen later, when those of all processes are one
document."""
ADMINISTRATOR: Final = "typegate.administrator"
"""The member of a scope with the `Administrator` who asks."""
JSON: Final = "application/json"
# RFC 9110, section 15.3.5 "204 No Content".
_EMPTY: Final = 204
_HEADINGS: Final = ("Returns:", "Query:", "Errors:")
_FILTERS: Final = {
    "server": "server: Only those of this server.",
    "status": "status: Only those in this state.",
    "q": "q: Only those that have this text in a name or another text of theirs.",
}
_PAGES: Final = (
    "limit: Rows in a page; 1000 at most. The answer then has `total`, and `next` for the cursor of the next page.",
    "cursor: The `next` of the page before.",
)


class Merge(Enum):
    """What one process's answer means where several serve."""

    SAME = "every process would answer the same"
    CHANGE = "one process makes the change, and the others take it over"
    EVERYWHERE = "every process does it for itself"
    HERE = "whichever process is asked answers, and no other"


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
        role: The least role that may ask.
        rows: The member of the answer with its rows, of which a query chooses some.
        filters: The parameters that choose rows by a member of theirs.
        recorded: The record of changes has it, where it is none of the methods that only read.
        public: Nobody has to prove anything; what it answers is no secret.
        content: The media type of the answer.
        example: An answer, from which the description tells what members there are; None where it is empty.
        examples: Values of the parts of the path, for the description.
        sections: The docstring of the handler by sections: `Summary`, `Returns`, and the lines of `Query` and `Errors`.
        handler: Answers it.
    """

    method: Method
    path: str
    merge: Merge | Combined
    status: int
    body: type[BaseModel] | None
    flushes: bool
    role: Role
    rows: str | None
    filters: tuple[str, ...]
    recorded: bool
    public: bool
    content: str
    example: Document | str | None
    examples: Mapping[str, str]
    sections: dict[str, list[str]]
    handler: Callable[[Request], Awaitable[Response]]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters that its query may have."""
        return tuple(line.partition(": ")[0] for line in self.sections.get("Query", []))


def route(
    method: Method,
    path: str,
    *,
    merge: Merge | Combined,
    status: int = 200,
    body: type[BaseModel] | None = None,
    flushes: bool = False,
    role: Role | None = None,
    rows: str | None = None,
    filters: tuple[str, ...] = (),
    recorded: bool = True,
    public: bool = False,
    content: str = JSON,
    example: Document | str | None = None,
    examples: Mapping[str, str] | None = None,
) -> Callable[[HandlerT], HandlerT]:
    """Declare a method as the handler of a route; OpenAPI has its docstring. The arguments are those of `AdminRoute`.

    Raises:
        TypeError: The docstring has no summary or does not say what it returns, or there is no example of an answer.
    """

    def declare(handler: HandlerT) -> HandlerT:
        sections = _sections(handler.__doc__ or "")
        if not sections["Summary"] or "Returns" not in sections:
            raise TypeError(f"{handler.__qualname__} needs a docstring with a summary and what it returns")
        if example is None and content and status != _EMPTY:
            raise TypeError(f"{handler.__qualname__} needs an example of its answer")
        if rows is not None:
            written = [line.partition(": ")[0] for line in sections.get("Query", [])]
            more = [_FILTERS[name] for name in filters if name not in written]
            sections["Query"] = [*sections.get("Query", []), *more, *_PAGES]
        declared = partial(
            AdminRoute,
            method=method, path=path, merge=merge, status=status, body=body, flushes=flushes, sections=sections,
            # Whoever may look changes nothing, unless a route says so.
            role=role or ("viewer" if method == "GET" else "operator"),
            rows=rows, filters=filters, recorded=recorded, public=public, content=content, example=example,
            examples=examples or {},
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
