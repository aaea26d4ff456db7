"""The JSON documents that the admin API answers with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway import wire
from gateway.config.wording import refusal
from gateway.secrets import SECRETS
from registry.schema.display_text import clean, excerpt, visible

ModelT = TypeVar("ModelT", bound=BaseModel)

# Characters that JSON escapes, and line breaks and tabs not among them.
_ESCAPED: Final = re.compile(rb"\\[bfru]")
# Of a name that is echoed: longer than any that exists.
_NAME_LENGTH: Final = 200


class JsonDocument(JSONResponse):
    """JSON that holds whatever upstreams listed, names that are not valid Unicode too.

    Attributes:
        document: What it holds.
    """

    def __init__(self, content: Any, status_code: int = 200, *, headers: Mapping[str, str] | None = None) -> None:
        self.document = content
        super().__init__(content, status_code, headers)

    def with_document(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> JsonDocument:
        """The same answer with another document; the answer itself where that does not change."""
        changed = change(self.document)
        if changed is self.document:
            return self
        kept = {name: self.headers[name] for name in ("etag",) if name in self.headers}
        return JsonDocument(changed, self.status_code, headers=kept)

    def render(self, content: Any) -> bytes:
        """Serialise as everywhere here; see `for_people`."""
        return for_people(content)


def for_people(content: Any) -> bytes:
    """Return a document as JSON, without secrets and hidden characters: texts in it may be those of upstreams."""
    text = wire.dumps(content)
    decoded = text.decode("utf-8", "replace")
    # First: a hidden character inside a secret would keep it from being found.
    if _ESCAPED.search(text) or clean(decoded) is not decoded:
        content = _cleaned(wire.loads(text))
        text = wire.dumps(content)
    return wire.dumps(SECRETS.scrub_value(content)) if SECRETS.holds_secret(text) else text


def _cleaned(value: Any) -> Any:
    """Return a document without hidden characters; names of members that would be the same show them as escapes."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        found: dict[str, Any] = {}
        for name, member in value.items():
            shown = clean(name)
            is_taken = shown in found or (shown is not name and shown in value)
            found[visible(name) if is_taken else shown] = _cleaned(member)
        return found
    return value


class Refusal(Exception):
    """A request is not done; the text says why, and the status whose fault that is."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self._headers = headers

    def response(self) -> Response:
        """The answer that tells it."""
        return JsonDocument({"error": str(self)}, self.status, headers=self._headers)


def missing(kind: str, name: str) -> Refusal:
    """The refusal of a request about something that there is not."""
    return Refusal(404, f"there is no {kind} {excerpt(name, _NAME_LENGTH)}")


async def body_of(request: Request) -> Any:
    """The body as JSON; None where it is none."""
    try:
        return wire.loads(await request.body())
    except wire.MalformedJson:
        return None


async def read_body(request: Request, model: type[ModelT]) -> ModelT:
    """The body as this model.

    Raises:
        Refusal: It is not like that.
    """
    try:
        return model.model_validate(await body_of(request))
    except ValidationError as error:
        raise Refusal(400, str(refusal(error, "request"))) from None
