"""Try it: problems at their fields, progress, cancel, history, questions of the server, prompts and resources."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.browsers import expect
from support.desks import Desk, at_desk
from support.gateways import TOKEN
from support.upstreams.full_running import full_http, full_stdio
from support.upstreams.running import builtin_tools, scripted_stdio_server
from support.worker_groups import each_worker, running_workers

pytestmark = pytest.mark.heavy

# The mouse works at a gateway of two processes.
DESKS = [("mouse", 1440, 900, True, 2), ("keyboard", 390, 844, False, 1)]
SEND = {
    "type": "object",
    "required": ["to", "count"],
    "properties": {"to": {"type": "string"}, "count": {"type": "integer"}},
}


async def check(desk: Desk, name: str) -> None:
    await desk.visit.check_layout(name)
    await desk.visit.keep_picture(name)


@pytest.mark.parametrize(("how", "width", "height", "dark", "workers"), DESKS)
async def test_tool_is_tried_with_problems_progress_cancel_and_history(
    tmp_path: Path, how: str, width: int, height: int, dark: bool, workers: int
) -> None:
    tools = [*builtin_tools("progress", "hang"), {"name": "send", "inputSchema": SEND}]
    up, record = scripted_stdio_server(tmp_path, "up", tools=tools)
    options: dict[str, Any] = {"width": width, "height": height, "dark": dark, "workers": workers}
    options["permissions"] = ["clipboard-read", "clipboard-write"]
    async with at_desk(tmp_path, how, {"up": up}, **options) as desk:
        await desk.gateway.until_listed("up__send", "up__progress", "up__hang")
        page, result = desk.page, desk.page.get_by_role("region", name="Result")
        await desk.visit.go("try/up__send")
        await desk.hand.write(page.get_by_label("count"), "many")
        await desk.hand.press(desk.button("Run it"))
        await expect(result).to_contain_text("Not sent: 2 arguments are wrong", timeout=60_000)
        await expect(page.get_by_label("to required")).to_be_focused()
        await expect(page.get_by_text("This argument is required")).to_be_visible()
        await expect(page.locator("[aria-invalid=true]")).to_have_count(2)
        await check(desk, f"try-problems-{width}")
        await desk.hand.write(page.get_by_label("to required"), "it's me")
        await desk.hand.write(page.get_by_label("count"), "2")
        await desk.page.keyboard.press("Enter")
        await expect(result).to_contain_text("Answered", timeout=60_000)
        await expect(page.locator("[aria-invalid=true]")).to_have_count(0)
        # The result is in view without scrolling.
        top = await result.evaluate("element => element.getBoundingClientRect().top")
        assert 0 <= top < height
        await desk.hand.press(desk.button("Copy as command"))
        words = shlex.split(await page.evaluate("navigator.clipboard.readText()"))
        assert words[:3] == ["typegate", "call", "up__send"]
        assert json.loads(words[3]) == {"to": "it's me", "count": 2}
        assert words[4:] == ["--url", desk.gateway.url]
        await desk.visit.go("try/up__hang")
        await desk.hand.press(desk.button("Run it"))
        await expect(result).to_contain_text("Running")
        await desk.hand.press(desk.button("Cancel"))
        await expect(result).to_contain_text("Cancelled after")
        await record.until(lambda seen: seen.cancelled() == [seen.calls("hang")[-1]["id"]], within_s=60)
        await desk.visit.go("try/up__progress")
        await desk.hand.write(page.get_by_label("count"), "400")
        await desk.hand.write(page.get_by_label("interval_s"), "0.05")
        await desk.hand.press(desk.button("Run it"))
        await expect(result).to_contain_text("of 400", timeout=60_000)
        await expect(page.get_by_role("progressbar", name="Progress")).to_be_visible()
        await desk.hand.press(desk.button("Cancel"))
        await expect(result).to_contain_text("Cancelled after")
        past = page.get_by_role("region", name="History")
        await expect(past.get_by_role("listitem")).to_have_count(4)
        await desk.hand.press(past.get_by_role("button", name="Use again: up__send").first)
        await expect(page.get_by_label("to required")).to_have_value("it's me")
        await expect(page.get_by_role("combobox", name="Tool")).to_have_value("up__send")
        await check(desk, f"try-history-{width}")


@pytest.mark.parametrize(("how", "width", "height", "dark", "workers"), DESKS)
async def test_questions_of_a_server_prompts_and_resources_are_shown(
    tmp_path: Path, how: str, width: int, height: int, dark: bool, workers: int
) -> None:
    size = {"width": width, "height": height, "dark": dark, "workers": workers}
    form = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    questions = {
        "who": {"method": "elicitation/create", "params": {"message": "Where?", "requestedSchema": form}},
        "model": {
            "method": "sampling/createMessage",
            "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi?"}}], "maxTokens": 9},
        },
    }
    old = full_stdio(tmp_path, "old", modern=False, elicitation=True)
    async with (
        # One process behind all workers, because it keeps the states of the questions that it has asked.
        full_http(tmp_path, "full", modern=True) as full,
        at_desk(tmp_path, how, {"full": full.config, "old": old.config}, **size) as desk,
    ):
        await desk.gateway.until_listed("full__ask", "old__ask")
        page, result = desk.page, desk.page.get_by_role("region", name="Result")
        await desk.visit.go("try/full__ask")
        await desk.hand.press(desk.button("Write as JSON"))
        await desk.hand.write(page.get_by_label("Arguments as JSON"), json.dumps({"requests": questions}))
        await desk.hand.press(desk.button("Run it"))
        await expect(result).to_contain_text("The server asks", timeout=60_000)
        await expect(result).to_contain_text("Where?")
        await expect(result).to_contain_text("Hi?")
        await check(desk, f"try-asked-{width}")
        await desk.hand.write(result.get_by_label("city required"), "Oslo")
        await desk.hand.write(result.get_by_label("Answer of the model"), "Hello")
        await desk.hand.press(desk.button("Send the answer"))
        await expect(result).to_contain_text("Answered", timeout=60_000)
        await expect(result).to_contain_text("Oslo")
        await expect(result).to_contain_text("Hello")
        # A server of a handshake version asks in the middle of the call.
        await desk.visit.go("try/old__ask")
        await desk.hand.press(desk.button("Write as JSON"))
        await desk.hand.write(page.get_by_label("Arguments as JSON"), json.dumps({"requests": questions}))
        await desk.hand.press(desk.button("Run it"))
        await expect(result).to_contain_text("Where?", timeout=60_000)
        await desk.hand.write(result.get_by_label("city required"), "Bergen")
        await check(desk, f"try-asked-during-{width}")
        await desk.hand.press(desk.button("Send the answer").first)
        await desk.hand.write(result.get_by_label("Answer of the model"), "Good morning")
        await desk.hand.press(desk.button("Send the answer"))
        await expect(result).to_contain_text("Answered", timeout=60_000)
        await expect(result).to_contain_text("Bergen")
        await expect(result).to_contain_text("Good morning")
        await desk.visit.go("try?kind=prompts")
        await desk.hand.choose(page.get_by_role("combobox", name="Prompt"), "full__greet")
        name = page.get_by_label("name required")
        await desk.hand.write(name, "Al")
        completions = page.locator(f"datalist#{await name.get_attribute('list')} option")
        await expect(completions).to_have_count(1, timeout=60_000)
        await desk.hand.press(desk.button("Get it"))
        await expect(result).to_contain_text("Good day, Al!", timeout=60_000)
        await check(desk, f"try-prompt-{width}")
        await desk.visit.go("try?kind=resources")
        choice = page.get_by_label("Resource or template")
        await desk.hand.choose(choice, "A note: full://full/note")
        await desk.hand.press(desk.button("Read it"))
        await expect(result).to_contain_text("full://full/note", timeout=60_000)
        await desk.hand.choose(choice, "item: full://full/item/{id}")
        await desk.hand.write(page.get_by_label("id", exact=True), "7")
        await desk.hand.press(desk.button("Read it"))
        await expect(result).to_contain_text("full://full/item/7", timeout=60_000)
        await check(desk, f"try-resource-{width}")


async def test_question_during_a_call_is_answered_through_another_worker(tmp_path: Path) -> None:
    old = full_stdio(tmp_path, "old", modern=False, elicitation=True, copies=True)
    form = {"type": "object", "properties": {"city": {"type": "string"}}}
    asked = {"who": {"method": "elicitation/create", "params": {"message": "Where?", "requestedSchema": form}}}
    body = {"wrapper": "old__ask", "arguments": {"requests": asked}, "asks": True}
    async with running_workers(tmp_path, {"old": old.config}) as gateway, each_worker(gateway) as workers:
        for worker in workers:
            await worker.until_listed("old__ask")
        for worker, other in (workers, workers[::-1]):
            url = f"{worker.origin}/admin/try"
            head = {"authorization": f"Bearer {TOKEN}", "accept": "text/event-stream"}
            trial, found = "", {}
            async with worker.client.stream("POST", url, json=body, headers=head, timeout=60) as stream:
                async for line in stream.aiter_lines():
                    found = json.loads(line[6:]) if line.startswith("data: ") else found
                    message = found.pop("message", {})
                    if message.get("method") == "typegate/trial":
                        trial = message["params"]["id"]
                    elif message.get("method") == "elicitation/create":
                        result = {"action": "accept", "content": {"city": "Oslo"}}
                        answer = {"question": message["id"], "result": result}
                        sent = await other.admin(f"try/{trial}/answer", "POST", answer)
                        assert sent.json() == {"answered": True}
            assert "Oslo" in json.dumps(found["response"]["result"])
            late = await other.admin(f"try/{trial}/answer", "POST", {"question": 1, "result": {}})
            assert late.json() == {"answered": False}
