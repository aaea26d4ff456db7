"""Shared work completes although `Task.cancel()` ends the call that started it."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from support.fake_issuer import AUDIENCE
from support.rotating import Rotating, rotating_server
from support.tasks import owned_tasks
from support.waiting import brief_pause

from gateway.access.oauth.access_tokens import Tokens
from gateway.access.oauth.key_set import Fetched
from gateway.access.principal import LOCAL, Principal, UnverifiedCredentials
from gateway.access.signing import Signer
from gateway.calls.approval_requests import Approvals
from gateway.calls.approval_store import Decision, Lasts, Question
from gateway.calls.caller import Caller
from gateway.config.auth_config import OAuthConfig
from gateway.config.upstream_types.http_config import HttpConfig
from gateway.process.tasks import OwnedTasks
from gateway.protocol.gateway_errors import GatewayError
from gateway.upstream.mcp_connectors import HeadersCommand
from gateway.upstream.oauth.authorization import Addresses
from gateway.upstream.oauth.sign_in import SignIn
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.oauth.token_store import MemoryTokenStore
from gateway.upstream.upstream_credentials import NotSignedIn
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import ServerName, ToolName, WrapperName
from registry.policy.policy import Decision as PolicyDecision

ASKED = PolicyDecision(effect="ask", reason="a rule asks", rule="ask")


async def cancelled(work: Awaitable[Any], once: Callable[[], Awaitable[object]], *, times: int = 1) -> None:
    """Cancel a task that awaits `work` as callers are ended, once `once` has returned."""

    async def wait() -> None:
        await work

    task = asyncio.get_running_loop().create_task(wait())
    with anyio.fail_after(25):
        await once()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_shielded_work_continues_after_its_caller_is_cancelled() -> None:
    begun, release, done = anyio.Event(), anyio.Event(), anyio.Event()

    async def work() -> None:
        with anyio.CancelScope(shield=True):
            begun.set()
            await release.wait()
            done.set()

    async with owned_tasks() as tasks:
        await cancelled(tasks.run(work), begun.wait)
        release.set()
        with anyio.fail_after(25):
            await done.wait()


async def test_unshielded_work_ends_with_its_last_caller() -> None:
    begun, ended, release = anyio.Event(), anyio.Event(), anyio.Event()

    async def work() -> str:
        begun.set()
        try:
            await release.wait()
        finally:
            ended.set()
        return "done"

    async with owned_tasks() as tasks, anyio.create_task_group() as group:
        results: list[str] = []

        async def stay() -> None:
            results.append(await tasks.run(work, key="one"))

        group.start_soon(stay)
        await cancelled(tasks.run(work, key="one"), begun.wait)
        assert not ended.is_set()
        release.set()
        with anyio.fail_after(25):
            await ended.wait()
        await anyio.lowlevel.checkpoint()
        assert results == ["done"]
        begun, ended, release = anyio.Event(), anyio.Event(), anyio.Event()
        await cancelled(tasks.run(work, key="one"), begun.wait)
        with anyio.fail_after(25):
            await ended.wait()


async def test_cancelled_work_is_not_joined() -> None:
    begun, release = anyio.Event(), anyio.Event()
    runs = 0

    async def work() -> int:
        nonlocal runs
        runs += 1
        mine = runs
        begun.set()
        with anyio.CancelScope(shield=True):
            await release.wait()
        await anyio.lowlevel.checkpoint()
        return mine

    async with owned_tasks() as tasks:
        await cancelled(tasks.run(work, key="one"), begun.wait)
        release.set()
        assert await tasks.run(work, key="one") == 2


async def test_error_reaches_every_caller_and_not_the_task_group() -> None:
    release = anyio.Event()

    async def work() -> None:
        await release.wait()
        raise GatewayError("no")

    async with owned_tasks() as tasks:
        failures = []

        async def wait() -> None:
            with pytest.raises(GatewayError, match="no"):
                await tasks.run(work, key="one")
            failures.append(1)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(wait)
            await anyio.lowlevel.checkpoint()
            release.set()
        assert len(failures) == 3


async def test_shutdown_raises_an_error_in_waiting_callers() -> None:
    async with anyio.create_task_group() as outer:
        async with anyio.create_task_group() as group:
            tasks = OwnedTasks(group)
            ended = anyio.Event()

            async def wait() -> None:
                with pytest.raises(GatewayError, match="shutting down"):
                    await tasks.run(anyio.sleep_forever)
                ended.set()

            outer.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        with anyio.fail_after(25):
            await ended.wait()


# a sign-in


async def signed_in(server: Rotating, tasks: OwnedTasks) -> tuple[SignIns, SignIn]:
    sign_ins = SignIns(
        tasks, MemoryTokenStore(), Addresses(redirect_uri=lambda: "http://127.0.0.1:8765/oauth/callback")
    )
    sign_in = sign_ins.get("s", HttpConfig.model_validate({"url": server.lying.url}))
    assert sign_in is not None
    await sign_in.prepare()
    with pytest.raises(NotSignedIn):
        await sign_in.handle_refusal(401, "Bearer", sign_in.version)
    link = (await sign_in.create_link()).url
    await sign_ins.handle_callback(f"code=abc&state={link.partition('state=')[2].partition('&')[0]}")
    return sign_ins, sign_in


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("way", ["refused", "expired"])
async def test_token_refresh_completes_although_its_caller_is_cancelled(way: str, times: int) -> None:
    async with rotating_server() as server, owned_tasks() as tasks:
        usual_s = server.life_s
        server.life_s = 1e-6 if way == "expired" else usual_s
        sign_ins, sign_in = await signed_in(server, tasks)
        server.life_s = usual_s
        if way == "expired":
            work = sign_in.prepare()
        else:
            work = cast("Any", sign_in.handle_refusal(401, "Bearer", sign_in.version))
        await cancelled(work, server.arrived.wait, times=times)
        server.release.set()
        if way == "expired":
            await sign_in.prepare()
        else:
            assert await sign_in.handle_refusal(401, "Bearer", 1)
        assert sign_in.headers == {"authorization": "Bearer access-2"}
        assert server.spent == ["refresh-1"]
        sign_ins.close()


async def test_sign_in_completes_although_the_browser_disconnects() -> None:
    async with rotating_server() as server, owned_tasks() as tasks:
        sign_ins, sign_in = await signed_in(server, tasks)
        requested, release = anyio.Event(), anyio.Event()

        async def slow(_: object) -> Any:
            requested.set()
            await release.wait()
            return {"access_token": "token-that-came-late", "token_type": "Bearer"}

        server.lying.paths["/token"] = slow
        link = (await sign_in.create_link()).url
        state = link.partition("state=")[2].partition("&")[0]
        await cancelled(sign_ins.handle_callback(f"code=abc&state={state}"), requested.wait)
        release.set()
        with anyio.fail_after(25):
            while sign_in.headers != {"authorization": "Bearer token-that-came-late"}:
                await sign_in.wait_changed(sign_in.version)
        sign_ins.close()


# approvals


class SlowBook:
    """A book in another process: everything takes a moment, and a caller may leave in it."""

    def __init__(self) -> None:
        self.called, self.withdrawn, self.release = anyio.Event(), anyio.Event(), anyio.Event()
        self.allowed_again = anyio.Event()
        self.holds = ""

    async def register(self, question: Question) -> bool:
        if self.holds == "register":
            self.called.set()
            await self.release.wait()
        return False

    async def wait(self, question: Question) -> Decision:
        self.called.set()
        await self.release.wait()
        return Decision(kind="allowed")

    async def decide(self, question_id: str, *, allow: bool, lasts: Lasts, by: str) -> bool:
        return True

    async def withdraw(self, question: Question) -> None:
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        self.withdrawn.set()

    async def allow_again(self, question: Question) -> None:
        self.called.set()
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        self.allowed_again.set()


def asking(book: SlowBook, tasks: OwnedTasks) -> Awaitable[Any]:
    wrapper = ToolWrapper(
        name=WrapperName("up__send"),
        server=ServerName("up"),
        tool=ToolName("send"),
        definition={},
        digest="d",
        schema_digest="s",
    )
    caller = Caller(principal=LOCAL, view=cast("Any", None))
    approvals = Approvals(book, Signer(), tasks, asked_by_default=lambda: None)
    return approvals.request_approval(caller, wrapper, {}, decision=ASKED, params={})


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("holds", ["register", "wait"])
async def test_approval_is_withdrawn_when_its_caller_leaves(holds: str, times: int) -> None:
    book = SlowBook()
    book.holds = holds
    async with owned_tasks() as tasks:
        await cancelled(asking(book, tasks), book.called.wait, times=times)
        with anyio.fail_after(25):
            await book.withdrawn.wait()


async def test_interrupted_call_is_not_put_to_approval_twice() -> None:
    book = SlowBook()
    async with owned_tasks() as tasks:
        approvals = Approvals(book, Signer(), tasks, asked_by_default=lambda: None)
        verdict = cast("Any", type("V", (), {"question": None})())
        await cancelled(approvals.allow_continuation(verdict), book.called.wait, times=2)
        with anyio.fail_after(25):
            await book.allowed_again.wait()


# credentials of callers and of upstreams


async def test_cancelled_caller_does_not_cancel_shared_introspection() -> None:
    requested, release = anyio.Event(), anyio.Event()
    issuer = "https://id.example.test"

    async def fetch(method: str, url: str, headers: Any, body: bytes, *, limit_bytes: int) -> Fetched:
        requested.set()
        await release.wait()
        claims = f'{{"active": true, "iss": "{issuer}", "sub": "ann", "aud": "{AUDIENCE}", "exp": 99999999999}}'
        return Fetched(status=200, body=claims.encode())

    introspection = {"endpoint": f"{issuer}/look", "clientId": "gw", "clientSecret": "the secret of the gateway"}
    config = {"issuers": [{"issuer": issuer, "audiences": [AUDIENCE], "introspection": introspection}]}
    found = Tokens(OAuthConfig.model_validate(config), fetch)
    digest = hashlib.sha256(b"opaque").digest()
    first, second = found.principal("opaque", digest), found.principal("opaque", digest)
    assert not isinstance(first, Principal)
    who: list[object] = []

    async def stay() -> None:
        who.append(await cast("UnverifiedCredentials", second).verify())

    async def until_both_wait() -> None:
        await requested.wait()
        group.start_soon(stay)
        await anyio.lowlevel.checkpoint()

    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            await cancelled(cast("UnverifiedCredentials", first).verify(), until_both_wait)
            release.set()
    [principal] = who
    assert isinstance(principal, Principal)
    assert principal.name == "ann@id.example.test"


@pytest.mark.heavy
async def test_cancelled_caller_does_not_cancel_a_shared_header_command(tmp_path: Path) -> None:
    program = tmp_path / "headers.py"
    program.write_text(
        "import pathlib, sys, time\n"
        f"runs = pathlib.Path({str(tmp_path / 'runs')!r})\n"
        "first = not runs.exists()\n"
        "runs.touch()\n"
        "time.sleep(60 if first else 0)\n"
        "print('X-Key: secret-of-the-command')\n"
    )
    command = HeadersCommand("s", [sys.executable, str(program)], {})

    async def until_it_runs() -> None:
        while not (tmp_path / "runs").exists():
            await brief_pause()

    await cancelled(command.handle_refusal(401, "", command.version), until_it_runs)
    assert await command.handle_refusal(401, "", command.version)
    assert command.headers == {"x-key": "secret-of-the-command"}
