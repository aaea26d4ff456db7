"""A hook behind an HTTP request: the call is posted as JSON, signed, and the response is JSON.

The request is a `POST` whose body is `{"phase", "name", "args", "metadata"}`, after a call with `result` too, and
these headers:

- `typegate-timestamp`: seconds since 1970, as a whole number.
- `typegate-delivery`: the call's id and the phase; unique, so that a replay within the window can be recognised.
  If a kept connection ends during a request it is sent once more, with the same delivery.
- `typegate-signature`: `sha256=` and the HMAC-SHA256 of delivery, timestamp and body, joined by full stops, in
  hexadecimal, under the secret of the hook's `config`. A receiver computes it over the raw bytes, compares in constant
  time, and refuses a timestamp that is more than 300 s away from its clock, so that a request cannot be replayed later.

The metadata contains session ids: the receiver must be one that may know them.

The answer is an object with at most one of `args` (before), `answer` (before: a result in the upstream's place),
`result` (after) and `block` (`reason`, and perhaps `description` and `code`); `{}` and the status 204 leave
everything as it is. Anything else, another status and a response that is too large are failures of the hook.
Redirects are followed within the origin only. `verify` is for receivers written in Python.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway import wire
from gateway.errors import ConnectionLost, HttpStatusError
from gateway.hooks.formats import described
from gateway.hooks.hook import BLOCK_CODE, After, Answer, Before, Block, Call, Hook, Result
from gateway.hooks.payloads import MAX_PAYLOAD_BYTES, BadPayload
from gateway.upstream.transport.http_client import HttpClient

# Five minutes, as other signed webhooks have it: clocks differ, and a request must not be usable much later.
WINDOW_S: Final = 300
# Characters; with fewer an HMAC could be guessed from one signed request.
MIN_SECRET_CHARS: Final = 16
# A timestamp has ten digits; more than this is no time, and would make a number that is slow to parse.
_MAX_TIMESTAMP_CHARS: Final = 12
_KEYS: Final = ("args", "answer", "result", "block")


def sign(secret: str, timestamp: str, body: bytes, delivery: str = "") -> str:
    """The value of `typegate-signature`; `delivery` is left out only of a request that has none."""
    head = f"{delivery}.{timestamp}." if delivery else f"{timestamp}."
    signed = head.encode("utf-8", "replace") + body
    return "sha256=" + hmac.new(secret.encode(), signed, "sha256").hexdigest()


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float) -> bool:
    """Whether a request was signed with this secret, and not too long ago.

    Args:
        headers: Of the request, with names in lower case.
    """
    timestamp = headers.get("typegate-timestamp", "")
    if (
        not (timestamp.isascii() and timestamp.isdigit())
        or abs(now_s - int(timestamp[:_MAX_TIMESTAMP_CHARS])) > WINDOW_S
    ):
        return False
    delivery = headers.get("typegate-delivery", "")
    # No name of ours: with a full stop, or as a number, two requests could have one signature.
    if delivery and ("." in delivery or ":" not in delivery):
        return False
    given = headers.get("typegate-signature", "").encode("utf-8", "replace")
    # In constant time: the time of a plain comparison would tell an attacker how much of a signature is right.
    return hmac.compare_digest(sign(secret, timestamp, body, delivery).encode(), given)


class Webhook(Hook):
    """Posts calls to a URL. `config`: `secret`, and optional `headers` to send along."""

    def __init__(self, config: Mapping[str, Any], *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(config)
        for key in config:
            if key not in ("url", "secret", "headers"):
                raise ValueError(f"unknown key {key}; expected secret or headers")
        secret, headers = config.get("secret"), config.get("headers", {})
        if not isinstance(secret, str) or len(secret) < MIN_SECRET_CHARS:
            raise ValueError(f"has no secret; expected `secret`, a text of at least {MIN_SECRET_CHARS} characters")
        if not isinstance(headers, dict) or not all(_fits(name, value) for name, value in headers.items()):
            raise ValueError("has headers that cannot be sent; expected names with a line of text for each")
        self._url = str(config["url"])
        self._secret = secret
        self._headers = {"content-type": "application/json", "accept": "application/json", **headers}
        self._clock = clock
        self._client = HttpClient()

    async def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    async def before_call(self, call: Call) -> Before:
        """Ask before a call."""
        key, value = await self._request("before", call, {})
        if key == "args":
            return call.with_args(value)
        if key == "answer":
            return Answer(value=value)
        if key == "result":
            raise BadPayload("answered with `result` before the call; expected `args`, `answer` or `block`")
        return _block(value) if key == "block" else None

    async def after_call(self, call: Call, result: Result) -> After:
        """Ask after a call."""
        key, value = await self._request("after", call, {"result": result.value})
        if key == "result":
            return Result(value=value)
        if key in ("args", "answer"):
            raise BadPayload(f"answered with `{key}` after the call; expected `result` or `block`")
        return _block(value) if key == "block" else None

    before_prompt = before_resource = before_completion = before_call
    after_prompt = after_resource = after_completion = after_call

    async def _request(self, stage: str, call: Call, more: Mapping[str, Any]) -> tuple[str, Any]:
        """Post one phase; returns the one member of the response, if it has one."""
        kind = "call" if call.metadata.kind == "tool" else call.metadata.kind
        phase = f"{stage}{kind.capitalize()}"
        payload = {"phase": phase, "name": call.name, "args": call.args, "metadata": described(call.metadata), **more}
        body, timestamp = wire.dumps(payload), str(int(self._clock()))
        delivery = f"{call.metadata.call_id}:{phase}"
        headers = {
            **self._headers,
            "typegate-timestamp": timestamp,
            "typegate-signature": sign(self._secret, timestamp, body, delivery),
            "typegate-delivery": delivery,
        }
        try:
            try:
                status, data = await self._post(headers, body)
            except ConnectionLost as error:
                # The connection was kept from an earlier request, and may have been closed before this one arrived.
                if not error.sent:
                    raise
                status, data = await self._post(headers, body)
        except (ConnectionLost, HttpStatusError) as error:
            raise BadPayload(f"could not be asked ({error})") from None
        # Receivers that only watch answer with nothing.
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

    async def _post(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
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
