"""Sign-in per user of a shared gateway: users are isolated from each other."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.gateways import RunningGateway, brief_pause, running_gateway, serving, text_of
from support.hosts_connected import http_host
from support.issuer import RunningIssuer, running_issuer
from support.protected import Protected, browse, command, link_of, protected_server

from registry.lock.lockfile import Lockfile

KEYS = {name: f"the key of {name}, which is long enough" for name in ("ann", "bob")}
AUTH = {"auth": {"apiKeys": [{"name": name, "key": key} for name, key in KEYS.items()]}}


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One caller of a gateway.

    Attributes:
        name: The name of the caller's key, and of the account at the issuer.
    """

    name: str
    gateway: RunningGateway
    issuer: RunningIssuer

    @property
    def head(self) -> dict[str, str]:
        """Return the header that authenticates the caller."""
        return {"authorization": f"Bearer {KEYS[self.name]}"}

    async def call(self, name: str, arguments: Any = None) -> dict[str, Any]:
        return await self.gateway.call(name, arguments, headers=self.head)

    async def listed(self, kind: str = "tools") -> set[str]:
        """The names, or URIs, of what it is shown of the server."""
        answer = await self.gateway.rpc(f"{kind}/list", headers=self.head)
        key = "uri" if kind == "resources" else "name"
        return {one[key] for one in answer["result"][kind] if "shop" in one[key] or kind == "resources"}

    async def sign_in(self) -> None:
        """Sign in by a link that an administrator has made."""
        answer = await self.gateway.admin(f"servers/shop/sign-in?principal={self.name}", "POST")
        assert answer.status_code == 200, answer.text
        await self.issuer.configure(account=self.name)
        page = await browse(answer.json()["url"], self.issuer)
        assert page.status_code == 200, page.text


@asynccontextmanager
async def shared_gateway(
    tmp_path: Path, *, arguments: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[tuple[Protected, User, User]]:
    """A gateway with keys of ann and bob, and the server `shop` to which each signs in."""
    async with (
        running_issuer(opaque=True) as issuer,
        protected_server(issuer) as upstream,
        running_gateway(
            tmp_path,
            {"shop": {"url": upstream.url, "auth": {"perUser": True}}},
            gateway={**AUTH, **settings},
            arguments=arguments,
        ) as gateway,
    ):
        yield (
            upstream,
            User(name="ann", gateway=gateway, issuer=issuer),
            User(name="bob", gateway=gateway, issuer=issuer),
        )


COMMON = {"shop__whoami", "shop__slow"}


@pytest.mark.heavy
@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["one process", "two workers"])
async def test_two_users_are_isolated(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    async with shared_gateway(tmp_path, arguments=arguments) as (_, ann, bob):
        assert await ann.listed() == {"shop__sign_in"}
        refused = await ann.call("shop__whoami")
        assert refused["isError"]
        assert "--user 'ann'" in text_of(refused)
        await ann.sign_in()
        assert text_of(await ann.call("shop__whoami")) == "ann with mcp"
        # Another caller sees none of her items, and no token.
        assert await bob.listed() == {"shop__sign_in"}
        assert await bob.listed("resources") == set()
        assert (await bob.call("shop__whoami"))["isError"]
        assert (await bob.call("shop__of_ann"))["isError"]
        await bob.sign_in()
        for _ in range(8):
            assert text_of(await bob.call("shop__whoami")) == "bob with mcp"
            assert text_of(await ann.call("shop__whoami")) == "ann with mcp"
        with anyio.fail_after(25):
            while await ann.listed() != {*COMMON, "shop__of_ann"} or await bob.listed() != {*COMMON, "shop__of_bob"}:
                await brief_pause()
        assert await ann.listed("resources") == {"notes://ann"}
        assert await bob.listed("resources") == {"notes://bob"}
        results: dict[str, set[str]] = {"ann": set(), "bob": set()}

        async def call(user: User) -> None:
            results[user.name].add(text_of(await user.call("shop__whoami")))

        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(call, (ann, bob)[number % 2])
        assert results == {"ann": {"ann with mcp"}, "bob": {"bob with mcp"}}
        row = await ann.gateway.server("shop")
        assert row["state"] == "ready"
        assert {one["principal"] for one in row["signIn"]["users"]} == {"ann", "bob"}
        # The sign-out takes effect at once, and only for this caller.
        answer = await ann.gateway.admin("servers/shop/sign-in?principal=ann", "DELETE")
        assert answer.json() == {"signedOut": True}
        for _ in range(4):
            assert (await ann.call("shop__whoami"))["isError"]
            assert text_of(await bob.call("shop__whoami")) == "bob with mcp"
        assert [one["principal"] for one in (await ann.gateway.server("shop"))["signIn"]["users"]] == ["bob"]


@pytest.mark.heavy
async def test_tokens_of_users_are_stored_separately_and_survive_a_restart(tmp_path: Path) -> None:
    async with shared_gateway(tmp_path) as (_, ann, bob):
        for user in (ann, bob):
            await user.sign_in()
            assert text_of(await user.call("shop__whoami")) == f"{user.name} with mcp"
        kept = [json.loads(path.read_text()) for path in (ann.gateway.state_dir / "sign-ins").glob("sign-in-*.json")]
        assert sorted(one["document"]["principal"] for one in kept) == ["ann", "bob"]
        # One client for all of them.
        assert (await ann.issuer.configure())["requests"].count("POST /reg") == 1
        record = (await ann.gateway.admin("audit?event=sign_in")).json()["audit"]
        assert sorted(line["principal"] for line in record) == ["ann", "bob"]
        async with serving(ann.gateway.config, tmp_path) as again:
            later = User(name="ann", gateway=again, issuer=ann.issuer)
            # A caller who is signed in sees the personal items without a call.
            with anyio.fail_after(25):
                while await later.listed() != {*COMMON, "shop__of_ann"}:
                    await brief_pause()
            assert text_of(await later.call("shop__of_ann"))
            assert text_of(await later.call("shop__whoami")) == "ann with mcp"


@pytest.mark.heavy
async def test_commands_sign_a_user_in_and_out(tmp_path: Path) -> None:
    async with shared_gateway(tmp_path) as (_, ann, _):
        url = ("--url", ann.gateway.origin)
        async with command(ann.gateway, "login", "shop", "--no-browser", *url) as process:
            assert await process.wait() == 1
        async with command(ann.gateway, "login", "shop", "--user", "ann", "--no-browser", *url) as process:
            assert (await browse(await link_of(process), ann.issuer)).status_code == 200
            with anyio.fail_after(25):
                assert await process.wait() == 0
        assert text_of(await ann.call("shop__whoami")) == "ann with mcp"
        async with command(ann.gateway, "login", "shop", "--user", "bob", "--status", *url) as process:
            assert await process.wait() == 1
        async with command(ann.gateway, "logout", "shop", "--user", "ann", *url) as process:
            assert await process.wait() == 0
        assert (await ann.call("shop__whoami"))["isError"]


@pytest.mark.heavy
async def test_changes_of_one_user_are_announced_to_that_user_only(tmp_path: Path) -> None:
    async with shared_gateway(tmp_path) as (_, ann, bob):
        change_counts = {"ann": 0, "bob": 0}

        async def listen(user: User) -> None:
            async with http_host(user.gateway.url, "2025-11-25", user.gateway.client, headers=user.head) as host:
                await host.open_stream()
                ready.append(user.name)
                while True:
                    change_counts[user.name] = len(host.of("notifications/tools/list_changed"))
                    await brief_pause()

        ready: list[str] = []
        async with anyio.create_task_group() as group:
            for user in (ann, bob):
                group.start_soon(listen, user)
            with anyio.fail_after(25):
                while len(ready) < 2:
                    await brief_pause()
                await ann.sign_in()
                await ann.call("shop__sign_in")
                while not change_counts["ann"]:
                    await brief_pause()
            assert change_counts["bob"] == 0
            group.cancel_scope.cancel()


@pytest.mark.heavy
async def test_callers_cannot_act_as_another_user_and_lists_follow_the_identity(tmp_path: Path) -> None:
    async with shared_gateway(tmp_path) as (_, ann, bob):
        gateway = ann.gateway
        await ann.sign_in()
        assert text_of(await ann.call("shop__whoami")) == "ann with mcp"
        tried = await gateway.admin("try", "POST", {"wrapper": "shop__whoami", "principal": "ann"})
        assert "so only that caller can call it" in tried.text
        assert "ann with mcp" not in tried.text
        by_tool = {"server": "shop", "tool": "whoami", "arguments": {}}
        answer = await gateway.call("invoke_tool", by_tool, headers=bob.head)
        assert "requires a user to sign in" in text_of(answer)
        assert text_of(await gateway.call("invoke_tool", by_tool, headers=ann.head)) == "ann with mcp"
        # Callers are no longer distinguished, but items of one caller are not shown to all.
        written = json.loads(gateway.config.read_text())
        gateway.config.write_text(json.dumps({**written, "gateway": {}}))
        gateway.process.send_signal(signal.SIGHUP)
        with anyio.fail_after(25):
            while ((await gateway.server("shop"))["signIn"] or {}).get("perUser"):
                await brief_pause()
        assert not [name for name in await gateway.tools() if name.startswith("shop__of")]
        gateway.config.write_text(json.dumps(written))
        gateway.process.send_signal(signal.SIGHUP)
        with anyio.fail_after(25):
            while not ((await gateway.server("shop"))["signIn"] or {}).get("perUser"):
                await brief_pause()
        assert text_of(await ann.call("shop__whoami")) == "ann with mcp"


@pytest.mark.heavy
async def test_lock_file_applies_to_listings_of_each_user(tmp_path: Path) -> None:
    (tmp_path / "typegate.lock").write_text(Lockfile({}).to_text())
    async with shared_gateway(tmp_path, lock={"file": str(tmp_path / "typegate.lock")}) as (_, ann, bob):
        await ann.sign_in()
        refused = await ann.call("shop__whoami")
        assert refused["isError"]
        with anyio.fail_after(25):
            while not (changes := (await ann.gateway.admin("changes?server=shop")).json()["changes"]):
                await brief_pause()
        assert "whoami" in {one["name"] for one in changes}
        approved = await ann.gateway.admin("changes", "POST", {"server": "shop"})
        assert approved.status_code == 200, approved.text
        with anyio.fail_after(25):
            while text_of(await ann.call("shop__whoami")) != "ann with mcp":
                await brief_pause()
        assert await bob.listed() == {"shop__sign_in"}
        await bob.sign_in()
        assert text_of(await bob.call("shop__whoami")) == "bob with mcp"
        # Approved is what ann was listed: what is for bob alone is not.
        assert (await bob.call("shop__of_bob"))["isError"]
