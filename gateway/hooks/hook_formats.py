"""Convert arguments to the formats of other gateways, and describe exceptions of hooks.

A hook's `payloadFormat` selects the form in which the hook receives the arguments of a tool call:

    native          {…arguments}
    nested          {tool_name, tool_args: {…arguments}, client_session_id}
    metadata        {arguments: {…arguments}, metadata: {tool_name, client_session_id, …}}
    flatMetadata    {…arguments, metadata: {tool_name, client_session_id, …}}

The first three formats can represent all arguments. `flatMetadata` rejects arguments with a key `metadata`. In protocol
versions without sessions, `client_session_id` is the name of the caller, so that hooks with data per session still
distinguish callers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal

from gateway.hooks.hook import Call, Metadata, Result
from gateway.hooks.payloads import BadPayload
from gateway.process.secrets import SECRETS

# Maximum length of an exception's text: a sentence or two. Some libraries raise exceptions that contain a whole
# document.
_MAX_ERROR_CHARS: Final = 500
# If the call's values are longer in total, an exception's text is omitted: removing the values from it would delay
# other calls.
_MAX_VALUES_CHARS: Final = 100_000
# Shorter values are not removed from texts, because they often occur there by chance.
_MIN_TELLING_CHARS: Final = 3
_WORD: Final = re.compile(r"[\w.@+-]{3,}")


def error_text(error: BaseException, call: Call | None = None, result: Result | None = None) -> str:
    """Return an exception's text as the end of a sentence (`: TEXT`), without values from the call.

    Args:
        call: The call whose argument values are removed from the text.
        result: A result whose values are removed from the text.
    """
    text = str(error).strip()[:_MAX_ERROR_CHARS]
    if not text:
        return ""
    values = list(_texts_in([call.args if call is not None else None, result.value if result is not None else None]))
    if sum(map(len, values)) > _MAX_VALUES_CHARS:
        return " (details omitted: the call is too large to remove its values from the text)"
    for value in sorted(filter(_is_informative, values), key=len, reverse=True):
        text = text.replace(value, "…")
    call_texts = "\n".join(values)
    # Also remove parts of values, such as a word of an address or the beginning of a text.
    text = _WORD.sub(lambda word: "…" if word[0] in call_texts else word[0], text)
    return f": {SECRETS.scrub(' '.join(text.split()))}"


def _texts_in(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, str):
            yield item
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield str(item)


def _is_informative(value: str) -> bool:
    return len(value) >= _MIN_TELLING_CHARS


def where_raised(error: BaseException) -> str:
    """Return the file and line that raised an exception, as ` at FILE:LINE`; empty if unknown."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename.rsplit('/', 1)[-1]}:{error.lineno}"  # not the line that compiled the file
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" at {trace.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}"


Format = Literal["native", "nested", "metadata", "flatMetadata"]
METADATA: Final = "metadata"
_ARGUMENTS: Final = {"nested": "tool_args", "metadata": "arguments"}


def metadata_to_json(metadata: Metadata) -> dict[str, Any]:
    """Return the metadata as a JSON object with keys in camelCase."""
    row: dict[str, Any] = {
        "kind": metadata.kind,
        "wrapper": metadata.wrapper,
        "server": metadata.server,
        "tool": metadata.tool,
        "principal": metadata.principal,
        "session": metadata.session,
        "requestId": metadata.request_id,
        "callId": metadata.call_id,
        "via": metadata.via,
        "tags": list(metadata.tags),
        "profile": metadata.profile,
        "digest": metadata.digest,
        "readOnly": metadata.read_only,
    }
    return row if metadata.blocked_by is None else {**row, "blockedBy": metadata.blocked_by}


def encode(shape: Format, args: dict[str, Any], metadata: Metadata) -> dict[str, Any]:
    """Convert arguments to a format.

    Raises:
        BadPayload: The format cannot represent an argument.
    """
    if shape == "native":
        return args
    added = {"tool_name": metadata.tool, "client_session_id": metadata.session or metadata.principal}
    if shape == "nested":
        return {**added, _ARGUMENTS[shape]: args}
    if shape == "metadata":
        return {_ARGUMENTS[shape]: args, METADATA: {**added, **metadata_to_json(metadata)}}
    # Reject the argument, because `decode` could not distinguish it from the added metadata.
    if METADATA in args:
        raise BadPayload("cannot receive an argument named `metadata` (payloadFormat: flatMetadata)")
    return {**args, METADATA: {**added, **metadata_to_json(metadata)}}


def decode(shape: Format, shaped: Any) -> dict[str, Any]:
    """Return the arguments in a value that has this format.

    Raises:
        BadPayload: The value is not in that format.
    """
    arguments = shaped
    if shape in ("nested", "metadata"):
        arguments = shaped.get(_ARGUMENTS[shape]) if isinstance(shaped, dict) else None
    elif shape == "flatMetadata" and isinstance(shaped, dict):
        arguments = {key: value for key, value in shaped.items() if key != METADATA}
    if not isinstance(arguments, dict):
        raise BadPayload(f"returned arguments that are not an object in the format {shape}")
    return arguments
