"""Hooks for tests: each does one thing, and writes down what it saw where its configuration says so."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import asdict
from typing import Any

from gateway.hooks import After, Answer, Before, Block, Call, Hook, Result


class Recorder(Hook):
    """Writes down every phase as one line of JSON, then returns nothing."""

    def note(self, phase: str, call: Call, **more: Any) -> None:
        line = json.dumps(
            {"hook": self.config.get("as"), "phase": phase, "name": call.name, "args": call.args,
             "metadata": asdict(call.metadata), **more}
        )  # fmt: skip
        target = os.open(self.config["record"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(target, line.encode() + b"\n")
        os.close(target)

    async def start(self) -> None:
        if self.config.get("tells"):
            target = os.open(self.config["record"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(target, json.dumps({"phase": "start", "hook": self.config.get("as")}).encode() + b"\n")
            os.close(target)

    async def close(self) -> None:
        if self.config.get("tells"):
            target = os.open(self.config["record"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(target, json.dumps({"phase": "close", "hook": self.config.get("as")}).encode() + b"\n")
            os.close(target)

    async def before_call(self, call: Call) -> Before:
        self.note("before_call", call)
        return None

    async def after_call(self, call: Call, result: Result) -> After:
        self.note("after_call", call, result=result.value, error=result.is_error, items=len(result.content))
        return None

    async def before_prompt(self, call: Call) -> Before:
        self.note("before_prompt", call)
        return None

    async def after_prompt(self, call: Call, result: Result) -> After:
        self.note("after_prompt", call, result=result.value)
        return None

    async def before_resource(self, call: Call) -> Before:
        self.note("before_resource", call)
        return None

    async def after_resource(self, call: Call, result: Result) -> After:
        self.note("after_resource", call, result=result.value)
        return None


class Silent(Hook):
    """Every phase, and nothing done in any."""

    async def before_call(self, call: Call) -> Before:
        return None

    async def after_call(self, call: Call, result: Result) -> After:
        return None


class Same(Hook):
    """Hands back what it got."""

    async def before_call(self, call: Call) -> Before:
        return call.with_args(call.args)


class Setter(Hook):
    """Sets arguments before a call, and adds a text after it."""

    async def before_call(self, call: Call) -> Before:
        return call.with_args({**call.args, **self.config["set"]})

    async def before_prompt(self, call: Call) -> Before:
        return call.with_args({**call.args, **self.config["set"]})

    async def before_resource(self, call: Call) -> Before:
        return call.with_args({"uri": self.config["uri"]}) if "uri" in self.config else None


class Nonce(Hook):
    """Adds an argument that is another each time."""

    async def before_call(self, call: Call) -> Before:
        return call.with_args({**call.args, "nonce": call.metadata.call_id})


class Stamper(Hook):
    """Adds a text to every result."""

    async def after_call(self, call: Call, result: Result) -> After:
        content = [*result.content, {"type": "text", "text": self.config["stamp"]}]
        return result.with_value({**result.value, "content": content})

    async def after_prompt(self, call: Call, result: Result) -> After:
        message = {"role": "user", "content": {"type": "text", "text": self.config["stamp"]}}
        return result.with_value({**result.value, "messages": [*result.content, message]})

    async def after_resource(self, call: Call, result: Result) -> After:
        return result.with_value({"contents": [{"uri": call.name, "text": self.config["stamp"]}]})


class Blocker(Hook):
    """Blocks, before or after."""

    def block(self, when: str) -> Block | None:
        if self.config.get("when", "before") != when:
            return None
        more = {"code": self.config["code"]} if "code" in self.config else {}
        return Block(reason="not on Sundays", description="Ask again on Monday.", **more)

    async def before_call(self, call: Call) -> Before:
        return self.block("before")

    async def after_call(self, call: Call, result: Result) -> After:
        return self.block("after")

    async def before_prompt(self, call: Call) -> Before:
        return self.block("before")

    async def before_resource(self, call: Call) -> Before:
        return self.block("before")


class Answerer(Hook):
    """Answers in the tool's place."""

    async def before_call(self, call: Call) -> Before:
        return Answer(value={"content": [{"type": "text", "text": "answered by the hook"}]})


class Hostile(Hook):
    """Does to a call what its configuration says, in the phase that it says."""

    async def before_call(self, call: Call) -> Any:
        return await self.act(call, call.args) if self.config.get("when", "before") == "before" else None

    async def after_call(self, call: Call, result: Result) -> Any:
        return await self.act(call, result.value) if self.config.get("when") == "after" else None

    async def act(self, call: Call, value: dict[str, Any]) -> Any:
        if call.args.get("spare"):
            return None
        match self.config["deed"]:
            case "hang":
                await asyncio.Event().wait()
            case "cling":
                while True:
                    try:
                        await asyncio.sleep(1000)
                    except BaseException:  # noqa: BLE001 - that is the deed
                        continue
            case "raise":
                raise RuntimeError(f"the secret of {call.args}")
            case "exit":
                raise SystemExit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "cancel":
                raise asyncio.CancelledError
            case "garbage":
                return 42
            case "dict":
                return {"args": {}}
            case "not json":
                return call.with_args({"x": {1, 2}})
            case "grow":
                return call.with_args({**call.args, "x": "y" * 100_000_000})
            case "grow result":
                return Result(value={"content": [{"type": "text", "text": "y" * 100_000_000}]})
            case "many":
                return call.with_args({**call.args, "x": [0] * 20_000_000})
            case "deep":
                deep: Any = []
                for _ in range(100_000):
                    deep = [deep]
                return call.with_args({**call.args, "x": deep})
            case "cycle":
                cycle: list[Any] = []
                cycle.append(cycle)
                return call.with_args({**call.args, "x": cycle})
            case "mutate":
                value.clear()
                value["mutated"] = True
                return None
            case "no content":
                return Result(value={"isError": False})
            case "rewrite":
                return call.with_args({"rewritten": True})
            case "keep":
                kept = call.with_args(dict(call.args))
                asyncio.get_running_loop().call_later(0.05, kept.args.clear)
                return kept
        return None


class Blocking(Hook):
    """A plain function that hangs in its thread."""

    def before_call(self, call: Call) -> Any:
        if not call.args.get("spare"):
            time.sleep(self.config.get("seconds", 1000))
        return None


class Plain(Hook):
    """A plain function that rewrites."""

    def before_call(self, call: Call) -> Any:
        return call.with_args({**call.args, "thread": True})


class Slow(Hook):
    """Takes its time, on the loop."""

    async def before_call(self, call: Call) -> Before:
        await asyncio.sleep(self.config["seconds"])
        return Block(reason=self.config["block"]) if "block" in self.config else None


class Late(Hook):
    """Does not start."""

    async def start(self) -> None:
        raise ValueError("there is no database")

    async def before_call(self, call: Call) -> Before:
        return None


class Particular(Hook):
    """Wants a number."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if not isinstance(config.get("number"), int):
            raise ValueError("number is missing; expected a whole number")

    async def before_call(self, call: Call) -> Before:
        return None


class NoHook:
    """Something else."""
