"""The request state of a server is encrypted, and valid only for the caller that received it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from support.callers import handshake
from support.gateways import answer_of, envelope, running_gateway
from support.upstreams.running import builtin_tools, scripted_stdio_server

KEYS = {"auth": {"apiKeys": [{"name": name, "key": f"key-of-{name}"} for name in ("ann", "bob")]}}
REPLIES = {"who": {"action": "accept", "content": {"name": "Ann"}}}


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-of-{name}"}


async def test_state_is_encrypted_and_bound_to_caller_tool_and_request(tmp_path: Path) -> None:
    config, recording = scripted_stdio_server(tmp_path, "s", modern=True, tools=builtin_tools("elicit", "echo"))
    async with running_gateway(tmp_path, {"s": config}, gateway=KEYS) as gateway:

        async def ask(principal: str, name: str = "s__elicit", **more: Any) -> dict[str, Any]:
            meta = envelope(**{"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}})
            params = {"name": name, "arguments": {"message": "Who?"}, **more, "_meta": meta}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            return answer_of(await gateway.post(body, bearer(principal)))

        result = (await ask("ann"))["result"]
        assert result["resultType"] == "input_required"
        state: str = result["requestState"]
        readable = base64.urlsafe_b64decode(state + "=" * (-len(state) % 4))
        calls_before = len(recording.calls())
        for principal, name in (("bob", "s__elicit"), ("ann", "s__echo")):
            answer = await ask(principal, name, inputResponses=REPLIES, requestState=state)
            assert answer["error"]["code"] == -32602, answer
        assert len(recording.calls()) == calls_before
        done = (await ask("ann", inputResponses=REPLIES, requestState=state))["result"]
        assert not done.get("isError")
        sent = recording.calls()[-1]["params"]
        assert sent["inputResponses"] == REPLIES
        assert sent["requestState"].encode() not in readable


async def test_handshake_session_cannot_send_input_responses_or_state(tmp_path: Path) -> None:
    config, recording = scripted_stdio_server(
        tmp_path, "s", modern=True, tools=builtin_tools("echo"), capabilities={"prompts": {}, "resources": {}},
        answers={
            "prompts/list": {"prompts": [{"name": "p"}]},
            "prompts/get": {"messages": []},
            "resources/list": {"resources": [{"uri": "x://y", "name": "y"}]},
            "resources/read": {"contents": []},
        },
    )  # fmt: skip
    async with running_gateway(tmp_path, {"s": config}, gateway=KEYS) as gateway:
        session = await handshake(gateway, **bearer("bob"))
        extra = {"inputResponses": REPLIES, "requestState": "the state of another"}
        for method, params in (
            ("tools/call", {"name": "s__echo", "arguments": {}}),
            ("prompts/get", {"name": "s__p"}),
            ("resources/read", {"uri": "x://y"}),
        ):
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, **extra}}
            assert "result" in answer_of(await session.post(body))
        sent = [recording.calls()[0]["params"]]
        sent += [one["params"] for method in ("prompts/get", "resources/read") for one in recording.requests(method)]
        assert len(sent) == 3
        assert not any(member in params for params in sent for member in extra)
