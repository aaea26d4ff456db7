"""What cannot be checked within bounds is not sent, says why, and delays nobody else; over a real connection."""

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
# Its compiled form is too large, whatever an engine can do.
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
async def test_a_heavy_pattern_and_a_long_text_end_in_time_and_delay_no_neighbour(tmp_path: Path) -> None:
    config, record = upstream(tmp_path)
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
    # What has no time of its own would have waited two seconds.
    assert max(took_s) < 1.5
    assert not again["isError"] if "isError" in again else True
    assert {call["name"] for call in record.calls()} == {"read", "slow"}
    assert len(record.calls("slow")) == 1


async def test_nothing_wrong_passes_for_its_size(tmp_path: Path) -> None:
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


async def test_an_argument_whose_pattern_cannot_be_run_is_refused_only_where_it_is_sent(tmp_path: Path) -> None:
    config, record = upstream(tmp_path)
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


async def test_a_lenient_server_gets_what_cannot_be_checked_and_admin_says_so(tmp_path: Path) -> None:
    config, record = upstream(tmp_path, validation="lenient")
    async with running_gateway(tmp_path, {"files": config}) as gateway:
        await gateway.until_listed("files__odd")
        await gateway.call("files__odd", {"code": "x"})
        assert [call["arguments"] for call in record.calls()] == [{"code": "x"}]
        refused = await gateway.call("files__odd", {"code": "x", "note": ["y", "z"]})
        assert refused["isError"], "what can be checked still is"
        assert len(record.calls()) == 1
        assert "sent_unchecked" in str((await gateway.admin("failures")).json())


async def test_the_process_that_checks_ends_with_the_gateway_and_holds_none_of_its_environment(
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
