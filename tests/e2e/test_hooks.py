"""Hooks around calls over real connections, on both routes and in both eras."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.gateways import META, answer_of, envelope
from support.hooked import ERAS, ROUTES, hooked, sample, text_of_answer
from support.upstreams.running import tool

PROMPTS_AND_RESOURCES: dict[str, Any] = {
    "capabilities": {"prompts": {}, "resources": {}},
    "answers": {
        "prompts/list": {"prompts": [{"name": "greet", "arguments": [{"name": "who"}]}]},
        "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": "hello"}}]},
        "resources/list": {"resources": [{"uri": "file:///a", "name": "a"}, {"uri": "file:///b", "name": "b"}]},
        "resources/read": {"contents": [{"uri": "file:///a", "text": "content of a"}]},
    },
}


async def test_hook_receives_name_arguments_and_call_metadata(tmp_path: Path) -> None:
    async with hooked(tmp_path, sample("Recorder"), server={"tags": ["mail", "eu"]}) as up:
        for era, route in up.every_way():
            await up.ask(era, route, "echo", {"name": "bob"}, request_id="r-1")
            await up.ask(era, route, "echo", {"name": "bob"}, request_id="r-1")
            first, second = up.seen("before_call")
            assert (first["name"], first["args"]) == ("echo", {"name": "bob"})
            known = first["metadata"]
            assert (known["wrapper"], known["server"], known["tool"]) == ("up__echo", "up", "echo")
            assert (known["principal"], known["via"], known["request_id"]) == ("local", route, "r-1")
            assert (known["kind"], known["tags"], known["profile"]) == ("tool", ["mail", "eu"], "default")
            assert known["session"] == (None if up.session is None else up.session.headers["mcp-session-id"])
            assert first["metadata"]["call_id"] != second["metadata"]["call_id"]
            after = up.seen("after_call")
            assert [one["metadata"]["call_id"] for one in after] == [
                one["metadata"]["call_id"] for one in (first, second)
            ]
            assert [call["arguments"] for call in up.recording.calls()] == [{"name": "bob"}] * 2


async def test_call_without_arguments_has_none(tmp_path: Path) -> None:
    async with hooked(tmp_path, sample("Recorder")) as up:
        for era, route in up.every_way():
            assert "isError" not in (await up.ask(era, route, "echo"))["result"]
            assert up.seen("before_call")[0]["args"] == {}


@pytest.mark.heavy
async def test_rewritten_arguments_reach_the_upstream(tmp_path: Path) -> None:
    async with hooked(tmp_path, sample("Setter", config={"set": {"to": "b@example.test"}})) as up:
        for era, route in up.every_way():
            await up.ask(era, route, "send", {"to": "a@example.test", "note": "n"})
            assert up.recording.calls()[0]["arguments"] == {"to": "b@example.test", "note": "n"}


@pytest.mark.heavy
async def test_rewritten_arguments_are_validated_again(tmp_path: Path) -> None:
    async with hooked(tmp_path, sample("Setter", config={"set": {"to": 5}})) as up:
        for era, route in up.every_way():
            answer = await up.ask(era, route, "send", {"to": "a@example.test"})
            assert answer["result"]["isError"] is True
            assert text_of_answer(answer) == (
                "Not called: hook 'setter' changed the arguments so that they are no longer valid: to is declared as "
                "string, it is now an integer. What you sent was right; calling again does not help. The operator "
                "of this gateway has to fix the hook."
            )
            assert answer["result"]["_meta"]["typegate/blockedBy"]["hook"] == "setter"
            assert up.recording.calls() == []
        row = await up.hook("setter")
        assert (row["counts"]["failed"], "changed the arguments so that" in row["lastError"]) == (4, True)


async def test_upstream_error_about_rewritten_arguments_does_not_blame_the_caller(tmp_path: Path) -> None:
    said_by_upstream = {"content": [{"type": "text", "text": "'to' was not provided"}], "isError": True}
    script = {"behaviours": {"send": {"kind": "result", "with": {"result": said_by_upstream}}}}
    async with hooked(tmp_path, sample("Setter", config={"set": {"to": "b"}}), **script) as up:
        for era, route in up.every_way():
            answer = await up.ask(era, route, "send", {"to": "a"})
            assert "'to' was not provided" in text_of_answer(answer)
            assert "Hook 'setter' of this gateway has changed the arguments that you sent" in text_of_answer(answer)
            assert "Call it like" not in text_of_answer(answer)
        row = await up.hook("setter")
        assert (row["counts"]["refused"], row["counts"]["changed"]) == (4, 4)
        metrics = (await up.gateway.client.get(f"{up.gateway.origin}/metrics")).text
        assert 'typegate_hook_events_total{event="refused",hook="setter"} 4.0' in metrics
        lines = (await up.gateway.admin("audit?event=call")).json()["audit"]
        assert [(line["changedBy"], line.get("hook")) for line in lines] == [("setter", None)] * 4


@pytest.mark.parametrize("failure", ["Invalid date.", "-32602"])
async def test_error_after_a_rewrite_names_the_hook(tmp_path: Path, failure: str) -> None:
    text = {"content": [{"type": "text", "text": failure}], "isError": True}
    result = {"kind": "result", "with": {"result": text}}
    error = {"kind": "error", "with": {"code": -32602, "message": "no such day"}}
    script = {"behaviours": {"send": error if failure.startswith("-") else result}}
    setter = sample("Setter", config={"set": {"to": "b"}})
    async with hooked(tmp_path, setter, **script) as up:
        for era, route in up.every_way():
            answer = await up.ask(era, route, "send", {"to": "a"})
            assert "Hook 'setter' of this gateway has changed the arguments that you sent" in text_of_answer(answer)


@pytest.mark.heavy
async def test_rule_refusing_rewritten_arguments_names_the_hook(tmp_path: Path) -> None:
    rules = [{"name": "not to b", "deny": ["up__send"], "when": {"arguments": {"to": {"equals": "b"}}}}]
    setter = sample("Setter", config={"set": {"to": "b"}})
    async with hooked(tmp_path, setter, gateway={"policy": {"rules": rules}}) as up:
        for era, route in up.every_way():
            answer = await up.ask(era, route, "send", {"to": "a"})
            assert "Hook 'setter' of this gateway has changed the arguments that you sent" in text_of_answer(answer)
            assert up.recording.calls() == []
        line = (await up.gateway.admin("audit?event=call")).json()["audit"][0]
        assert (line["reason"], line["changedBy"]) == ("policy", "setter")


async def test_block_is_an_error_result_with_the_reason_and_no_upstream_call(tmp_path: Path) -> None:
    async with hooked(tmp_path, sample("Blocker", config={"code": -32011})) as up:
        for era, route in up.every_way():
            answer = await up.ask(era, route, "echo", {"x": 1})
            assert answer["result"]["isError"] is True
            assert "hook 'blocker': not on Sundays\nAsk again on Monday." in text_of_answer(answer)
            assert "was not called" in text_of_answer(answer)
            assert answer["result"]["_meta"]["typegate/blockedBy"]["code"] == -32011
            assert up.recording.calls() == []


async def test_block_can_be_a_protocol_error_with_the_hooks_code(tmp_path: Path) -> None:
    plain = sample("Blocker", blockAs="error", conditions={"wrappers": ["*__echo"]})
    coded = sample("Blocker", name="coded", blockAs="error", config={"code": -32011}, conditions={"wrappers": ["send"]})
    async with hooked(tmp_path, plain, coded) as up:
        for era, route in up.every_way():
            answer = await up.ask(era, route, "echo", {"x": 1})
            assert answer["error"]["code"] == -32000
            assert "not on Sundays" in answer["error"]["message"]
            assert answer["error"]["data"]["description"] == "Ask again on Monday."
            answer = await up.ask(era, route, "send", {"to": "x"})
            assert answer["error"]["code"] == -32011
            assert up.recording.calls() == []


async def test_withheld_result_tells_the_caller_that_the_tool_was_called(tmp_path: Path) -> None:
    async with hooked(tmp_path, sample("Blocker", config={"when": "after"})) as up:
        for era, route in up.every_way():
            answer = await up.ask(era, route, "echo", {"secret": "s3cr3t"})
            assert answer["result"]["isError"] is True
            assert "result is withheld by hook 'blocker': not on Sundays" in text_of_answer(answer)
            assert "was called" in text_of_answer(answer)
            assert "s3cr3t" not in json.dumps(answer)
            assert len(up.recording.calls()) == 1


async def test_after_call_receives_the_whole_result(tmp_path: Path) -> None:
    content = [{"type": "text", "text": "one"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"}]
    result = {"content": content, "structuredContent": {"a": [1, None]}, "isError": True, "_meta": {"v/x": 1}}
    script = {"behaviours": {"echo": {"kind": "result", "with": {"result": result}}}}
    async with hooked(tmp_path, sample("Recorder"), **script) as up:
        for era, route in up.every_way():
            await up.ask(era, route, "echo", {"x": 1})
            [seen] = up.seen("after_call")
            assert (seen["name"], seen["items"], seen["error"]) == ("echo", 2, True)
            assert seen["args"] == {"x": 1}
            assert seen["result"]["content"] == content
            assert seen["result"]["structuredContent"] == {"a": [1, None]}
            assert seen["result"]["_meta"] == {"v/x": 1}


@pytest.mark.parametrize("era", ERAS)
async def test_hooks_run_once_per_route_under_the_inner_name(era: str, tmp_path: Path) -> None:
    async with hooked(tmp_path, sample("Recorder")) as up:
        for route in ROUTES:
            await up.ask(era, route, "echo", {"x": route})
        seen = [(one["phase"], one["name"], one["metadata"]["via"]) for one in up.seen()]
        assert seen == [(phase, "echo", route) for route in ROUTES for phase in ("before_call", "after_call")]


@pytest.mark.parametrize("era", ERAS)
async def test_prompt_hooks_run(era: str, tmp_path: Path) -> None:
    hooks = [
        sample("Setter", config={"set": {"who": "Ann"}}), sample("Recorder", priority=200),
        sample("Stamper", config={"stamp": "stamped"}),
    ]  # fmt: skip
    async with hooked(tmp_path, *hooks, **PROMPTS_AND_RESOURCES) as up:
        answer = await up.rpc(era, "prompts/get", {"name": "up__greet", "arguments": {"who": "Bob"}})
        assert [one["content"]["text"] for one in answer["result"]["messages"]] == ["hello", "stamped"]
        [before] = up.seen("before_prompt")
        assert (before["name"], before["args"]) == ("greet", {"who": "Ann"})
        assert (before["metadata"]["kind"], before["metadata"]["wrapper"]) == ("prompt", "up__greet")
        assert len(up.seen("after_prompt")) == 1
        assert up.recording.requests("prompts/get")[0]["params"]["arguments"] == {"who": "Ann"}


@pytest.mark.parametrize("era", ERAS)
async def test_resource_hooks_run(era: str, tmp_path: Path) -> None:
    hooks = [sample("Setter", config={"uri": "file:///b"}), sample("Recorder", priority=50)]
    async with hooked(tmp_path, *hooks, sample("Stamper", config={"stamp": "stamped"}), **PROMPTS_AND_RESOURCES) as up:
        answer = await up.rpc(era, "resources/read", {"uri": "file:///a"})
        assert answer["result"]["contents"][0]["text"] == "stamped"
        [before] = up.seen("before_resource")
        assert before["args"] == {"uri": "file:///a"}
        assert len(up.seen("after_resource")) == 1
        assert up.recording.requests("resources/read")[0]["params"]["uri"] == "file:///b"


@pytest.mark.parametrize("era", ERAS)
async def test_blocked_prompt_or_resource_is_a_protocol_error(era: str, tmp_path: Path) -> None:
    async with hooked(tmp_path, sample("Blocker"), **PROMPTS_AND_RESOURCES) as up:
        for method, params in (("prompts/get", {"name": "up__greet"}), ("resources/read", {"uri": "file:///a"})):
            answer = await up.rpc(era, method, params)
            assert answer["error"]["code"] == -32000
            assert "not on Sundays" in answer["error"]["message"]
        assert up.recording.requests("prompts/get") == up.recording.requests("resources/read") == []


async def test_hooks_run_in_priority_order_before_and_reversed_after(tmp_path: Path) -> None:
    hooks = [
        sample("Recorder", priority=priority, name=name)
        for name, priority in (("last", 300), ("first", -5), ("second", 100), ("third", 100))
    ]
    async with hooked(tmp_path, *hooks) as up:
        await up.ask("modern", "wrapper", "echo", {})
        assert [one["hook"] for one in up.seen("before_call")] == ["first", "second", "third", "last"]
        assert [one["hook"] for one in up.seen("after_call")] == ["last", "third", "second", "first"]


async def test_order_is_repair_defaults_check_hooks_check_upstream_hooks_advice(tmp_path: Path) -> None:
    tools = [tool("send", "to", note="string", count="integer")]
    server = {"defaults": {"note": "by default"}}
    said_by_upstream = {"content": [{"type": "text", "text": "'to' was not provided"}], "isError": True}
    script = {"behaviours": {"send": {"kind": "result", "with": {"result": said_by_upstream}}}}
    async with hooked(tmp_path, sample("Recorder"), server=server, tools=tools, **script) as up:
        for era, route in up.every_way():
            wrong = await up.ask(era, route, "send", {"count": 1})
            assert "Missing" in text_of_answer(wrong)
            assert up.seen() == [], "a call that is refused reaches no hook"
            answer = await up.ask(era, route, "send", {"to": "a", "count": "3"})
            [before] = up.seen("before_call")
            assert before["args"] == {"to": "a", "count": 3, "note": "by default"}
            [after] = up.seen("after_call")
            assert [item["text"] for item in after["result"]["content"]] == ["'to' was not provided"]
            assert "Added by the gateway" in text_of_answer(answer)


async def test_conditions_match_wrappers_servers_tags_and_principals_in_both_phases(tmp_path: Path) -> None:
    conditions = {
        "by-wrapper": {"wrappers": ["up__e*"]}, "by-tool": {"wrappers": ["echo"]}, "by-server": {"servers": ["u?"]},
        "by-tag": {"tags": ["ma*"]}, "by-caller": {"principals": ["ann"]},
        "not-wrapper": {"wrappers": ["up__send"]}, "not-server": {"servers": ["other"]}, "not-tag": {"tags": ["x"]},
        "not-caller": {"principals": ["bob"]}, "none": {"servers": []},
        "one-of-two": {"servers": ["up"], "tags": ["x"]},
    }  # fmt: skip
    hooks = [sample("Recorder", conditions=given, name=name) for name, given in conditions.items()]
    keys = {"auth": {"apiKeys": [{"name": "ann", "key": "key-of-ann"}, {"name": "bob", "key": "key-of-bob"}]}}
    async with hooked(tmp_path, *hooks, gateway=keys, server={"tags": ["mail"]}) as up:
        await up.ask("modern", "wrapper", "echo", {}, authorization="Bearer key-of-ann")
        matching = [name for name in conditions if name.startswith("by-")]
        assert [one["hook"] for one in up.seen("before_call")] == matching
        assert sorted(one["hook"] for one in up.seen("after_call")) == sorted(matching)
        assert {one["metadata"]["principal"] for one in up.seen()} == {"ann"}


async def test_validating_hook_may_block_but_not_change(tmp_path: Path) -> None:
    changing = sample("Setter", mode="validate", config={"set": {"x": 1}}, conditions={"wrappers": ["echo"]})
    blocking = sample("Blocker", mode="validate", conditions={"wrappers": ["send"]})
    async with hooked(tmp_path, changing, blocking) as up:
        answer = await up.ask("modern", "wrapper", "echo", {})
        assert "Hook 'setter' returned a Call, which its mode validate does not allow" in text_of_answer(answer)
        assert "not on Sundays" in text_of_answer(await up.ask("modern", "wrapper", "send", {"to": "a"}))
        assert up.recording.calls() == []


async def test_audit_hooks_receive_final_calls_and_results_and_change_nothing(tmp_path: Path) -> None:
    hooks = [
        sample("Setter", config={"set": {"x": 2}}), sample("Stamper", config={"stamp": "stamped"}),
        sample("Recorder", mode="audit", priority=0, name="auditor"),
        sample("Hostile", mode="audit", config={"deed": "mutate"}, name="mutator"),
        sample("Hostile", mode="audit", config={"deed": "rewrite"}, name="rewriter"),
        sample("Blocker", mode="audit", name="objector"),
    ]  # fmt: skip
    async with hooked(tmp_path, *hooks) as up:
        answer = await up.ask("modern", "wrapper", "echo", {"x": 1})
        assert answer["result"]["structuredContent"] == {"x": 2}
        [before] = await up.until_seen(1, "before_call", "auditor")
        assert before["args"] == {"x": 2}
        [after] = await up.until_seen(1, "after_call", "auditor")
        assert after["result"]["content"][-1]["text"] == "stamped"


async def test_audit_hooks_receive_blocked_calls_with_the_blocking_hook(tmp_path: Path) -> None:
    auditor = sample("Recorder", mode="audit", name="auditor")
    async with hooked(tmp_path, sample("Blocker"), auditor) as up:
        await up.ask("modern", "wrapper", "echo", {"x": 1})
        [after] = await up.until_seen(1, "after_call")
        assert after["metadata"]["blocked_by"] == "blocker"
        assert after["error"] is True


async def test_concurrent_hooks_run_together_and_may_block(tmp_path: Path) -> None:
    slow = [
        {**sample("Slow", mode="concurrent", config={"seconds": 1}), "name": f"slow-{number}"} for number in range(5)
    ]
    blocking = sample(
        "Slow", mode="concurrent", config={"seconds": 0.1, "block": "no"}, conditions={"wrappers": ["send"]}
    )
    async with hooked(tmp_path, *slow, {**blocking, "name": "blocking"}) as up:
        began_s = time.perf_counter()
        assert "isError" not in (await up.ask("modern", "wrapper", "echo", {}))["result"]
        assert time.perf_counter() - began_s < 3, "five times a second, one after the other, is 5 s"
        assert "hook 'blocking': no" in text_of_answer(await up.ask("modern", "wrapper", "send", {"to": "a"}))


async def test_hook_answers_in_place_of_its_tool_and_outer_hooks_see_it(tmp_path: Path) -> None:
    inner = sample("Recorder", priority=200, name="inner")
    async with hooked(tmp_path, sample("Answerer"), sample("Recorder", priority=1, name="outer"), inner) as up:
        answer = await up.ask("modern", "wrapper", "echo", {})
        assert text_of_answer(answer) == "answered by the hook"
        assert [(one["hook"], one["phase"]) for one in up.seen()] == [("outer", "before_call"), ("outer", "after_call")]
        assert up.recording.calls() == []


async def test_upstream_protocol_error_is_passed_to_hooks_unchanged(tmp_path: Path) -> None:
    fault = {"faults": {"error": {"code": -32055, "message": "quota of s3cr3t"}}}
    async with hooked(tmp_path, sample("Recorder"), **fault) as up:
        answer = await up.ask("modern", "wrapper", "echo", {})
        assert answer["error"]["code"] == -32055
        [after] = up.seen("after_call")
        assert after["result"]["content"][0]["text"] == "quota of s3cr3t"


async def test_plain_function_can_be_a_hook(tmp_path: Path) -> None:
    async with hooked(tmp_path, sample("Plain")) as up:
        assert (await up.ask("modern", "wrapper", "echo", {"x": 1}))["result"]["structuredContent"]["thread"] is True


@pytest.mark.heavy
async def test_task_result_passes_its_hooks_when_requested(tmp_path: Path) -> None:
    extension = {"io.modelcontextprotocol/tasks": {}}
    begun = {"resultType": "task", "taskId": "t-1", "status": "working", "pollIntervalMs": 1}
    secret = {"content": [{"type": "text", "text": "key AKIAIOSFODNN7EXAMPLE"}]}
    script = {
        "modern": True,
        "capabilities": {"extensions": extension},
        "behaviours": {"echo": {"kind": "result", "with": {"result": begun}}},
        "answers": {"tasks/get": {"taskId": "t-1", "status": "completed", "result": secret, "resultType": "complete"}},
    }
    hooks = [
        {"name": "redact", "use": "redact", "conditions": {"wrappers": ["up__echo"]}}, sample("Recorder"),
        sample("Stamper", config={"stamp": "of send"}, conditions={"wrappers": ["up__send"]}),
    ]  # fmt: skip
    async with hooked(tmp_path, *hooks, **script) as up:
        knows = {"_meta": envelope(**{META + "clientCapabilities": {"extensions": extension}})}

        async def ask(method: str, named: str, **params: Any) -> dict[str, Any]:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, **knows}}
            result: dict[str, Any] = answer_of(await up.gateway.post(body, {"mcp-name": named}))["result"]
            return result

        task = await ask("tools/call", "up__echo", name="up__echo", arguments={})
        assert task["status"] == "working"
        assert up.seen("after_call") == [], "it is no result yet"
        done = await ask("tasks/get", task["taskId"], taskId=task["taskId"])
        assert [item["text"] for item in done["result"]["content"]] == ["key [redacted secret]"]
        assert up.seen("after_call")[0]["metadata"]["wrapper"] == "up__echo"


async def test_error_of_a_failed_prompt_passes_its_hooks(tmp_path: Path) -> None:
    fault = {"error": {"code": -32050, "message": "the key AKIAIOSFODNN7EXAMPLE is refused", "on": ["prompts/get"]}}
    hooks = [{"name": "redact", "use": "redact"}, sample("Recorder", mode="audit")]
    async with hooked(tmp_path, *hooks, faults=fault, **PROMPTS_AND_RESOURCES) as up:
        answer = await up.rpc("modern", "prompts/get", {"name": "up__greet"})
        assert (answer["error"]["code"], answer["error"]["message"]) == (-32050, "the key [redacted secret] is refused")
        assert len(await up.until_seen(1, "after_prompt")) == 1


NAMES: dict[str, Any] = {
    "tool_name": "t", "metadata": {"wrapper": "w"}, "client_session_id": "c", "name": "n", "args": [1], "server": "s",
}  # fmt: skip


@pytest.mark.parametrize("shape", ["native", "nested", "metadata"])
async def test_arguments_of_any_name_pass_a_no_op_hook_in_every_shape(shape: str, tmp_path: Path) -> None:
    hooks = [sample("Silent", payloadFormat=shape), sample("Same", payloadFormat=shape)]
    async with hooked(tmp_path, *hooks, sample("Recorder", payloadFormat=shape)) as up:
        for era, route in up.every_way():
            # `arguments` alone would be taken for a wrapping of the others on either route.
            for sent in (NAMES, {"arguments": "text", **NAMES}):
                assert "isError" not in (await up.ask(era, route, "echo", sent))["result"]
                assert up.recording.calls()[-1]["arguments"] == sent
            seen = up.seen("before_call")[0]["args"]
            inner = {"native": seen, "nested": seen.get("tool_args"), "metadata": seen.get("arguments")}[shape]
            assert inner == NAMES
            if shape == "metadata":
                assert seen["metadata"]["via"] == route


async def test_flat_shape_refuses_only_an_argument_named_metadata(tmp_path: Path) -> None:
    async with hooked(tmp_path, sample("Same", payloadFormat="flatMetadata")) as up:
        for era, route in up.every_way():
            answer = await up.ask(era, route, "echo", {"metadata": 1})
            assert "Hook 'same' cannot receive an argument named `metadata`" in text_of_answer(answer)
            assert up.recording.calls() == []
            rest = {key: value for key, value in NAMES.items() if key != "metadata"}
            await up.ask(era, route, "echo", rest)
            assert up.recording.calls()[0]["arguments"] == rest


@pytest.mark.parametrize("route", ROUTES)
async def test_elicitation_is_answered_although_a_hook_changes_the_call(route: str, tmp_path: Path) -> None:
    script = {"modern": True, "tools": [tool("elicit", message="string")]}
    async with hooked(tmp_path, sample("Nonce"), sample("Recorder"), **script) as up:
        asks = {"_meta": envelope(**{META + "clientCapabilities": {"elicitation": {"form": {}}}})}
        inner = {"message": "Who?"}
        params: dict[str, Any] = {"name": "up__elicit", "arguments": inner}
        if route == "invoke_tool":
            params = {"name": route, "arguments": {"server": "up", "tool": "elicit", "arguments": inner}}

        async def ask(**more: Any) -> dict[str, Any]:
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**params, **more, **asks}}
            return answer_of(await up.gateway.post(body))

        question = (await ask())["result"]
        assert question["resultType"] == "input_required"
        replies = {"who": {"action": "accept", "content": {"name": "Ann"}}}
        done = await ask(inputResponses=replies, requestState=question["requestState"])
        assert json.loads(text_of_answer(done)) == [replies, "opaque-état-1"]
        assert len({call["arguments"]["nonce"] for call in up.recording.calls()}) == 2
        assert len(up.seen("after_call")) == 1, "a question is no result"
        params["arguments"] = {**params["arguments"], "message": "Other?"}
        other = await ask(inputResponses=replies, requestState=question["requestState"])
        assert "error" in other or other["result"].get("isError"), "a state is for the call that it was given for"
