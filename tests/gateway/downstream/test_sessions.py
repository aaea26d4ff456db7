"""Sessions leave no state behind when they end, expire or withdraw an elicitation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from gateway.access.principal import LOCAL
from gateway.access.quotas import independent_account
from gateway.downstream.sessions import IDLE_S, Session, SessionTable


class Announcer:
    """Counts who listens."""

    def __init__(self) -> None:
        self.listening = 0

    def subscribe(self, listener: Any, profile: str, principal: object) -> Callable[[], None]:
        self.listening += 1

        def end() -> None:
            self.listening -= 1

        return end


class Clock:
    """Time as a test has it."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Running:
    """A request in flight."""

    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def session() -> Session:
    return Session(LOCAL, version="2025-11-25", params={}, account=independent_account())


def table(sweep_s: float = 60.0) -> tuple[SessionTable, Announcer, Clock]:
    announcer, clock = Announcer(), Clock()
    return SessionTable(announcer, clock=clock, sweep_s=sweep_s), announcer, clock  # type: ignore[arg-type] # a fake


def test_idle_session_expires_with_its_state_without_further_requests() -> None:
    known, announcer, clock = table()
    idle, ended = session(), list[str]()
    idle.subscribed["x://y"] = lambda: ended.append("subscription")
    idle.on_end.append(lambda: ended.append("session"))
    known.add(idle)
    clock.now_s += IDLE_S - 1
    known.sweep()
    assert (ended, len(known), announcer.listening) == ([], 1, 1)
    clock.now_s += 2
    known.sweep()
    assert (sorted(ended), len(known), announcer.listening) == (["session", "subscription"], 0, 0)
    assert known.get(idle.id, LOCAL) is None


def test_session_that_streams_runs_or_is_used_is_not_idle() -> None:
    known, _, clock = table()
    streaming, running, used, idle = (session() for _ in range(4))
    for one in (streaming, running, used, idle):
        known.add(one)
    streaming.open_stream(lambda message, number: None, lambda: None)
    running.running[1] = Running()
    for _ in range(3):
        clock.now_s += IDLE_S - 1
        assert known.get(used.id, LOCAL) is used
        known.sweep()
    assert [known.get(one.id, LOCAL) for one in (streaming, running, used, idle)] == [streaming, running, used, None]


async def test_idle_sessions_are_swept_periodically() -> None:
    known, _, clock = table(sweep_s=0.001)
    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            group.start_soon(known.sweep_periodically)
            for _ in range(2):
                gone, one = anyio.Event(), session()
                one.on_end.append(gone.set)
                known.add(one)
                clock.now_s += IDLE_S + 1
                await gone.wait()
            group.cancel_scope.cancel()


def test_closed_session_unsubscribes_and_cancels_its_calls() -> None:
    known, announcer, _ = table()
    one, running, ended = session(), Running(), list[str]()
    one.running[1] = running
    for uri in ("x://a", "x://b"):
        one.subscribed[uri] = lambda uri=uri: ended.append(uri)  # type: ignore[misc] # of a lambda with a default
    hung_up: list[bool] = []
    one.open_stream(lambda message, number: None, lambda: hung_up.append(True))
    known.add(one)
    known.close(one)
    assert (running.cancelled, ended, hung_up, announcer.listening) == (True, ["x://a", "x://b"], [True], 0)


async def test_unneeded_elicitation_is_withdrawn_once() -> None:
    one, messages = session(), list[dict[str, Any]]()
    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            group.start_soon(one.send_request, messages.append, "elicitation/create", {"message": "Who?"})
            while not messages:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    question, withdrawn = messages
    assert (question["method"], question["params"]) == ("elicitation/create", {"message": "Who?"})
    assert withdrawn["method"] == "notifications/cancelled"
    assert withdrawn["params"]["requestId"] == question["id"]
    assert "id" not in withdrawn
    # An answer that comes too late belongs to no later question.
    one.handle_response({"jsonrpc": "2.0", "id": question["id"], "result": {"late": True}})
    later: list[dict[str, Any]] = []
    results: list[Any] = []

    async def ask_again() -> None:
        results.append(await one.send_request(later.append, "elicitation/create", {}))

    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            group.start_soon(ask_again)
            while not later:
                await anyio.lowlevel.checkpoint()
            one.handle_response({"jsonrpc": "2.0", "id": question["id"], "result": {"late": True}})
            one.handle_response({"jsonrpc": "2.0", "id": later[0]["id"], "result": {"late": False}})
    assert results == [{"late": False}]
    assert [message["method"] for message in later] == ["elicitation/create"]
