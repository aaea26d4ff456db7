"""Arguments that are too expensive to check are sent and reported, or refused in strict mode; other calls continue."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.gateways import running_gateway, text_of
from support.upstreams.running import Recording, children_of, scripted_stdio_server, tool

TEXT = {"type": "string"}
# Every letter doubles the states that have to be followed.
HEAVY = "(?:a|b)*a(?:a|b){900}c"
FILES = tool("read", path={"type": "string", "pattern": r"^(?!.*\.\.)"}, mode={"enum": ["r", "w"]}, note=TEXT)
# The compiled form of this pattern is too large for any engine.
ODD = tool("odd", code={"type": "string", "pattern": "(?:[a-z]b{900}){900}"}, note=TEXT)
SLOW = tool("slow", code={"type": "string", "pattern": HEAVY}, note=TEXT)


def letters(count: int) -> str:
    drawn = random.Random(1)
    return "".join(drawn.choice("ab") for _ in range(count)) + "c"


def upstream(tmp_path: Path, **options: Any) -> tuple[dict[str, Any], Recording]:
    config, record = scripted_stdio_server(tmp_path, "files", tools=[FILES, ODD, SLOW])
    return {**config, **options}, record


def of_process(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8")


@pytest.mark.heavy
async def test_expensive_pattern_and_long_text_finish_in_time_without_delaying_others(tmp_path: Path) -> None:
    config, record = upstream(tmp_path, validation="strict")
    took_s: list[float] = []
    refused: list[dict[str, Any]] = []
    long = letters(1 << 20)  # drawn here: it takes longer than the neighbour may wait
    async with running_gateway(tmp_path, {"files": config}) as gateway:
        await gateway.until_listed("files__slow")
        ended = anyio.Event()

        async def attack() -> None:
            refused.append(await gateway.call("files__slow", {"code": long}))
            ended.set()

        async with anyio.create_task_group() as group:
            group.start_soon(attack)
            while not ended.is_set():
                began_s = anyio.current_time()
                await gateway.call("files__read", {"path": "a.txt"})
                took_s.append(anyio.current_time() - began_s)
        again = await gateway.call("files__slow", {"code": letters(1_000)})
    text = text_of(refused[0])
    assert "code could not be checked within 2 s: 1048577 characters are too many for its pattern (?:a|b)" in text
    assert "Nothing was sent" in text
    assert len(took_s) > 20
    # Calls that shared their time with the slow check would have waited two seconds.
    assert max(took_s) < 1.5
    assert not again["isError"] if "isError" in again else True
    assert {call["name"] for call in record.calls()} == {"read", "slow"}
    assert len(record.calls("slow")) == 1


async def test_wrong_large_arguments_are_not_accepted_because_of_their_size(tmp_path: Path) -> None:
    config, record = upstream(tmp_path)
    async with running_gateway(tmp_path, {"files": config}) as gateway:
        await gateway.until_listed("files__read")
        padding = [0] * 100_000
        answers = [
            await gateway.call("files__read", {"path": "a", "mode": "x", "padding": padding}),
            await gateway.call("files__read", {"path": "../a", "padding": padding}),
            await gateway.call("files__read", {"path": "x" * 5_000 + "/../../etc/passwd"}),
            await gateway.call("files__read", {"path": "x" * 500_000 + "/../../etc/passwd", "mode": "r"}),
        ]
        assert [answer["isError"] for answer in answers] == [True] * 4
        assert record.calls() == []
        assert 'mode must be one of ["r","w"]' in text_of(answers[0])
        assert all("path" in text_of(answer) for answer in answers[1:])
        await gateway.call("files__read", {"path": "x" * 500_000, "mode": "r", "padding": padding})
        assert len(record.calls()) == 1


async def test_strict_server_receives_no_argument_with_an_unrunnable_pattern(tmp_path: Path) -> None:
    config, record = upstream(tmp_path, validation="strict")
    async with running_gateway(tmp_path, {"files": config}) as gateway:
        await gateway.until_listed("files__odd")
        refused = await gateway.call("files__odd", {"code": "x"})
        assert "code could not be checked: its pattern (?:[a-z]b{900}" in text_of(refused)
        assert record.calls() == []
        await gateway.call("files__odd", {"note": "x"})
        assert [call["arguments"] for call in record.calls()] == [{"note": "x"}]
        issues = await gateway.admin("quarantine")
        assert "pattern_unchecked" in issues.text
        failures = (await gateway.admin("failures")).json()
        assert "argument_unchecked" in str(failures)


async def test_unchecked_argument_is_sent_and_reported_in_result_admin_and_audit(
    tmp_path: Path,
) -> None:
    config, record = upstream(tmp_path)
    async with running_gateway(tmp_path, {"files": config}, gateway={"audit": {"file": "audit.jsonl"}}) as gateway:
        await gateway.until_listed("files__odd")
        sent = await gateway.call("files__odd", {"code": "x"})
        [reason] = sent["_meta"]["typegate/unchecked"]
        assert reason.startswith("code could not be checked: its pattern (?:[a-z]b{900}")
        assert [call["arguments"] for call in record.calls()] == [{"code": "x"}]
        rows = (await gateway.admin("quarantine")).json()["quarantine"]
        assert {"pattern_unchecked", "sent_unchecked"} <= {row["code"] for row in rows if row["tool"] == "odd"}
        assert '"unchecked":"code"' in (await gateway.admin("audit")).text.replace(" ", "")
        checked = await gateway.call("files__odd", {"note": "x"})
        assert "typegate/unchecked" not in checked["_meta"]
        refused = await gateway.call("files__odd", {"code": "x", "note": ["y", "z"]})
        assert refused["isError"], "what can be checked still is"
        assert len(record.calls()) == 2
        assert "sent_unchecked" in str((await gateway.admin("failures")).json())


async def test_checking_process_ends_with_the_gateway_and_has_an_empty_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_GATEWAY", "s3cret")
    config, record = upstream(tmp_path)
    async with running_gateway(tmp_path, {"files": config}) as gateway:
        await gateway.until_listed("files__slow")
        await gateway.call("files__slow", {"code": letters(5_000)})
        assert len(record.calls()) == 1
        own = set(children_of(gateway.process.pid)) - set(record.starts())
        assert len(own) == 1
        [pid] = own
        assert "check_process" in of_process(pid, "cmdline")
        assert "s3cret" not in of_process(pid, "environ")
        assert await gateway.stop() == 0
        with pytest.raises(FileNotFoundError):
            of_process(pid, "cmdline")


async def test_deep_values_and_huge_numbers_are_sent(tmp_path: Path) -> None:
    config, record = upstream(tmp_path)
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    async with running_gateway(tmp_path, {"files": config}) as gateway:
        await gateway.until_listed("files__odd")
        for value in (["\U0001f600", 10**400], deep):
            answer = await gateway.call("files__odd", {"note": "x", "more": value})
            assert ("typegate/unchecked" in answer["_meta"]) is (value is deep)
            assert record.calls()[-1]["arguments"] == {"note": "x", "more": value}
        refused = await gateway.call("files__odd", {"note": ["x", "y"], "more": deep})
        assert refused["isError"], "what can be checked still is"
        assert len(record.calls()) == 2
