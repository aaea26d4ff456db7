"""Tools of every transport are listed and called over real connections."""

from __future__ import annotations

from pathlib import Path

from support.gateways import running_gateway, text_of
from support.upstreams.running import builtin_tools, scripted_http_server, scripted_stdio_server


async def test_tools_of_every_transport_are_listed_and_called(tmp_path: Path) -> None:
    stdio, record = scripted_stdio_server(tmp_path, "s", tools=builtin_tools("echo"), modern=True)
    old, old_record = scripted_stdio_server(tmp_path, "o", tools=builtin_tools("echo"), modern=False)
    async with scripted_http_server(tmp_path, "h", tools=builtin_tools("echo")) as http:
        servers = {"s": stdio, "o": old, "h": http.config, "e": {"type": "sse", "url": http.sse_url}}
        async with running_gateway(tmp_path, servers) as gateway:
            await gateway.until_listed("s__echo", "o__echo", "h__echo", "e__echo")
            for alias in servers:
                result = await gateway.call(f"{alias}__echo", {"a": [1, None, {"b": 2**60}]})
                assert result["structuredContent"] == {"a": [1, None, {"b": 2**60}]}, result
            assert [one["arguments"] for one in record.calls()] == [{"a": [1, None, {"b": 2**60}]}]
            assert len(old_record.calls()) == 1
            assert len(http.recording.calls()) == 2
            assert "no tool 'ech'" in text_of(await gateway.call("s__ech"))
            assert await gateway.stop() == 0
