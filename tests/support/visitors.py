"""A caller of any profile, in either protocol era: the same questions, each put the way of its era."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from support.callers import Stream, hello, listen_to
from support.gateways import MODERN, RunningGateway, answer_of, envelope, messages_of

HANDSHAKE = "2025-11-25"
in_both_eras = pytest.mark.parametrize("era", [MODERN, HANDSHAKE])
ALWAYS = {"invoke_tool", "get_server_details"}
OWN = {*ALWAYS, "find_tools", "list_servers"}
CHANGED = "notifications/tools/list_changed"
_ACCEPT = {"accept": "application/json, text/event-stream"}


@dataclass(slots=True, kw_only=True)
class Visitor:
    """One caller; in the handshake era it has one session for each path that it visits."""

    gateway: RunningGateway
    era: str
    hellos: dict[str | None, dict[str, Any]] = field(default_factory=dict)
    _sessions: dict[str | None, dict[str, str]] = field(default_factory=dict)

    @property
    def modern(self) -> bool:
        """Return whether the visitor speaks 2026-07-28."""
        return self.era == MODERN

    def url(self, profile: str | None) -> str:
        """Return the path of a profile."""
        return self.gateway.url if profile is None else f"{self.gateway.url}/{profile}"

    async def sent(
        self, method: str, params: Mapping[str, Any] | None = None, profile: str | None = None
    ) -> httpx2.Response:
        """Put one question and return the whole response."""
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": method, "params": dict(params or {})}
        if self.modern:
            body["params"]["_meta"] = envelope()
            head = {**_ACCEPT, "mcp-protocol-version": MODERN, "mcp-method": method}
            named = [body["params"][key] for key in ("name", "uri") if key in body["params"]]
            head |= {"mcp-name": named[0]} if named else {}
        else:
            head = await self.session(profile)
        return await self.gateway.client.post(self.url(profile), json=body, headers=head, timeout=30)

    async def session(self, profile: str | None = None) -> dict[str, str]:
        """Return the headers of the session at one path, which is opened on first use."""
        if profile not in self._sessions:
            opened = await self.gateway.client.post(self.url(profile), json=hello(self.era), headers=_ACCEPT)
            assert opened.status_code == 200, opened.text
            self.hellos[profile] = opened.json()["result"]
            assert self.hellos[profile]["protocolVersion"] == self.era
            named = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": self.era}
            self._sessions[profile] = {**_ACCEPT, **named}
            done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await self.gateway.client.post(self.url(profile), json=done, headers=self._sessions[profile])
        return self._sessions[profile]

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, profile: str | None = None
    ) -> dict[str, Any]:
        """Put one question and return the result; an error fails the test."""
        answer = answer_of(await self.sent(method, params, profile))
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def greeted(self, profile: str | None = None) -> dict[str, Any]:
        """Return the result of the first `initialize` or `server/discover` request."""
        if self.modern:
            return await self.request("server/discover", profile=profile)
        await self.session(profile)
        return self.hellos[profile]

    async def listed(self, profile: str | None = None) -> dict[str, dict[str, Any]]:
        """Return the tools that are listed now, by name."""
        return {one["name"]: one for one in (await self.request("tools/list", profile=profile))["tools"]}

    async def called(self, name: str, arguments: Any, profile: str | None = None) -> dict[str, Any]:
        """Return the result of one call."""
        return await self.request("tools/call", {"name": name, "arguments": arguments}, profile)

    async def heard_at(self, name: str, arguments: Any, profile: str | None = None) -> list[str]:
        """Return the methods of the messages sent with the response to a call, in order; "answer" is the response."""
        response = await self.sent("tools/call", {"name": name, "arguments": arguments}, profile)
        if not response.headers["content-type"].startswith("text/event-stream"):
            return ["answer"]
        return [one.get("method", "answer") for one in messages_of(response.text)]

    @asynccontextmanager
    async def changes(self, profile: str | None = None) -> AsyncIterator[Stream]:
        """Open the stream of notifications about changed tools."""
        client = self.gateway.client
        if self.modern:
            head = {**_ACCEPT, "mcp-protocol-version": MODERN, "mcp-method": "subscriptions/listen"}
            opened = client.stream("POST", self.url(profile), json=listen_to(), headers=head, timeout=30)
        else:
            opened = client.stream("GET", self.url(profile), headers=await self.session(profile), timeout=30)
        async with opened as response:
            assert response.status_code == 200
            stream = Stream(response)
            if self.modern:
                assert (await stream.next())["method"] == "notifications/subscriptions/acknowledged"
            yield stream
