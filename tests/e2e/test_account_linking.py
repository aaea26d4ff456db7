"""Account linking through a shared gateway: the link signs in only the caller that it was made for."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx2
import pytest
from support.gateways import RunningGateway, running_gateway, text_of
from support.hosts_connected import HttpHost, http_host
from support.issuer import RunningIssuer, running_issuer, token_of
from support.protected import follow, protected_server

from gateway.config.auth_config import Issuer
from gateway.upstream.oauth.account_linking import resource_for

KEY = "the key of ann, which is long enough"


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """A gateway that accepts tokens of the company's issuer, and a server with a separate issuer."""

    gateway: RunningGateway
    identity: RunningIssuer
    issuer: RunningIssuer
    audience: str

    async def head(self, account: str) -> dict[str, str]:
        token = await token_of(self.identity, account, resource=self.audience)
        return {"authorization": f"Bearer {token}"}

    async def use_browser_as(self, account: str) -> None:
        """Let this account approve the sign-ins at both issuers from now on."""
        await self.identity.configure(account=account)
        await self.issuer.configure(account=account)


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


def accepted(host: HttpHost, elicitations: list[dict[str, Any]], method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Start to follow a link, and accept the elicitation without waiting for the page."""
    elicitations.append(params)
    host.group.start_soon(follow, params["url"])
    return {"action": "accept"}


def link_in(result: dict[str, Any]) -> str:
    [link] = re.findall(r"http://\S+", text_of(result))
    return str(link)


@pytest.mark.heavy
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_caller_signs_in_during_a_call_which_continues(tmp_path: Path, version: str) -> None:
    async with company(tmp_path, arguments=("--workers", "2")) as one:
        client = one.gateway.client
        for name in ("ann", "bob"):
            head = await one.head(name)
            await one.use_browser_as(name)
            async with http_host(one.gateway.url, version, client, headers=head) as host:
                elicitations: list[dict[str, Any]] = []
                host.reply = partial(accepted, host, elicitations)
                # Until the caller has signed in, the gateway does not know the tools of the server.
                result = await host.call("shop__sign_in", {}, within_s=20)
                assert "Signed in to server 'shop'" in text_of(result), result
                assert f"shop__of_{name}" in text_of(result)
                assert text_of(await host.call("shop__whoami", {})) == f"{name} with mcp"
            assert [params["mode"] for params in elicitations] == ["url"]
            assert elicitations[0]["url"].startswith(f"{one.gateway.origin}/oauth/connect?ticket=")


@pytest.mark.heavy
async def test_link_works_only_for_its_caller(tmp_path: Path) -> None:
    async with company(tmp_path) as one:
        head = await one.head("ann")
        link = link_in(await one.gateway.call("shop__whoami", headers=head))
        # A HEAD request, as from a link preview, does not use the link up.
        assert (await one.gateway.client.head(link)).status_code == 200
        await one.use_browser_as("bob")
        page = await follow(link)
        assert page.status_code == 400
        assert "created for another caller" in page.text
        assert (await one.gateway.call("shop__whoami", headers=head))["isError"]
        # The refused attempt has used the link.
        await one.use_browser_as("ann")
        assert (await follow(link)).status_code == 400
        link = link_in(await one.gateway.call("shop__whoami", headers=head))
        assert (await follow(link)).status_code == 200
        assert text_of(await one.gateway.call("shop__whoami", headers=head)) == "ann with mcp"
        assert (await one.gateway.call("shop__whoami", headers=await one.head("bob")))["isError"]
        lines = (await one.gateway.admin("audit?event=sign_in")).json()["audit"]
        assert {line["principal"] for line in lines} == {f"ann@{one.identity.url.partition('://')[2]}"}
        assert {line["reason"] for line in lines} == {None, "the link was used by another caller"}


@pytest.mark.heavy
async def test_verified_caller_cannot_hand_the_sign_in_to_another_browser(tmp_path: Path) -> None:
    async with company(tmp_path) as one:
        head = await one.head("ann")
        link = link_in(await one.gateway.call("shop__whoami", headers=head))
        await one.use_browser_as("ann")
        # Ann follows the link up to the server's issuer, and then sends the address to bob, who would sign in there.
        async with httpx2.AsyncClient(timeout=30) as browser:
            url = link
            while not url.startswith(f"{one.issuer.url}/auth?"):
                url = (await browser.get(url)).headers["location"]
                url = url if "://" in url else f"{one.identity.url}{url}"
        await one.use_browser_as("bob")
        page = await follow(url)
        assert page.status_code == 400
        assert "another browser" in page.text
        assert (await one.gateway.call("shop__whoami", headers=head))["isError"]


@pytest.mark.heavy
async def test_caller_with_a_key_is_asked_for_it(tmp_path: Path) -> None:
    async with company(tmp_path) as one:
        head = {"authorization": f"Bearer {KEY}"}
        await one.use_browser_as("ann")
        for key, status in (("the key of somebody else", 400), (KEY, 200)):
            link = link_in(await one.gateway.call("shop__whoami", headers=head))
            ticket = parse_qs(urlsplit(link).query)["ticket"][0]
            async with httpx2.AsyncClient(timeout=30) as browser:
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
async def test_issuer_refusing_registration_is_named_with_a_remedy(tmp_path: Path) -> None:
    async with company(tmp_path) as one:
        head = await one.head("ann")
        link = link_in(await one.gateway.call("shop__whoami", headers=head))
        await one.identity.configure(fail={"/reg": 403})
        page = await one.gateway.client.get(link)
        assert page.status_code == 400
        assert "signIn" in page.text


@pytest.mark.heavy
async def test_sign_in_to_the_page_of_callers_ends_only_in_its_own_browser(tmp_path: Path) -> None:
    async with company(tmp_path) as one:
        await one.use_browser_as("ann")
        me = f"{one.gateway.origin}/me"

        async def start(browser: httpx2.AsyncClient, **head: str) -> httpx2.Response:
            return await browser.post(f"{me}/provider", json={"issuer": one.identity.url}, headers=head)

        async def fetch(browser: httpx2.AsyncClient, ticket: str) -> httpx2.Response:
            return await browser.post(f"{me}/provider/token", json={"ticket": ticket})

        async with httpx2.AsyncClient(timeout=30) as browser, httpx2.AsyncClient(timeout=30) as other:
            offered = (await browser.get(f"{me}/provider")).json()["providers"]
            assert offered == [{"issuer": one.identity.url, "name": one.identity.url.partition("://")[2]}]
            assert (await start(browser, origin="https://evil.example.test")).status_code == 403
            assert (await browser.post(f"{me}/provider", json={"issuer": one.issuer.url})).status_code == 409
            # An attacker sends the callback of a sign-in to another browser, which would then act as the attacker.
            await start(other)
            callback = await one.identity.approve((await start(browser)).json()["url"])
            refused = await other.get(callback)
            assert (refused.status_code, "another browser" in refused.text) == (400, True)
            assert (await browser.get(callback)).status_code == 400

            callback = await one.identity.approve((await start(browser)).json()["url"])
            back = await browser.get(callback)
            page, _, ticket = urljoin(callback, back.headers["location"]).partition("#signed-in=")
            assert (back.status_code, page) == (302, me)
            assert (await fetch(other, ticket)).status_code == 409
            assert (await fetch(browser, ticket)).status_code == 409

            callback = await one.identity.approve((await start(browser)).json()["url"])
            ticket = (await browser.get(callback)).headers["location"].partition("#signed-in=")[2]
            found = await fetch(browser, ticket)
            assert found.headers["cache-control"] == "no-store"
            head = {"authorization": f"Bearer {found.json()['token']}"}
            assert (await fetch(browser, ticket)).status_code == 409
            state = (await other.get(f"{me}/state", headers=head)).json()
            assert (state["name"], state["groups"]) == (f"ann@{offered[0]['name']}", ["staff"])
            listed = await one.gateway.tools(headers=head)
            assert "shop__sign_in" in listed

            denied = f"{one.gateway.origin}/oauth/callback?error=access_denied&state="
            state_of = parse_qs(urlsplit((await start(browser)).json()["url"]).query)["state"][0]
            page_text = (await browser.get(f"{denied}{state_of}")).text
            assert "did not sign you in" in page_text
        assert found.json()["token"] not in one.gateway.logged()


def test_token_for_the_page_of_callers_is_requested_for_an_accepted_audience() -> None:
    gateway = "https://gateway.example.test"
    for audiences, resource, expected in (
        ([f"{gateway}/mcp/sec", f"{gateway}/mcp"], gateway, f"{gateway}/mcp"),
        ([f"{gateway}/mcp/sec", "https://other.example.test"], None, "https://other.example.test"),
        ([f"{gateway}/mcp/sec"], gateway, f"{gateway}/mcp/sec"),
        (["api://typegate"], gateway, ""),
    ):
        issuer = Issuer(issuer="https://id.example.test", audiences=audiences)
        assert resource_for(issuer, resource) == expected
