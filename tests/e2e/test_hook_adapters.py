"""Hooks behind adapters: webhooks, and plugins of another framework."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.hooked import ERAS, ROUTES, every_way, hooked, text_of_answer
from support.receiving import SECRET, receiver

from gateway.hooks.adapters.webhook import sign, verify

# Each starts a gateway, a receiver or a plugin framework.
pytestmark = pytest.mark.heavy

PROMPTS_AND_RESOURCES: dict[str, Any] = {
    "capabilities": {"prompts": {}, "resources": {}},
    "answers": {
        "prompts/list": {"prompts": [{"name": "greet", "arguments": [{"name": "who"}]}]},
        "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": "call 555-0100"}}]},
        "resources/list": {"resources": [{"uri": "file:///a", "name": "a"}]},
        "resources/read": {
            "contents": [{"uri": "file:///a", "text": "content of a"}, {"uri": "file:///a", "blob": "AA=="}]
        },
    },
}


def webhook(url: str, **entry: Any) -> dict[str, Any]:
    return {"name": "remote", "webhook": url, "config": {"secret": SECRET}, **entry}


@every_way
async def test_webhook_receives_full_requests_before_and_after_a_call(era: str, route: str, tmp_path: Path) -> None:
    with receiver() as remote:
        async with hooked(tmp_path, webhook(remote.url), server={"tags": ["mail"]}) as up:
            answer = await up.ask(era, route, "echo", {"metadata": {"x": 1}, "to": "é"}, request_id="r-9")
            assert answer["result"]["structuredContent"] == {"metadata": {"x": 1}, "to": "é"}
        before, after = remote.got
        assert (before["phase"], after["phase"]) == ("beforeCall", "afterCall")
        assert (before["name"], before["args"]) == ("echo", {"metadata": {"x": 1}, "to": "é"})
        known = before["metadata"]
        assert (known["wrapper"], known["server"], known["via"]) == ("up__echo", "up", route)
        assert (known["requestId"], known["tags"], known["principal"]) == ("r-9", ["mail"], "local")
        assert json.loads(after["result"]["content"][0]["text"]) == before["args"]
        assert remote.verified == [True, True]
        assert [head["typegate-delivery"].partition(":")[2] for head in remote.headers] == ["beforeCall", "afterCall"]
        assert len(remote.connections) == 1, "the connection is kept"


async def test_webhook_rewrites_and_blocks(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, bytes, dict[str, str]]:
        if body["phase"] == "afterCall":
            content = [*body["result"]["content"], {"type": "text", "text": "seen"}]
            return 200, json.dumps({"result": {**body["result"], "content": content}}).encode(), {}
        if body["name"] == "send":
            return 200, json.dumps({"block": {"reason": "no mail", "description": "Ever."}}).encode(), {}
        return 200, json.dumps({"args": {**body["args"], "by": "webhook"}}).encode(), {}

    with receiver(answer) as remote:
        async with hooked(tmp_path, webhook(remote.url)) as up:
            for era, route in up.every_way():
                answered = await up.ask(era, route, "echo", {"x": 1})
                assert up.recording.calls()[0]["arguments"] == {"x": 1, "by": "webhook"}
                assert text_of_answer(answered).endswith("seen")
                assert "hook 'remote': no mail\nEver." in text_of_answer(await up.ask(era, route, "send", {"to": "a"}))
                assert len(up.recording.calls()) == 1


FAULTS: dict[str, tuple[Any, str]] = {
    "status": ((500, b"secret trace", {}), "answered HTTP 500"),
    "no json": ((200, b"<html>", {}), "answered with something that is not JSON"),
    "unknown": ({"allow": True}, "answered with something other than one of args, answer, result, block"),
    "wrong phase": ({"result": {"content": []}}, "answered with `result` before the call"),
    "no reason": ({"block": {}}, "blocked without a `reason`"),
    "too large": ((200, b'{"args": {"x": "' + b"y" * 9_000_000 + b'"}}', {}), "larger than"),
    "redirected away": ((307, b"", {"location": "http://127.0.0.2:1/"}), "another origin"),
    "compressed": ((200, b"{}", {"content-encoding": "gzip"}), "compressed"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_invalid_webhook_answer_fails_the_call_and_is_reported(fault: str, tmp_path: Path) -> None:
    given, words = FAULTS[fault]
    with receiver((lambda body: given) if isinstance(given, tuple) else given) as remote:
        async with hooked(tmp_path, webhook(remote.url)) as up:
            answer = await up.ask("modern", "wrapper", "echo", {"x": 1})
            assert "Hook 'remote' " in text_of_answer(answer)
            assert words in text_of_answer(answer)
            assert "secret trace" not in text_of_answer(answer)
            assert up.recording.calls() == []


async def test_unreachable_or_hanging_webhook_fails_in_time_or_is_ignored(tmp_path: Path) -> None:
    ended = threading.Event()

    def hang(body: dict[str, Any]) -> tuple[int, bytes, dict[str, str]]:
        ended.wait(30)
        return 200, b"{}", {}

    with receiver(hang) as remote:
        hooks = [
            webhook("http://127.0.0.1:1/", name="absent", conditions={"wrappers": ["echo"]}),
            webhook(remote.url, name="slow", timeout=0.2, onError="ignore", conditions={"wrappers": ["send"]}),
        ]
        async with hooked(tmp_path, *hooks) as up:
            assert "Hook 'absent' could not be reached (cannot connect" in text_of_answer(
                await up.ask("modern", "wrapper", "echo")
            )
            with anyio.fail_after(2.5):
                answer = await up.ask("modern", "wrapper", "send", {"to": "a"})
            ended.set()
            assert "isError" not in answer["result"]
            assert (await up.hook("slow"))["counts"]["ignored"] == 2


async def test_webhook_connection_lost_during_a_request_fails_no_call(tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(body: dict[str, Any]) -> tuple[int, bytes, dict[str, str]]:
        seen.append(f"{body['metadata']['callId']}:{body['phase']}")
        if len(seen) == 2:
            raise ConnectionAbortedError  # the receiver drops the connection without a word
        return 200, b"{}", {}

    with receiver(answer) as remote:
        async with hooked(tmp_path, webhook(remote.url)) as up:
            assert "isError" not in (await up.ask("modern", "wrapper", "echo", {}))["result"]
        assert len(seen) == 3
        assert seen[1] == seen[2] == remote.headers[1]["typegate-delivery"]


def test_signature_covers_body_time_delivery_and_secret() -> None:
    body, at = b'{"phase":"beforeCall"}', "1700000000"
    delivery = "1f-2:beforeCall"
    headers = {
        "typegate-timestamp": at,
        "typegate-delivery": delivery,
        "typegate-signature": sign(SECRET, at, body, delivery),
    }
    assert verify(SECRET, headers, body, now_s=1_700_000_000)
    assert verify(SECRET, headers, body, now_s=1_700_000_299)
    assert not verify(SECRET, headers, body, now_s=1_700_000_301), "replayed later"
    assert not verify(SECRET, headers, body + b" ", now_s=1_700_000_000)
    assert not verify(SECRET + "x", headers, body, now_s=1_700_000_000)
    assert not verify(SECRET, {**headers, "typegate-timestamp": "1700000001"}, body, now_s=1_700_000_000)
    without = {name: value for name, value in headers.items() if name != "typegate-delivery"}
    for wrong in (
        {}, {**headers, "typegate-timestamp": "now"}, {**headers, "typegate-signature": "é"}, without,
        {**headers, "typegate-delivery": "1f-3:beforeCall"}, {**headers, "typegate-delivery": ""},
    ):  # fmt: skip
        assert not verify(SECRET, wrong, body, now_s=1_700_000_000)


# plugins of the ContextForge framework

PLUGIN = '''
"""A plugin in the shape of the framework's own template."""

from cpex.framework import (
    Plugin, PluginConfig, PluginContext, PluginViolation,
    PromptPosthookPayload, PromptPosthookResult, PromptPrehookPayload, PromptPrehookResult,
    ResourcePostFetchPayload, ResourcePostFetchResult, ResourcePreFetchPayload, ResourcePreFetchResult,
    ToolPostInvokePayload, ToolPostInvokeResult, ToolPreInvokePayload, ToolPreInvokeResult,
)


class Words(Plugin):
    def __init__(self, config: PluginConfig):
        super().__init__(config)
        self.word = config.config["word"]

    async def tool_pre_invoke(self, payload: ToolPreInvokePayload, context: PluginContext) -> ToolPreInvokeResult:
        if payload.args.get("forbidden"):
            violation = PluginViolation(
                reason="Forbidden word", description="It was said.", code="WORDS", mcp_error_code=-32011
            )
            return ToolPreInvokeResult(continue_processing=False, violation=violation)
        context.state["began"] = payload.name
        shared = context.global_context
        seen = [payload.name, shared.user, shared.server_id, shared.request_id, shared.metadata["via"]]
        args = {**payload.args, "word": self.word, "seen": seen}
        return ToolPreInvokeResult(modified_payload=payload.model_copy(update={"args": args}))

    async def tool_post_invoke(self, payload: ToolPostInvokePayload, context: PluginContext) -> ToolPostInvokeResult:
        text = f"{context.state['began']} ended: {sorted(payload.result)}"
        result = {**payload.result, "content": [*payload.result["content"], {"type": "text", "text": text}]}
        return ToolPostInvokeResult(modified_payload=payload.model_copy(update={"result": result}))

    async def prompt_pre_fetch(self, payload: PromptPrehookPayload, context: PluginContext) -> PromptPrehookResult:
        changed = PromptPrehookPayload(prompt_id=payload.prompt_id, args={"who": self.word})
        return PromptPrehookResult(modified_payload=changed)

    async def prompt_post_fetch(self, payload: PromptPosthookPayload, context: PluginContext) -> PromptPosthookResult:
        payload.result.messages[0].content.text += " (checked)"
        return PromptPosthookResult(modified_payload=payload)

    async def resource_pre_fetch(self, payload: ResourcePreFetchPayload, context) -> ResourcePreFetchResult:
        return ResourcePreFetchResult(continue_processing=True)

    async def resource_post_fetch(self, payload: ResourcePostFetchPayload, context) -> ResourcePostFetchResult:
        if getattr(payload.content, "text", None) is None:
            return ResourcePostFetchResult(continue_processing=True)
        payload.content.text = payload.content.text.upper()
        return ResourcePostFetchResult(modified_payload=payload)
'''
PLUGINS = """
plugins:
  - name: "Words"
    kind: "words_{unique}.plugin.Words"
    description: "Says a word"
    version: "0.1.0"
    author: "Tests"
    hooks: ["tool_pre_invoke", "tool_post_invoke", "prompt_pre_fetch", "prompt_post_fetch", "resource_pre_fetch",
            "resource_post_fetch"]
    tags: ["plugin"]
    mode: "enforce"
    priority: 150
    conditions:
      - server_ids: ["up"]
    config:
      word: "plugged"
plugin_dirs: ["plugins"]
plugin_settings:
  plugin_timeout: 30
  fail_on_plugin_error: false
"""


def plugins(tmp_path: Path, text: str = PLUGINS) -> dict[str, Any]:
    package = tmp_path / "plugins" / "words_here"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "plugin.py").write_text(PLUGIN)
    (tmp_path / "plugins.yaml").write_text(text.format(unique="here") if "{unique}" in text else text)
    return {"name": "plugins", "cpex": "./plugins.yaml", "timeout": 20}


@pytest.mark.heavy
@pytest.mark.parametrize("era", ERAS)
async def test_plugin_as_documented_runs_unmodified(era: str, tmp_path: Path) -> None:
    async with hooked(tmp_path, plugins(tmp_path), **PROMPTS_AND_RESOURCES) as up:
        for route in ROUTES:
            answer = await up.ask(era, route, "echo", {"x": 1})
            sent = up.recording.calls()[-1]["arguments"]
            assert (sent["x"], sent["word"]) == (1, "plugged")
            assert (sent["seen"][:3], sent["seen"][4]) == (["echo", "local", "up"], route)
            assert "echo ended: ['content', " in text_of_answer(answer)
            blocked = await up.ask(era, route, "echo", {"forbidden": True})
            assert blocked["result"]["isError"] is True
            assert "Forbidden word\nIt was said. (WORDS)" in text_of_answer(blocked)
            assert blocked["result"]["_meta"]["typegate/blockedBy"]["code"] == -32011
        assert len({call["arguments"]["seen"][3] for call in up.recording.calls()}) == 2
        prompt = await up.rpc(era, "prompts/get", {"name": "up__greet", "arguments": {"who": "Bob"}})
        assert prompt["result"]["messages"] == [
            {"role": "user", "content": {"type": "text", "text": "call 555-0100 (checked)"}}
        ]
        assert up.recording.requests("prompts/get")[0]["params"]["arguments"] == {"who": "plugged"}
        read = await up.rpc(era, "resources/read", {"uri": "file:///a"})
        assert read["result"]["contents"] == [
            {"uri": "file:///a", "text": "CONTENT OF A"},
            {"uri": "file:///a", "blob": "AA=="},
        ]


PUBLISHED = """
plugins:
  - name: "PII"
    kind: "cpex_pii_filter.pii_filter.PIIFilterPlugin"
    hooks: ["tool_pre_invoke", "tool_post_invoke", "prompt_post_fetch"]
    mode: "sequential"
    priority: 10
    config: {detect_email: true, default_mask_strategy: redact, redaction_text: "[GONE]"}
  - name: "Lengths"
    kind: "cpex_output_length_guard.output_length_guard.OutputLengthGuardPlugin"
    hooks: ["tool_post_invoke"]
    mode: "sequential"
    priority: 20
    config: {max_chars: 60, strategy: truncate, ellipsis: "…"}
"""


@pytest.mark.heavy
async def test_published_plugins_run_unmodified(tmp_path: Path) -> None:
    async with hooked(tmp_path, plugins(tmp_path, PUBLISHED), **PROMPTS_AND_RESOURCES) as up:
        for era, route in up.every_way():
            await up.ask(era, route, "echo", {"text": "write to ann@example.com today"})
            assert up.recording.calls()[0]["arguments"] == {"text": "write to [GONE] today"}
            answer = await up.ask(era, route, "echo", {"text": "word " * 200})
            assert len(answer["result"]["content"][0]["text"]) <= 60


# As guards are written for adapters that hand over name, arguments and session together.
SHAPED = """
from cpex.framework import Plugin, PluginContext, ToolPreInvokePayload, ToolPreInvokeResult, PluginViolation


class Guard(Plugin):
    async def tool_pre_invoke(self, payload: ToolPreInvokePayload, context: PluginContext) -> ToolPreInvokeResult:
        args = dict(payload.args)
        told = args if self.config.config["nested"] else args["metadata"]
        if told["tool_name"] != "echo" or not told["client_session_id"]:
            violation = PluginViolation(reason="Unknown tool", description="", code="GUARD", details={})
            return ToolPreInvokeResult(continue_processing=False, violation=violation)
        inner = args[self.config.config["key"]] if self.config.config["key"] else args
        inner["seen"] = True
        return ToolPreInvokeResult(modified_payload=ToolPreInvokePayload(name=payload.name, args=args))
"""
SHAPES = [("nested", True, "tool_args"), ("metadata", False, "arguments"), ("flatMetadata", False, "")]
FORMER = "from mcpgateway.plugins.framework import"


@pytest.mark.heavy
@pytest.mark.parametrize(("shape", "nested", "key"), SHAPES)
async def test_plugin_of_each_shape_runs_unmodified(shape: str, nested: bool, key: str, tmp_path: Path) -> None:
    # Guards for adapters import the framework by the name that it had in ContextForge.
    (tmp_path / "shaped_guard.py").write_text(SHAPED.replace("from cpex.framework import", FORMER))
    entry = {
        "name": "Guard", "kind": "shaped_guard.Guard", "hooks": ["tool_pre_invoke"], "mode": "sequential",
        "config": {"nested": nested, "key": key},
    }  # fmt: skip
    (tmp_path / "guard.yaml").write_text(json.dumps({"plugin_dirs": ["."], "plugins": [entry]}))
    hook = {"name": "guard", "cpex": "./guard.yaml", "timeout": 20, "payloadFormat": shape}
    async with hooked(tmp_path, hook) as up:
        for era, route in up.every_way():
            answer = await up.ask(era, route, "echo", {"x": 1})
            assert "isError" not in answer["result"], answer
            assert up.recording.calls()[0]["arguments"] == {"x": 1, "seen": True}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PLUGINS.replace("plugin.Words", "plugin.Nobody"), "plugins cannot be loaded: Words"),
        ("plugins: [{name: x}]", "plugins.yaml is not a valid plugin configuration: plugins.0.kind: missing"),
        ("plugins: [", "plugins.yaml is not a valid plugin configuration: ParserError"),
        ("plugins: []", "has no phase"),
    ],
)
async def test_unloadable_plugins_stop_the_start(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="did not start") as failure:
        async with hooked(tmp_path, plugins(tmp_path, text)):
            pass
    assert "gateway.hooks[0]" in str(failure.value)
    assert words in str(failure.value)
    assert "Traceback" not in str(failure.value).rpartition("typegate: ")[2]
