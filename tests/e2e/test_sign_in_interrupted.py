"""A caller may disconnect during a token refresh: the new tokens are stored, and none is used twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from faults.observing import eventually
from support.callers import call_of, handshake
from support.gateways import RunningGateway, brief_pause, running_gateway, serving, text_of
from support.rotating import Rotating, rotating_server, sign_in_to


async def leave_by(way: str, gateway: RunningGateway, server: Rotating) -> None:
    """Have a call begin a refresh and end while the issuer has not answered."""
    session = await handshake(gateway)
    async with anyio.create_task_group() as group:
        if way == "disconnect":
            group.start_soon(gateway.post, call_of("shop__look"))
        else:
            group.start_soon(lambda: session.call("shop__look", request_id="last"))
        with anyio.fail_after(25):
            await server.arrived.wait()
        if way == "disconnect":
            group.cancel_scope.cancel()
        elif way == "cancel":
            await session.notify("notifications/cancelled", requestId="last")
        elif way == "end of session":
            response = await gateway.client.delete(gateway.url, headers=session.headers)
            assert response.status_code in (200, 202, 204)
        elif way in CHANGES:
            document = json.loads(gateway.config.read_text())
            entry = document["mcpServers"]["shop"]
            document["mcpServers"] = CHANGES[way](entry)
            gateway.config.write_text(json.dumps(document))
            await eventually(lambda: "configuration reloaded" in gateway.logged())
            group.cancel_scope.cancel()
        # The call ends at its own deadline.


# Configurations that are applied while the issuer has not answered.
CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "other limits": lambda entry: {"shop": {**entry, "callTimeout": 30}},
    "other headers": lambda entry: {"shop": {**entry, "headers": {"x-region": "eu"}}},
    "another server": lambda entry: {"shop": entry, "more": {"url": "http://127.0.0.1:9/mcp"}},
}


@pytest.mark.parametrize(
    "way",
    [
        *("disconnect", "cancel", "end of session", "deadline"),
        *(pytest.param(one, marks=pytest.mark.heavy) for one in CHANGES),
    ],
)
async def test_caller_disconnecting_during_a_refresh_loses_no_tokens(tmp_path: Path, way: str) -> None:
    more = {"callTimeout": 1} if way == "deadline" else {}
    async with (
        rotating_server() as server,
        running_gateway(tmp_path, {"shop": {"url": server.lying.url, **more}}) as gateway,
    ):
        await sign_in_to(gateway)
        server.refuse_present_token()
        await leave_by(way, gateway, server)
        server.release.set()
        assert text_of(await gateway.call("shop__look")) == "seen"
        assert server.spent == ["refresh-1"]
        # The next refresh spends the new refresh token.
        server.refuse_present_token()
        assert text_of(await gateway.call("shop__look")) == "seen"
        assert server.spent == ["refresh-1", "refresh-2"]
        assert not server.revoked


async def test_fifty_callers_share_one_refresh_and_remaining_ones_are_answered(tmp_path: Path) -> None:
    async with (
        rotating_server() as server,
        running_gateway(tmp_path, {"shop": {"url": server.lying.url, "maxConcurrency": 100}}) as gateway,
    ):
        await sign_in_to(gateway)
        server.refuse_present_token()
        answers: list[str] = []

        async def stay() -> None:
            answers.append(text_of(await gateway.call("shop__look")))

        async with anyio.create_task_group() as staying:
            async with anyio.create_task_group() as leaving:
                for _ in range(25):
                    leaving.start_soon(gateway.post, call_of("shop__look"))
                for _ in range(25):
                    staying.start_soon(stay)
                with anyio.fail_after(25):
                    await server.arrived.wait()
                leaving.cancel_scope.cancel()
            server.release.set()
        assert answers == ["seen"] * 25
        assert server.spent == ["refresh-1"]
        assert not server.revoked


async def test_gateway_stopped_during_a_refresh_keeps_the_new_tokens(tmp_path: Path) -> None:
    async with rotating_server() as server:
        async with running_gateway(tmp_path, {"shop": {"url": server.lying.url}}) as gateway:
            await sign_in_to(gateway)
            server.refuse_present_token()
            async with anyio.create_task_group() as group:
                group.start_soon(gateway.post, call_of("shop__look"))
                with anyio.fail_after(25):
                    await server.arrived.wait()
                group.cancel_scope.cancel()
            async with anyio.create_task_group() as group:
                group.start_soon(gateway.stop)
                await anyio.lowlevel.checkpoint()
                server.release.set()
        async with serving(gateway.config, tmp_path) as again:
            await again.until_listed("shop__look")
            assert text_of(await again.call("shop__look")) == "seen"
        assert server.spent == ["refresh-1"]
        assert not server.revoked


async def test_cached_answer_ends_with_its_sign_in(tmp_path: Path) -> None:
    hooks = {"hooks": [{"name": "cached", "use": "cache"}]}
    async with (
        rotating_server() as server,
        running_gateway(tmp_path, {"shop": {"url": server.lying.url}}, gateway=hooks) as gateway,
    ):
        await sign_in_to(gateway)
        assert text_of(await gateway.call("shop__look")) == "seen"
        assert "typegate/cachedSeconds" in (await gateway.call("shop__look"))["_meta"]
        assert (await gateway.admin("servers/shop/sign-in", "DELETE")).json() == {"signedOut": True}
        with anyio.fail_after(25):  # the connection ends after the answer to the administrator
            while "requires a user to sign in" not in text_of(await gateway.call("shop__look")):
                await brief_pause()
        # The next person who signs in may be a different one.
        await sign_in_to(gateway)
        assert "typegate/cachedSeconds" not in (await gateway.call("shop__look"))["_meta"]
