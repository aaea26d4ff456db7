"""Nested, recursive filters of generated GraphQL APIs, with optional and nullable members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.gateways import RunningGateway, text_of
from support.upstreams.graphql_running import graphql_gateway

SDL = """
input IntOp { eq: Int gt: Int lt: Int in: [Int!] }
input StringOp { eq: String contains: String in: [String!] }
input DeptFilter { name: StringOp staff: StaffFilter and: [DeptFilter!] }
input StaffFilter {
  and: [StaffFilter!] or: [StaffFilter!] not: StaffFilter
  salary: IntOp name: StringOp department: DeptFilter age: IntOp title: StringOp level: IntOp
}
input Badge { number: Int! site: String! }
input By @oneOf { id: ID name: String badge: Badge }
type Query { staff(where: StaffFilter): [Int!] one(by: By!, id: ID): Int }
"""
FILES: dict[str, str | bytes] = {
    "staff.graphql": "query Staff($where: StaffFilter) { staff(where: $where) }",
    "one.graphql": b"\xef\xbb\xbfquery One($by: By!, $id: ID) { one(by: $by, id: $id) }",
}


def ready_call(text: str) -> Any:
    return json.loads(text.partition("Call it like: ")[2].partition(" Schema: ")[0])


def nested(*steps: str, leaf: Any) -> Any:
    for step in reversed(steps):
        leaf = {step: [leaf]} if step in ("and", "or") else {step: leaf}
    return leaf


DEEP = ("and", "or", "not", "department", "staff", "and")


async def refusal(gateway: RunningGateway, name: str, arguments: Any) -> str:
    answer = await gateway.call(name, arguments)
    assert answer["isError"], answer
    return text_of(answer)


@pytest.mark.heavy
async def test_wrong_key_in_a_nested_filter_gets_a_suggestion(tmp_path: Path) -> None:
    async with graphql_gateway(tmp_path, FILES, sdl=SDL) as (server, gateway):
        await gateway.until_listed("hr__staff", "hr__one")
        for steps in ((), ("and",), DEEP):
            text = await refusal(gateway, "hr__staff", {"where": nested(*steps, leaf={"salery": {"gt": 5}})})
            assert "salery is not a parameter; did you mean salary?" in text
            assert ready_call(text) == {"where": nested(*steps, leaf={"salary": {"eq": "<integer>"}})}
        # Unambiguous mistakes are repaired inside filters as in other arguments.
        right = {"where": nested(*DEEP, leaf={"salary": {"gt": 5}})}
        for wrong in (
            {"where": json.dumps(right["where"])},
            {"where": nested(*DEEP, leaf={"Salary": {"gt": 5}})},
            {"where": nested(*DEEP, leaf={"salary": {"gt": "5"}})},
        ):
            assert not (await gateway.call("hr__staff", wrong)).get("isError")
        assert [one["variables"] for one in server.sent()] == [right] * 3


@pytest.mark.heavy
async def test_suggested_call_of_a_choice_is_accepted_and_an_id_may_be_a_number(tmp_path: Path) -> None:
    async with graphql_gateway(tmp_path, FILES, sdl=SDL) as (server, gateway):
        await gateway.until_listed("hr__staff", "hr__one")
        for arguments in ({}, {"by": {}}, {"by": {"id": "1", "name": "x"}}, {"by": {"idd": 5}}):
            call = ready_call(await refusal(gateway, "hr__one", arguments))
            assert call == {"by": {"id": "<string>"}}
            assert not (await gateway.call("hr__one", call)).get("isError")
        assert "by takes exactly 1 of: id, name, badge." in await refusal(gateway, "hr__one", {"by": {}})
        assert not (await gateway.call("hr__one", {"by": {"id": 7}, "id": 8})).get("isError")
        last = server.sent()[-1]
        assert last["variables"] == {"by": {"id": 7}, "id": 8}
        assert last["query"].encode() == FILES["one.graphql"]
