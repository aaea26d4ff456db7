"""A handle as an argument passes a stored value to another tool, where the rules allow it, without the model."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import handshake
from support.clusters import running_cluster
from support.gateways import RunningGateway, running_gateway, text_of
from support.results import answering, in_profile, text
from support.upstreams.running import Recording, scripted_http_server, scripted_stdio_server, tool
from support.worker_groups import each_worker, ready, running_workers, until

HANDLE = re.compile(r"typegate:result/[\w-]+")
ROWS = {"rows": [{"id": n, "name": f"row {n}"} for n in range(300)]}
IMAGE = base64.b64encode(b"picture" * 2_000).decode()
DRIVE = {
    "read": {"content": [text("line of the file\n" * 500)]},
    "rows": {"content": [text(ROWS)]},
    "picture": {"content": [{"type": "image", "data": IMAGE, "mimeType": "image/png"}, text("a picture")]},
    "sound": {"content": [{"type": "audio", "data": "aGVsbG8=", "mimeType": "audio/x-rare"}]},
}
POST = {**tool("post", body="string"), "annotations": {"openWorldHint": True}}
SEND = tool("send", body="string", to="string", rows={"type": "array"}, nested={"type": "object"})
BOUND: dict[str, Any] = {"results": {"maxBytes": 2_000, "binaryTypes": ["image/*"]}}


def handle_in(result: Mapping[str, Any]) -> str:
    found = HANDLE.search(json.dumps(result))
    assert found is not None, result
    return found[0]


async def read_resource(gateway: RunningGateway, uri: str) -> dict[str, Any]:
    return await gateway.rpc("resources/read", {"uri": uri}, headers={"mcp-name": uri})


@asynccontextmanager
async def drive_and_mail(tmp_path: Path, **gateway: Any) -> AsyncIterator[tuple[RunningGateway, Recording]]:
    """A gateway before a server whose results are large, and one that receives arguments."""
    drive, _ = scripted_stdio_server(tmp_path, "drive", **answering(**DRIVE))
    mail, received = scripted_stdio_server(tmp_path, "mail", tools=[SEND, POST])
    async with running_gateway(tmp_path, {"drive": {**drive, **BOUND}, "mail": mail}, gateway=gateway) as running:
        await running.until_listed("drive__read", "mail__send")
        yield running, received


def flows(gateway: RunningGateway) -> list[dict[str, Any]]:
    """The entries of the audit log about flows."""
    lines = [line for file in gateway.state_dir.rglob("*.jsonl") for line in file.read_text().splitlines()]
    entries = map(json.loads, lines)
    return [entry for entry in entries if entry.get("event") == "flow"]


async def test_value_flows_by_handle_and_is_audited(tmp_path: Path) -> None:
    async with drive_and_mail(tmp_path) as (gateway, received):
        session = await handshake(gateway)
        file, rows = handle_in(await gateway.call("drive__read")), handle_in(await gateway.call("drive__rows"))
        sent = {
            "to": "a@example.test",
            "body": file,
            "rows": f"@{rows}#/rows",
            "nested": {"name": f"{rows}#/rows/3/name", "row": f"@{rows}#/rows/3", "text": f"{rows}#/rows/3"},
        }
        arrived = {
            "to": "a@example.test",
            "body": "line of the file\n" * 500,
            "rows": ROWS["rows"],
            "nested": {"name": "row 3", "row": {"id": 3, "name": "row 3"}, "text": '{"id":3,"name":"row 3"}'},
        }
        await gateway.call("mail__send", sent)
        await session.call("mail__send", sent)
        await gateway.call("invoke_tool", {"server": "mail", "tool": "send", "arguments": sent})
        assert [call["arguments"] for call in received.calls("send")] == [arrived] * 3
        for wrong, reason in (
            ({"body": "typegate:result/forged"}, "argument /body: 'typegate:result/forged' is not a handle"),
            ({"body": f"{rows}#/rows/300"}, "without an item '300'"),
            ({"rows": [file] * 17}, "at most 16 handles"),
        ):
            refused = await gateway.call("mail__send", wrong)
            assert refused["isError"] is True
            assert reason in text_of(refused)
        # Never to a tool that is marked openWorld, unless configured.
        refused = await gateway.call("mail__post", {"body": file})
        assert "results of drive__read may not be passed to mail__post" in text_of(refused)
        assert len(received.calls()) == 3
        entries = await until(lambda: len(found := flows(gateway)) >= 16 and found, within_s=60)
        first = next(entry for entry in entries if entry["argument"] == "/body")
        assert (first["from"], first["to"], first["bytes"]) == ("drive__read", "mail__send", 9_002)
        assert first["allowed"] is True
        assert [entry["to"] for entry in entries if entry["allowed"] is False] == ["mail__post"]


@pytest.mark.heavy
async def test_operator_decides_which_results_may_flow_where(tmp_path: Path) -> None:
    rules = [
        {"from": ["drive__read"], "to": ["mail__post"]},
        {"from": ["drive"], "to": ["mail__post"], "allow": False},
        {"from": ["drive__rows"], "to": ["mail"], "allow": False},
    ]
    async with drive_and_mail(tmp_path, results={"flow": rules}) as (gateway, received):
        file, rows = handle_in(await gateway.call("drive__read")), handle_in(await gateway.call("drive__rows"))
        assert "isError" not in await gateway.call("mail__post", {"body": file})
        assert "may not be passed to mail__post" in text_of(await gateway.call("mail__post", {"body": rows}))
        assert "may not be passed to mail__send" in text_of(await gateway.call("mail__send", {"body": rows}))
        assert [call["arguments"]["body"][:4] for call in received.calls()] == ["line"]


@pytest.mark.heavy
async def test_profiles_and_callers_do_not_share_values(tmp_path: Path) -> None:
    keys = {
        "auth": {"apiKeys": [{"name": "ada", "key": "k-ada"}, {"name": "bob", "key": "k-bob"}]},
        "profiles": {"default": {}, "work": {}},
    }
    drive, _ = scripted_stdio_server(tmp_path, "drive", **answering(**DRIVE))
    mail, received = scripted_stdio_server(tmp_path, "mail", tools=[SEND, POST])
    async with running_gateway(tmp_path, {"drive": {**drive, **BOUND}, "mail": mail}, gateway=keys) as gateway:
        gateway.client.headers["authorization"] = "Bearer k-ada"
        await gateway.until_listed("drive__read", "mail__send")
        file = handle_in(await gateway.call("drive__read"))
        foreign = {"authorization": "Bearer k-bob"}
        for refused in (
            await gateway.call("mail__send", {"body": file}, headers=foreign),
            await in_profile(gateway, "work").call("mail__send", {"body": file}),
        ):
            assert "is not a handle that was issued to you" in text_of(refused)
        await gateway.call("mail__send", {"body": file})
        assert len(received.calls()) == 1


@pytest.mark.heavy
async def test_binary_content_above_the_bound_becomes_a_link_that_hosts_read(tmp_path: Path) -> None:
    async with drive_and_mail(tmp_path) as (gateway, _):
        session = await handshake(gateway)
        for result in (await gateway.call("drive__picture"), (await session.call("drive__picture"))["result"]):
            link, words = result["content"]
            assert words == text("a picture")
            assert "resources" in (await gateway.rpc("server/discover"))["result"]["capabilities"]
            assert (link["type"], link["mimeType"], link["size"]) == ("resource_link", "image/png", 14_001)
            modern = await read_resource(gateway, link["uri"])
            contents = {"uri": link["uri"], "blob": IMAGE, "mimeType": "image/png"}
            assert modern["result"]["contents"] == [contents]
            body = {"jsonrpc": "2.0", "id": 7, "method": "resources/read", "params": {"uri": link["uri"]}}
            assert (await session.post(body)).json()["result"]["contents"] == [contents]
            shown = await gateway.call("read_result", {"handle": link["uri"]})
            assert shown["content"] == [{"type": "image", "data": IMAGE, "mimeType": "image/png"}]
        # The host does not accept the type, however small the content.
        [link] = (await gateway.call("drive__sound"))["content"]
        assert (link["type"], link["mimeType"]) == ("resource_link", "audio/x-rare")
        forged = await read_resource(gateway, "typegate:result/forged")
        assert "Resource not found" in forged["error"]["message"]


SCANS = {"kinds": [], "patterns": {"ticket": "T-[0-9]{9}"}, "arguments": True, "maxBytes": 8_000_000}
LARGE = "x" * 72 + "\n"
MEGABYTES = LARGE * (5 * 1024 * 1024 // len(LARGE))


@pytest.mark.heavy
async def test_approval_shows_the_value_of_a_handle(tmp_path: Path) -> None:
    rule = {"name": "mails ask", "wrappers": ["mail__send"], "ask": {"by": "administrator"}}
    hook = {"name": "secrets", "use": "redact", "config": {"kinds": ["email"], "arguments": True}}
    async with drive_and_mail(tmp_path, policy={"rules": [rule]}, hooks=[hook]) as (gateway, received):
        session = await handshake(gateway)
        file = handle_in((await session.call("drive__read"))["result"])
        async with anyio.create_task_group() as group:
            group.start_soon(session.call, "mail__send", {"to": "a@example.test", "body": file})

            async def rows() -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = (await gateway.admin("approvals")).json()["approvals"]
                return found

            [row] = await until(rows, within_s=60)
            assert "line of the file" in row["arguments"]
            assert "typegate:result" not in row["arguments"]
            await gateway.admin(f"approvals/{row['id']}", "POST", {"decision": "allow", "for": "tool"})
        [call] = received.calls()
        assert call["arguments"] == {"to": "[redacted email]", "body": "line of the file\n" * 500}


@pytest.mark.heavy
async def test_any_replica_reads_and_passes_a_result_that_another_stores(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "drive", **answering(**DRIVE)) as drive,
        scripted_http_server(tmp_path, "mail", tools=[SEND]) as mail,
        running_cluster(tmp_path, {"drive": {**drive.config, **BOUND}, "mail": mail.config}) as cluster,
    ):
        for one in cluster.gateways:
            await one.until_listed("drive__read", "mail__send")
        here, *others = cluster.gateways
        file = handle_in(await here.call("drive__read"))
        for one in others:
            read = await one.call("read_result", {"handle": file, "offset": 499})
            assert text_of(read) == "line of the file\n"
            await one.call("mail__send", {"body": file})
        assert {call["arguments"]["body"] for call in mail.recording.calls()} == {"line of the file\n" * 500}
        await here.stop()
        gone = await others[0].call("read_result", {"handle": file}, timeout_s=60)
        assert "stored by another process of this gateway" in text_of(gone)


@pytest.mark.heavy
async def test_five_megabytes_pass_from_tool_to_tool_over_both_eras_and_workers(tmp_path: Path) -> None:
    drive = answering(file={"content": [text(MEGABYTES)]})
    sent = {"send": {"kind": "result", "with": {"result": {"content": [text("sent")]}}}}
    mail, received = scripted_stdio_server(tmp_path, "mail", tools=[SEND], behaviours=sent)
    async with (
        scripted_http_server(tmp_path, "drive", **drive) as up,
        running_workers(
            tmp_path,
            {"drive": {**up.config, "results": {"maxBytes": 4_000}}, "mail": {**mail, "copies": True}},
            gateway={"hooks": [{"name": "secrets", "use": "redact", "timeout": 60, "config": SCANS}]},
        ) as gateway,
        each_worker(gateway) as workers,
    ):
        await ready(gateway)
        for one in workers:
            await one.until_listed("drive__file", "mail__send")
        for here, there in (workers, workers[::-1]):
            cut = await here.call("drive__file", timeout_s=60)
            assert len(text_of(cut)) < 5_000
            file = handle_in(cut)
            assert "isError" not in await there.call("mail__send", {"body": file}, timeout_s=60)
            session = await handshake(there)
            answer = await session.call("mail__send", {"body": file})
            assert "isError" not in answer["result"]
        bodies = [call["arguments"]["body"] for call in received.calls()]
        assert [len(body) for body in bodies] == [len(MEGABYTES)] * 4
        assert set(bodies) == {MEGABYTES}
