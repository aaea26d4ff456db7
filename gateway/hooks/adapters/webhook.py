"""Post a signed request to an HTTP endpoint, and apply its response.

The request is a `POST` with the body `{"phase", "name", "args", "metadata"}`, plus `result` after a call, and these
headers:

- `typegate-timestamp`: seconds since 1970, as an integer.
- `typegate-delivery`: the call id and the phase. It is unique, so that the receiver can detect a repeated request. If a
  connection closes during a request, the gateway repeats the request once with the same delivery.
- `typegate-signature`: `sha256=` and the hexadecimal HMAC-SHA256 of delivery, timestamp and body, joined by full stops.
  The key is the secret from the hook's `config`. The receiver has to compute the HMAC of the received bytes, compare in
  constant time, and reject timestamps that differ from its clock by more than 300 s, so that requests cannot be
  replayed later.

The metadata contains session ids, so use only trusted receivers.

The response is an object with at most one of these members: before a call, `args` (changed arguments) or `answer` (a
result instead of the upstream's); after a call, `result` (a changed result); in both cases `block` (an object with
`reason`, and optionally `description` and `code`). `{}`, an empty body and status 204 change nothing. Any other content
or status, and a response that is too large, is a failure of the hook. Redirects are followed only within the origin.
Receivers written in Python can use `verify`.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.hooks.hook import BLOCK_CODE, After, Answer, Before, Block, Call, Hook, Result
from gateway.hooks.hook_formats import metadata_to_json
from gateway.hooks.payloads import MAX_PAYLOAD_BYTES, BadPayload
from gateway.http.http_client import HttpClient
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import ConnectionLost, HttpStatusError

# Five minutes, as in other signed webhooks: longer than clocks differ, but too short for a later replay.
WINDOW_S: Final = 300
# With fewer characters, the secret could be guessed from one signed request.
MIN_SECRET_CHARS: Final = 16
# A timestamp has ten digits. The length is limited, because parsing a long number is slow.
_MAX_TIMESTAMP_CHARS: Final = 12
_KEYS: Final = ("args", "answer", "result", "block")


def sign(secret: str, timestamp: str, body: bytes, delivery: str = "") -> str:
    """Return the value of `typegate-signature`. Omit `delivery` only for a request without that header."""
    head = f"{delivery}.{timestamp}." if delivery else f"{timestamp}."
    signed = head.encode("utf-8", "replace") + body
    return "sha256=" + hmac.new(secret.encode(), signed, "sha256").hexdigest()


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float) -> bool:
    """Return whether a request was signed with this secret within the last `WINDOW_S` seconds.

    Args:
        headers: The request headers, with lower-case names.
    """
    timestamp = headers.get("typegate-timestamp", "")
    if (
        not (timestamp.isascii() and timestamp.isdigit())
        or abs(now_s - int(timestamp[:_MAX_TIMESTAMP_CHARS])) > WINDOW_S
    ):
        return False
    delivery = headers.get("typegate-delivery", "")
    # A delivery contains a colon and no full stop; otherwise, two different requests could have the same signature.
    if delivery and ("." in delivery or ":" not in delivery):
        return False
    signature = headers.get("typegate-signature", "").encode("utf-8", "replace")
    # Compare in constant time, because timing would reveal how much of a signature is correct.
    return hmac.compare_digest(sign(secret, timestamp, body, delivery).encode(), signature)


class Webhook(Hook):
    """Posts calls to a URL. `config`: `secret`, and optionally `headers` to send along."""

    def __init__(self, config: Mapping[str, Any], *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(config)
        for key in config:
            if key not in ("url", "secret", "headers"):
                raise ValueError(f"unknown key {key}; expected secret or headers")
        secret, headers = config.get("secret"), config.get("headers", {})
        if not isinstance(secret, str) or len(secret) < MIN_SECRET_CHARS:
            raise ValueError(f"has no secret; expected `secret` with at least {MIN_SECRET_CHARS} characters")
        if not isinstance(headers, dict) or not all(_is_valid_header(name, value) for name, value in headers.items()):
            raise ValueError("has headers that cannot be sent; expected a line of text for each name")
        self._url = str(config["url"])
        self._secret = secret
        self._headers = {"content-type": "application/json", "accept": "application/json", **headers}
        self._clock = clock
        self._client = HttpClient()

    async def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    async def before_call(self, call: Call) -> Before:
        """Post the call before it is sent."""
        key, value = await self._request("before", call, {})
        if key == "args":
            return call.with_args(value)
        if key == "answer":
            return Answer(value=value)
        if key == "result":
            raise BadPayload("answered with `result` before the call; expected `args`, `answer` or `block`")
        return _block(value) if key == "block" else None

    async def after_call(self, call: Call, result: Result) -> After:
        """Post the call with its result."""
        key, value = await self._request("after", call, {"result": result.value})
        if key == "result":
            return Result(value=value)
        if key in ("args", "answer"):
            raise BadPayload(f"answered with `{key}` after the call; expected `result` or `block`")
        return _block(value) if key == "block" else None

    before_prompt = before_resource = before_completion = before_call
    after_prompt = after_resource = after_completion = after_call

    async def _request(self, stage: str, call: Call, more: Mapping[str, Any]) -> tuple[str, Any]:
        """Post one phase, and return the single member of the response, or an empty key if there is none."""
        kind = "call" if call.metadata.kind == "tool" else call.metadata.kind
        phase = f"{stage}{kind.capitalize()}"
        payload = {
            "phase": phase,
            "name": call.name,
            "args": call.args,
            "metadata": metadata_to_json(call.metadata),
            **more,
        }
        body, timestamp = json_bytes.dumps(payload), str(int(self._clock()))
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
                # A reused connection may have been closed before this request arrived: retry once.
                if not error.sent:
                    raise
                status, data = await self._post(headers, body)
        except (ConnectionLost, HttpStatusError) as error:
            raise BadPayload(f"could not be reached ({error})") from None
        # An empty body is accepted, too, for receivers that only observe.
        if status == 204 or (status == 200 and not data.strip()):
            return "", None
        if status != 200:
            raise BadPayload(f"answered HTTP {status}")
        try:
            answer = json_bytes.loads(data)
        except json_bytes.MalformedJson:
            raise BadPayload("answered with something that is not JSON") from None
        if not isinstance(answer, dict) or len(answer) > 1 or any(key not in _KEYS for key in answer):
            raise BadPayload(f"answered with something other than one of {', '.join(_KEYS)}")
        return next(iter(answer.items()), ("", None))

    async def _post(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        async with self._client.send("POST", self._url, headers, body) as response:
            return response.status, await response.read(MAX_PAYLOAD_BYTES)


def _block(value: Any) -> Block:
    if not isinstance(value, dict) or not isinstance(value.get("reason"), str):
        raise BadPayload("blocked without a `reason`")
    return Block(reason=value["reason"], description=value.get("description") or "", code=value.get("code", BLOCK_CODE))


def _is_valid_header(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and name.isascii()
        and name.replace("-", "").replace("_", "").isalnum()
        and isinstance(value, str)
        and value.isascii()
        and value.isprintable()
    )
