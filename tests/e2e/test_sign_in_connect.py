"""The link of a caller of a shared gateway: whoever follows it shows who it is, and nobody else is signed in by it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from support.gateways import RunningGateway, running_gateway, text_of
from support.hosts_connected import HttpHost, http_host
from support.issuer import RunningIssuer, running_issuer, token_of
from support.protected import follow, protected_server

KEY = "the key of ann, which is long enough"


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """A gateway that takes tokens of the company's issuer, and a server with an issuer of its own."""

    gateway: RunningGateway
    identity: RunningIssuer
    issuer: RunningIssuer
    audience: str

    async def head(self, account: str) -> dict[str, str]:
        token = await token_of(self.identity, account, resource=self.audience)
        return {"authorization": f"Bearer {token}"}

    async def sits(self, account: str) -> None:
        """Who sits at the browser from now on."""
        await self.identity.tell(account=account)
        await self.issuer.tell(account=account)


@asynccontextmanager
async def company(tmp_path: Path, *, arguments: tuple[str, ...] = ()) -> AsyncIterator[Company]:
    audience = "https://gateway.example.test/mcp"
    async with (
        running_issuer() as identity,
        running_issuer(opaque=True) as issuer,
        protected_server(issuer) as upstream,
    ):
        oauth = {"issuers": [{"issuer": identity.url, "audiences": [audience]}]}
        settings = {"auth": {"oauth": oauth, "apiKeys": [{"name": "ann", "key": KEY}]}}
        servers = {"shop": {"url": upstream.url, "auth": {"perUser": True}}}
        async with running_gateway(tmp_path, servers, gateway=settings, arguments=arguments) as gateway:
            yield Company(gateway=gateway, identity=identity, issuer=issuer, audience=audience)


def accepted(host: HttpHost, asked: list[dict[str, Any]], method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Follow a link, and say so before it has led anywhere."""
    asked.append(params)
    host.group.start_soon(follow, params["url"])
    return {"action": "accept"}


def link_in(result: dict[str, Any]) -> str:
    [link] = re.findall(r"http://\S+", text_of(result))
    return str(link)


@pytest.mark.heavy
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_a_caller_signs_in_in_the_middle_of_a_call_which_goes_on(tmp_path: Path, version: str) -> None:
    async with company(tmp_path, arguments=("--workers", "2")) as one:
        client = one.gateway.client
        for name in ("ann", "bob"):
            head = await one.head(name)
            await one.sits(name)
            async with http_host(one.gateway.url, version, client, headers=head) as host:
                asked: list[dict[str, Any]] = []
                host.reply = partial(accepted, host, asked)
                # Not even the name of a tool is known before.
                result = await host.call("shop__sign_in", {}, within_s=20)
                assert "Signed in to server 'shop'" in text_of(result), result
                assert f"shop__of_{name}" in text_of(result)
                assert text_of(await host.call("shop__whoami", {})) == f"{name} with mcp"
            assert [params["mode"] for params in asked] == ["url"]
            assert asked[0]["url"].startswith(f"{one.gateway.origin}/oauth/connect?ticket=")


@pytest.mark.heavy
async def test_a_link_is_of_no_use_to_anybody_but_its_caller(tmp_path: Path) -> None:
    async with company(tmp_path) as one:
        head = await one.head("ann")
        link = link_in(await one.gateway.call("shop__whoami", headers=head))
        # What looks at a link does not use it up.
        assert (await one.gateway.client.head(link)).status_code == 200
        await one.sits("bob")
        page = await follow(link)
        assert page.status_code == 400
        assert "made for another caller" in page.text
        assert (await one.gateway.call("shop__whoami", headers=head))["isError"]
        # It was used by that.
        await one.sits("ann")
        assert (await follow(link)).status_code == 400
        link = link_in(await one.gateway.call("shop__whoami", headers=head))
        assert (await follow(link)).status_code == 200
        assert text_of(await one.gateway.call("shop__whoami", headers=head)) == "ann with mcp"
        assert (await one.gateway.call("shop__whoami", headers=await one.head("bob")))["isError"]
        lines = (await one.gateway.admin("audit?event=sign_in")).json()["audit"]
        assert {line["principal"] for line in lines} == {f"ann@{one.identity.url.partition('://')[2]}"}
        assert {line["reason"] for line in lines} == {None, "somebody else came"}


@pytest.mark.heavy
async def test_who_has_shown_who_it_is_cannot_have_another_browser_sign_in(tmp_path: Path) -> None:
    async with company(tmp_path) as one:
        head = await one.head("ann")
        link = link_in(await one.gateway.call("shop__whoami", headers=head))
        await one.sits("ann")
        # Up to the server's issuer; then the address is sent to somebody who would sign in there as bob.
        async with httpx2.AsyncClient() as browser:
            url = link
            while not url.startswith(f"{one.issuer.url}/auth?"):
                url = (await browser.get(url)).headers["location"]
                url = url if "://" in url else f"{one.identity.url}{url}"
        await one.sits("bob")
        page = await follow(url)
        assert page.status_code == 400
        assert "another browser" in page.text
        assert (await one.gateway.call("shop__whoami", headers=head))["isError"]


@pytest.mark.heavy
async def test_who_comes_with_a_key_is_asked_for_it(tmp_path: Path) -> None:
    async with company(tmp_path) as one:
        head = {"authorization": f"Bearer {KEY}"}
        await one.sits("ann")
        for key, status in (("the key of somebody else", 400), (KEY, 200)):
            link = link_in(await one.gateway.call("shop__whoami", headers=head))
            ticket = parse_qs(urlsplit(link).query)["ticket"][0]
            async with httpx2.AsyncClient() as browser:
                page = await browser.get(link)
                assert page.status_code == 200
                assert "form" in page.text
                sent = await browser.post(link, data={"ticket": ticket, "key": key})
                if sent.is_redirect:
                    sent = await follow(sent.headers["location"], cookies=browser.cookies)
                assert sent.status_code == status, sent.text
        assert text_of(await one.gateway.call("shop__whoami", headers=head)) == "ann with mcp"
        assert KEY not in one.gateway.logged()


@pytest.mark.heavy
async def test_an_issuer_that_knows_no_client_of_ours_is_named_with_what_to_do(tmp_path: Path) -> None:
    async with company(tmp_path) as one:
        head = await one.head("ann")
        link = link_in(await one.gateway.call("shop__whoami", headers=head))
        await one.identity.tell(fail={"/reg": 403})
        page = await one.gateway.client.get(link)
        assert page.status_code == 400
        assert "signIn" in page.text
