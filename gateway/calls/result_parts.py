"""Results in parts: selections, cuts, `read_result`, and handles in the arguments of other calls.

A caller may select a part of a result with the argument `_select`. A result above a configured size is cut and stored.
The cut result contains a handle, with which the caller can read the rest (`read_result`), or pass a part of the result
to another tool without reading it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from gateway.audit.recording import Audit
from gateway.calls.caller import Caller
from gateway.calls.caller_ids import Task
from gateway.calls.check_process import JobUnfinished
from gateway.calls.result_shaping import (
    CUT_KEY,
    INLINE_BYTES,
    ExtractJob,
    ReadJob,
    Shaped,
    ShapeJob,
    ValueJob,
    binary_of,
)
from gateway.calls.result_store import HANDLE_PREFIX, HandleRefused, Owner, ResultStore, StoredResult
from gateway.calls.selection import Selection, SelectionRefused, SelectionTooCostly, decode_selection, parse_selection
from gateway.calls.thorough_checks import ThoroughChecks
from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.config.operation_config import FlowConfig
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError, error_result
from gateway.protocol.versions import with_meta
from registry.arguments.coercion import parse_container
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import NAME_SEPARATOR
from registry.catalog.shape import ResultRules
from registry.errors import NotChecked
from registry.views.descriptions import SELECT

# Maximum size of an answer of `read_result` if the tool has no `maxBytes`: about 10,000 tokens, as for search results.
_DEFAULT_MAX_BYTES: Final = 40_000
# Bytes to show of a result that could not be cut in time.
_BEGINNING_BYTES: Final = 2_000
# A result that contains none of these texts has no binary content. This is checked before the result is parsed.
_BINARY_MEMBERS: Final = (b'"data"', b'"blob"')
_MAX_HANDLES: Final = 16
"""Maximum number of handles in the arguments of one call: more than a model writes."""
_MAX_EXPANDED_BYTES: Final = 64 * 1024 * 1024
"""Maximum total size of the values that replace handles in one call. A call may contain a handle several times."""
# Maximum number of values in the arguments to search for handles; models write handles near the top level.
_MAX_SEARCHED: Final = 10_000
# Maximum length of a reference to a stored result: enough for a handle and a pointer.
_MAX_REFERENCE_CHARS: Final = 2_000
_BY_VALUE: Final = "@"

_Path = tuple[str | int, ...]


class StoredValues(Reconfigurable):
    """Loads stored results for callers that may read them, and replaces handles in arguments by stored values.

    Attributes:
        store: The results of this process.
    """

    def __init__(
        self, store: ResultStore, thorough_checks: ThoroughChecks, audit: Audit, flows: Sequence[FlowConfig]
    ) -> None:
        """Use a store of results.

        Args:
            thorough_checks: Runs jobs on large results in other processes.
            flows: The rules that say which tools' results may become arguments of which other tools.
        """
        self.store = store
        self._thorough_checks = thorough_checks
        self._audit = audit
        self._flows = tuple(flows)

    async def validate(self, change: ConfigChange) -> Apply:
        return partial(self._replace, tuple(change.after.gateway.results.flow))

    def _replace(self, flows: tuple[FlowConfig, ...]) -> None:
        self._flows = flows

    async def insert(self, arguments: Any, caller: Caller, wrapper: ToolWrapper) -> Any:
        """Return the arguments of a call, with each handle replaced by the stored value.

        Raises:
            HandleRefused: A handle cannot be used, or the result may not be passed to this tool.
        """
        room_bytes = _MAX_EXPANDED_BYTES
        for number, (path, reference) in enumerate(list(_references(arguments))):
            if number >= _MAX_HANDLES:
                raise HandleRefused(f"a call may contain at most {_MAX_HANDLES} handles")
            try:
                stored, value = await self._value_of(reference, caller, wrapper, room_bytes)
            except (HandleRefused, SelectionRefused) as refused:
                raise HandleRefused(f"argument {_path_text(path)}: {refused}") from None
            room_bytes -= len(value)
            self._audit.flow(caller, stored.wrapper, wrapper.name, argument=_path_text(path), size=len(value))
            arguments = _replace_at(arguments, path, await _parse_value(value))
        return arguments

    async def _value_of(
        self, reference: str, caller: Caller, wrapper: ToolWrapper, most_bytes: int
    ) -> tuple[StoredResult, bytes]:
        """Return the stored result that an argument refers to, and the new value of the argument as JSON.

        Raises:
            HandleRefused: The handle cannot be used, or the result may not be passed to this tool.
            SelectionRefused: The stored value has no part at the pointer.
        """
        by_value = reference.startswith(_BY_VALUE)
        handle, pointer = split_reference(reference)
        stored = await self.load(handle, caller)
        if not self._may_flow(stored.wrapper, wrapper, caller):
            self._audit.flow(caller, stored.wrapper, wrapper.name, argument="", size=None)
            raise HandleRefused(
                f"results of {stored.wrapper} may not be passed to {wrapper.name}; the operator of this gateway sets "
                "the rules (gateway.results.flow)"
            )
        if by_value and not pointer:
            value = stored.value
        else:
            value = await self.run(ExtractJob(pointer=pointer, as_text=not by_value), stored.value, caller)
        if len(value) > most_bytes:
            raise HandleRefused(f"the values of all handles exceed {_MAX_EXPANDED_BYTES} bytes")
        return stored, value

    def _may_flow(self, source: str, target: ToolWrapper, caller: Caller) -> bool:
        """Return whether results of the tool `source` may become arguments of the tool `target`.

        The first matching rule decides. If no rule matches, results may flow to tools without `openWorldHint: true`.
        """
        origin = caller.view.catalog.by_name.get(source)
        assert origin is not None, "checked when the result was loaded"
        for rule in self._flows:
            if _matches(rule.from_, origin) and _matches(rule.to, target):
                return rule.allow
        return target.hints.get("openWorldHint") is not True

    async def load(self, handle: str, caller: Caller) -> StoredResult:
        """Return a stored result, if the caller may still use the tool that returned it.

        Raises:
            HandleRefused: The caller may no longer use the tool or make the same call, or the handle cannot be used.
        """
        stored = await self.store.load(handle, owner_of(caller))
        view = caller.view
        wrapper = view.catalog.by_name.get(stored.wrapper) if view.opens_tools else None
        if wrapper is None or wrapper.held is not None:
            raise HandleRefused(
                f"the tool that returned the result, {stored.wrapper}, is not available to you any more"
            )
        rules = view.call_rules.get(stored.wrapper)
        if rules is not None:
            arguments = None if stored.arguments is None else json_bytes.loads(stored.arguments)
            if arguments is None or rules.decide(arguments).effect == "deny":
                raise HandleRefused(f"a rule no longer allows the call of {stored.wrapper} that returned the result")
        return stored

    async def run(self, job: ValueJob, text: bytes, caller: Caller) -> Any:
        """Run a job on the event loop if the value is small, otherwise in the check process.

        Raises:
            SelectionRefused, MalformedJson: As raised by the job.
            JobUnfinished: The job did not end in time.
        """
        if len(text) <= INLINE_BYTES:
            try:
                return job.run(text, inline=True)
            except SelectionTooCostly:
                pass  # run the job in the check process, which allows more steps
        return await self._thorough_checks.run_job(job, text, caller.who)


def owner_of(caller: Caller) -> Owner:
    """Return the owner of results that are stored for a caller."""
    return Owner(identity=caller.principal.identity, profile=caller.view.profile.name, who=caller.who)


def split_reference(reference: str) -> tuple[str, str]:
    """Return the handle and the JSON pointer of a reference such as `typegate:result/ID#/items/0`."""
    handle, _, fragment = reference.removeprefix(_BY_VALUE).partition("#")
    # RFC 6901, section 6: a pointer in the fragment of a URI is percent-encoded.
    return handle, unquote(fragment)


def _references(arguments: Any) -> Iterator[tuple[_Path, str]]:
    """Yield each text in the arguments that is a reference to a stored result, with its path."""
    pending: list[tuple[_Path, Any]] = [((), arguments)]
    remaining = _MAX_SEARCHED
    while pending and remaining > 0:
        path, value = pending.pop()
        remaining -= 1
        if isinstance(value, str):
            if len(value) <= _MAX_REFERENCE_CHARS and value.removeprefix(_BY_VALUE).startswith(HANDLE_PREFIX):
                yield path, value
        elif isinstance(value, dict):
            pending += [((*path, name), member) for name, member in list(value.items())[:remaining]]
        elif isinstance(value, list):
            pending += [((*path, index), item) for index, item in enumerate(value[:remaining])]


def _replace_at(value: Any, path: _Path, new: Any) -> Any:
    """Return a copy of a JSON value in which the value at a path is replaced."""
    if not path:
        return new
    changed = value.copy()
    changed[path[0]] = _replace_at(value[path[0]], path[1:], new)
    return changed


def _path_text(path: _Path) -> str:
    return "/" + "/".join(str(step)[:60] for step in path)


async def _parse_value(value: bytes) -> Any:
    if len(value) <= INLINE_BYTES:
        return json_bytes.loads(value)
    return await run_in_thread(partial(json_bytes.loads, value))


def _matches(patterns: Sequence[str], wrapper: ToolWrapper) -> bool:
    """Return whether a pattern matches. A pattern with `__` is for wrapper names, any other for aliases of servers."""
    return any(
        fnmatchcase(wrapper.name if NAME_SEPARATOR in pattern else wrapper.server, pattern) for pattern in patterns
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRequest:
    """Information about the call that returned a result.

    Attributes:
        selection: The part that the caller needs; None for the whole result.
        arguments: The arguments of the call; None if they are not known. When the caller reads the stored rest, policy
            rules with conditions on arguments are applied to these arguments.
        task: Identifies the task if this is the result of a task, which a caller may request repeatedly; else empty.
    """

    selection: Selection | None = None
    arguments: Any = None
    task: str = ""


class ResultParts:
    """Selects from, cuts and stores results, as the `results` settings of servers, tools and profiles say."""

    def __init__(self, values: StoredValues) -> None:
        self._values = values

    # Before a call

    async def prepare(self, arguments: Any, caller: Caller, wrapper: ToolWrapper) -> tuple[Any, Selection | None]:
        """Remove `_select` from the arguments of a call, and replace handles by stored values.

        Returns:
            The new arguments, and the selection; None if there is none.

        Raises:
            SelectionRefused: The selection is invalid.
            HandleRefused: A handle cannot be used, or the result may not be passed to this tool.
        """
        if isinstance(arguments, str):
            try:
                parsed = parse_container(arguments)
            except NotChecked:
                parsed = arguments
            arguments = parsed if isinstance(parsed, dict) else arguments
        selection: Selection | None = None
        rules = caller.view.result_rules.get(wrapper.name)
        if rules is not None and rules.select:
            arguments, raw_selection = take_selection(arguments)
            selection = parse_selection(raw_selection)
        return await self._values.insert(arguments, caller, wrapper), selection

    # After a call

    async def shape(
        self, result: dict[str, Any], caller: Caller, wrapper: ToolWrapper, request: ResultRequest
    ) -> dict[str, Any]:
        """Apply the caller's selection and the tool's size limits to a result. Error results are not changed."""
        rules = caller.view.result_rules.get(wrapper.name)
        if rules is None or result.get("isError") is True or result.get("resultType", "complete") != "complete":
            return result
        try:
            text = json_bytes.dumps({name: result[name] for name in ("content", "structuredContent") if name in result})
        except json_bytes.MalformedJson:
            return result  # the result is nested too deeply, which the transport reports as an error
        selection = request.selection
        if selection is None and not _may_change(rules, text):
            return result
        owner = owner_of(caller)
        result_id, handle = self._values.store.new_handle(owner, request.task, text)
        job = ShapeJob(
            handle=handle,
            name=wrapper.name,
            selection=selection,
            max_bytes=rules.max_bytes,
            max_binary_bytes=rules.max_binary_bytes,
            binary_types=rules.binary_types,
            objects_only=not caller.modern,
        )
        try:
            shaped = await self._values.run(job, text, caller)
        except (JobUnfinished, SelectionRefused, json_bytes.MalformedJson):
            shaped = _beginning_of(text, handle)
        if shaped is None:
            return result
        if shaped.stored is not None and not self._values.store.store(
            result_id, owner, wrapper.name, shaped.stored, request.arguments
        ):
            if rules.max_bytes is None:
                return result
            notice = "[The whole result is too large to be stored, so its handle cannot be used.]"
            shaped.members["content"].append({"type": "text", "text": notice})
        other_members = {name: member for name, member in result.items() if name != "structuredContent"}
        changed = {**other_members, **shaped.members}
        return with_meta(changed, CUT_KEY, shaped.meta) if shaped.meta else changed

    async def shape_task(self, result: Any, caller: Caller, task: Task) -> Any:
        """Apply the selection of the original call and the tool's size limits to the result of a task.

        The arguments of the original call are no longer known. If policy rules depend on them, the rest of a cut result
        could not be read. Such a result is therefore not cut, except if the caller selected a part.
        """
        view = caller.view
        wrapper = view.catalog.by_name.get(task.wrapper)
        rules = view.result_rules.get(task.wrapper)
        if wrapper is None or rules is None or not isinstance(result, dict):
            return result
        selection = decode_selection(task.selection) if rules.select else None
        if selection is None and wrapper.name in view.call_rules:
            return result
        request = ResultRequest(selection=selection, task=f"{task.server}.{task.original}.{task.selection}")
        return await self.shape(result, caller, wrapper, request)

    # Reading

    async def read(self, arguments: object, caller: Caller) -> dict[str, Any]:
        """Answer a call of `read_result`."""
        fields = arguments if isinstance(arguments, dict) else {}
        try:
            job = _read_job(fields)
            stored = await self._values.load(job.handle, caller)
            rules = caller.view.result_rules.get(stored.wrapper)
            most = rules.max_bytes if rules is not None else None
            job = replace(job, max_bytes=most or _DEFAULT_MAX_BYTES)
            return {"content": await self._values.run(job, stored.value, caller)}
        except (HandleRefused, SelectionRefused) as refused:
            return error_result(f"Not read: {refused}.")
        except JobUnfinished:
            return error_result("Not read: reading the result takes too long. Use a pointer, or a simpler selection.")

    async def read_resource(self, uri: str, caller: Caller) -> dict[str, Any]:
        """Answer `resources/read` for a link to binary content of a result.

        Raises:
            RpcError: The handle of the content cannot be used.
        """
        code = INVALID_PARAMS if caller.modern else RESOURCE_NOT_FOUND
        handle, pointer = split_reference(uri)
        try:
            stored = await self._values.load(handle, caller)
            value = json_bytes.loads(
                await self._values.run(ExtractJob(pointer=pointer, as_text=False), stored.value, caller)
            )
        except (HandleRefused, SelectionRefused) as refused:
            raise RpcError(code, f"Resource not found: {refused}", {"uri": uri}) from None
        except JobUnfinished:
            raise RpcError(code, "Resource not found: reading it takes too long", {"uri": uri}) from None
        data, media_type = binary_of(value)
        contents: dict[str, Any] = {"uri": uri, "blob": data} if data else {"uri": uri, "text": _as_text(value)}
        if media_type or not data:
            contents["mimeType"] = media_type or ("text/plain" if isinstance(value, str) else "application/json")
        return {"contents": [contents], **({"resultType": "complete"} if caller.modern else {})}


def take_selection(arguments: Any) -> tuple[Any, Any]:
    """Return the arguments without `_select`, and the value of `_select`; None if there is none.

    Some models wrap all arguments in an object, which is unwrapped later, so this function also searches that object.
    """
    if not isinstance(arguments, dict):
        return arguments, None
    if SELECT in arguments:
        return {name: value for name, value in arguments.items() if name != SELECT}, arguments[SELECT]
    if len(arguments) == 1:
        [(name, inner)] = arguments.items()
        if isinstance(inner, dict) and SELECT in inner:
            remaining, raw_selection = take_selection(inner)
            return {name: remaining}, raw_selection
    return arguments, None


def _may_change(rules: ResultRules, text: bytes) -> bool:
    """Return whether a result may need a cut, or a link in place of binary content.

    Args:
        text: The result as JSON.
    """
    if rules.max_bytes is not None and len(text) > rules.max_bytes:
        return True
    if rules.binary_types is None and (rules.max_binary_bytes is None or len(text) <= rules.max_binary_bytes):
        return False
    return any(member in text for member in _BINARY_MEMBERS)


def _beginning_of(text: bytes, handle: str) -> Shaped:
    """Return the beginning of a result that could not be processed in time, with the handle of the whole result."""
    again = json_bytes.dumps({"handle": handle, "pointer": "/content/0/text"}).decode()
    notice = (
        f"[The result has {len(text)} bytes and could not be processed in time; this is its beginning. The tool was "
        f"called, and the result is stored: read parts with read_result {again}.]"
    )
    beginning = text[:_BEGINNING_BYTES].decode("utf-8", "ignore")
    items = [{"type": "text", "text": each} for each in (beginning, notice)]
    return Shaped(members={"content": items}, stored=text, meta={"handle": handle})


def _read_job(fields: dict[str, Any]) -> ReadJob:
    """Return the job for the arguments of `read_result`.

    Raises:
        SelectionRefused: An argument is invalid.
    """
    reference, below = fields.get("handle"), fields.get("pointer")
    if not isinstance(reference, str) or not reference:
        raise SelectionRefused(f'`handle` is missing, as in {{"handle": "{HANDLE_PREFIX}…"}}')
    if below is not None and not isinstance(below, str):
        raise SelectionRefused("`pointer` is a JSON pointer, such as /items/0")
    handle, pointer = split_reference(reference)
    raw_selection = fields.get("select")
    offset, limit = (_number(fields, "offset", 0) or 0), _number(fields, "limit", 1)
    return ReadJob(
        handle=handle,
        pointer=pointer + (below or ""),
        selection=parse_selection(raw_selection),
        written=raw_selection if isinstance(raw_selection, str) else "",
        offset=offset,
        limit=limit,
    )


def _number(fields: dict[str, Any], name: str, least: int) -> int | None:
    value = fields.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise SelectionRefused(f"`{name}` is a whole number of at least {least}")
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json_bytes.dumps(value).decode("utf-8", "surrogatepass")
