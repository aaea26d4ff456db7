"""A caller who signs in at one replica is signed in at all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.clusters import running_cluster, running_store
from support.gateways import RunningGateway, brief_pause, text_of
from support.issuer import RunningIssuer, running_issuer
from support.protected import browse, protected_server

pytestmark = pytest.mark.heavy

KEYS = {name: f"the key of {name}, which is long enough" for name in ("ann", "bob")}
AUTH = {"auth": {"apiKeys": [{"name": name, "key": key} for name, key in KEYS.items()]}}
# A change at one gateway reaches the others within this time.
HOLDS_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A caller of every gateway."""

    name: str
    issuer: RunningIssuer

    async def call(self, gateway: RunningGateway, name: str = "shop__whoami") -> dict[str, Any]:
        return await gateway.call(name, headers={"authorization": f"Bearer {KEYS[self.name]}"})

    async def listed(self, gateway: RunningGateway) -> set[str]:
        answer = await gateway.rpc("tools/list", headers={"authorization": f"Bearer {KEYS[self.name]}"})
        return {one["name"] for one in answer["result"]["tools"] if one["name"].startswith("shop__")}

    async def sign_in(self, begun_at: RunningGateway) -> None:
        """By a link that an administrator of one gateway has made."""
        answer = await begun_at.admin(f"servers/shop/sign-in?principal={self.name}", "POST")
        assert answer.status_code == 200, answer.text
        await self.issuer.configure(account=self.name)
        page = await browse(answer.json()["url"], self.issuer)
        assert page.status_code == 200, page.text

    async def until_refused(self, gateway: RunningGateway) -> None:
        with anyio.fail_after(HOLDS_S):
            while not (await self.call(gateway)).get("isError"):
                await brief_pause()

    async def until_answered(self, gateway: RunningGateway) -> None:
        # A call that starts after this time is answered, however long its connection takes on a busy machine.
        holds_from_s = anyio.current_time() + HOLDS_S
        while True:
            started_s = anyio.current_time()
            if not (result := await self.call(gateway)).get("isError") or started_s >= holds_from_s:
                break
            await brief_pause()
        assert text_of(result) == f"{self.name} with mcp"


async def test_caller_signed_in_at_one_replica_is_signed_in_and_out_everywhere(tmp_path: Path) -> None:
    async with (
        running_store(tmp_path) as store,
        running_issuer(opaque=True) as issuer,
        protected_server(issuer) as upstream,
        running_cluster(
            tmp_path,
            {"shop": {"url": upstream.url, "auth": {"perUser": True}}},
            store={"url": store.url},
            gateway=AUTH,
        ) as cluster,
    ):
        first, second, third = cluster.gateways
        ann, bob = User(name="ann", issuer=issuer), User(name="bob", issuer=issuer)
        for one in cluster.gateways:
            # Connections of her own, so that what is known there is known from before.
            assert (await ann.call(one))["isError"]
            assert await ann.listed(one) == {"shop__sign_in"}
        await ann.sign_in(first)
        for one in cluster.gateways:
            await ann.until_answered(one)
            assert (await bob.call(one))["isError"]
        with anyio.fail_after(25):
            for one in cluster.gateways:
                while "shop__of_ann" not in await ann.listed(one):
                    await brief_pause()
        await bob.sign_in(third)
        for one in cluster.gateways:
            await bob.until_answered(one)
            row = await one.server("shop")
            assert {user["principal"] for user in row["signIn"]["users"]} == {"ann", "bob"}
        # No gateway writes the sign-in to its disk.
        assert not any((one.state_dir / "sign-ins").exists() for one in cluster.gateways)
        # All at once with tokens that have just ended: each of the two is renewed once.
        upstream.refused.update(upstream.seen)
        results: list[str] = []

        async def call(user: User, one: RunningGateway) -> None:
            results.append(text_of(await user.call(one)))

        async with anyio.create_task_group() as group:
            for number in range(36):
                group.start_soon(call, (ann, bob)[number % 2], cluster.gateways[number % 3])
        assert sorted(results) == ["ann with mcp"] * 18 + ["bob with mcp"] * 18
        grants = [one["ok"] for one in (await issuer.configure())["grants"] if one["grant_type"] == "refresh_token"]
        assert grants == [True, True]
        # The caller signs out at another gateway than the one at which she signed in.
        answer = await second.admin("servers/shop/sign-in?principal=ann", "DELETE")
        assert answer.json() == {"signedOut": True}
        async with anyio.create_task_group() as group:
            for one in cluster.gateways:
                group.start_soon(ann.until_refused, one)
        for one in cluster.gateways:
            assert text_of(await bob.call(one)) == "bob with mcp"
            row = await one.server("shop")
            assert [user["principal"] for user in row["signIn"]["users"]] == ["bob"]
        # It stays so: what another gateway knew before does not come back.
        await store.stop()
        await store.start()
        with anyio.fail_after(25):
            while (await bob.call(first)).get("isError"):
                await brief_pause()
        for one in cluster.gateways:
            assert (await ann.call(one))["isError"]
        await ann.sign_in(second)
        for one in cluster.gateways:
            await ann.until_answered(one)
