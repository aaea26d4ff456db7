"""Attacks on results in parts: redacted secrets, handles that are no longer valid, and costly expressions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import handshake
from support.gateways import RunningGateway, running_gateway, text_of
from support.results import answering, text
from support.upstreams.running import Recording, scripted_stdio_server, tool
from support.worker_groups import until

from gateway.calls.result_store import HANDLE_PREFIX

SECRET = "ada@example.test"
PEOPLE = {"rows": [{"id": n, "mail": SECRET if n == 7 else "none", "note": "x" * 40} for n in range(100)]}
# 2 MB, so that expressions are evaluated in the check process.
MANY = {"rows": [{"id": n, "name": f"row {n}", "note": "x" * 60} for n in range(20_000)]}
RESULTS = {
    "structured": {"content": [text(PEOPLE)], "structuredContent": PEOPLE},
    "plain": {"content": [text(PEOPLE)]},
    "many": {"content": [text(MANY)]},
}
READ = {"results": {"select": True, "maxBytes": 2_000}}
REDACT = {"name": "secrets", "use": "redact", "config": {"kinds": ["email"]}}


def handle_in(result: Mapping[str, Any]) -> str:
    """The handle in the metadata of a result."""
    handle: str = result["_meta"]["typegate/parts"]["handle"]
    assert handle.startswith(HANDLE_PREFIX)
    return handle


@asynccontextmanager
async def serving(tmp_path: Path, **gateway: Any) -> AsyncIterator[tuple[RunningGateway, Recording]]:
    """A gateway before a server with large results, and one that receives arguments."""
    up, _ = scripted_stdio_server(tmp_path, "up", **answering(**RESULTS))
    mail, received = scripted_stdio_server(
        tmp_path, "mail", tools=[tool("send", body="string", rows={"type": "array"})]
    )
    async with running_gateway(tmp_path, {"up": {**up, **READ}, "mail": mail}, gateway=gateway) as running:
        await running.until_listed(*(f"up__{name}" for name in RESULTS), "mail__send")
        yield running, received


async def refused_text(gateway: RunningGateway, name: str, arguments: Mapping[str, Any]) -> str:
    """The text of an error result."""
    answer = await gateway.call(name, dict(arguments), timeout_s=60)
    assert answer["isError"] is True, answer
    return text_of(answer)


def change(gateway: RunningGateway, **sections: Any) -> None:
    """Replace sections of `gateway` in the configuration file, which the gateway reads again."""
    written = json.loads(gateway.config.read_text())
    written["gateway"] = {**written["gateway"], **sections}
    gateway.config.write_text(json.dumps(written))


@pytest.mark.heavy
async def test_selections_and_handles_see_only_the_redacted_value(tmp_path: Path) -> None:
    async with serving(tmp_path, hooks=[REDACT]) as (gateway, received):
        session = await handshake(gateway)
        for name in ("up__structured", "up__plain"):
            for select, expected in (
                (f"rows[?mail=='{SECRET}'].id", []),
                ("rows[?contains(mail, 'ada')].id", []),
                ("rows[7].mail", "[redacted email]"),
                ("rows[?ends_with(mail, 'test')] | length(@)", 0),
                ("sort_by(rows, &mail)[0].mail", "[redacted email]"),
            ):
                here = await gateway.call(name, {"_select": select})
                there = (await session.call(name, {"_select": select}))["result"]
                cut = handle_in(await gateway.call(name))
                read = await gateway.call("read_result", {"handle": cut, "select": select})
                for answer in (here, there, read):
                    assert SECRET not in json.dumps(answer).replace(select, "")
                    shown = text_of(answer)
                    if expected == []:
                        assert shown.startswith(("Nothing selected", "Not read", "[]"))
                    else:
                        assert (shown if isinstance(expected, str) else json.loads(shown)) == expected
            pointed = await gateway.call("read_result", {"handle": cut, "pointer": "/rows/7"})
            assert json.loads(text_of(pointed))["mail"] == "[redacted email]"
            ranged = await gateway.call("read_result", {"handle": cut, "pointer": "/rows", "offset": 5, "limit": 5})
            assert SECRET not in json.dumps(ranged)
            await gateway.call("mail__send", {"body": f"{cut}#/rows/7/mail", "rows": f"@{cut}#/rows"})
            await gateway.call("mail__send", {"body": cut})
        calls = json.dumps([call["arguments"] for call in received.calls()])
        assert SECRET not in calls
        assert calls.count("[redacted email]") == 6


@pytest.mark.heavy
async def test_handle_as_argument_is_refused_after_its_lifetime(tmp_path: Path) -> None:
    async with serving(tmp_path, results={"lifetime": 600}) as (gateway, received):
        rows = handle_in(await gateway.call("up__plain"))
        await gateway.call("mail__send", {"body": f"{rows}#/rows/0/note"})
        change(gateway, results={"lifetime": 0.001})

        async def is_gone() -> bool:
            answer = await gateway.call("mail__send", {"body": f"{rows}#/rows/0/note"})
            return "the result is not stored any more" in text_of(answer)

        await until(is_gone, within_s=60)
        before = len(received.calls())
        for reference in (rows, f"@{rows}", f"@{rows}#/rows"):
            refusal = await refused_text(gateway, "mail__send", {"rows": reference})
            assert refusal.startswith("Not called: argument /rows: the result is not stored any more")
        assert "not stored any more" in await refused_text(gateway, "read_result", {"handle": rows})
        assert len(received.calls()) == before


@pytest.mark.heavy
async def test_handle_as_argument_is_refused_after_its_tool_is_denied_or_hidden(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, received):
        plain, structured = handle_in(await gateway.call("up__plain")), handle_in(await gateway.call("up__structured"))
        await gateway.call("mail__send", {"body": plain})
        assert len(received.calls()) == 1
        change(gateway, policy={"rules": [{"name": "no-plain", "deny": ["up__plain"]}]})

        async def is_denied() -> bool:
            return "up__plain" not in await gateway.tools()

        await until(is_denied, within_s=60)
        for reference in (plain, f"@{plain}#/rows", f"{plain}#/rows/0"):
            for arguments in ({"body": reference}, {"rows": [{"a": reference}]}):
                refusal = await refused_text(gateway, "mail__send", arguments)
                assert "up__plain, is not available to you any more" in refusal
        generic = {"server": "mail", "tool": "send", "arguments": {"body": plain}}
        assert "is not available to you any more" in await refused_text(gateway, "invoke_tool", generic)
        # A profile that does not name the tool hides it as well.
        change(gateway, profiles={"default": {"tools": ["up__many", "mail__*"]}})

        async def is_hidden() -> bool:
            return "up__structured" not in await gateway.tools()

        await until(is_hidden, within_s=60)
        assert "not available" in await refused_text(gateway, "mail__send", {"body": structured})
        assert "not available" in await refused_text(gateway, "read_result", {"handle": structured})
        assert len(received.calls()) == 1


# Each doubles its value with every step, or compares or joins all rows with all rows.
COSTLY = (
    "|".join(["[@,@]"] * 60),
    "rows|" + "|".join(["[@,@][]"] * 60),
    "to_string(" * 60 + "@" + ")" * 60,
    "rows[].[" + ",".join(["@"] * 200) + "]",
    "rows[?" + "||".join(["contains(note,'zz')"] * 40) + "]",
    "rows[].[@,@,@,@]|sort_by(@, &to_string(@))",
    "map(&to_string(@), rows)|join(',', @)|[@,@,@]|to_string(@)|[@,@,@]|to_string(@)",
    "rows[?" + "==".join(["(rows)"] * 60) + "]",
)


@pytest.mark.heavy
async def test_costly_expressions_of_read_result_end_and_leave_other_callers_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, _):
        rows = handle_in(await gateway.call("up__many", timeout_s=60))
        answers: list[str] = []

        async def read(select: str) -> None:
            answer = await gateway.call("read_result", {"handle": rows, "select": select}, timeout_s=120)
            answers.append(text_of(answer))

        async with anyio.create_task_group() as group:
            for select in COSTLY:
                group.start_soon(read, select)
            # The event loop serves other requests in the meantime.
            for _ in range(5):
                assert "mail__send" in await gateway.tools()
        assert len(answers) == len(COSTLY)
        assert max(map(len, answers)) < 10_000
        assert sum(answer.startswith("Not read: ") for answer in answers) >= 4
        whole = await gateway.call("read_result", {"handle": rows, "select": "length(rows)"}, timeout_s=60)
        assert text_of(whole) == "20000"
