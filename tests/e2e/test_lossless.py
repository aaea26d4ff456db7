"""A result is equal on both sides, whatever JSON it contains, except for documented adaptations."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from e2e.lanes import Lane, direct_lane, entries
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.gateways import META, MODERN, running_gateway
from support.hosts_connected import http_host
from support.upstreams.full_running import full_http, full_stdio

OLDER = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
EXAMPLES = 60
Json = Any

_words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_numbers = st.integers(-(2**100), 2**100) | st.floats(allow_nan=False, allow_infinity=False)
_leaves: st.SearchStrategy[Json] = st.none() | st.booleans() | _numbers | _words


def nested(levels: int) -> st.SearchStrategy[Json]:
    """Any JSON value, always including some chains with this many levels."""
    chain = _leaves
    for _ in range(levels):
        chain = st.builds(lambda key, value: {key: value}, _words, chain) | chain.map(lambda one: [one])
    tree = st.recursive(_leaves, lambda inner: st.lists(inner, max_size=3) | objects(inner), max_leaves=8)
    return tree | chain


def objects(values: st.SearchStrategy[Json]) -> st.SearchStrategy[dict[str, Json]]:
    """Any JSON object of these values."""
    return st.dictionaries(_words, values, max_size=3)


VALUES = nested(10)
MEMBERS = st.dictionaries(_words.map(lambda word: f"x{word}"), VALUES, max_size=2)


def item(kind: str, **members: st.SearchStrategy[Json]) -> st.SearchStrategy[dict[str, Json]]:
    """A content item of a type, with unknown members."""
    known = st.fixed_dictionaries({"type": st.just(kind), **members})
    return st.builds(lambda a, b: {**a, **b}, MEMBERS, known)


_DATA = st.binary(max_size=6).map(lambda raw: base64.b64encode(raw).decode())
CONTENT = st.one_of(
    item("text", text=_words),
    item("image", data=_DATA, mimeType=st.just("image/png")),
    item("audio", data=_DATA, mimeType=st.just("audio/wav")),
    item("resource_link", uri=_words, name=_words.filter(bool)),
    item("resource", resource=st.fixed_dictionaries({"uri": st.just("a:b"), "text": _words})),
    item("hologram", beam=VALUES),
)
RESULTS = st.builds(
    lambda more, known: {**more, **known},
    MEMBERS,
    st.fixed_dictionaries(
        {"content": st.lists(CONTENT, max_size=4)},
        optional={"structuredContent": VALUES, "isError": st.booleans(), "_meta": MEMBERS},
    ),
)


def essence(result: dict[str, Json]) -> dict[str, Json]:
    """A result without what belongs to the envelope: who answered, and that it is complete."""
    meta = {key: value for key, value in result.get("_meta", {}).items() if key != META + "serverInfo"}
    rest = {key: value for key, value in result.items() if key not in ("_meta", "resultType")}
    return rest | ({"_meta": meta} if meta else {})


def adapted(result: dict[str, Json], version: str) -> dict[str, Json]:
    """A result as a caller of a version is promised to see it."""
    adapted = dict(result)
    content = list(result["content"])
    if "structuredContent" in result and not any(one["type"] == "text" for one in content):
        content.append({"type": "text", "text": result["structuredContent"], "said": True})
    if version < "2025-06-18" or (version < MODERN and not isinstance(result.get("structuredContent"), dict)):
        adapted.pop("structuredContent", None)
    return adapted | {"content": [of_version(one, version) for one in content]}


def of_version(content: dict[str, Json], version: str) -> dict[str, Json]:
    """A content item as a caller of a version knows it."""
    if content["type"] == "resource_link" and version < "2025-06-18":
        return {"type": "text", "text": f"[{content['name']}]({content['uri']})"}
    if content["type"] == "audio" and version < "2025-03-26":
        return {"type": "resource", "resource": {"blob": content["data"], "mimeType": content["mimeType"]}}
    return content


def assert_equal(got: dict[str, Json], wanted: dict[str, Json], version: str, given: dict[str, Json]) -> None:
    """Equal as JSON: 1 is not 1.0, and true is not 1."""
    got, wanted = essence(got), essence(wanted)
    items, promised = got.pop("content"), wanted.pop("content")
    assert json.dumps(got, sort_keys=True) == json.dumps(wanted, sort_keys=True)
    assert len(items) == len(promised), (items, promised)
    for at, (one, due) in enumerate(zip(items, promised, strict=True)):
        if due.get("said"):  # the text form of structured content, however it is spaced
            assert json.dumps(json.loads(one["text"]), sort_keys=True) == json.dumps(due["text"], sort_keys=True)
        elif due is given["content"][at]:
            assert json.dumps(one, sort_keys=True) == json.dumps(due, sort_keys=True)
        elif due["type"] == "text":
            assert (one["type"], one["text"]) == ("text", due["text"])
        else:
            assert one["type"] == "resource"
            assert {key: one["resource"][key] for key in ("blob", "mimeType")} == due["resource"]
            assert isinstance(one["resource"]["uri"], str)


@asynccontextmanager
async def hosts_of(
    tmp_path: Path, modern: bool, versions: tuple[str, ...], *, over_http: bool = False
) -> AsyncIterator[list[Lane]]:
    """Hosts of these versions on one gateway before one server, and one connected to it directly."""
    async with AsyncExitStack() as stack:
        if over_http:
            server = await stack.enter_async_context(full_http(tmp_path, "s", modern=modern))
        else:
            server = full_stdio(tmp_path, "s", modern=modern)
        own = MODERN if modern else OLDER[0]
        lanes = [await stack.enter_async_context(direct_lane(tmp_path, server, own))]
        gateway = await stack.enter_async_context(running_gateway(tmp_path, entries([server])))
        client = await stack.enter_async_context(httpx2.AsyncClient(timeout=30))
        for version in versions:
            host = await stack.enter_async_context(http_host(gateway.url, version, client))
            lanes.append(Lane(host=host, server=server, through=True))
            await lanes[-1].ready()
        yield lanes


@pytest.mark.heavy
@pytest.mark.parametrize("modern", [True, False])
def test_any_result_is_equal_on_both_sides_in_every_era(modern: bool, tmp_path: Path) -> None:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(hosts_of(tmp_path, modern, (MODERN, *OLDER))) as lanes,
    ):

        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(RESULTS)
        def law(result: dict[str, Json]) -> None:
            check(portal, lanes, result)

        law()


@pytest.mark.parametrize(
    ("modern", "over_http"),
    [(True, True), (False, False), *(pytest.param(one, not one, marks=pytest.mark.heavy) for one in (True, False))],
)
@pytest.mark.heavy
def test_large_result_is_equal_on_both_sides_without_being_parsed(
    modern: bool, over_http: bool, tmp_path: Path
) -> None:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(hosts_of(tmp_path, modern, (MODERN, *OLDER), over_http=over_http)) as lanes,
    ):
        words = 'x\u2028é\n"\\' * 15_000
        text, image = {"type": "text", "text": words}, {"type": "image", "data": "AAAA" * 30_000, "mimeType": "a/b"}
        link = {"type": "resource_link", "uri": "a:b", "name": words}
        numbers = {"n": [2**70, 1.0, 1, -0.0, 1e300], "words": words}
        structured: list[Json] = [numbers, [numbers], words]
        for result in (
            *(
                {"content": content}
                for content in (
                    [text],
                    [image, text],
                    [link, {"type": "audio", "data": words, "mimeType": "audio/wav"}],
                )
            ),
            *(
                {"content": content, "structuredContent": one}
                for content in ([], [text], [image])
                for one in structured
            ),
            {"content": [text], "isError": True, "_meta": {"vendor": words}, "vendor": numbers},
            {"content": [{"type": "text", "text": "{}"}], "vendor": [numbers]},
        ):
            check(portal, lanes, result)


def check(portal: BlockingPortal, lanes: list[Lane], result: dict[str, Json]) -> None:
    """Check that each lane returns this result in the form of its version."""
    for lane in lanes:
        got = portal.call(lambda lane=lane: lane.call("result", result=result))
        if not lane.through:
            assert json.dumps(essence(got), sort_keys=True) == json.dumps(essence(result), sort_keys=True)
            continue
        assert got.get("resultType") == ("complete" if lane.host.modern else None)
        version = lane.host.version
        assert_equal(got, adapted(result, version), version, result)


async def test_prompt_messages_are_adapted_like_results(tmp_path: Path) -> None:
    kinds: list[dict[str, Json]] = [
        {"type": "text", "text": "words", "vendor": None},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "a:b", "name": "n"},
        {"type": "hologram", "beam": 2**60},
    ]
    messages = json.dumps([{"role": "user", "content": one} for one in kinds])
    async with hosts_of(tmp_path, False, (MODERN, *OLDER)) as lanes:
        for lane in lanes:
            params = {"name": lane.name("show"), "arguments": {"messages": messages}}
            shown = (await lane.host.result("prompts/get", params))["messages"]
            version = lane.host.version if lane.through else MODERN
            result = {"content": [one["content"] for one in shown]}
            assert_equal(result, adapted({"content": kinds}, version), version, {"content": kinds})
