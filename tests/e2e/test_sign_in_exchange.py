"""The token of each caller is exchanged for one of the server's issuer, and never passed on itself."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from support.gateways import glance_again, running_gateway, text_of
from support.issuer import MACHINE, running_issuer, token_of
from support.protected import protected_server

AUDIENCE = "https://gateway.example.test/mcp"
EXCHANGER = {
    "client_id": "gateway",
    "client_secret": "the secret of the gateway",
    "grant_types": ["urn:ietf:params:oauth:grant-type:token-exchange"],
    "redirect_uris": [],
    "response_types": [],
}
AUTH = {"type": "tokenExchange", "clientId": "gateway", "clientSecret": EXCHANGER["client_secret"], "scopes": "mcp"}
KEY = "the key of a machine, which is long enough"


@pytest.mark.heavy
async def test_each_caller_acts_as_itself_by_a_token_that_its_own_was_exchanged_for(tmp_path: Path) -> None:
    async with (
        running_issuer() as identity,
        running_issuer(opaque=True, clients=[MACHINE, EXCHANGER], access_token_s=60) as issuer,
        protected_server(issuer) as upstream,
    ):
        oauth = {"issuers": [{"issuer": identity.url, "audiences": [AUDIENCE]}]}
        settings = {"auth": {"oauth": oauth, "apiKeys": [{"name": "machine", "key": KEY}]}}
        servers = {"shop": {"url": upstream.url, "auth": AUTH}}
        async with running_gateway(tmp_path, servers, gateway=settings) as gateway:
            tokens = {name: await token_of(identity, name, resource=AUDIENCE) for name in ("ann", "bob")}
            heads = {name: {"authorization": f"Bearer {token}"} for name, token in tokens.items()}
            for _ in range(3):
                for name, head in heads.items():
                    assert text_of(await gateway.call("shop__whoami", headers=head)) == f"{name} with mcp"
            with anyio.fail_after(20):
                while True:
                    tools = (await gateway.rpc("tools/list", headers=heads["bob"]))["result"]["tools"]
                    if "shop__of_bob" in (names := {tool["name"] for tool in tools}):
                        break
                    await glance_again()
            assert "shop__of_ann" not in names
            # One exchange for each, and the callers' own tokens for nothing else.
            assert sorted((await issuer.tell())["subjects"]) == sorted(tokens.values())
            assert not set(tokens.values()) & set(upstream.seen)
            # Another client of the same person has another token.
            again = {"authorization": f"Bearer {await token_of(identity, 'ann', resource=AUDIENCE)}"}
            assert text_of(await gateway.call("shop__whoami", headers=again)) == "ann with mcp"
            assert len((await issuer.tell())["subjects"]) == 3
            # Who has no token has nothing to exchange, and gets nobody else's.
            refused = await gateway.call("shop__whoami", headers={"authorization": f"Bearer {KEY}"})
            assert refused["isError"]
            assert "access token that they come with" in text_of(refused)
            # Nothing of it is kept.
            assert not list((gateway.state_dir / "sign-ins").glob("sign-in-*"))
            assert all(token not in gateway.logged() for token in (*tokens.values(), *upstream.seen))
