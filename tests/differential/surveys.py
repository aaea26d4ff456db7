"""The surveys of three official clients of a server and of a gateway, and their differences."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.clients import installed

CLIENTS = ("python", "typescript-1", "typescript-2")
_TYPESCRIPT_2 = ("@modelcontextprotocol/client@2.4.0",)
_HERE = Path(__file__).parent
_SURVEY_S = 400
# Members of a result that are about the connection, not about the call.
_OF_THE_CONNECTION = ("_meta", "resultType")
# The name is the wrapper's own, and clients of 2026-07-28 do not know `execution`, which is about tasks of 2025-11-25.
_NOT_COMPARED = {"name", "execution"}
# Members that clients show as they are on the wire. Some servers put the time or words in random order into them.
_STEADY = {"description", "inputSchema"}
# Texts that a server makes up anew for each call are told apart by asking it twice; this much of the text of a failure
# has to reach the caller, who is shown hints after it.
_FAILURE_CHARACTERS = 60

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The survey of one client.

    Attributes:
        lists: `tools`, `prompts`, `resources` and `templates`: their items, or `{"error": text}`.
        calls: For each call `{"result": ...}`, `{"error": {"code", "message"}}` or `{"late": True}`.
    """

    lists: Mapping[str, Any]
    calls: Sequence[Mapping[str, Any]]


@dataclass(slots=True, kw_only=True)
class Tally:
    """The number of comparisons, and each difference in words."""

    tools: int = 0
    calls: int = 0
    late: int = 0
    differences: list[str] = field(default_factory=list)
    adapted: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add what was counted elsewhere."""
        self.tools += other.tools
        self.calls += other.calls
        self.late += other.late
        self.differences += other.differences
        self.adapted += other.adapted


def survey(
    client: str, target: str | Mapping[str, Any], calls: Sequence[Call] = (), *, deadline_s: float = 5
) -> Survey:
    """Let a client list everything of a target and make calls, one after the other.

    Args:
        client: One of `CLIENTS`.
        target: A URL, or an entry with `command`, `args`, `env` and `cwd`.
        calls: Names and arguments.
        deadline_s: Seconds for each call.
    """
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        plan.write_text(json.dumps({"target": target, "calls": list(calls), "deadline_s": deadline_s}))
        done = subprocess.run([*_command(client), plan], capture_output=True, text=True, timeout=_SURVEY_S)
    if done.returncode or not done.stdout.strip():
        raise AssertionError(f"{client} ended with {done.returncode} at {target}: {done.stderr[-2000:]}")
    seen = json.loads(done.stdout.splitlines()[-1])
    return Survey(calls=seen.pop("calls"), lists=seen)


def _command(client: str) -> list[str]:
    if client == "python":
        return [sys.executable, str(_HERE / "survey.py")]
    generation = client[-1]
    packages = installed.TYPESCRIPT_SDK if generation == "1" else _TYPESCRIPT_2
    modules = installed.npm("typescript" if generation == "1" else "typescript-2", packages)
    return [str(installed.node22()), str(installed.beside(modules, _HERE / "survey.mjs")), generation]


def compare_lists(
    recorded: Sequence[Mapping[str, Any]],
    direct: Survey,
    through: Survey,
    alias: str,
    wrapper_of: Callable[[str], str | None],
    shown: Mapping[str, str],
) -> Tally:
    """Compare what a client lists of a server with what it lists of the gateway.

    Args:
        recorded: The tools that the server listed at an earlier start. What is different at each start is not compared.
        direct: Asked without the gateway.
        through: Asked through a gateway that has other servers too.
        alias: The server's name in the gateway.
        wrapper_of: Returns the name of the wrapper of a tool.
        shown: Reasons that the gateway gives for definitions that it has changed, by tool.
    """
    tally = Tally()
    tools, wrappers = direct.lists["tools"], through.lists["tools"]
    if isinstance(wrappers, dict):
        tally.differences.append(f"{alias}: the client lost the list of tools: {wrappers['error']}")
        return tally
    if isinstance(tools, dict):
        # The client cannot read the list of the server itself; any list through the gateway is an improvement.
        return tally
    listed = {tool["name"]: tool for tool in wrappers}
    earlier = {tool["name"]: tool for tool in recorded}
    for tool in tools:
        tally.tools += 1
        wrapper = listed.get(wrapper_of(tool["name"]) or "")
        if wrapper is None:
            tally.differences.append(f"{alias}: {tool['name']} is not listed: {shown.get(tool['name'], 'no reason')}")
            continue
        changed = [
            key
            for key in {*tool, *wrapper} - _NOT_COMPARED
            if _plain(tool.get(key)) != _plain(wrapper.get(key))
            and not (key in _STEADY and _plain(tool.get(key)) != _plain(earlier[tool["name"]].get(key)))
        ]
        if changed and tool["name"] in shown:
            tally.adapted.append(f"{alias}: {tool['name']}: {', '.join(sorted(changed))}: {shown[tool['name']]}")
        elif changed:
            tally.differences.append(f"{alias}: {tool['name']} is listed with another {', '.join(sorted(changed))}")
    for kind, key in (("prompts", "name"), ("resources", "uri"), ("templates", "uriTemplate")):
        tally.differences += _missing_items(direct.lists[kind], through.lists[kind], kind, key, alias)
    return tally


def _missing_items(items: Any, shown: Any, kind: str, key: str, alias: str) -> list[str]:
    if isinstance(items, dict):
        return []
    if isinstance(shown, dict):
        return [f"{alias}: the client lost the list of {kind}: {shown['error']}"]
    names = {item[key] for item in shown}
    # A prompt is named like a tool; a URI keeps its name unless two servers share it.
    return [
        f"{alias}: {kind}: {item[key]} is not listed"
        for item in items
        if not names & {item[key], f"{alias}__{item[key]}", f"typegate://{alias}/{item[key]}"}
        and not any(name.startswith(f"{alias}__") and kind == "prompts" for name in names)
        and not any(name.startswith(f"ui://{alias}/") for name in names)
    ]


def compare_calls(calls: Sequence[Call], direct: Survey, again: Survey | None, through: Survey, alias: str) -> Tally:
    """Compare the outcome of each call with the one without the gateway.

    Args:
        calls: The calls, with the names of the server.
        direct: Outcomes without the gateway.
        again: The same once more, to tell results that are different each time; None where results are always the same.
        through: Outcomes through the gateway.
        alias: The server's name in the gateway.
    """
    tally = Tally()
    for number, ((name, arguments), before, after) in enumerate(zip(calls, direct.calls, through.calls, strict=True)):
        tally.calls += 1
        if "late" in before:
            tally.late += 1
            continue
        steady = again is None or _outcome(again.calls[number]) == _outcome(before)
        sent = f"{alias}: {name} {json.dumps(arguments, ensure_ascii=True)[:300]}"
        if _failed(before) and not _failed(after):
            tally.adapted.append(f"{sent}: fails directly: {_words(before)}")
        elif difference := _difference(before, _in_own_names(after, alias, name), steady):
            tally.differences.append(f"{sent}: {difference}")
    return tally


def _difference(before: Mapping[str, Any], after: Mapping[str, Any], steady: bool) -> str | None:
    """Return how the outcomes of a call differ, or None."""
    if _failed(before) != _failed(after):
        return f"directly {_words(before)}, through the gateway {_words(after)}"
    if not steady:
        return None
    if _failed(before):
        # A JSON-RPC error becomes an error result, which also shows models how to mend the call.
        failure = _failure_text(before)[:_FAILURE_CHARACTERS]
        return None if failure in _failure_text(after) else f"directly {_words(before)}, through {_words(after)}"
    first, second = _outcome(before), _outcome(after)
    return None if first == second else f"directly {_words(before)}, through the gateway {_words(after)}"


def _in_own_names(outcome: Mapping[str, Any], alias: str, name: str) -> Mapping[str, Any]:
    """Return an outcome in which clients and the gateway name the tool as its server does."""
    named: Mapping[str, Any] = json.loads(json.dumps(outcome).replace(f"{alias}__{name}", name))
    return named


def _failed(outcome: Mapping[str, Any]) -> bool:
    return "result" not in outcome or bool(outcome["result"].get("isError"))


def _failure_text(outcome: Mapping[str, Any]) -> str:
    if "error" in outcome:
        text: str = outcome["error"]["message"]
        # The TypeScript SDK 1.x puts its own words before the server's.
        return text.partition(": ")[2] if text.startswith("MCP error ") else text
    if "late" in outcome:
        return "late"
    return "\n".join(item.get("text", "") for item in outcome["result"].get("content", []))


def _outcome(outcome: Mapping[str, Any]) -> Any:
    if "result" not in outcome:
        return outcome
    return _plain({key: value for key, value in outcome["result"].items() if key not in _OF_THE_CONNECTION})


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _words(outcome: Mapping[str, Any]) -> str:
    return json.dumps(outcome, ensure_ascii=True)[:400]
