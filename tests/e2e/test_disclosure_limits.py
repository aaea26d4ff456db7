"""Refusals, suggestions, metrics and unknown paths do not reveal items that the caller may not use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.gateways import MODERN, TOKEN, RunningGateway, answer_of, running_gateway
from support.upstreams.running import rescript, scripted_stdio_server, tool
from support.visitors import Visitor

KEYS = [
    {"name": "whole", "key": "key-of-whole"},
    {"name": "scraper", "key": "key-of-scraper", "scopes": ["metrics"]},
    {"name": "caller", "key": "key-of-caller", "scopes": ["tools"]},
]


async def scraped(gateway: RunningGateway, token: str | None) -> tuple[int, str]:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    answer = await gateway.client.get(f"{gateway.origin}/metrics", headers=headers)
    return answer.status_code, answer.text


@pytest.mark.heavy
@pytest.mark.parametrize("arguments", [(), ("--workers", "2")])
async def test_metrics_require_a_key_or_the_admin_token_if_keys_exist(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    config, _ = scripted_stdio_server(tmp_path, "secret-server", tools=[tool("read")])
    servers = {"secret-server": {**config, "copies": True}}
    async with running_gateway(tmp_path, servers, gateway={"auth": {"apiKeys": KEYS}}, arguments=arguments) as gateway:
        for token in (None, "wrong", "key-of-caller"):
            status, text = await scraped(gateway, token)
            assert (status, "secret" in text, "typegate_info" in text) == (401, False, False), token
        for token in ("key-of-whole", "key-of-scraper", TOKEN):
            status, text = await scraped(gateway, token)
            assert (status, "typegate_info" in text) == (200, True), token
        head = await gateway.client.head(f"{gateway.origin}/metrics")
        assert head.status_code == 401


@pytest.mark.parametrize(
    ("options", "is_open"),
    [
        ({}, True),
        ({"admin": {"token": "of-the-file"}}, False),
        ({"auth": {"apiKeys": KEYS}, "metrics": {"public": True}}, True),
    ],
)
async def test_metrics_are_open_without_credentials_or_by_choice(
    options: dict[str, Any], is_open: bool, tmp_path: Path
) -> None:
    async with running_gateway(tmp_path, {}, gateway=options) as gateway:
        assert (await scraped(gateway, None))[0] == (200 if is_open else 401)
        assert (await scraped(gateway, TOKEN))[0] == 200


async def test_unknown_and_existing_profiles_look_alike_without_a_key(tmp_path: Path) -> None:
    options = {"auth": {"apiKeys": KEYS}, "profiles": {"secret": {}}}
    async with running_gateway(tmp_path, {}, gateway=options) as gateway:
        answers = [await gateway.client.post(f"{gateway.url}/{name}", json={}) for name in ("secret", "none")]
        assert [one.status_code for one in answers] == [401, 401]
        assert answers[0].content == answers[1].content
        known = {"authorization": "Bearer key-of-whole"}
        assert (await gateway.client.post(f"{gateway.url}/none", json={}, headers=known)).status_code == 404


async def test_refusal_names_no_tool_or_server_of_another_profile(tmp_path: Path) -> None:
    lookup = tool("lookup_secret", "key", key={"type": "integer"})
    shared, record = scripted_stdio_server(tmp_path, "shared", tools=[tool("read"), lookup], list_changed=True)
    other, _ = scripted_stdio_server(tmp_path, "other", tools=[tool("grab")])
    gone, _ = scripted_stdio_server(tmp_path, "gone", tools=[tool("grab")])
    profiles = {
        "narrow": {"servers": ["shared"], "tools": ["read", "lookup_*"]},
        "reader": {"tools": ["shared__read"]},
    }
    servers = {"shared": shared, "other": other, "gone": gone}
    async with running_gateway(tmp_path, servers, gateway={"profiles": profiles}) as gateway:
        await gateway.until_listed("shared__lookup_secret", "other__grab", "gone__grab")
        # A tool that replaces another is only in the profile of all tools.
        found = {**lookup, "name": "find_secret"}
        rescript(shared, record, announce=True, tools=[tool("read"), found], list_changed=True)
        await gateway.until_listed("shared__find_secret")
        assert (await gateway.admin("servers/gone", "DELETE")).status_code == 204
        visitor = Visitor(gateway=gateway, era=MODERN)

        async def answer_text(name: str, profile: str | None, arguments: Any = None) -> str:
            params = {"name": name, "arguments": arguments or {}}
            return json.dumps(answer_of(await visitor.sent("tools/call", params, profile)))

        assert "Call shared__find_secret instead" in await answer_text("shared__lookup_secret", None)
        narrow = await answer_text("shared__lookup_secret", "narrow")
        assert "no longer has the tool" in narrow
        assert "find_secret" not in narrow
        assert "no longer" not in await answer_text("shared__lookup_secret", "reader")
        assert "was removed" in await answer_text("gone__grab", None)
        for profile in ("narrow", "reader"):
            texts = set()
            for server in ("gone", "other", "never"):
                for name, arguments in (
                    (f"{server}__grab", None),
                    ("invoke_tool", {"server": server, "tool": "grab", "arguments": {}}),
                    ("get_server_details", {"server": server}),
                ):
                    text = await answer_text(name, profile, arguments)
                    assert "removed" not in text
                    texts.add(text.replace(server, "NAME"))
            # One text for each way of asking, whichever server is asked for.
            assert len(texts) == 3, texts
