"""A caller whose call refreshes a token may leave at any moment: the new tokens are kept, and none is spent twice."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from support.callers import call_of, handshake
from support.gateways import RunningGateway, running_gateway, serving, text_of
from support.rotating import Rotating, rotating_server, sign_in_to


async def leave_by(way: str, gateway: RunningGateway, server: Rotating) -> None:
    """Have a call begin a refresh and end while the issuer has not answered."""
    session = await handshake(gateway)
    async with anyio.create_task_group() as group:
        if way == "disconnect":
            group.start_soon(gateway.post, call_of("shop__look"))
        else:
            group.start_soon(lambda: session.call("shop__look", request_id="last"))
        with anyio.fail_after(10):
            await server.arrived.wait()
        if way == "disconnect":
            group.cancel_scope.cancel()
        elif way == "cancel":
            await session.notify("notifications/cancelled", requestId="last")
        elif way == "end of session":
            response = await gateway.client.delete(gateway.url, headers=session.headers)
            assert response.status_code in (200, 202, 204)
        # The deadline of a call ends it by itself.


@pytest.mark.parametrize("way", ["disconnect", "cancel", "end of session", "deadline"])
async def test_a_caller_that_ends_during_a_refresh_loses_no_tokens(tmp_path: Path, way: str) -> None:
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


async def test_fifty_callers_share_one_refresh_and_those_that_stay_are_answered(tmp_path: Path) -> None:
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
                with anyio.fail_after(10):
                    await server.arrived.wait()
                leaving.cancel_scope.cancel()
            server.release.set()
        assert answers == ["seen"] * 25
        assert server.spent == ["refresh-1"]
        assert not server.revoked


async def test_a_gateway_that_is_stopped_during_a_refresh_keeps_the_new_tokens(tmp_path: Path) -> None:
    async with rotating_server() as server:
        async with running_gateway(tmp_path, {"shop": {"url": server.lying.url}}) as gateway:
            await sign_in_to(gateway)
            server.refuse_present_token()
            async with anyio.create_task_group() as group:
                group.start_soon(gateway.post, call_of("shop__look"))
                with anyio.fail_after(10):
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


async def test_a_cached_answer_ends_with_the_sign_in_that_it_was_given_to(tmp_path: Path) -> None:
    hooks = {"hooks": [{"name": "cached", "use": "cache"}]}
    async with (
        rotating_server() as server,
        running_gateway(tmp_path, {"shop": {"url": server.lying.url}}, gateway=hooks) as gateway,
    ):
        await sign_in_to(gateway)
        assert text_of(await gateway.call("shop__look")) == "seen"
        assert "typegate/cachedSeconds" in (await gateway.call("shop__look"))["_meta"]
        assert (await gateway.admin("servers/shop/sign-in", "DELETE")).json() == {"signedOut": True}
        assert "needs somebody to sign in" in text_of(await gateway.call("shop__look"))
        # Whoever signs in next may be somebody else.
        await sign_in_to(gateway)
        assert "typegate/cachedSeconds" not in (await gateway.call("shop__look"))["_meta"]
