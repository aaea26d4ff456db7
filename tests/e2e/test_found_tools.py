"""Tools found in a session are added to its list within the budget; every profile describes its servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.test_profiles import LAZY, MAIL, many, server, until_all_ready
from support.gateways import brief_pause, running_gateway, text_of
from support.upstreams.running import tool
from support.visitors import ALWAYS, CHANGED, OWN, Visitor, in_both_eras


async def test_found_tools_follow_the_list_and_the_least_recent_is_dropped(tmp_path: Path) -> None:
    profiles = {"default": {"disclosure": "auto", "maxTools": 24, "maxTokens": 1_000_000}}
    async with running_gateway(tmp_path, {"many": many(tmp_path, 60)}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "many")
        visitor = Visitor(gateway=gateway, era="2025-11-25")
        first = list(await visitor.listed())
        assert len(first) == 19

        async def found(number: int) -> list[str]:
            return await visitor.heard_at("find_tools", {"query": f"tool {number:03}", "limit": 1})

        for number in (59, 58, 57, 56, 55):
            assert await found(number) == [CHANGED, "answer"]
        names = [f"many__tool_{number:03}" for number in (59, 58, 57, 56, 55)]
        assert list(await visitor.listed()) == [*first, *names]
        # A tool that is found again keeps its place. A new one replaces the tool that was found longest ago.
        assert await found(59) == ["answer"]
        assert await found(54) == [CHANGED, "answer"]
        left = [name for name in names if name != "many__tool_058"]
        assert list(await visitor.listed()) == [*first, *left, "many__tool_054"]
        # One search of many finds no more than there is room for, the best among them.
        best = (await visitor.called("find_tools", {"query": "tool 040", "limit": 50}))["structuredContent"]["tools"][0]
        now = list(await visitor.listed())
        assert (len(now), now[:19]) == (24, first)
        assert best["name"] in now
        assert not (await visitor.called("many__tool_058", {})).get("isError")


@in_both_eras
@pytest.mark.heavy
async def test_server_details_are_available_in_every_profile(era: str, tmp_path: Path) -> None:
    config, _ = server(tmp_path, "office", [MAIL, tool("count_days")], displayName="The office")
    big, _ = server(tmp_path, "big", [{**tool(f"t{n}"), "description": "d" * 2_000} for n in range(40)])
    hidden, _ = server(tmp_path, "hidden", [tool("x")])
    profiles = {"default": {"disclosure": "eager", "servers": ["office", "big"]}}
    servers = {"office": config, "big": big, "hidden": hidden}
    async with running_gateway(tmp_path, servers, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "office", "big")
        visitor = Visitor(gateway=gateway, era=era)
        listed = await visitor.listed()
        assert listed.keys() >= ALWAYS
        brief = (await visitor.called("get_server_details", {"server": "office"}))["structuredContent"]
        assert (brief["displayName"], brief["tools"]) == ("The office", 2)
        assert set(brief["toolNames"]) == {"office__send_mail", "office__count_days"}
        assert "definitions" not in brief
        assert (await visitor.called("get_server_details", {"server": "OFFICE"}))["structuredContent"] == brief
        whole = await visitor.called("get_server_details", {"server": "office", "schemas": True})
        definitions = {one["name"]: one for one in whole["structuredContent"]["definitions"]}
        assert definitions["office__send_mail"]["inputSchema"] == MAIL["inputSchema"]
        assert json.loads(text_of(whole)) == whole["structuredContent"]
        long = (await visitor.called("get_server_details", {"server": "big", "schemas": True}))["structuredContent"]
        shown, left_out = len(long["definitions"]), len(long["definitionsLeftOut"])
        assert (shown + left_out, 0 < left_out < 40) == (40, True)
        for wrong in ({"server": "hidden"}, {}, {"server": "office", "schemas": "yes"}):
            assert (await visitor.called("get_server_details", wrong))["isError"], wrong
        assert "find_tools" not in listed
        refused = await visitor.called("get_server_details", {"server": "hidden"})
        assert text_of(refused) == "Not found: there is no server 'hidden'. Servers: big, office."


async def test_details_of_an_unknown_server_explain_or_suggest(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {"gone": {"command": str(tmp_path / "no-such-program")}}) as gateway:
        found: dict[str, Any] = {}
        with anyio.fail_after(25):
            while "problem" not in found:
                await brief_pause()
                found = (await gateway.call("get_server_details", {"server": "gone"}))["structuredContent"]
        assert (found["reachable"], found["tools"]) == (False, 0)
        assert "no-such-program" in found["problem"]
        near = await gateway.call("get_server_details", {"server": "goen"})
        assert near["isError"]
        assert text_of(near) == "Not found: there is no server 'goen'. Did you mean 'gone'? Servers: gone."
        whole = await gateway.call("get_server_details", {"server": "gonne__send_mail"})
        assert "Did you mean 'gone'?" in text_of(whole)
        odd = await gateway.call("get_server_details", {"server": {"name": "gone"}})
        assert text_of(odd) == "Not found: `server` is a text, you sent an object. Servers: gone."


async def test_server_details_add_its_tools_to_the_session_list(tmp_path: Path) -> None:
    config, _ = server(tmp_path, "office", [MAIL, tool("count_days")])
    async with running_gateway(tmp_path, {"office": config}, gateway=LAZY) as gateway:
        await until_all_ready(gateway, "office")
        visitor = Visitor(gateway=gateway, era="2025-11-25")
        assert set(await visitor.listed()) == OWN
        assert await visitor.heard_at("get_server_details", {"server": "office"}) == [CHANGED, "answer"]
        assert set(await visitor.listed()) == OWN | {"office__send_mail", "office__count_days"}
        assert await visitor.heard_at("get_server_details", {"server": "office", "schemas": True}) == ["answer"]
