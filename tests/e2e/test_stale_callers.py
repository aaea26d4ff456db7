"""Yesterday's calls are answered with today's names, over a real connection."""

from __future__ import annotations

from pathlib import Path

import anyio
from support.gateways import glance_again, running_gateway, text_of
from support.upstreams.running import rescript, scripted_stdio_server, tool


async def test_a_call_in_the_old_shape_is_told_what_replaced_what(tmp_path: Path) -> None:
    text = {"type": "string"}
    old = tool("send", "to", "subject", to=text, subject={**text, "maxLength": 80})
    new = tool("send", "to", "title", to=text, title={**text, "maxLength": 80})
    lookup = tool("lookup", "key", key={"type": "integer"})
    config, record = scripted_stdio_server(tmp_path, "s", tools=[old, lookup], list_changed=True)
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await gateway.until_listed("s__send")
        rescript(config, record, announce=True, tools=[new, {**lookup, "name": "find"}], list_changed=True)
        await gateway.until_listed("s__find")
        answer = await gateway.call("s__send", {"to": "a", "subject": "b"})
        assert answer["isError"]
        assert "`subject` is now `title`" in text_of(answer)
        assert "no longer has the tool 'lookup'. Call s__find instead." in text_of(await gateway.call("s__lookup"))
        assert record.calls() == []
        with anyio.fail_after(5):
            while "isError" in await gateway.call("s__send", {"to": "a", "title": "b"}):
                await glance_again()
