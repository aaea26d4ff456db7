"""A hook on the other side of an HTTP request: posted as JSON, signed, answered in JSON.

The request is a `POST` whose body is `{"phase", "name", "args", "metadata"}`, after a call with `result` too, and
these headers:

- `typegate-timestamp`: seconds since 1970, as a whole number.
- `typegate-signature`: `sha256=` and the HMAC-SHA256 of timestamp, a full stop and the body, in hexadecimal, under
  the secret of the hook's `config`. A receiver computes it over the bytes as they came, compares in constant time,
  and refuses a timestamp that is more than 300 s away from its clock, so that a request cannot be replayed later.
- `typegate-delivery`: the call's id and the phase; unlike any other, so that a replay within the window can be told.
  Where a kept connection ends under a request it is sent once more, with the same delivery.

The metadata has the id of a handshake-era session: a receiver must be one that may know it.

The answer is an object with at most one of `args` (before), `answer` (before: a result in the upstream's place),
`result` (after) and `block` (`reason`, and perhaps `description` and `code`); `{}` and the status 204 leave
everything as it is. Anything else, another status and too large an answer are failures of the hook. Redirects are
followed within the origin only. `verify` is the receiver's side, for receivers in Python.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway import wire
from gateway.errors import ConnectionLost, HttpStatusError
from gateway.hooks.formats import described
from gateway.hooks.hook import BLOCK_CODE, PHASES, After, Answer, Before, Block, Call, Hook, Result
from gateway.hooks.payloads import MAX_PAYLOAD_BYTES, BadPayload
from gateway.upstream.transport.http_client import HttpClient

WINDOW_S: Final = 300
MIN_SECRET: Final = 16
_SPELLED: Final = {phase: spelled for spelled, phase in PHASES.items()}
_KEYS: Final = ("args", "answer", "result", "block")


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """The value of `typegate-signature`."""
    return "sha256=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, "sha256").hexdigest()


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float) -> bool:
    """Whether a request was signed with this secret, within the window.

    Args:
        headers: Of the request, their names in lower case.
    """
    timestamp = headers.get("typegate-timestamp", "")
    if not (timestamp.isascii() and timestamp.isdigit()) or abs(now_s - int(timestamp[:12])) > WINDOW_S:
        return False
    given = headers.get("typegate-signature", "").encode("utf-8", "replace")
    return hmac.compare_digest(sign(secret, timestamp, body).encode(), given)


class Webhook(Hook):
    """Asks a URL. `config`: `secret`, and `headers` to send along."""

    def __init__(self, config: Mapping[str, Any], *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(config)
        for key in config:
            if key not in ("url", "secret", "headers"):
                raise ValueError(f"unknown key {key}; expected secret or headers")
        secret, headers = config.get("secret"), config.get("headers", {})
        if not isinstance(secret, str) or len(secret) < MIN_SECRET:
            raise ValueError(f"has no secret; expected `secret`, a text of at least {MIN_SECRET} characters")
        if not isinstance(headers, dict) or not all(_fits(name, value) for name, value in headers.items()):
            raise ValueError("has headers that cannot be sent; expected names with a line of text for each")
        self._url = str(config["url"])
        self._secret = secret
        self._headers = {"content-type": "application/json", "accept": "application/json", **headers}
        self._clock = clock
        self._client = HttpClient()

    async def close(self) -> None:
        """Drop idle connections."""
        self._client.close()

    async def before_call(self, call: Call) -> Before:
        """Ask before a call."""
        return await self._before("before_call", call)

    async def after_call(self, call: Call, result: Result) -> After:
        """Ask after a call."""
        return await self._after("after_call", call, result)

    async def before_prompt(self, call: Call) -> Before:
        """Ask before a prompt."""
        return await self._before("before_prompt", call)

    async def after_prompt(self, call: Call, result: Result) -> After:
        """Ask after a prompt."""
        return await self._after("after_prompt", call, result)

    async def before_resource(self, call: Call) -> Before:
        """Ask before a resource."""
        return await self._before("before_resource", call)

    async def after_resource(self, call: Call, result: Result) -> After:
        """Ask after a resource."""
        return await self._after("after_resource", call, result)

    async def _before(self, phase: str, call: Call) -> Before:
        key, value = await self._asked(phase, call, {})
        if key == "args":
            return call.with_args(value)
        if key == "answer":
            return Answer(value=value)
        if key == "result":
            raise BadPayload("answered with `result` before the call; expected `args`, `answer` or `block`")
        return _block(value) if key == "block" else None

    async def _after(self, phase: str, call: Call, result: Result) -> After:
        key, value = await self._asked(phase, call, {"result": result.value})
        if key == "result":
            return Result(value=value)
        if key in ("args", "answer"):
            raise BadPayload(f"answered with `{key}` after the call; expected `result` or `block`")
        return _block(value) if key == "block" else None

    async def _asked(self, phase: str, call: Call, more: Mapping[str, Any]) -> tuple[str, Any]:
        told = {"phase": _SPELLED[phase], "name": call.name, "args": call.args, "metadata": described(call.metadata)}
        body, timestamp = wire.dumps({**told, **more}), str(int(self._clock()))
        headers = {
            **self._headers,
            "typegate-timestamp": timestamp,
            "typegate-signature": sign(self._secret, timestamp, body),
            "typegate-delivery": f"{call.metadata.call_id}:{_SPELLED[phase]}",
        }
        try:
            try:
                status, data = await self._posted(headers, body)
            except ConnectionLost as error:
                if not error.sent:
                    raise
                status, data = await self._posted(headers, body)
        except (ConnectionLost, HttpStatusError) as error:
            raise BadPayload(f"could not be asked ({error})") from None
        if status == 204 or (status == 200 and not data.strip()):
            return "", None
        if status != 200:
            raise BadPayload(f"answered HTTP {status}")
        try:
            answer = wire.loads(data)
        except wire.MalformedJson:
            raise BadPayload("answered with something that is no JSON") from None
        if not isinstance(answer, dict) or len(answer) > 1 or any(key not in _KEYS for key in answer):
            raise BadPayload(f"answered with something else than one of {', '.join(_KEYS)}")
        return next(iter(answer.items()), ("", None))

    async def _posted(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        async with self._client.send("POST", self._url, headers, body) as response:
            return response.status, await response.read(MAX_PAYLOAD_BYTES)


def _block(value: Any) -> Block:
    if not isinstance(value, dict) or not isinstance(value.get("reason"), str):
        raise BadPayload("blocked without a `reason`")
    return Block(
        reason=value["reason"], description=value.get("description") or "", code=value.get("code", BLOCK_CODE)
    )  # fmt: skip


def _fits(name: object, value: object) -> bool:
    return (
        isinstance(name, str) and name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        and isinstance(value, str) and value.isascii() and value.isprintable()
    )  # fmt: skip
