"""Collect the mistakes that callers make with each tool: what they sent, what they probably meant, and how often.

Operators use this list to document or rename arguments. Names of arguments are stored, but not their values: an example
shows the structure of a call's arguments with a placeholder for each value, and quoted parts and numbers are removed
from error texts.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from cachetools import LRUCache

from gateway.process.secrets import SECRETS
from gateway.telemetry.trace_context import recorded_trace
from registry.arguments.coercion import Repair
from registry.arguments.diagnosis import ArgumentProblem
from registry.catalog.catalog import ToolWrapper
from registry.schema.display_text import excerpt
from registry.schema.json_paths import JsonPath, format_path, value_at

# Maximum number of tools. A tool with all its mistakes takes up to 60 kB, usually 1 kB, so all take at most 30 MB.
_MAX_TOOLS: Final = 500
# Maximum number of kinds of mistakes per tool: more than a person reads. Beyond it, the least recent kind is dropped.
_MAX_KINDS: Final = 24
_MAX_CALLERS: Final = 16
# Maximum lengths of names and texts that callers and upstreams choose: longer than any reasonable name or sentence.
_NAME_CHARS: Final = 80
_TEXT_CHARS: Final = 240
# Limits of an example, which shows the structure of the arguments. More members do not help to see the mistake.
_MAX_DEPTH: Final = 4
_MAX_MEMBERS: Final = 30
_MAX_ITEMS: Final = 3
# Maximum number of mistakes to record per call, so that one call with thousands of wrong members does not displace
# the mistakes of other calls.
_MAX_PER_CALL: Final = 8
# Parts of error texts that may be values: quoted text, words with a digit, and email addresses.
_PARTICULARS: Final = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`|[\w.:/@+-]*\d[\w.:/@+-]*|[\w.+-]+@[\w.-]+")
_OTHERS: Final = "(others)"


@dataclass(slots=True)
class _Mistake:
    calls: int = 0
    callers: Counter[str] = field(default_factory=Counter)
    text: str = ""
    example: Any = None
    at_s: float = 0.0
    trace: str | None = None


@dataclass(slots=True)
class _Tool:
    server: str
    tool: str
    kinds: LRUCache[tuple[str, str, str], _Mistake] = field(default_factory=lambda: LRUCache(_MAX_KINDS))
    calls: int = 0


class Mistakes:
    """Stores the mistakes in calls of each tool. Beyond the limits, the least recent tool or kind is dropped."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tools: LRUCache[str, _Tool] = LRUCache(_MAX_TOOLS)

    def record_problems(
        self, wrapper: ToolWrapper, problems: Sequence[ArgumentProblem], arguments: Any, caller: str
    ) -> None:
        """Record a call that was refused because of its arguments."""
        mistakes: dict[tuple[str, str, str], str] = {}
        for problem in problems[:_MAX_PER_CALL]:
            path = _name(format_path(problem.path))
            sent, expected = path, ""
            if problem.kind == "missing":
                sent, expected = "", path
            elif problem.kind == "unknown":
                expected = _name(problem.near or "")
            elif problem.kind in ("type", "value"):
                sent, expected = f"{path}: {_kind_at(arguments, problem.path)}", path
            mistakes.setdefault((problem.kind, sent, expected), problem.message)
        self._record(wrapper, mistakes, arguments, caller)

    def record_repairs(self, wrapper: ToolWrapper, repairs: Iterable[Repair], arguments: Any, caller: str) -> None:
        """Record a call whose arguments were repaired before they were sent."""
        mistakes: dict[tuple[str, str, str], str] = {}
        for repair in list(repairs)[:_MAX_PER_CALL]:
            path = _name(format_path(repair.path))
            sent = path if repair.was is None else _name(repair.was)
            mistakes.setdefault((f"repaired_{repair.name}", sent, path), "")
        self._record(wrapper, mistakes, arguments, caller)

    def record_error(self, wrapper: ToolWrapper, text: str, arguments: Any, caller: str) -> None:
        """Record a call that the upstream answered with an error."""
        masked = _masked_text(text)
        self._record(wrapper, {("error_result", "", masked): masked}, arguments, caller)

    def _record(
        self, wrapper: ToolWrapper, mistakes: Mapping[tuple[str, str, str], str], arguments: Any, caller: str
    ) -> None:
        if not mistakes:
            return
        tool = self._tools.get(wrapper.name)
        if tool is None:
            tool = self._tools[wrapper.name] = _Tool(wrapper.server, wrapper.tool)
        tool.calls += 1
        for key, text in mistakes.items():
            mistake = tool.kinds.get(key)
            if mistake is None:
                mistake = tool.kinds[key] = _Mistake()
                mistake.example = _mask_values(arguments)
            mistake.calls += 1
            is_counted = caller in mistake.callers or len(mistake.callers) < _MAX_CALLERS
            mistake.callers[caller if is_counted else _OTHERS] += 1
            mistake.text = excerpt(text, _TEXT_CHARS)
            mistake.at_s, mistake.trace = self._clock(), recorded_trace()

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each tool, the tools with most calls and the most frequent mistakes first."""
        return _sort_rows(
            {
                "wrapper": name,
                "server": tool.server,
                "tool": tool.tool,
                "calls": tool.calls,
                "mistakes": [
                    {
                        "kind": kind,
                        "sent": sent,
                        "meant": expected,
                        "calls": mistake.calls,
                        "callers": dict(mistake.callers),
                        "text": mistake.text,
                        "example": mistake.example,
                        "at": round(mistake.at_s, 3),
                        "trace": mistake.trace,
                    }
                    for (kind, sent, expected), mistake in tool.kinds.items()
                ],
            }
            for name, tool in self._tools.items()
        )


def all_mistakes(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the `/admin/mistakes` documents of all processes."""
    tools: dict[str, dict[str, Any]] = {}
    for document in documents:
        for row in document["tools"]:
            merged = tools.setdefault(row["wrapper"], {**row, "calls": 0, "mistakes": {}})
            merged["calls"] += row["calls"]
            for mistake in row["mistakes"]:
                key = mistake["kind"], mistake["sent"], mistake["meant"]
                total = merged["mistakes"].setdefault(key, {**mistake, "calls": 0, "callers": {}})
                total["calls"] += mistake["calls"]
                if mistake["at"] > total["at"]:
                    total |= {"at": mistake["at"], "trace": mistake["trace"]}
                total["callers"] = dict(Counter(total["callers"]) + Counter(mistake["callers"]))
    return {
        **documents[0],
        "tools": _sort_rows({**row, "mistakes": list(row["mistakes"].values())} for row in tools.values()),
    }


def _sort_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in (ordered := sorted(rows, key=lambda row: (-row["calls"], row["wrapper"]))):
        row["mistakes"].sort(key=lambda mistake: -mistake["calls"])
    return ordered


def _name(text: str) -> str:
    return excerpt(SECRETS.scrub(text), _NAME_CHARS)


def _masked_text(text: str) -> str:
    return excerpt(_PARTICULARS.sub("…", SECRETS.scrub(text[: 4 * _TEXT_CHARS])), _TEXT_CHARS)


def _kind_at(arguments: Any, path: JsonPath) -> str:
    return _placeholder(value_at(arguments, path)).strip("<>")


def _placeholder(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "<null>" if value is None else "<boolean>"
    if isinstance(value, int | float):
        return "<number>"
    if isinstance(value, str):
        return "<text>" if value else "<empty text>"
    return "<list>" if isinstance(value, list) else "<object>" if isinstance(value, dict) else "<absent>"


def _mask_values(value: Any, depth: int = 0) -> Any:
    """Return the structure of a JSON value with a placeholder for each text, number and boolean."""
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        masked = {_name(name): _mask_values(item, depth + 1) for name, item in islice(value.items(), _MAX_MEMBERS)}
        return {**masked, "…": f"{len(value) - _MAX_MEMBERS} more"} if len(value) > _MAX_MEMBERS else masked
    if isinstance(value, list) and depth < _MAX_DEPTH:
        return [_mask_values(item, depth + 1) for item in value[:_MAX_ITEMS]] + (
            ["…"] if len(value) > _MAX_ITEMS else []
        )
    return _placeholder(value)
