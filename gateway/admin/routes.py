"""Declare admin routes, check their query parameters, and merge responses from several processes.

The decorator `route` declares a handler, and states how the responses of several processes (workers) are merged.
The query parameters are declared in the handler's docstring.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any, Final, Literal, TypeVar

import anyio
from pydantic import BaseModel, ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.config.operation_config import Role
from gateway.config.section import refusal, suggestion
from gateway.http import responder
from gateway.process.secrets import SECRETS
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes
from gateway.protocol.versions import MAX_IDENTIFIER_CHARS
from registry.schema.display_text import clean, excerpt, visible

ModelT = TypeVar("ModelT", bound=BaseModel)

# JSON escapes that may represent hidden characters: all except those of line feeds, tabs, quotes and backslashes.
_ESCAPED: Final = re.compile(rb"\\[bfru]")
# Maximum length of a name that an error message repeats: longer than any existing name.
_NAME_LENGTH: Final = 200
# Documents and bodies above these limits are handled in a thread, because handling them takes milliseconds.
_MAX_INLINE_CHARS: Final = 64 * 1024
_MAX_INLINE_PARTS: Final = 1_000
# Maximum number of members and items in a body. A server's entry and an approval of every change stay below it.
# The limit bounds the time for validation, which takes 20 microseconds for each invalid member or item.
_MAX_PARTS: Final = 10_000
_TOO_MANY: Final = f"the body has too many members and items; expected at most {_MAX_PARTS:,} beside arguments"
# The member of a body that contains the arguments of a tool. The limit above does not apply to the arguments.
_ARGUMENTS: Final = "arguments"


class JsonDocument(JSONResponse):
    """A JSON response that may contain any upstream text, even names that are not valid Unicode.

    The body is empty until `write` has been called.
    """

    def __init__(self, content: Any, status_code: int = 200, *, headers: Mapping[str, str] | None = None) -> None:
        self.document = content
        super().__init__(None, status_code, headers)

    def reduce_to(self, document: Any) -> None:
        """Replace the document by `document`, which contains only the rows that the query selects."""
        self.document = document

    async def write(self) -> None:
        """Serialize the document with `written`."""
        self.body = await written(self.document)
        self.headers["content-length"] = str(len(self.body))

    def render(self, content: Any) -> bytes:
        """Return nothing: `write` serializes the document."""
        return b""


def is_small(value: Any) -> bool:
    """Return whether a JSON value has few parts and little text. The check stops once a limit is exceeded."""
    parts, chars, pending = 0, 0, [iter((value,))]
    while pending:
        for part in pending.pop():
            parts += 1
            if isinstance(part, str):
                chars += len(part)
            elif isinstance(part, dict):
                pending.append(chain(part, part.values()))
            elif isinstance(part, list | tuple):
                pending.append(iter(part))
            if parts > _MAX_INLINE_PARTS or chars > _MAX_INLINE_CHARS:
                return False
    return True


def for_people(content: Any) -> bytes:
    """Return a document as JSON without secrets and hidden characters, which upstream texts may contain."""
    text = json_bytes.dumps(content)
    decoded = text.decode("utf-8", "replace")
    # Remove hidden characters before searching for secrets: a hidden character inside a secret would prevent a match.
    if _ESCAPED.search(text) or clean(decoded) is not decoded:
        text = json_bytes.dumps(_remove_hidden_characters(json_bytes.loads(text)))
    # Parse the text instead of using `content`, because the event loop may change `content` while a thread reads it.
    return json_bytes.dumps(SECRETS.scrub_value(json_bytes.loads(text))) if SECRETS.holds_secret(text) else text


async def written(content: Any) -> bytes:
    """Return a document as `for_people` does, in a thread if the document is so large that it would block the loop."""
    return for_people(content) if is_small(content) else await run_in_thread(partial(for_people, content))


def _remove_hidden_characters(value: Any) -> Any:
    """Remove hidden characters from a document, but escape them in member names that would otherwise become equal."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_remove_hidden_characters(item) for item in value]
    if isinstance(value, dict):
        cleaned: dict[str, Any] = {}
        for name, member in value.items():
            clean_name = clean(name)
            is_taken = clean_name in cleaned or (clean_name is not name and clean_name in value)
            cleaned[visible(name) if is_taken else clean_name] = _remove_hidden_characters(member)
        return cleaned
    return value


_STREAM: Final = "text/event-stream"


def accepts_stream(request: Request) -> bool:
    """Return whether the client accepts server-sent events."""
    return _STREAM in request.headers.get("accept", "")


class ReportStream(StreamingResponse):
    """A stream of server-sent events: each message of an operation as `{"message": …}`, then the operation's document.

    When the client disconnects, the operation is cancelled.
    """

    def __init__(self, operation: Callable[[Callable[[dict[str, Any]], None]], Awaitable[Document]], *, most: int):
        """Create the response.

        Args:
            operation: Called with a function that sends a message; returns the document.
            most: The maximum number of messages. Later messages are dropped, except JSON-RPC requests, which need a
                response.
        """
        self._operation = operation
        self._messages_left = most
        super().__init__((), headers={"content-type": _STREAM, "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        writer, reader = anyio.create_memory_object_stream[Document](self._messages_left)

        def emit(message: dict[str, Any]) -> None:
            self._messages_left -= 1
            if self._messages_left >= 0 or "id" in message:
                # A cancelled operation may still send messages after the stream has closed.
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.WouldBlock):
                    writer.send_nowait({"message": message})

        async def run() -> None:
            with writer:
                await writer.send(await self._operation(emit))

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            group.start_soon(watch)
            with reader:
                async for each in reader:
                    data = responder.event(await written(each))
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            group.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Refusal(Exception):
    """A request is refused. The text of the exception is the reason, and `status` is the HTTP status."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self._headers = headers

    def response(self) -> Response:
        """Return the error response."""
        return JsonDocument({"error": str(self)}, self.status, headers=self._headers)


def missing(kind: str, name: str) -> Refusal:
    """Return the 404 refusal for a name that does not exist.

    Args:
        kind: The kind of thing that the name should identify, such as `server`.
    """
    return Refusal(404, f"there is no {kind} {excerpt(name, _NAME_LENGTH)}")


def check_length(what: str, text: str) -> None:
    """Refuse an overlong name or identifier, without repeating the text in the error message.

    Raises:
        Refusal: The text has more than `MAX_IDENTIFIER_CHARS` characters.
    """
    if len(text) > MAX_IDENTIFIER_CHARS:
        raise Refusal(400, f"{what} has {len(text)} characters; expected at most {MAX_IDENTIFIER_CHARS}")


async def body_of(request: Request) -> Any:
    """Return the parsed JSON body, or None if the body is not valid JSON.

    Raises:
        Refusal: A name or a text in the body is too long, or the body has too many parts.
    """
    text = await request.body()
    return _parse_json(text) if len(text) <= MAX_IDENTIFIER_CHARS else await run_in_thread(partial(_read_large, text))


def _parse_json(text: bytes) -> Any:
    try:
        return json_bytes.loads(text)
    except json_bytes.MalformedJson:
        return None


def _read_large(text: bytes) -> Any:
    body = _parse_json(text)
    members = {name: value for name, value in body.items() if name != _ARGUMENTS} if isinstance(body, dict) else body
    if isinstance(members, dict):
        for name, value in members.items():
            check_length("the name of a member", name)
            if isinstance(value, str):
                check_length(name if len(name) <= _NAME_LENGTH else "a member", value)
    parts, pending = 0, [members]
    while pending:
        value = pending.pop()
        if isinstance(value, dict | list):
            parts += len(value)
            if parts > _MAX_PARTS:
                raise Refusal(400, _TOO_MANY)
            pending.extend(value.values() if isinstance(value, dict) else value)
    return body


async def read_body(request: Request, model: type[ModelT]) -> ModelT:
    """Return the body validated by a model.

    Raises:
        Refusal: The body does not match the model.
    """
    body = await body_of(request)
    return _validate_body(model, body) if is_small(body) else await run_in_thread(partial(_validate_body, model, body))


def _validate_body(model: type[ModelT], body: Any) -> ModelT:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise Refusal(400, str(refusal(error, "request"))) from None


Method = Literal["GET", "POST", "DELETE"]
Document = dict[str, Any]
HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[Response]])

UNAVAILABLE: Final = 503
"""RFC 9110, section 15.6.4 "503 Service Unavailable"."""
REPEATED: Final = "typegate.repeated"
"""The ASGI scope key of a request that another process has forwarded. This process does not record such a request in
the audit log."""
_ATTRIBUTE: Final = "__admin_route__"
WHOLE: Final = "typegate.whole"
"""The ASGI scope key of a request whose response must contain all rows. The rows are filtered and paged only after the
documents of all processes have been merged."""
ADMINISTRATOR: Final = "typegate.administrator"
"""The ASGI scope key of the `Administrator` who sent the request."""
JSON: Final = "application/json"
# RFC 9110, section 15.3.5 "204 No Content".
_EMPTY: Final = 204
_HEADINGS: Final = ("Returns:", "Query:", "Errors:")
_FILTERS: Final = {
    "server": "server: Only rows of this server.",
    "status": "status: Only rows in this state.",
    "q": "q: Only rows that contain this text in a name or another text.",
}
_PAGES: Final = (
    "limit: Rows per page, at most 1000. The response then has `total`, and `next` with the cursor of the next page.",
    "cursor: The `next` of the previous page.",
)


class Merge(Enum):
    """How a gateway with several processes handles a request."""

    SAME = "every process gives the same response"
    CHANGE = "one process makes the change, and the others apply it"
    EVERYWHERE = "every process handles the request"
    HERE = "only the process that receives the request handles it"


@dataclass(frozen=True, slots=True)
class Combined:
    """Every process handles the request, and `combine` merges the documents that the processes return.

    The first document is from the process that merges the documents.
    """

    combine: Callable[[Sequence[Document]], Document]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRoute:
    """An admin route.

    Attributes:
        path: The path, with `{name}` for each variable segment.
        merge: How the responses of several processes are merged.
        status: The HTTP status of a successful response.
        body: The model of the request body; None if requests have no body.
        flushes: True if the other processes have to send their counters to this process before the handler runs.
        role: The lowest role that may use the route.
        rows: The name of the list of rows in the response. Query parameters filter and page this list.
        filters: The names of the query parameters that filter the rows.
        recorded: True if requests that are not GET or HEAD are written to the audit log.
        public: True if the route can be used without credentials.
        content: The media type of the response.
        example: An example of the response, from which its schema is derived; None for an empty response.
        examples: Examples of the path parameters.
        sections: The lines of the handler's docstring, by section: `Summary`, `Returns`, `Query` and `Errors`.
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
        """The names of the query parameters."""
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
    """Declare a method as the handler of an admin route. `AdminRoute` documents the arguments.

    The docstring of the method describes the route in the OpenAPI description. Its sections `Query` and `Errors` have
    one line for each query parameter or status.

    Raises:
        TypeError: The docstring lacks a summary or a `Returns:` section, or there is no example of the response.
    """

    def declare(handler: HandlerT) -> HandlerT:
        sections = _parse_sections(handler.__doc__ or "")
        if not sections["Summary"] or "Returns" not in sections:
            raise TypeError(f"{handler.__qualname__} needs a docstring with a summary and what it returns")
        if example is None and content and status != _EMPTY:
            raise TypeError(f"{handler.__qualname__} needs an example of its answer")
        if rows is not None:
            documented = [line.partition(": ")[0] for line in sections.get("Query", [])]
            more = [_FILTERS[name] for name in filters if name not in documented]
            sections["Query"] = [*sections.get("Query", []), *more, *_PAGES]
        declared = partial(
            AdminRoute,
            method=method,
            path=path,
            merge=merge,
            status=status,
            body=body,
            flushes=flushes,
            sections=sections,
            # The default role is `viewer` for GET routes, and `operator` for other routes.
            role=role or ("viewer" if method == "GET" else "operator"),
            rows=rows,
            filters=filters,
            recorded=recorded,
            public=public,
            content=content,
            example=example,
            examples=examples or {},
        )
        setattr(handler, _ATTRIBUTE, declared)
        return handler

    return declare


def routes_of(api: object) -> tuple[AdminRoute, ...]:
    """Return the routes declared on the class of `api`, in the order of definition."""
    return tuple(
        getattr(member, _ATTRIBUTE)(handler=getattr(api, name))
        for name, member in vars(type(api)).items()
        if hasattr(member, _ATTRIBUTE)
    )


def _parse_sections(docstring: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {"Summary": []}
    name = "Summary"
    for line in filter(None, map(str.strip, docstring.splitlines())):
        if line in _HEADINGS:
            name = line.removesuffix(":")
            sections[name] = []
        elif name in ("Query", "Errors") and not re.match(r"[\w.-]+: ", line):
            sections[name][-1] += f" {line}"  # this line continues the entry
        else:
            sections[name].append(line)
    return sections


# Members of a server's row that each process counts separately.
_SUMMED: Final = ("inFlight",)


def merge_server_details(documents: Sequence[Document]) -> Document:
    """Merge the `/admin/servers/{name}` documents of all processes."""
    return _merge_server_rows(documents)


def all_servers(documents: Sequence[Document]) -> Document:
    """Merge the `/admin/servers` documents of all processes."""
    return {"servers": _merge_server_lists([document["servers"] for document in documents])}


def all_hooks(documents: Sequence[Document]) -> Document:
    """Merge the `/admin/hooks` documents of all processes."""
    return {**documents[0], "hooks": _merge_hooks([document["hooks"] for document in documents])}


def all_failures(documents: Sequence[Document]) -> Document:
    """Merge the `/admin/failures` documents of all processes. The first process collects the failures of all."""
    return {**documents[0], "repaired": _sum_repairs([document["repaired"] for document in documents])}


def all_quarantine(documents: Sequence[Document]) -> Document:
    """Merge the `/admin/quarantine` documents of all processes.

    The documents differ only in their rows with the status `unchecked`, because each process reports its own calls.
    """
    rows = list(documents[0]["quarantine"])
    for document in documents[1:]:
        rows += [row for row in document["quarantine"] if row["status"] == "unchecked" and row not in rows]
    return {**documents[0], "quarantine": rows}


def _merge_server_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the rows that all workers return for one server.

    The result is the row of the worker with the worst state, except that `inFlight` is the sum over all workers.
    """
    worst = max(rows, key=lambda row: (row.get("lastError") is not None, row.get("state") not in ("ready", "idle")))
    is_uniform = all(row.get("state") == rows[0].get("state") for row in rows)
    merged = dict(rows[0] if is_uniform else worst)
    merged["lastError"] = next((row["lastError"] for row in rows if row.get("lastError") is not None), None)
    for member in _SUMMED:
        merged[member] = sum(row.get(member) or 0 for row in rows)
    return merged


def _merge_server_lists(lists: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Merge the server rows of all workers, in the order of the first worker."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for rows in lists:
        for row in rows:
            by_name.setdefault(row["name"], []).append(row)
    return [_merge_server_rows(rows) for rows in by_name.values()]


def _sum_repairs(lists: Iterable[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Sum the repaired calls of each tool over all workers."""
    totals: dict[str, dict[str, Any]] = {}
    for rows in lists:
        for row in rows:
            total = totals.setdefault(row["wrapper"], {"wrapper": row["wrapper"], "calls": 0, "repairs": {}})
            total["calls"] += row["calls"]
            for name, count in row["repairs"].items():
                total["repairs"][name] = total["repairs"].get(name, 0) + count
    return [totals[name] for name in sorted(totals)]


def _merge_hooks(lists: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Merge the hook rows of all workers, in the order of the first worker.

    Counters are summed. The circuit breaker is shown as open if any worker's circuit breaker is open.
    """
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for rows in lists:
        for row in rows:
            by_name.setdefault(row["name"], []).append(row)
    return [
        {
            **rows[0],
            "breaker": "open" if any(row["breaker"] == "open" for row in rows) else "closed",
            "lastError": next((row["lastError"] for row in rows if row["lastError"] is not None), None),
            "seconds": round(sum(row["seconds"] for row in rows), 6),
            "counts": {key: sum(row["counts"].get(key, 0) for row in rows) for key in rows[0]["counts"]},
        }
        for rows in by_name.values()
    ]


MAX_ROWS: Final = 1_000
"""The maximum number of rows per page. A browser can show this many rows without becoming slow."""
# The maximum cursor: more than the number of rows in any list.
_MAX_CURSOR: Final = 10**9
# No client needs more parameters. They are limited because each is compared with the names of all known parameters.
_MAX_PARAMETERS: Final = 64
_SHOWN_CHARS: Final = 64


def check_query(route: AdminRoute, query: QueryParams) -> None:
    """Check the query parameters of a request.

    Raises:
        Refusal: A parameter is unknown, too long, or not a number in its range, or there are too many parameters.
    """
    parameters = route.parameters
    if len(query.multi_items()) > _MAX_PARAMETERS:
        raise Refusal(400, f"expected at most {_MAX_PARAMETERS} parameters")
    for name, value in query.multi_items():
        if name not in parameters:
            short_name = name[:_SHOWN_CHARS]
            expected = suggestion(short_name, list(parameters)) if parameters else "none"
            raise Refusal(400, f"unknown parameter {short_name!r}; expected {expected}")
        # The maximum size of the header block already limits the arguments of a tool.
        if name != _ARGUMENTS:
            check_length(name, value)
    if route.rows is not None:
        number_in(query, "limit", least=1, most=MAX_ROWS)
        number_in(query, "cursor", least=0, most=_MAX_CURSOR)


def chosen_rows(route: AdminRoute, query: QueryParams, document: Document) -> Document:
    """Filter and page the rows of a document as the query requires; a page has `next` and `total`."""
    if route.rows is None or route.rows not in document:
        return document
    rows: list[dict[str, Any]] = document[route.rows]
    for name in route.filters:
        if (expected := query.get(name)) is not None:
            rows = [row for row in rows if _row_matches(row, name, expected)]
    if "limit" not in query and "cursor" not in query:
        return document if rows is document[route.rows] else {**document, route.rows: rows}
    start, limit = int(query.get("cursor", 0)), int(query.get("limit", MAX_ROWS))
    following = str(start + limit) if start + limit < len(rows) else None
    return {**document, route.rows: rows[start : start + limit], "next": following, "total": len(rows)}


def _row_matches(row: dict[str, Any], name: str, expected: str) -> bool:
    if name == "q":
        folded = expected.casefold()
        return any(isinstance(value, str) and folded in value.casefold() for value in row.values())
    if name == "status":
        return expected in (row.get("status"), row.get("state"))
    return row.get(name) == expected


def number_in(query: QueryParams, name: str, *, least: int, most: int) -> int | None:
    """Return a numeric query parameter, or None if it is absent.

    Raises:
        Refusal: The value is not a number or is out of range.
    """
    text = query.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and least <= int(text) <= most:
        return int(text)
    raise Refusal(400, f"{name} is out of range; expected a number from {least} to {most}")
