"""No member of a resource, prompt or content item makes a client reject a list or result."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from support.clients import installed
from support.gateways import running_gateway
from support.upstreams.running import scripted_stdio_server, tool

LINK = {"type": "resource_link", "uri": "doc://link", "name": "link"}
IMAGE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(6)).decode()
# Members of a resource as its server lists them, and as the gateway has to list them; None for an absent member.
RESOURCES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "own_audience": ({"annotations": {"audience": ["developers"]}}, {"annotations": {}}),
    "some_audience": ({"annotations": {"audience": ["developers", "User"]}}, {"annotations": {"audience": ["user"]}}),
    "text_audience": ({"annotations": {"audience": "user"}}, {"annotations": {"audience": ["user"]}}),
    "high_priority": ({"annotations": {"priority": 10}}, {"annotations": {}}),
    "text_priority": ({"annotations": {"priority": "0.5"}}, {"annotations": {"priority": 0.5}}),
    "day": ({"annotations": {"lastModified": "2026-02-03"}}, {"annotations": {"lastModified": "2026-02-03T00:00:00Z"}}),
    "no_zone": (
        {"annotations": {"lastModified": "2026-02-03 04:05:06"}},
        {"annotations": {"lastModified": "2026-02-03T04:05:06Z"}},
    ),
    "mail_date": (
        {"annotations": {"lastModified": "Wed, 21 Oct 2015 07:28:00 GMT"}},
        {"annotations": {"lastModified": "2015-10-21T07:28:00Z"}},
    ),
    "milliseconds": (
        {"annotations": {"lastModified": 1445412480000}}, {"annotations": {"lastModified": "2015-10-21T07:28:00Z"}},
    ),
    "no_date": ({"annotations": {"lastModified": "yesterday"}}, {"annotations": {}}),
    "no_day": ({"annotations": {"lastModified": "2026-02-30T00:00:00Z"}}, {"annotations": {}}),
    "annotations_list": ({"annotations": ["user"]}, {"annotations": None}),
    "annotations_null": ({"annotations": None}, {"annotations": None}),
    "size_text": ({"size": "120"}, {"size": 120}),
    "size_half": ({"size": 12.5}, {"size": 13}),
    "size_words": ({"size": "12 KB"}, {"size": None}),
    "size_true": ({"size": True}, {"size": None}),
    "mime_null": ({"mimeType": None}, {"mimeType": None}),
    "mime_list": ({"mimeType": ["text/plain"]}, {"mimeType": None}),
    "title_number": ({"title": 5}, {"title": None}),
    "description_object": ({"description": {"en": "x"}}, {"description": None}),
    "name_absent": ({"name": None}, {"name": "doc://name_absent"}),
    "icons_object": ({"icons": {"src": "a:b"}}, {"icons": None}),
    "icon_text": ({"icons": ["a:b", {"src": "a:b", "theme": "blue"}]}, {"icons": [{"src": "a:b"}]}),
    "meta_text": ({"_meta": "m"}, {"_meta": None}),
}  # fmt: skip
NOT_ITEMS: tuple[Any, ...] = (None, 7, "doc://x", [], {}, {"name": "n"}, {"uri": 5, "name": "n"}, {"uri": None})
PROMPTS: dict[str, tuple[dict[str, Any], Any]] = {
    "by_name": ({"arguments": {"city": "Where", "day": {"required": True}}}, [
        {"name": "city", "description": "Where"}, {"name": "day", "required": True}]),
    "by_schema": (
        {"arguments": {"type": "object", "properties": {"city": {"type": "string", "description": "Where"}},
                       "required": ["city"]}},
        [{"name": "city", "description": "Where", "required": True}],
    ),
    "as_words": ({"arguments": ["city"]}, [{"name": "city"}]),
    "nulls": ({"arguments": [{"name": "city", "description": None, "required": None}]}, [{"name": "city"}]),
    "no_names": ({"arguments": [{"description": "x"}, None]}, []),
    "arguments_null": ({"arguments": None, "title": None, "description": 5, "icons": "no", "_meta": []}, None),
}  # fmt: skip
# Content items as the server sends them, and as the client has to receive them.
ITEMS: dict[str, tuple[Any, Any]] = {
    "audience": ({"type": "text", "text": "t", "annotations": {"audience": ["developers"]}},
                 {"type": "text", "text": "t", "annotations": {}}),
    "priority": ({**LINK, "annotations": {"priority": 5}}, {**LINK, "annotations": {}}),
    "size": ({**LINK, "size": "5", "mimeType": None, "title": 5}, {**LINK, "size": 5}),
    "nameless": ({"type": "resource_link", "uri": "doc://link"}, {**LINK, "name": "doc://link"}),
    "icons": ({**LINK, "icons": [{"sizes": "1x1"}]}, {**LINK, "icons": []}),
    "number": ({"type": "text", "text": 5}, {"type": "text", "text": "5"}),
    "null_text": ({"type": "text", "text": None, "_meta": None, "annotations": None}, {"type": "text", "text": ""}),
    "word": ("word", {"type": "text", "text": "word"}),
    "untyped": ({"text": "t"}, {"type": "text", "text": "t"}),
    "no_mime_type": ({"type": "image", "data": IMAGE}, {"type": "image", "data": IMAGE, "mimeType": "image/png"}),
    "data_url": (
        {"type": "image", "data": f"data:image/png;base64,{IMAGE}", "mimeType": "image/png"},
        {"type": "image", "data": IMAGE, "mimeType": "image/png"},
    ),
    "base64url": ({"type": "audio", "data": "-_-_", "mimeType": "audio/wav"},
                  {"type": "audio", "data": "+/+/", "mimeType": "audio/wav"}),
    "no_data": ({"type": "image", "mimeType": "image/png"},
                {"type": "text", "text": '{"type": "image", "mimeType": "image/png"}'}),
    "resource": (
        {"type": "resource", "resource": {"uri": "doc://e", "text": {"a": 1}, "mimeType": 5, "_meta": "x"}},
        {"type": "resource", "resource": {"uri": "doc://e", "text": '{"a": 1}'}},
    ),
    "resource_no_uri": ({"type": "resource", "resource": {"text": "t"}},
                        {"type": "resource", "resource": {"text": "t", "uri": "resource:content"}}),
}  # fmt: skip


def result_with(item: Any) -> dict[str, Any]:
    """Return a result with this item between two valid items."""
    return {"content": [{"type": "text", "text": "before"}, item, {"type": "text", "text": "after"}]}


def bad_server(tmp_path: Path) -> dict[str, Any]:
    """Return the entry of a server whose lists contain items that the SDKs refuse."""
    resources = [{"uri": f"doc://{word}", "name": word, **members} for word, (members, _) in RESOURCES.items()]
    resources.append({"uri": "not a url", "name": "no_url"})
    templates = [{"uriTemplate": f"doc://{word}/{{id}}", "name": word, **m} for word, (m, _) in RESOURCES.items()]
    prompts = [{"name": word, **members} for word, (members, _) in PROMPTS.items()]
    messages = [{"role": "system", "content": one} for one, _ in ITEMS.values()]
    messages += [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    contents = [
        {"uri": "doc://day", "text": "t", "mimeType": None}, {"text": {"a": 1}}, {"uri": "doc://b", "blob": "-_-_"}
    ]  # fmt: skip
    answers = {
        "resources/list": {"resources": [*NOT_ITEMS, *resources]},
        "resources/templates/list": {"resourceTemplates": [*NOT_ITEMS, *templates]},
        "prompts/list": {"prompts": [*NOT_ITEMS[:5], {"name": 5}, *prompts]},
        "prompts/get": {"description": 5, "messages": [*messages, None, "said"]},
        "resources/read": {"contents": contents},
    }
    tools = [
        {**tool(word), "annotations": {"audience": ["x"], "readOnlyHint": 1}, "icons": {}, "execution": 1}
        for word in (*ITEMS, "is_error", "one_item", "large")
    ]
    behaviours: dict[str, Any] = {word: {"result": {"result": result_with(item)}} for word, (item, _) in ITEMS.items()}
    behaviours["is_error"] = {"result": {"result": {"content": [], "isError": "true", "_meta": None}}}
    behaviours["one_item"] = {"result": {"result": {"content": {"type": "text", "text": "alone"}}}}
    large = {"content": [{"type": "text", "text": "x" * 20_000, "annotations": {"audience": "me"}}] * 2}
    behaviours["large"] = {"result": {"result": large}}
    script = {
        "tools": tools,
        "answers": answers,
        "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
        "behaviours": {
            word: {"kind": "result", "with": given["result"]} if "result" in given else given
            for word, given in behaviours.items()
        },
    }
    return scripted_stdio_server(tmp_path, "bad", **script)[0]


def good_server(tmp_path: Path) -> dict[str, Any]:
    """Return the entry of a server whose items are valid."""
    answers = {
        "resources/list": {"resources": [{"uri": "doc://readme", "name": "readme"}]},
        "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "good://{id}", "name": "good"}]},
        "prompts/list": {"prompts": [{"name": "hello"}]},
    }
    capabilities: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}}
    return scripted_stdio_server(tmp_path, "good", tools=[tool("t")], answers=answers, capabilities=capabilities)[0]


@pytest.mark.parametrize("client", ["typescript", "sdk1", "sdk2-legacy", "sdk2-2026-07-28"])
@pytest.mark.heavy
async def test_no_member_breaks_a_client_list_or_result(client: str, tmp_path: Path) -> None:
    servers = {"bad": bad_server(tmp_path), "good": good_server(tmp_path)}
    calls = [{"name": f"bad__{word}", "arguments": {}} for word in (*ITEMS, "is_error", "one_item", "large")]
    surface = {"gets": ["bad__nulls"], "reads": ["doc://day"]}
    eager = {"profiles": {"default": {"disclosure": "eager"}}}
    async with running_gateway(tmp_path, servers, gateway=eager) as gateway:
        await gateway.until_listed("bad__audience", "good__t")
        seen = await installed.report(client, gateway.url, calls, surface=surface)
        rows = (await gateway.admin("quarantine")).json()["quarantine"]
    assert "doc://readme" in {one["uri"] for one in seen["resources"]}
    assert "good__hello" in {one["name"] for one in seen["prompts"]}
    assert "good://{id}" in {one["uriTemplate"] for one in seen["resourceTemplates"]}
    for kind, member, end in (("resources", "uri", ""), ("resourceTemplates", "uriTemplate", "/{id}")):
        listed = {one[member]: one for one in seen[kind]}
        for word, (_, wanted) in RESOURCES.items():
            found = listed[f"doc://{word}{end}"]
            for name, value in wanted.items():
                if kind == "resources" or name not in ("size", "name"):
                    assert found.get(name) == value, (word, found)
    [no_url] = [one["uri"] for one in seen["resources"] if one["name"] == "no_url"]
    assert no_url.startswith("typegate://bad/not")
    prompts = {one["name"]: one for one in seen["prompts"]}
    assert {word: prompts[f"bad__{word}"].get("arguments") for word in PROMPTS} == {
        word: wanted for word, (_, wanted) in PROMPTS.items()
    }
    for word, outcome in zip(ITEMS, seen["calls"], strict=False):
        assert outcome["result"]["content"][1] == ITEMS[word][1], (word, outcome)
        assert len(outcome["result"]["content"]) == 3
        assert outcome["result"]["_meta"]["typegate/repaired"]
    is_error, one_item, large = (outcome["result"] for outcome in seen["calls"][-3:])
    assert is_error["isError"] is True
    assert one_item["content"] == [{"type": "text", "text": "alone"}]
    assert [len(one["text"]) for one in large["content"]] == [20_000, 20_000]
    [got] = seen["gets"]
    contents = [one["content"] for one in got["messages"]]
    assert contents[: len(ITEMS)] == [wanted for _, wanted in ITEMS.values()]
    assert [one["text"] for one in contents[len(ITEMS) :]] == ["a", "b", "said"]
    assert {one["role"] for one in got["messages"]} == {"user", "assistant"}
    [read] = seen["reads"]
    assert [(str(one["uri"]), one.get("text", one.get("blob"))) for one in read["contents"]] == [
        ("doc://day", "t"), ("doc://day", '{"a": 1}'), ("doc://b", "+/+/"),
    ]  # fmt: skip
    left_out = [row for row in rows if row["status"] == "quarantined" and row["server"] == "bad"]
    assert len(left_out) == 2 * len(NOT_ITEMS) + 6
    assert all(row["detail"] for row in rows)
    assert ("not a url", "not_a_url") in {(row["tool"], row["code"]) for row in rows}
    assert {"doc://own_audience", "doc://size_half"} <= {row["tool"] for row in rows if row["status"] == "repaired"}
