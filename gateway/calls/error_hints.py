"""Adds a hint to an upstream's complaint about arguments; the complaint itself stays byte for byte.

An upstream may check more than its schema says, and its message is often all that a model sees: `'to' was not
provided` has made models believe that arguments are lost on the way. Where a message names a declared parameter as
missing, or a key that was sent as unknown, one text is added: what is missing, what was sent, the most similar name,
a ready call and the schema. Every other result is returned as it is, the same object.

Only bounded windows around known names are searched, so the time is linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from gateway.calls.complaints import MAX_READ_CHARS, Complaint, find_complaint
from gateway.errors import INVALID_PARAMS, UPSTREAM_ERROR_KEY, RpcError
from registry.arguments import problems
from registry.arguments.diagnosis import ArgumentProblem, NameSuggester, describe_type
from registry.arguments.problems import CallRoute
from registry.catalog.catalog import ToolWrapper
from registry.dialects.definitions import LoweredDefinition
from registry.schema.display_text import excerpt, listed
from registry.schema.json_paths import MAX_SHOWN_KEY, JsonPath, declared_properties

# A body that is an error although its result is not: error objects are short, and every good result is looked at.
MAX_BODY_CHARS: Final = 4_096
# About 600 tokens: room for the schema of a usual parameter, and less than the list of tools would cost again.
MAX_HINT_CHARS: Final = 2_500
# Text items of a result that are read; validators write one.
_MAX_ITEMS: Final = 4
# Names that are listed in a hint before "and N more".
_MAX_LISTED: Final = 20
# Keys that get a sentence of their own; a call with more wrong keys needs the schema, not sentences.
_MAX_SENTENCES: Final = 5
# Less of a schema than this says nothing.
_MIN_SCHEMA_CHARS: Final = 100

_NO_SUCH_TOOL = re.compile(r"(?:unknown|no such) tool\b|\btool\b[^\n]{0,140}\bnot found", re.IGNORECASE)
_INVALID_PARAMS = re.compile(r"\s{0,4}(?:MCP error )?-32602\b")


def may_complain(result: dict[str, Any]) -> bool:
    """Return whether a result is an error, or has a text that may hold one; asked of every result."""
    if result.get("isError") is True:
        return True
    content = result.get("content")
    if type(content) is list:
        for item in content:
            if type(item) is dict and type(text := item.get("text")) is str and '"error"' in text:
                return True
    return False


def with_hint(
    result: dict[str, Any],
    wrapper: ToolWrapper,
    arguments: dict[str, Any],
    *,
    via: CallRoute = "wrapper",
    lowered: LoweredDefinition | None = None,
    on_undeclared: Callable[[str], None] = lambda server: None,
) -> dict[str, Any]:
    """Return a result with a hint added as its last text, or the same object if there is nothing to add.

    Error results are read, among them relayed protocol errors, and short bodies that are a JSON object with an
    `error`. A protocol error −32602 always gets a ready call, unless it is about the tool itself.

    Args:
        result: What the caller would get.
        wrapper: The tool.
        arguments: What was sent to the upstream.
        via: The route by which the call came.
        lowered: How the caller was shown the tool, if not as it is. The complaint has the upstream's names, the hint
            those that the caller knows.
        on_undeclared: Called with the server where it misses a parameter that the schema does not declare.
    """
    content = result.get("content")
    if not isinstance(content, list):
        return result
    texts = [text for item in content if isinstance(item, dict) and isinstance(text := item.get("text"), str)]
    if result.get("isError") is True:
        code, own, data = _protocol_error(result)
        # Without what the relay adds to it: some complaints are told by their whole text.
        message = own or "\n".join(text[:MAX_READ_CHARS] for text in texts[:_MAX_ITEMS])[:MAX_READ_CHARS]
        complaint = find_complaint(f"{message}\n{data}" if data else message, wrapper, arguments)
        wanted = code == INVALID_PARAMS or _INVALID_PARAMS.match(message) is not None
        wanted = wanted and not _NO_SUCH_TOOL.search(message)
    else:
        bodies = [text for text in texts if '"error"' in text]
        if not bodies or not (message := "\n".join(_complaints_in(bodies))):
            return result
        complaint, wanted = find_complaint(message, wrapper, arguments, slips=False), False
    if complaint.undeclared:
        on_undeclared(wrapper.server)
    if not complaint and not wanted:
        return result
    if lowered is not None:
        wrapper = problems.as_advertised(wrapper, lowered)
        complaint, arguments = (
            complaint.renamed(lowered.shown_names),
            problems.rename_members(arguments, lowered.shown_names),
        )
    as_text = lowered is not None and lowered.null_means_omitted
    hint = _hint(complaint, wrapper, arguments, via, as_text=as_text)
    return {**result, "content": [*content, {"type": "text", "text": hint}]}


def with_changes_by_hooks(result: dict[str, Any], hooks: Sequence[str]) -> dict[str, Any]:
    """Return an error result that says who has changed the arguments, so that the caller does not correct its own.

    Args:
        result: What the caller would get.
        hooks: The hooks that have changed them.
    """
    content = result.get("content")
    if result.get("isError") is not True or not isinstance(content, list):
        return result
    text = f"Added by the gateway: {' '.join(changes_by_hooks(hooks))}"
    return {**result, "content": [*content, {"type": "text", "text": text}]}


def naming_hooks(error: RpcError, hooks: Sequence[str]) -> RpcError:
    """Return an upstream's protocol error with the hooks that have changed what it answers; itself if none has."""
    if not hooks:
        return error
    return RpcError(error.code, " ".join((error.message, *changes_by_hooks(hooks))), error.data)


def changes_by_hooks(hooks: Sequence[str]) -> list[str]:
    """Return the sentences that say which hooks have changed the arguments; none if none has."""
    if not hooks:
        return []
    names = ", ".join(dict.fromkeys(hooks))
    return [
        f"Hook '{names}' of this gateway has changed the arguments that you sent, so the error may not be yours:"
        " if what you sent was right, whoever runs the gateway has to look at the hook."
    ]


def _protocol_error(result: dict[str, Any]) -> tuple[int | None, str, str]:
    """Return the code of a relayed protocol error, its message, and its data as text."""
    meta = result.get("_meta")
    error = meta.get(UPSTREAM_ERROR_KEY) if isinstance(meta, dict) else None
    if not isinstance(error, dict):
        return None, "", ""
    code, message, data = error.get("code"), error.get("message"), error.get("data")
    try:
        text = "" if data is None else data if isinstance(data, str) else json.dumps(data)
    except (ValueError, RecursionError):
        text = ""
    message = message[:MAX_READ_CHARS] if isinstance(message, str) else ""
    return (code if isinstance(code, int) else None), message, text[:MAX_READ_CHARS]


def _complaints_in(texts: Iterable[str]) -> Iterator[str]:
    """Yield the messages of bodies that are errors, in results that are not."""
    for text in texts:
        if len(text) > MAX_BODY_CHARS or not text.lstrip().startswith("{"):
            continue
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            continue
        error = body.get("error") if isinstance(body, dict) else None
        message = error.get("message") if isinstance(error, dict) else error
        if isinstance(message, str):
            yield message


def _hint(
    complaint: Complaint, wrapper: ToolWrapper, arguments: dict[str, Any], via: CallRoute, *, as_text: bool
) -> str:
    sentences = ["Added by the gateway:"]
    if complaint.missing:
        sentences.append(f"Missing: {_names(complaint.missing)}.")
    sentences += [
        f"{excerpt(name, MAX_SHOWN_KEY)} was sent, as {describe_type(arguments[name])}."
        for name in complaint.disputed[:_MAX_SENTENCES]
    ]
    absent = [name for name in declared_properties(wrapper.input_schema, wrapper.input_schema) if name not in arguments]
    names_near = NameSuggester()
    # The schema may not require what is missing: the call that is shown must not be the one that failed.
    shown: list[JsonPath] = [(name,) for name in (*complaint.missing, *complaint.disputed)]
    for key in complaint.unknown[:_MAX_SENTENCES]:
        near = names_near.suggest(key, absent)
        shown += [(near,)] if near is not None else []
        hint = f"; did you mean {near}?" if near is not None else "."
        sentences.append(f"{excerpt(key, MAX_SHOWN_KEY)} is not a parameter{hint}")
    sentences.append(f"Keys sent: {_names(tuple(arguments)) or '(none)'}.")
    # Where it does not say what is wrong, no argument is known to be right.
    sent = arguments if shown else None
    call = problems.example_call(wrapper, via, as_text=as_text, shown=shown, sent=sent)
    sentences.append(f"Call it like: {call}")
    text = " ".join(sentences)
    named = [ArgumentProblem(path=(name,), kind="missing", message="") for name in complaint.missing]
    room = max(MAX_HINT_CHARS - len(text) - len(" Schema: "), 0)
    return (
        f"{text} Schema: {problems.schema_text(wrapper, named, arguments, room)}" if room >= _MIN_SCHEMA_CHARS else text
    )


def _names(names: tuple[str, ...]) -> str:
    return listed([excerpt(name, MAX_SHOWN_KEY) for name in names], _MAX_LISTED)
