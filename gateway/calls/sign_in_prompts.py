"""Ask a caller to sign in where a call needs it, and go on once that is done.

Sources: MCP 2025-11-25, "Elicitation", "URL Mode Elicitation Requests"; MCP 2026-07-28, "Patterns",
"Multi Round-Trip Requests".
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping
from typing import Any, Final

import anyio

from gateway.access.principal import LOCAL
from gateway.access.signing import BadSignature, Signer
from gateway.calls.context import Caller
from gateway.errors import RpcError
from gateway.protocol import can_be_asked
from gateway.upstream.credentials import SignInFailed, SignInRequired
from gateway.upstream.link import UpstreamLink
from gateway.upstream.oauth.connecting import user_of

_KEY: Final = "sign-in"
# Callers without a connection of a network: whoever has started this process.
_STREAMS: Final = frozenset({"", "stdio"})
# How soon a link notices other credentials is a matter of some turns of the loop.
_TURN_S: Final = 0.05
_METHOD: Final = "elicitation/create"
# What tells our own request state from one of an upstream.
_PURPOSE: Final = "typegate: sign-in"


class SignInPrompts:
    """Puts the link to sign in to whoever may follow it."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def is_answer(self, params: Mapping[str, Any], binding: tuple[str, ...]) -> bool:
        """Whether a request repeats one that we had asked to sign in for."""
        state = params.get("requestState")
        if not isinstance(state, str):
            return False
        try:
            self._signer.verify(state, _PURPOSE, *binding)
        except BadSignature:
            return False
        return True

    async def ask(
        self,
        error: SignInRequired,
        caller: Caller,
        link: UpstreamLink,
        *,
        binding: tuple[str, ...],
        answer: object = None,
        asked: bool = False,
    ) -> dict[str, Any] | None:
        """Have the caller sign in.

        Args:
            error: Why the call was not sent.
            caller: Who makes it.
            link: The upstream.
            binding: What a request state is good for.
            answer: What its user said to the question, where it comes back with that.
            asked: It does.

        Returns:
            What to answer the caller, who then repeats the request; None where somebody is signed in by now.

        Raises:
            SignInRequired: Nobody is; the text says what to do, with the link where the caller may follow it.
        """
        source = error.source
        # Somebody may have signed in just now, perhaps at another process: whoever has done so expects it to work.
        if await source.is_over(source.version):
            with anyio.move_on_after(link.config.call_timeout):
                await _until_connected(link, source.version)
                return None
        # The link of somebody's own sign-in is given to that caller alone, and asks who follows it.
        is_own = source.begin_for_caller is not None and source.owner == user_of(caller.principal)
        if not is_own and (source.owner or not may_follow(caller)):
            raise error
        if asked:
            await self._wait(error, link, accepted=_accepted(answer))
            return None
        begin = source.begin_for_caller if is_own and caller.peer not in _STREAMS else source.begin
        assert begin is not None
        try:
            url = (await begin()).url
        except SignInFailed as failure:
            raise SignInRequired(error.server, f"{error} {failure}.", source=error.source) from None
        message = f"Server '{error.server}' needs you to sign in. The call goes on when that is done."
        question = {"mode": "url", "url": url, "message": message, "elicitationId": secrets.token_urlsafe(16)}
        if not can_be_asked(caller.capabilities, _METHOD, question) or (not caller.modern and caller.ask is None):
            told = f"{error} Open this link to sign in, then call again: {url}"
            raise SignInRequired(error.server, told, source=error.source)
        if caller.modern:
            return {
                "resultType": "input_required",
                "inputRequests": {_KEY: {"method": _METHOD, "params": question}},
                "requestState": self._signer.sign(_KEY, _PURPOSE, *binding),
            }
        assert caller.ask is not None
        try:
            given = await caller.ask(_METHOD, question)
        except RpcError:
            given = None
        await self._wait(error, link, accepted=_accepted(given))
        if caller.host is not None:
            done = {"elicitationId": question["elicitationId"]}
            caller.host.notify({"jsonrpc": "2.0", "method": "notifications/elicitation/complete", "params": done})
        return None

    async def _wait(self, error: SignInRequired, link: UpstreamLink, *, accepted: bool) -> None:
        if not accepted:
            raise SignInRequired(error.server, f"{error} The user did not want to sign in.", source=error.source)
        # As long as an answer of the upstream would be waited for.
        with anyio.move_on_after(link.config.call_timeout) as waited:
            await error.source.changed(error.source.version)
            await _until_connected(link, error.source.version)
        if waited.cancelled_caught:
            text = f"{error} Nobody has signed in within {link.config.call_timeout:g} s."
            raise SignInRequired(error.server, text, source=error.source)


async def _until_connected(link: UpstreamLink, version: int) -> None:
    while True:
        try:
            await link.wait_ready(link.patience_s)
        except SignInRequired as error:
            # The link itself may not have had its turn since.
            if error.source.version != version:
                raise
            await anyio.sleep(_TURN_S)
        else:
            return


def may_follow(caller: Caller) -> bool:
    """Whether whoever follows the link is sure to be the caller: of a gateway of one user, on the same machine.

    Source: MCP 2025-11-25, "Elicitation", "Phishing".
    """
    if caller.principal is not LOCAL:
        return False
    if caller.peer in _STREAMS:
        return True
    host = caller.peer.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def answer_in(params: Mapping[str, Any]) -> object:
    """What the user said to our question."""
    answers = params.get("inputResponses")
    return answers.get(_KEY) if isinstance(answers, dict) else None


def _accepted(answer: object) -> bool:
    return isinstance(answer, dict) and answer.get("action") == "accept"
