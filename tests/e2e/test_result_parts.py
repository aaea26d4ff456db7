"""Results that are too large are cut at whole items; the rest is read by a handle, from any worker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from faults.observing import announcements, eventually
from support.callers import handshake
from support.gateways import META, RunningGateway, answer_of, envelope, running_gateway, text_of
from support.results import answering, in_profile, serving_results, text
from support.upstreams.running import scripted_http_server, scripted_stdio_server, tool
from support.worker_groups import each_worker, ready, running_workers, until

ROWS = {"rows": [{"id": n, "name": f"row {n}", "note": "x" * 40} for n in range(300)], "page": 1}
LINES = "".join(f"2026-11-26 line {n} of the log\n" for n in range(300))
BOUND: dict[str, Any] = {"results": {"maxBytes": 4_000}}
HANDLE = re.compile(r"typegate:result/[\w-]+")
RESULTS = {
    "rows": {"content": [text(ROWS)], "structuredContent": ROWS},
    "log": {"content": [text(LINES)]},
    "small": {"content": [text("short")]},
}


def handle_in(result: dict[str, Any]) -> str:
    """The handle that a result names."""
    found = HANDLE.search(json.dumps(result))
    assert found is not None, result
    return found[0]


def next_of(result: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments of `read_result` that a notice says to read on with."""
    notices = [item["text"] for item in result["content"] if item.get("text", "").startswith("[Cut: ")]
    arguments: dict[str, Any] = (
        json.loads(notices[0].partition("read_result ")[2].removesuffix(".]")) if notices else {}
    )
    return arguments or None


async def read(gateway: RunningGateway, **arguments: Any) -> dict[str, Any]:
    return await gateway.call("read_result", arguments)


@pytest.mark.heavy
async def test_large_result_is_cut_at_whole_items_and_read_to_its_end(tmp_path: Path) -> None:
    async with serving_results(tmp_path, RESULTS, server=BOUND) as (gateway, recording):
        assert text_of(await gateway.call("up__small")) == "short"
        session = await handshake(gateway)
        for cut in (await gateway.call("up__rows"), (await session.call("up__rows"))["result"]):
            assert len(json.dumps(cut["content"])) < 5_000
            rows = cut["structuredContent"]["rows"]
            assert rows == ROWS["rows"][: len(rows)]  # type: ignore[index]
            assert json.loads(cut["content"][0]["text"]) == cut["structuredContent"]
            assert f"the first {len(rows)} of 300 items at /rows" in text_of(cut)
            while (following := next_of(cut)) is not None:
                cut = await read(gateway, **following)
                rows += json.loads(cut["content"][0]["text"])
            assert rows == ROWS["rows"]
        log = await gateway.call("up__log")
        handle, lines = handle_in(log), log["content"][0]["text"]
        while (following := next_of(log)) is not None:
            log = await read(gateway, **following)
            lines += log["content"][0]["text"]
        assert lines == LINES
        last = await read(gateway, handle=handle, offset=299)
        assert last["content"] == [text("2026-11-26 line 299 of the log\n")]
        assert len(recording.calls()) == 4


@pytest.mark.heavy
async def test_parts_are_read_by_pointer_selection_and_range(tmp_path: Path) -> None:
    async with serving_results(tmp_path, RESULTS, server=BOUND) as (gateway, _):
        handle = handle_in(await gateway.call("up__rows"))
        assert json.loads(text_of(await read(gateway, handle=handle, pointer="/rows/299/id"))) == 299
        assert text_of(await read(gateway, handle=f"{handle}#/rows/5/name")) == "row 5"
        assert json.loads(text_of(await read(gateway, handle=handle, select="rows[-2:].id"))) == [298, 299]
        ranged = await read(gateway, handle=handle, pointer="/rows", offset=10, limit="2")
        assert [row["id"] for row in json.loads(ranged["content"][0]["text"])] == [10, 11]
        for wrong, reason in (
            ({}, "`handle` is missing"),
            ({"handle": "typegate:result/abc"}, "is not a handle that was issued to you"),
            ({"handle": handle[:-3] + "AAA"}, "is not a handle"),
            ({"handle": handle, "pointer": "/row"}, "did you mean 'rows'?"),
            ({"handle": handle, "select": "rows["}, "not a valid JMESPath"),
            ({"handle": handle, "select": "rows[].nam"}, "did you mean 'name'?"),
            ({"handle": handle, "pointer": "/rows", "offset": 300}, "there are 300 items"),
            ({"handle": handle, "limit": 0}, "`limit` is a whole number"),
        ):
            refused = await gateway.call("read_result", wrong)
            assert refused["isError"] is True
            assert reason in text_of(refused)


@pytest.mark.heavy
async def test_empty_selection_is_repeated_on_the_stored_result(tmp_path: Path) -> None:
    both = {"results": {"select": True, "maxBytes": 4_000}}
    async with serving_results(tmp_path, RESULTS, server=both) as (gateway, recording):
        nothing = await gateway.call("up__rows", {"_select": "rows[].nme"})
        assert "did you mean 'name'?" in text_of(nothing)
        names = await read(gateway, handle=handle_in(nothing), select="rows[:3].name")
        assert json.loads(text_of(names)) == ["row 0", "row 1", "row 2"]
        assert len(recording.calls()) == 1
        # A selected part may be cut as well.
        ids = await gateway.call("up__rows", {"_select": "rows[].[name, note]"})
        first = json.loads(ids["content"][0]["text"])
        assert [name for name, _ in first] == [f"row {n}" for n in range(len(first))]
        assert 20 < len(first) < 100
        assert "of 300 items are shown" in text_of(ids)


KEYS = {
    "auth": {"apiKeys": [{"name": "ada", "key": "k-ada"}, {"name": "bob", "key": "k-bob"}]},
    "profiles": {"default": {}, "work": {}},
    "policy": {"rules": [{"name": "no-log", "deny": ["up__log"], "principals": ["nobody"]}]},
}
ADA, BOB = {"authorization": "Bearer k-ada"}, {"authorization": "Bearer k-bob"}


@pytest.mark.heavy
async def test_handle_is_bound_to_caller_and_profile_and_expires(tmp_path: Path) -> None:
    async with serving_results(tmp_path, RESULTS, server=BOUND, gateway=KEYS, headers=ADA) as (gateway, _):

        async def reading(by: RunningGateway, handle: str, headers: dict[str, str]) -> str:
            answer = await by.rpc(
                "tools/call", {"name": "read_result", "arguments": {"handle": handle}}, headers=headers
            )
            return text_of(answer["result"])

        handle = handle_in(await gateway.call("up__log", headers=ADA))
        assert "line 0 of the log" in await reading(gateway, handle, ADA)
        assert "is not a handle that was issued to you" in await reading(gateway, handle, BOB)
        assert "is not a handle that was issued to you" in await reading(in_profile(gateway, "work"), handle, ADA)
        # The policy no longer allows the tool.
        written = json.loads(gateway.config.read_text())
        written["gateway"]["policy"]["rules"][0]["principals"] = ["ada"]
        gateway.config.write_text(json.dumps(written))

        async def is_denied() -> bool:
            return "up__log" not in await gateway.tools()

        await until(is_denied, within_s=60)
        assert "up__log, is not available to you any more" in await reading(gateway, handle, ADA)
        rows = handle_in(await gateway.call("up__rows", headers=ADA))
        written["gateway"]["results"] = {"lifetime": 0.001}
        gateway.config.write_text(json.dumps(written))

        async def is_deleted() -> bool:
            return "not stored any more" in await reading(gateway, rows, ADA)

        await until(is_deleted, within_s=60)


@pytest.mark.heavy
async def test_old_results_give_way_to_new_ones_within_the_bound_of_a_caller(tmp_path: Path) -> None:
    bounds = {"results": {"memory": 66_000}}
    huge = {"huge": {"content": [text(LINES * 8)]}, "log": {"content": [text(LINES * 3)]}}
    async with serving_results(tmp_path, huge, server=BOUND, gateway=bounds) as (gateway, _):
        handles = [handle_in(await gateway.call("up__log")) for _ in range(3)]
        answers = [text_of(await read(gateway, handle=handle)) for handle in handles]
        assert ["not stored any more" in answer for answer in answers] == [True, False, False]
        too_large = {"results": {"memory": 65_536}}
        written = json.loads(gateway.config.read_text())
        gateway.config.write_text(json.dumps({**written, "gateway": too_large}))

        async def is_too_large() -> bool:
            return "too large to be stored" in text_of(await gateway.call("up__huge"))

        await until(is_too_large, within_s=60)


@pytest.mark.heavy
async def test_any_worker_reads_a_result_that_another_stores(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", **answering(**RESULTS)) as up,
        running_workers(tmp_path, {"up": {**up.config, **BOUND}}) as gateway,
        each_worker(gateway) as workers,
    ):
        await ready(gateway)
        for one in workers:
            await one.until_listed("up__rows", "up__log")
        for here, there in (workers, workers[::-1]):
            handle = handle_in(await here.call("up__rows"))
            for one in (here, there):
                assert text_of(await read(one, handle=handle, pointer="/rows/7/name")) == "row 7"
                session = await handshake(one)
                answer = await session.call("read_result", {"handle": handle, "select": "length(rows)"})
                assert text_of(answer["result"]) == "300"
        # Each worker stores its own results, but shows those of all workers.
        rows = (await gateway.admin("results?caller=local")).json()["results"]
        assert [(row["caller"], row["profile"], row["wrapper"], row["results"]) for row in rows] == [
            ("local", "default", "up__rows", 2)
        ]
        assert rows[0]["bytes"] > 2 * len(json.dumps(ROWS)) * 0.9
        assert (await gateway.admin("results?caller=nobody")).json()["results"] == []


@pytest.mark.heavy
async def test_result_of_a_task_is_selected_cut_and_stored_once(tmp_path: Path) -> None:
    extension = {"io.modelcontextprotocol/tasks": {}}
    begun = {"resultType": "task", "taskId": "t-1", "status": "working", "pollIntervalMs": 1}
    done = {"taskId": "t-1", "status": "completed", "result": RESULTS["rows"], "resultType": "complete"}
    ended = {name: value for name, value in done.items() if name != "resultType"}
    notification = {"jsonrpc": "2.0", "method": "notifications/tasks", "params": ended}
    config, _ = scripted_stdio_server(
        tmp_path,
        "up",
        modern=True,
        tools=[tool("echo"), tool("tell")],
        capabilities={"extensions": extension},
        behaviours={
            "echo": {"kind": "result", "with": {"result": begun}},
            "tell": {"kind": "announce", "with": {"message": notification}},
        },
        answers={"tasks/get": done},
    )
    knows = {"_meta": envelope(**{META + "clientCapabilities": {"extensions": extension}})}
    settings: dict[str, Any] = {"results": {**BOUND["results"], "select": True}}
    async with running_gateway(tmp_path, {"up": {**config, **settings}}) as gateway:
        await gateway.until_listed("up__echo")

        async def ask(method: str, named: str, **params: Any) -> dict[str, Any]:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, **knows}}
            result: dict[str, Any] = answer_of(await gateway.post(body, {"mcp-name": named}))["result"]
            return result

        async def requested(arguments: dict[str, Any] | None = None, times: int = 1) -> dict[str, Any]:
            task = await ask("tools/call", "up__echo", name="up__echo", arguments=arguments or {})
            for _ in range(times):
                outcome = await ask("tasks/get", task["taskId"], taskId=task["taskId"])
            result: dict[str, Any] = outcome["result"]
            return result

        cut = await requested(times=3)
        rows = cut["structuredContent"]["rows"]
        assert 10 < len(rows) < 100
        last = await read(gateway, handle=handle_in(cut), pointer="/rows/299/name")
        assert text_of(last) == "row 299"
        metrics = (await gateway.client.get(f"{gateway.origin}/metrics")).text
        assert "typegate_stored_results 1.0" in metrics
        stored = re.search(r"^typegate_stored_result_bytes (\S+)$", metrics, re.MULTILINE)
        assert stored is not None
        assert 20_000 < float(stored[1]) < 40_000  # once, although the result was requested three times
        selected = await requested({"_select": "rows[-2:].name"})
        assert json.loads(text_of(selected)) == ["row 298", "row 299"]
        pointed = await requested({"_select": ["/rows/7/id", "/page"]})
        assert "7" in text_of(pointed)
        assert "row 7" not in text_of(pointed)
        # A selection is part of the id of its task, which cannot be altered.
        task = await ask("tools/call", "up__echo", name="up__echo", arguments={"_select": "page"})
        mark, _, word = task["taskId"].split(".")[2].partition("~")
        assert word
        forged = task["taskId"].replace(f"{mark}~{word}", mark)
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": forged, **knows}}
        assert answer_of(await gateway.post(body, {"mcp-name": forged}))["error"]["message"] == "Unknown task"
        async with announcements(gateway, meta=knows["_meta"], taskIds=[task["taskId"]]) as announced:
            await gateway.call("up__tell")
            [update] = await eventually(lambda: [m for m in announced.messages if m["method"] == "notifications/tasks"])
        assert update["params"]["taskId"] == task["taskId"]
        assert update["params"]["status"] == "completed"
        assert "result" not in update["params"]
        rule = {"name": "no", "deny": ["up__echo"], "when": {"arguments": {"secret": {"above": 1}}}}
        written = json.loads(gateway.config.read_text())
        gateway.config.write_text(json.dumps({**written, "gateway": {"policy": {"rules": [rule]}}}))

        async def is_whole() -> bool:
            return (await requested())["structuredContent"] == ROWS

        await until(is_whole, within_s=60)
