"""Browser sessions, and hostile upstream texts on the page."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support.browsers import ROOMS, expect, running_browser, visiting
from support.gateways import TOKEN, RunningGateway, running_gateway, serving
from support.upstreams.running import builtin_tools, scripted_http_server, scripted_stdio_server, tool
from support.waiting import brief_pause
from support.worker_groups import ready, running_workers

ATTACK = (
    "<img src=x onerror=\"window.hit=1\"><script>window.hit=2</script><svg onload='window.hit=3'>"
    "'\"><a href=\"javascript:window.hit=4\">x</a>{{constructor.constructor('window.hit=5')()}}\u202egnp.exe"
)


async def session_of(gateway: RunningGateway, credentials: str = TOKEN) -> tuple[httpx2.Response, dict[str, str]]:
    """Sign in as a browser does: the answer, and the headers of a change in this session."""
    answer = await gateway.client.post(
        f"{gateway.origin}/admin/session",
        headers={"authorization": f"Bearer {credentials}", "origin": gateway.origin},
    )
    gateway.client.cookies.clear()
    if answer.status_code != 200:
        return answer, {}
    cookie = answer.headers["set-cookie"].split(";")[0]
    return answer, {"cookie": cookie, "origin": gateway.origin, "x-csrf-token": answer.json()["csrf"]}


async def test_browser_session_uses_an_http_only_same_site_cookie(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        answer, session = await session_of(gateway)
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "max-age=28800" in cookie
        assert TOKEN not in answer.text + answer.headers["set-cookie"]
        url = f"{gateway.origin}/admin/servers"
        assert (await gateway.client.get(url, headers={"cookie": session["cookie"]})).status_code == 200
        body = {"name": "x", "config": {"url": "http://127.0.0.1:9/mcp"}}
        for left_out, changed in (("origin", {}), ("x-csrf-token", {}), ("", {"x-csrf-token": "0" * 16})):
            head = {name: value for name, value in session.items() if name != left_out} | changed
            refused = await gateway.client.post(url, json=body, headers=head)
            assert refused.status_code == 403, head
        # A page of another port of this machine is another site.
        foreign = {**session, "origin": "http://127.0.0.1:1"}
        assert (await gateway.client.post(url, json=body, headers=foreign)).status_code == 403
        assert (await gateway.client.post(url, json=body, headers=session)).status_code == 201
        assert (await gateway.client.delete(f"{gateway.origin}/admin/session", headers=session)).status_code == 204
        assert (await gateway.client.get(url, headers={"cookie": session["cookie"]})).status_code == 401


@pytest.mark.heavy
async def test_link_signs_in_once_and_grants_nothing_else(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        command = [sys.executable, "-m", "gateway", "admin", "--no-browser", "--url", gateway.origin]
        done = await anyio.run_process([*command, "--state-dir", str(gateway.state_dir)], env=_env(), check=False)
        assert done.returncode == 0, done.stderr
        link = done.stdout.decode().strip()
        assert link.startswith(f"{gateway.origin}/admin/#code=")
        code = link.partition("#code=")[2]
        assert (await gateway.admin("servers", token=code)).status_code == 401
        assert (await session_of(gateway, code))[0].status_code == 200
        assert (await session_of(gateway, code))[0].status_code == 401
        assert code not in gateway.logged()


async def test_admin_responses_have_a_restrictive_content_security_policy(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        for path in ("", "page/app.js", "servers", "nowhere"):
            answer = await gateway.admin(path)
            if answer.status_code == 404:
                continue
            policy = answer.headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert re.search("no-store|no-cache", answer.headers["cache-control"])
        page = (await gateway.client.get(f"{gateway.origin}/admin/")).text
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|https?://", page)
        for script in (Path(__file__).parents[2] / "gateway" / "admin" / "page").glob("*.js"):
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", script.read_text())


async def test_wrong_tokens_on_the_page_are_logged_and_delayed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        statuses = [(await session_of(gateway, f"guess-{number}"))[0].status_code for number in range(8)]
        assert statuses[:5] == [401] * 5
        assert 429 in statuses
        assert "a log-in to the admin API failed" in gateway.logged()
        assert "guess-" not in gateway.logged()
        audit = (await gateway.admin("audit?event=credentials_refused")).json()["audit"]
        assert audit[0]["where"] == "/admin/session"


@pytest.mark.heavy
async def test_tokens_have_roles_and_a_replaced_token_ends_its_sessions(tmp_path: Path) -> None:
    import hashlib

    def hashed(token: str) -> str:
        return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"

    tokens = [{"name": name, "tokenHash": hashed(f"{name}-token"), "role": name} for name in ("viewer", "operator")]
    async with running_gateway(tmp_path, {}, gateway={"admin": {"tokens": tokens}}) as gateway:
        for role, statuses in (("viewer", (200, 403, 403)), ("operator", (200, 404, 403)), ("", (200, 404, 404))):
            token = f"{role}-token" if role else TOKEN
            found = (
                (await gateway.admin("servers", token=token)).status_code,
                (await gateway.admin("servers/x/refresh", "POST", token=token)).status_code,
                (await gateway.admin("servers/x", "DELETE", token=token)).status_code,
            )
            assert found == statuses, role
        _, session = await session_of(gateway, "operator-token")
        url = f"{gateway.origin}/admin/session"
        head = {"cookie": session["cookie"]}
        assert (await gateway.client.get(url, headers=head)).json()["role"] == "operator"
        tokens[1]["tokenHash"] = hashed("another")
        gateway.config.write_text(json.dumps({"mcpServers": {}, "gateway": {"admin": {"tokens": tokens}}}))
        with anyio.fail_after(25):
            while (await gateway.client.get(url, headers=head)).status_code != 401:
                await brief_pause()


@pytest.mark.heavy
async def test_hostile_upstream_texts_have_no_effect_on_the_page(tmp_path: Path) -> None:
    schema = {
        "type": "object", "title": ATTACK, "description": ATTACK,
        "properties": {
            ATTACK: {"type": "string", "title": ATTACK, "description": ATTACK, "enum": [ATTACK]},
            "__proto__": {"type": "string"}, "constructor": {"type": "object", "properties": {"x": {"type": "string"}}},
        },
    }  # fmt: skip
    image = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.hit=9'/>").decode()
    result = {
        "content": [
            {"type": "text", "text": ATTACK},
            {"type": "text", "text": json.dumps({ATTACK: [ATTACK], "__proto__": {"x": 1}})},
            {"type": "image", "data": image, "mimeType": 'image/svg+xml" onerror="window.hit=6'},
            {"type": "resource_link", "uri": "javascript:window.hit=7", "name": ATTACK, "description": ATTACK},
            {"type": "resource_link", "uri": "https://evil.test/", "name": ATTACK},
            {"type": "resource", "resource": {"uri": ATTACK, "mimeType": "text/html", "text": ATTACK}},
        ]
    }
    up, _ = scripted_stdio_server(
        tmp_path, "up",
        tools=[{"name": "bad", "title": ATTACK, "description": ATTACK, "inputSchema": schema},
               {"name": ATTACK, "inputSchema": {"type": "object"}}, {"name": "worse", "inputSchema": ATTACK}],
        behaviours={"bad": {"kind": "result", "with": {"result": result}}},
        server_info={"name": ATTACK, "version": ATTACK}, instructions=ATTACK,
    )  # fmt: skip
    failing = {"url": "http://127.0.0.1:9/mcp"}
    async with (
        running_gateway(tmp_path, {"up": up, "failing": failing}) as gateway,
        running_browser() as browser,
        visiting(browser, gateway) as visit,
    ):
        await gateway.until_listed("up__bad")
        await gateway.rpc("tools/call", {"name": ATTACK.encode("ascii", "ignore").decode(), "arguments": {}})
        await gateway.call("up__bad", {})
        for room in (*ROOMS, "servers/up", f"servers/{ATTACK[:20]}", "activity/failing", f"activity?tool={ATTACK[:9]}"):
            await visit.go(room.replace("/admin", ""))
        await visit.go("try/up__bad")
        await visit.page.get_by_role("button", name="Run it").click()
        shown = visit.page.get_by_role("region", name="Result")
        await expect(shown).to_contain_text("Answered")
        await expect(shown).to_contain_text("<script>window.hit=2</script>")
        for link in await shown.get_by_role("link").all():
            assert (await link.get_attribute("href") or "").startswith("https://")
        assert await visit.page.evaluate("window.hit") is None
        assert await visit.page.evaluate("({}).x") is None
        visit.check_quiet()


def _env() -> dict[str, str]:
    import os

    return {**os.environ, "TYPEGATE_ADMIN_TOKEN": TOKEN, "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.mark.heavy
async def test_stale_session_asks_for_the_token_and_a_second_tab_sees_changes(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up,
        running_gateway(tmp_path, {"up": up.config}) as gateway,
        running_browser() as browser,
        visiting(browser, gateway) as visit,
    ):
        second = await visit.page.context.new_page()
        # The same browser: no token is asked for.
        await second.goto(f"{gateway.origin}/admin/#/servers")
        await second.get_by_role("heading", level=1, name="Servers").wait_for()
        await visit.go("servers/up")
        await visit.page.get_by_role("button", name="Disable").click()
        await expect(second.get_by_role("row").filter(has_text="up")).to_contain_text("Disabled")
        await visit.page.get_by_role("button", name="Sign out").click()
        await visit.page.get_by_label("Admin token").wait_for()
        await second.get_by_role("navigation", name="Rooms").get_by_role("link", name="Tools").click()
        await second.get_by_label("Admin token").fill(TOKEN)
        await second.keyboard.press("Enter")
        await second.get_by_role("heading", level=1, name="Tools").wait_for()


@pytest.mark.heavy
async def test_late_answer_of_an_ended_session_keeps_the_new_token(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path, {}) as gateway,
        running_browser() as browser,
        visiting(browser, gateway) as visit,
    ):
        page, requested, answered = visit.page, anyio.Event(), anyio.Event()

        async def hold(route: Any) -> None:
            requested.set()
            await answered.wait()
            await route.fulfill(status=401, body="{}")

        await page.route("**/admin/notes", hold)
        # Asked with the session that is about to end, and answered after the next one has begun.
        await page.evaluate(
            "void (window.late = import('/admin/page/api.js').then((api) => api.get('notes')).catch(() => {}))"
        )
        with anyio.fail_after(25):
            await requested.wait()
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_label("Admin token").fill(TOKEN)
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Sign out").wait_for()
        answered.set()
        await page.evaluate("window.late")
        await expect(page.get_by_label("Admin token")).to_have_count(0)
        await expect(page.get_by_role("button", name="Sign out")).to_be_visible()


@pytest.mark.heavy
async def test_dialog_closes_with_its_room_without_acting(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path, {"up": {"url": "http://127.0.0.1:9/mcp"}}) as gateway,
        running_browser() as browser,
        visiting(browser, gateway) as visit,
    ):
        await visit.go("servers")
        await visit.go("servers/up")
        await visit.page.get_by_role("button", name="Remove").click()
        await visit.page.get_by_role("heading", name="Remove up?").wait_for()
        await visit.page.go_back()
        await visit.page.get_by_role("heading", level=1, name="Servers").wait_for()
        await expect(visit.page.get_by_role("dialog")).to_have_count(0)
        await visit.go("servers/up")
        remove = visit.page.get_by_role("button", name="Remove")
        await remove.press("Enter")
        await visit.page.keyboard.press("Escape")
        await expect(visit.page.get_by_role("dialog")).to_have_count(0)
        # The keyboard focus stays where it was.
        await expect(remove).to_be_focused()
        assert (await gateway.server("up"))["name"] == "up"
        visit.check_quiet()


@pytest.mark.heavy
async def test_tools_changing_while_shown_leave_no_spinner(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up,
        scripted_http_server(tmp_path, "other", tools=builtin_tools("echo")) as other,
        running_gateway(tmp_path, {"up": up.config, "other": other.config}) as gateway,
        running_browser() as browser,
        visiting(browser, gateway) as visit,
    ):
        await visit.go("tools")
        assert (await gateway.admin("servers/other/disable", "POST", {})).status_code == 200
        await expect(visit.page.get_by_text("1 in total")).to_be_visible()
        # Nothing is disabled or in quarantine, and the page refreshes its data silently.
        await visit.settle()
        visit.check_quiet()


@pytest.mark.heavy
async def test_open_page_reconnects_to_a_restarted_gateway_with_its_changes(tmp_path: Path) -> None:
    async with running_browser() as browser, scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up:
        async with running_gateway(tmp_path, {"up": up.config}) as gateway:
            async with visiting(browser, gateway) as visit:
                await visit.go("servers/up")
                await visit.page.get_by_role("button", name="Disable").click()
                await expect(visit.page.get_by_role("region", name="State")).to_contain_text("Disabled")
                port = int(gateway.origin.rpartition(":")[2])
                assert await gateway.stop(signal.SIGTERM) == 0
                await expect(visit.page.locator(".live")).to_contain_text("Not connected")
                async with serving(gateway.config, tmp_path, arguments=("--port", str(port))) as again:
                    # The same session, and what was changed is still so.
                    await expect(visit.page.locator(".live")).to_contain_text("Live", timeout=15_000)
                    assert (await again.server("up"))["state"] == "disabled"
                    await visit.page.get_by_role("button", name="Enable", exact=True).click()
                    await expect(visit.page.get_by_role("region", name="State")).to_contain_text("Ready")


@pytest.mark.heavy
async def test_page_is_consistent_with_two_workers(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up,
        running_workers(tmp_path, {"up": up.config}) as gateway,
        running_browser() as browser,
    ):
        await ready(gateway)
        async with visiting(browser, gateway) as visit:
            await visit.go("activity")
            for number in range(8):
                await gateway.call("up__echo", {"message": str(number)})
            # Calls at both workers, each over a separate connection, appear on a page that streams from one of them.
            await expect(visit.page.get_by_role("row").filter(has_text="up__echo")).to_have_count(8)
            await visit.go("tools")
            await visit.page.get_by_role("button", name="Disable up__echo", exact=True).click()
            await visit.page.get_by_role("button", name="Enable up__echo", exact=True).wait_for()
            for _ in range(6):
                assert "up__echo" not in await gateway.tools()
            visit.check_quiet()


@pytest.mark.heavy
async def test_page_stays_responsive_with_a_thousand_tools_and_fifty_servers(tmp_path: Path) -> None:
    servers: dict[str, Any] = {}
    for number in range(50):
        tools = [tool(f"tool_{index}", "a", "b", "c") for index in range(20)]
        servers[f"s{number}"] = scripted_stdio_server(tmp_path, f"s{number}", tools=tools)[0]
    async with running_gateway(tmp_path, servers) as gateway, running_browser() as browser:
        with anyio.fail_after(60):
            while len((await gateway.admin("wrappers")).json()["wrappers"]) < 1000:
                await asyncio.sleep(0.2)
        async with visiting(browser, gateway) as visit:
            await visit.page.reload()
            await visit.settle()
            paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            assert await visit.page.evaluate(paint) <= 1000
            await visit.go("tools")
            await expect(visit.page.get_by_text("1000 in total")).to_be_visible()
            took_ms = await visit.page.evaluate(
                """() => { const find = document.querySelector('input[type=search]'); find.value = 's7__tool_1';
                const began = performance.now(); find.dispatchEvent(new Event('input')); document.body.offsetHeight;
                return performance.now() - began; }"""
            )
            assert took_ms <= 100
            await expect(visit.page.get_by_text("11 of 1000")).to_be_visible()
            await visit.go("servers")
            await expect(visit.page.get_by_text("50 in total")).to_be_visible()
            visit.check_quiet()
