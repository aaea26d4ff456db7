"""Long pages of tools are kept as text until they are accessed."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from gateway.fleet.discovery import ListingSource, listing_of
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import RpcError
from gateway.upstream.inbound_messages import InboundMessages
from gateway.upstream.mcp_session import McpSession
from gateway.upstream.session import RawListing, SessionPorts
from registry.catalog.names import ServerName
from registry.schema.packed_definition import PackedDefinition


class Upstream:
    """Lists pages."""

    independent_requests = True

    def __init__(self, *pages: list[Any], last: Any = None) -> None:
        self.pages = pages
        self.last = last

    async def request(self, method: str, params: dict[str, Any], **_: Any) -> Any:
        number = int(params.get("cursor", "0"))
        more = {"nextCursor": str(number + 1) if number + 1 < len(self.pages) else self.last}
        answer = {"jsonrpc": "2.0", "id": 1, "result": {"tools": self.pages[number], **more}}
        text = json_bytes.dumps(answer).replace(b'"@half"', b'"\\ud800"').replace(b'"@huge"', b"1e999")
        return json_bytes.loads_answer(text)["result"]


async def listing(*pages: list[Any], last: Any = None) -> RawListing:
    transport: Any = Upstream(*pages, last=last)
    async with anyio.create_task_group() as group:
        inbound = InboundMessages(group, SessionPorts(on_list_changed=lambda _: None, on_update=lambda *_: None), None)
        session = McpSession("up", transport, inbound, "2026-07-28", {"capabilities": {"tools": {}}}, {})
        raw = await session.fetch_listing(limit_s=30)
        group.cancel_scope.cancel()
    return raw


def tools(first: int, number: int) -> list[Any]:
    schema = {"type": "object", "properties": {"é": {"default": 2**70}, "b": {"default": 1.0}}}
    return [{"description": "d", "name": f"t{first + one}", "inputSchema": schema} for one in range(number)]


@pytest.mark.parametrize("number", [3, 1_000])
async def test_every_tool_of_every_page_is_listed_unchanged(number: int) -> None:
    raw = await listing(tools(0, number), [*tools(number, number), "no tool"])
    assert raw.tools is not None
    assert {type(one) for one in raw.tools} == ({json_bytes.UnparsedJson} if number > 3 else {dict, str})
    found = listing_of(raw, ListingSource(server=ServerName("up"), epoch=1, transport="http"), before=None)
    assert list(map(written, found.tools)) == list(map(written, tools(0, 2 * number)))
    assert {type(one) for one in found.tools} == {PackedDefinition}
    assert [one.code for one in found.quarantined] == ["not_an_object"]


async def test_only_the_tool_with_a_lone_surrogate_is_omitted() -> None:
    page = tools(0, 500)
    page[7] = {**page[7], "extra": "@half"}
    raw = await listing(page)
    found = listing_of(raw, ListingSource(server=ServerName("up"), epoch=1, transport="http"), before=None)
    assert len(found.tools) == 499
    assert [(one.tool, one.code) for one in found.quarantined] == [("t7", "not_unicode")]


async def test_only_the_tool_with_an_out_of_range_number_is_omitted() -> None:
    page = tools(0, 500)
    page[7] = {**page[7], "extra": "@huge"}
    raw = await listing(page)
    found = listing_of(raw, ListingSource(server=ServerName("up"), epoch=1, transport="http"), before=None)
    assert len(found.tools) == 499
    assert [(one.tool, one.code) for one in found.quarantined] == [("t7", "not_json")]


@pytest.mark.parametrize(
    ("sizes", "last", "listed", "why"),
    [
        ((2, 3), None, 5, ""),
        ((2, 3), "", 5, ""),
        ((19_999, 1), None, 20_000, ""),
        ((19_999, 2), None, 20_000, "the limit for one server is reached"),
        ((20_001,), None, 20_000, "the limit for one server is reached"),
        ((2, 3), "1", 5, "its cursor was repeated"),
        ((2, 3), 7, 5, "its nextCursor is not a string"),
        (((1,) * 1_000), "1000", 1_000, "the limit for one server is reached"),
    ],
)
async def test_truncated_list_is_always_reported(sizes: tuple[int, ...], last: Any, listed: int, why: str) -> None:
    pages, first = [], 0
    for size in sizes:
        pages.append([{"name": f"t{first + one}"} for one in range(size)])
        first += size
    raw = await listing(*pages, last=last)
    assert len(raw.tools or ()) == listed
    expected = f"tools/list was cut after {listed} items on {len(sizes)} pages: {why}"
    assert raw.warnings == ((expected,) if why else ())


@pytest.mark.parametrize(("pages", "listed"), [(5, 5), (6, 5), (40, 5)])
@pytest.mark.parametrize("number", [1, 100])
async def test_list_over_32_mib_keeps_the_first_pages(pages: int, listed: int, number: int) -> None:
    text = "x" * (6_500_000 // number)
    raw = await listing(*([{"name": f"{page}-{one}", "d": text} for one in range(number)] for page in range(pages)))
    assert len(raw.tools or ()) == listed * number
    limit = "the lists of one server may have at most 32 MiB together"
    cut = f"tools/list was cut after {5 * number} items on 5 pages: {limit}"
    assert raw.warnings == ((cut,) if pages > listed else ())


async def test_many_small_values_count_by_their_memory() -> None:
    raw = await listing(*([{"name": f"{page}", "d": [[]] * 1_000_000}] for page in range(5)))
    assert len(raw.tools or ()) == 2
    assert "32 MiB together" in raw.warnings[0]


async def test_long_page_without_a_tool_list_fails() -> None:
    page: Any = {str(number): "x" * 100 for number in range(1_000)}
    with pytest.raises(ExceptionGroup) as failed:
        await listing(page)
    assert failed.group_contains(RpcError, match="has no list of tools")


def written(tool: Any) -> str:
    return json.dumps(dict(tool))
