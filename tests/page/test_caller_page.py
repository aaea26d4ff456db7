"""A caller at `/me`: own tools, calls and sign-ins, and nothing of other callers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.browsers import expect, running_browser, visiting
from support.gateways import RunningGateway, running_gateway
from support.hands import HANDS
from support.issuer import running_issuer
from support.protected import protected_server
from support.upstreams.running import demo_config
from support.worker_groups import each_worker, running_workers, until

pytestmark = pytest.mark.heavy

AUDIENCE = "https://gateway.example.test/mcp"
KEYS = {"ann": "tg_" + "a" * 40, "bob": "tg_" + "b" * 40}
SETTINGS: dict[str, Any] = {
    "auth": {"apiKeys": [{"name": name, "key": key, "groups": ["staff"]} for name, key in KEYS.items()]},
    "policy": {"rules": [{"name": "no mail for ann", "principals": ["ann"], "deny": ["calendar__send_*"]}]},
}
# The mouse works at a gateway of two processes.
VIEWS = [("mouse", 1440, 900, True, 2), ("keyboard", 390, 844, False, 1)]
WAIT_MS = 60_000


def headers(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


def copied(name: str) -> dict[str, Any]:
    return {**demo_config(name), "copies": True}


async def has_calls(gateway: RunningGateway, count: int, headers: dict[str, str] | None = None) -> bool:
    """Return whether a caller is shown this many calls, all of which have failed."""
    state = (await gateway.client.get(f"{gateway.origin}/me/state", headers=headers)).json()
    return (len(state["calls"]), state["lastDay"]["calls"], state["lastDay"]["errors"]) == (count, count, count)


@pytest.mark.parametrize(("how", "width", "height", "dark", "workers"), VIEWS)
async def test_caller_sees_own_tools_calls_and_sign_ins(
    tmp_path: Path, how: str, width: int, height: int, dark: bool, workers: int
) -> None:
    size = {"width": width, "height": height, "dark": dark}
    async with running_issuer(opaque=True) as issuer, protected_server(issuer) as upstream:
        shop = {"url": upstream.url, "auth": {"type": "oauth", "perUser": True}}
        servers = {"calendar": copied("calendar"), "bank": copied("bank"), "shop": shop}
        async with (
            running_gateway(tmp_path, servers, gateway=SETTINGS, arguments=("--workers", str(workers))) as gateway,
            running_browser() as browser,
            visiting(browser, gateway, signed_in=False, **size) as visit,
        ):
            page, hand = visit.page, HANDS[how](visit.page)
            await gateway.until_listed("calendar__send_email", "bank__get_bank_balance", headers=headers("bob"))
            await gateway.call("bank__get_bank_balance", {"wrong": 1}, headers=headers("ann"))
            await gateway.call("calendar__list_accounts", {}, headers=headers("bob"))
            # A worker writes its figures for the others every few seconds.
            await until(partial(has_calls, gateway, 1, headers=headers("ann")), within_s=60)

            await page.goto(f"{gateway.origin}/me")
            await page.get_by_label("API key or access token").wait_for()
            await visit.check_layout()
            await hand.write(page.get_by_label("API key or access token"), "tg_" + "x" * 40)
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("alert")).to_contain_text("not a valid key")
            await hand.write(page.get_by_label("API key or access token"), KEYS["ann"])
            await page.keyboard.press("Enter")

            tools = page.get_by_role("region", name="Tools", exact=True)
            await expect(tools).to_contain_text("bank__get_bank_balance", timeout=WAIT_MS)
            await expect(tools).not_to_contain_text("calendar__send_email")
            await hand.write(tools.get_by_label("Filter", exact=True), "balance")
            await expect(tools.get_by_text("1 of ")).to_be_visible()
            calls = page.get_by_role("region", name="Calls", exact=True)
            await expect(calls).to_contain_text("bank__get_bank_balance")
            await expect(calls).to_contain_text("1 call in 24 hours, 1 failed")
            await expect(calls).not_to_contain_text("calendar__list_accounts")
            host = page.get_by_role("region", name="Connect a host")
            await expect(host).to_contain_text(gateway.url)
            await visit.check_layout()

            async with page.context.expect_page() as opened:
                await hand.press(page.get_by_role("button", name="Sign in to shop"))
            other = await opened.value
            await other.wait_for_url("**/oauth/connect?ticket=*")
            await other.get_by_label("API key").wait_for()
            await other.close()
            await hand.press(page.get_by_role("button", name="Sign out", exact=True))
            await page.get_by_label("API key or access token").wait_for()
            assert KEYS["ann"] not in await page.content()
            visit.check_quiet()


@pytest.mark.parametrize(("how", "width", "height", "dark", "workers"), VIEWS)
async def test_caller_signs_in_with_a_provider(
    tmp_path: Path, how: str, width: int, height: int, dark: bool, workers: int
) -> None:
    size = {"width": width, "height": height, "dark": dark}
    async with running_issuer() as issuer:
        oauth = {"issuers": [{"issuer": issuer.url, "audiences": [AUDIENCE], "requiredScopes": ["mcp"]}]}
        settings = {
            "auth": {"oauth": oauth},
            "policy": {"rules": [{"name": "staff", "groups": ["staff"], "deny": ["bank__*"]}]},
        }
        async with (
            running_gateway(
                tmp_path,
                {"bank": copied("bank")},
                gateway=settings,
                arguments=("--workers", str(workers)),
            ) as gateway,
            running_browser() as browser,
            visiting(browser, gateway, signed_in=False, **size) as visit,
        ):
            page, hand = visit.page, HANDS[how](visit.page)
            name = issuer.url.partition("://")[2]
            await page.goto(f"{gateway.origin}/me")
            sign_in = page.get_by_role("button", name=f"Sign in with {name}")
            await sign_in.wait_for()
            await visit.check_layout()
            await hand.press(sign_in)
            who = page.get_by_role("region", name="Who you are")
            await expect(who).to_contain_text(f"ann@{name}", timeout=WAIT_MS)
            await expect(who).to_contain_text("staff")
            await expect(page.get_by_role("region", name="Tools", exact=True)).to_contain_text(
                "There are no tools for you"
            )
            host = page.get_by_role("region", name="Connect a host")
            await expect(host).to_contain_text("Your host opens the browser to sign you in")
            assert "signed-in" not in page.url
            await visit.check_layout()
            assert (
                await page.evaluate("document.cookie + JSON.stringify([{...localStorage}, {...sessionStorage}])")
                == "[{},{}]"
            )

            await hand.press(page.get_by_role("button", name="Sign out", exact=True))
            await sign_in.wait_for()
            await issuer.configure(account="bob", groups=["guests"])
            await page.context.clear_cookies()
            await hand.press(sign_in)
            await expect(who).to_contain_text(f"bob@{name}", timeout=WAIT_MS)
            await expect(page.get_by_role("region", name="Tools", exact=True)).to_contain_text("bank__get_bank_balance")
            assert visit.faults == []
            assert all(url.startswith(issuer.url) for url in visit.foreign)


async def test_caller_sees_the_calls_of_every_worker(tmp_path: Path) -> None:
    async with (
        running_workers(tmp_path, {"bank": copied("bank")}) as gateway,
        each_worker(gateway) as workers,
    ):
        for worker in workers:
            await worker.until_listed("bank__get_bank_balance")
            await worker.call("bank__get_bank_balance", {"wrong": 1})

        for worker in workers:
            await until(partial(has_calls, worker, 2), within_s=60)
