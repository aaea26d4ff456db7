"""A caller sees, uses and is told of exactly the items that rules and scopes permit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.access.principal import Principal
from gateway.config.load import parse
from gateway.downstream.messages import McpRequest
from gateway.protocol.versions import CAPABILITIES_KEY, VERSION_KEY
from gateway.serving.app import Gateway, open_gateway
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.shape import ServerShape, Shape

SERVERS = ("apple", "berry", "cedar")
TAGS = {"apple": ("red",), "berry": ("red", "blue"), "cedar": ()}
# Words that appear nowhere but in these names, so that a leak of any of them is found in any text.
TOOLS = {"apple": ("quaff", "quell"), "berry": ("quibble",), "cedar": ("quench", "quiver")}
READING = {"quaff", "quibble", "quench"}
PROMPTS = {"apple": ("jumble",), "berry": (), "cedar": ("jostle",)}
RESOURCES = {"apple": ("mem://zigzag",), "berry": ("mem://zenith",), "cedar": ()}
MARKERS = ("apple", "berry", "cedar", "quaff", "quell", "quibble", "quench", "quiver", "jumble", "jostle", "zigzag",
           "zenith")  # fmt: skip
PEOPLE = (
    Principal(name="ann", groups=frozenset({"interns"})),
    Principal(name="bob", scopes=frozenset({"tools:read", "resources"})),
    Principal(name="eve", groups=frozenset({"interns", "staff"}), scopes=frozenset({"prompts", "tools"})),
    Principal(name="kim"),
)


class CannedLink:
    """A link to a server that has an answer to everything."""

    patience_s = 0.0
    epoch = 1
    per_user = has_instances = False
    owner = ""
    elicitation = False
    is_available = True

    def __init__(self) -> None:
        self.tried = SimpleNamespace(is_set=lambda: True)
        self.session = SimpleNamespace(instructions=None, protocol_version="2026-07-28")
        self.state = SimpleNamespace(session=self.session)

    async def call(self, call: Any) -> dict[str, Any]:
        return {
            "tools/call": {"content": [{"type": "text", "text": "done"}]},
            "prompts/get": {"messages": []},
            "resources/read": {"contents": []},
            "completion/complete": {"completion": {"values": ["done"]}},
        }[call.method]


def listing_of(server: str) -> ServerListing:
    return ServerListing(
        server=ServerName(server),
        epoch=1,
        tools=tuple(
            {
                "name": tool, "description": "Does it.", "inputSchema": {"type": "object"},
                "annotations": {"readOnlyHint": tool in READING},
            }
            for tool in TOOLS[server]
        ),
        prompts=tuple({"name": name, "arguments": [{"name": "x"}]} for name in PROMPTS[server]),
        resources=tuple({"uri": uri, "name": uri} for uri in RESOURCES[server]),
        capabilities={"tools": {}, "prompts": {}, "resources": {}},
    )  # fmt: skip


@asynccontextmanager
async def gateway_with(policy: dict[str, Any], disclosure: str = "eager") -> AsyncIterator[Gateway]:
    settings = {"policy": policy, "profiles": {"default": {"disclosure": disclosure, "maxTools": 5}}}
    config = parse(json.dumps({"mcpServers": {}, "gateway": settings}))
    async with open_gateway(config, state_dir=None) as gateway:
        shapes = {
            ServerName(server): ServerShape(tags=TAGS[server], siblings=tuple(set(SERVERS) - {server}))
            for server in SERVERS
        }
        gateway.registry.reshape(Shape(servers=shapes))
        for server in SERVERS:
            cast("dict[str, Any]", gateway.fleet.links)[server] = CannedLink()
            gateway.registry.put(listing_of(server))
        yield gateway
        for server in SERVERS:
            del cast("dict[str, Any]", gateway.fleet.links)[server]


async def request_as(gateway: Gateway, who: Principal, method: str, **params: Any) -> dict[str, Any]:
    meta = {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {}}
    request = McpRequest(
        id=1, method=method, params={**params, "_meta": meta}, modern=True, principal=who,
        account=gateway.quotas.account(who), emit=lambda message: None,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads((await gateway.server.answer(request)).body)
    return answer


def works(answer: dict[str, Any]) -> bool:
    """Return whether the response comes from a server and not from the gateway."""
    return '"done"' in json.dumps(answer) or answer.get("result", {}).get("messages") == [] or (
        answer.get("result", {}).get("contents") == []
    )  # fmt: skip


def may(policy: dict[str, Any], who: Principal, kind: str, server: str, name: str) -> bool:
    """The rules once more, in the plainest form."""
    scope = "prompts" if kind == "completions" else kind
    reading = kind != "tools" or name in READING
    if who.scopes and scope not in who.scopes and not (reading and f"{scope}:read" in who.scopes):
        return False
    closed, allowed = policy["default"] == "deny", False
    for rule in policy["rules"]:
        if "groups" in rule and not set(rule["groups"]) & who.groups:
            continue
        if "principals" in rule and who.name not in rule["principals"] and "*" not in rule["principals"]:
            continue
        effect = "allow" if "allow" in rule else "deny"
        closed = closed or effect == "allow"
        if "servers" in rule and server not in rule["servers"]:
            continue
        if "tags" in rule and not set(rule["tags"]) & set(TAGS[server]):
            continue
        if "kinds" in rule and kind not in rule["kinds"]:
            continue
        if "when" in rule and rule["when"]["readOnly"] != reading:
            continue
        if not any(covers(pattern, server, name) for pattern in rule[effect]):
            continue
        if effect == "deny":
            return False
        allowed = True
    return allowed or not closed


def covers(pattern: str, server: str, name: str) -> bool:
    alias, separator, own = pattern.partition("__")
    return fnmatchcase(server, alias) and fnmatchcase(name, own) if separator else fnmatchcase(name, pattern)


def named(policy: dict[str, Any], who: Principal) -> set[str]:
    """Return every name that a caller may be told."""
    names: set[str] = set()
    for kind, items in (("tools", TOOLS), ("prompts", PROMPTS), ("resources", RESOURCES)):
        for server in SERVERS:
            shown = [item for item in items[server] if may(policy, who, kind, server, item)]
            names.update(shown, [server] if shown else [])
    return {marker for marker in MARKERS if any(marker in name for name in names)}


PATTERNS = st.sampled_from(["*", "apple__*", "*__qu*l*", "berry__quibble", "quench", "mem://z*", "c*__*", "jostle"])
RULES = st.lists(
    st.tuples(
        st.sampled_from(["allow", "deny"]),
        st.lists(PATTERNS, min_size=1, max_size=2),
        st.fixed_dictionaries(
            {},
            optional={
                "groups": st.lists(st.sampled_from(["interns", "staff"]), min_size=1, max_size=1),
                "principals": st.lists(st.sampled_from(["ann", "bob", "kim", "*"]), min_size=1, max_size=2),
                "servers": st.lists(st.sampled_from(SERVERS), min_size=1, max_size=2),
                "tags": st.lists(st.sampled_from(["red", "blue"]), min_size=1, max_size=1),
                "kinds": st.lists(st.sampled_from(["tools", "prompts", "resources"]), min_size=1, max_size=2),
                "when": st.fixed_dictionaries({"readOnly": st.booleans()}),
            },
        ),
    ),
    max_size=3,
).map(lambda rules: [{"name": f"r{at}", effect: what, **rest} for at, (effect, what, rest) in enumerate(rules)])
POLICIES = st.fixed_dictionaries({"default": st.sampled_from(["allow", "deny"]), "rules": RULES})


async def check(policy: dict[str, Any], who: Principal, disclosure: str) -> None:
    answers: list[tuple[str, dict[str, Any]]] = []
    async with gateway_with(policy, disclosure) as gateway:

        async def ask(method: str, *sent: str, **params: Any) -> dict[str, Any]:
            answer = await request_as(gateway, who, method, **params)
            # Names that the caller has sent are not secret.
            answers.append((" ".join(sent), answer))
            return answer

        async def listed(method: str, key: str, name: str) -> set[str]:
            return {item[name] for item in (await ask(method))["result"][key]}

        tools = await listed("tools/list", "tools", "name")
        prompts = await listed("prompts/list", "prompts", "name")
        uris = await listed("resources/list", "resources", "uri")
        found: dict[str, Any] = {}
        if tools:
            words = " ".join(name for names in TOOLS.values() for name in names)
            search = await ask("tools/call", words, name="find_tools", arguments={"query": words, "limit": 50})
            found = search.get("result", {}).get("structuredContent", {})
            await ask("tools/call", name="list_servers", arguments={})
        shown = tools | {tool["name"] for tool in found.get("tools", [])}
        await ask("server/discover")
        await ask("prompts/get", name="gateway_tools")
        manual = {"type": "ref/prompt", "name": "gateway_tools"}
        await ask("completion/complete", ref=manual, argument={"name": "server", "value": ""})
        for server in SERVERS:
            await ask("tools/call", server, name="get_server_details", arguments={"server": server, "schemas": True})
            await ask(
                "tools/call", server, name="invoke_tool", arguments={"server": server, "tool": "qu", "arguments": {}}
            )
            await ask("tools/call", server, name=f"{server}__qux", arguments={})
            for tool in TOOLS[server]:
                wrapper, permitted = f"{server}__{tool}", may(policy, who, "tools", server, tool)
                assert (wrapper in shown) == permitted
                assert works(await ask("tools/call", wrapper, name=wrapper, arguments={})) == permitted
                address = {"server": server, "tool": tool, "arguments": {}}
                assert works(await ask("tools/call", wrapper, name="invoke_tool", arguments=address)) == permitted
                assert not works(await ask("tools/call", tool, name=f"{tool}x", arguments={}))
            for prompt in PROMPTS[server]:
                key, permitted = f"{server}__{prompt}", may(policy, who, "prompts", server, prompt)
                assert (key in prompts) == permitted
                assert works(await ask("prompts/get", key, name=key)) == permitted
                completes = permitted and may(policy, who, "completions", server, prompt)
                ref = {"type": "ref/prompt", "name": key}
                answer = await ask("completion/complete", key, ref=ref, argument={"name": "x", "value": ""})
                assert works(answer) == completes
            for uri in RESOURCES[server]:
                permitted = may(policy, who, "resources", server, uri)
                assert (uri in uris) == permitted
                # Other servers may have an unlisted URI, so every permitted server with resources is asked.
                assert works(await ask("resources/read", uri, uri=uri)) >= permitted
        for server in SERVERS:
            gateway.registry.put(replace(listing_of(server), epoch=2, tools=listing_of(server).tools[:-1]))
        for server in SERVERS:
            for tool in TOOLS[server]:
                address = {"server": server, "tool": tool, "arguments": {}}
                for name, arguments in ((f"{server}__{tool}", {}), ("invoke_tool", address)):
                    answer = await ask("tools/call", server, tool, name=name, arguments=arguments)
                    # Errors never say that an item existed that the caller was never shown.
                    assert "no longer" not in json.dumps(answer) or may(policy, who, "tools", server, tool)
        known = named(policy, who)
        for sent_text, answer in answers:
            text = json.dumps(answer)
            leaked = {
                marker for marker in MARKERS if marker in text and marker not in known and marker not in sent_text
            }
            assert not leaked, (leaked, text)


@settings(deadline=None, max_examples=60)
@given(policy=POLICIES, who=st.sampled_from(PEOPLE), disclosure=st.sampled_from(["eager", "lazy"]))
@pytest.mark.heavy
def test_listed_items_are_exactly_the_usable_ones(policy: dict[str, Any], who: Principal, disclosure: str) -> None:
    anyio.run(check, policy, who, disclosure)
