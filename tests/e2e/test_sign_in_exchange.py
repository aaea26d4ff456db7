"""Token exchange: each caller's token is exchanged at the server's issuer and never forwarded."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from support.gateways import brief_pause, running_gateway, text_of
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
async def test_each_caller_acts_with_its_own_exchanged_token(tmp_path: Path) -> None:
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
                    await brief_pause()
            assert "shop__of_ann" not in names
            # There is one exchange for each token, and the callers' own tokens are not used for anything else.
            assert sorted((await issuer.configure())["subjects"]) == sorted(tokens.values())
            assert not set(tokens.values()) & set(upstream.seen)
            # Another client of the same person has another token.
            again = {"authorization": f"Bearer {await token_of(identity, 'ann', resource=AUDIENCE)}"}
            assert text_of(await gateway.call("shop__whoami", headers=again)) == "ann with mcp"
            assert len((await issuer.configure())["subjects"]) == 3
            # A caller without a token has nothing to exchange, and does not get the token of another caller.
            refused = await gateway.call("shop__whoami", headers={"authorization": f"Bearer {KEY}"})
            assert refused["isError"]
            assert "callers who send an access token" in text_of(refused)
            # No token is stored.
            assert not list((gateway.state_dir / "sign-ins").glob("sign-in-*"))
            assert all(token not in gateway.logged() for token in (*tokens.values(), *upstream.seen))
