"""Repaired content of any upstream is accepted by the models of the SDK."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import _v2025_11_25 as handshake
from mcp_types import _v2026_07_28 as modern

from registry.intake.content import repair_completion, repair_content, repair_contents, repair_messages
from registry.intake.item_intake import ItemKind, admit_items

WORDS = st.sampled_from([
    "", "user", "Assistant", "text", "image", "audio", "resource", "resource_link", "x", "1", "0.5", "2026-01-02",
    "2026-01-02T03:04:05", "Wed, 21 Oct 2015 07:28:00 GMT", "9999999999999",
    "data:image/png;base64,AAAA", "-_-_", "u:x",
])  # fmt: skip
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
ICONS = st.lists(JUNK | st.fixed_dictionaries({}, optional=dict.fromkeys(("src", "sizes", "theme", "mimeType"), JUNK)))
ANNOTATIONS = JUNK | st.fixed_dictionaries(
    {}, optional={"audience": JUNK | st.lists(WORDS), "priority": JUNK, "lastModified": JUNK, "vendor": JUNK}
)
MEMBERS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("title", "description", "mimeType", "size", "_meta", "text", "data", "blob", "vendor"), JUNK),
    "annotations": ANNOTATIONS, "icons": JUNK | ICONS,
}  # fmt: skip
CONTENTS = st.fixed_dictionaries({}, optional={"uri": JUNK, **MEMBERS})
ITEM = JUNK | st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "audio", "resource", "resource_link", None, 5])},
    optional={**MEMBERS, "uri": JUNK, "name": JUNK, "resource": JUNK | CONTENTS},
)
KNOWN = {
    "type", "text", "data", "mimeType", "uri", "name", "title", "description", "size", "icons", "annotations", "_meta",
    "resource", "blob", "audience", "priority", "lastModified", "src", "sizes", "theme", "arguments", "required",
}  # fmt: skip


# By type, the members that the protocol's schema has; clients do not look at others.
_OF_ALL = {"type", "annotations"}
MEMBERS_OF = {
    "text": {*_OF_ALL, "text"},
    "image": {*_OF_ALL, "data", "mimeType"},
    "audio": {*_OF_ALL, "data", "mimeType"},
    "resource": {*_OF_ALL, "resource"},
    "resource_link": {*_OF_ALL, "uri", "name", "title", "description", "mimeType", "size", "icons"},
}
OF_CONTENTS = {"uri", "mimeType", "text", "blob"}


def known_members(item: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in item.items() if name in MEMBERS_OF[item["type"]]}
    if "resource" in known:
        known["resource"] = {name: value for name, value in known["resource"].items() if name in OF_CONTENTS}
    return known


OF_MEMBERS = {
    "annotations": {"audience", "priority", "lastModified"},
    "icons": {"src", "sizes", "theme", "mimeType"},
    "arguments": {"name", "title", "description", "required"},
}


def no_nulls(value: Any, known: set[str] = KNOWN) -> None:
    """No known member is null, which the TypeScript SDK takes for the wrong type."""
    if isinstance(value, dict):
        for name, member in value.items():
            if name in ("_meta", "vendor"):
                continue
            assert name not in known or member is not None, value
            no_nulls(member, OF_MEMBERS.get(name, known))
    elif isinstance(value, list):
        for one in value:
            no_nulls(one, known)


def is_known_by_pydantic_alone(item: Any) -> bool:
    return item["type"] not in ("text", "image", "audio", "resource", "resource_link")


@given(st.lists(ITEM, max_size=4))
def test_repaired_content_is_accepted_by_sdk_models(content: list[Any]) -> None:
    repaired = [one for one in repair_content(content, []) if not is_known_by_pydantic_alone(one)]
    handshake.CallToolResult.model_validate({"content": repaired}, strict=True)
    modern.CallToolResult.model_validate({"content": repaired, "resultType": "complete"}, strict=True)
    for one in repaired:
        no_nulls(known_members(one))
    again = repair_content(repaired, [])
    assert again is repaired


@given(JUNK | st.lists(JUNK | st.fixed_dictionaries({}, optional={"role": JUNK, "content": ITEM | st.lists(ITEM)})))
def test_repaired_messages_are_accepted_by_sdk_models(messages: Any) -> None:
    repaired = repair_messages(messages, [])
    if isinstance(repaired, list):
        sound = [one for one in repaired if not is_known_by_pydantic_alone(one["content"])]
        handshake.GetPromptResult.model_validate({"messages": sound}, strict=True)


@given(JUNK | st.lists(JUNK | CONTENTS))
def test_repaired_resource_contents_are_accepted_by_sdk_models(contents: Any) -> None:
    repaired = repair_contents(contents, "u:x", [])
    if isinstance(repaired, list):
        handshake.ReadResourceResult.model_validate({"contents": repaired}, strict=True)
        known = ("uri", "mimeType", "_meta", "blob")
        no_nulls([{name: one[name] for name in known if name in one} for one in repaired])


@given(st.fixed_dictionaries({}, optional={"values": JUNK | st.lists(WORDS), "total": JUNK, "hasMore": JUNK}))
def test_repaired_completion_is_accepted_by_sdk_models(completion: dict[str, Any]) -> None:
    repaired = repair_completion(completion, [])
    handshake.CompleteResult.model_validate({"completion": repaired}, strict=True)
    assert None not in repaired.values()


ARGUMENTS = JUNK | st.lists(JUNK | st.fixed_dictionaries({"name": JUNK}, optional=dict.fromkeys(
    ("title", "description", "required", "vendor"), JUNK)))  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "key", "model"),
    [
        ("resources", "uri", handshake.Resource),
        ("resourceTemplates", "uriTemplate", handshake.ResourceTemplate),
        ("prompts", "name", handshake.Prompt),
    ],
)
@given(st.data())
def test_admitted_item_is_accepted_by_sdk_models(kind: ItemKind, key: str, model: Any, data: st.DataObject) -> None:
    members = {**MEMBERS, "arguments": ARGUMENTS} if kind == "prompts" else {**MEMBERS, "name": JUNK}
    item = data.draw(st.fixed_dictionaries({key: st.just("u:x")}, optional=members))
    [admitted] = admit_items([item], kind).items
    model.model_validate(admitted, strict=True)
    no_nulls({name: value for name, value in admitted.items() if name not in ("text", "data", "blob")})
    assert admit_items([admitted], kind).items[0] is admitted
