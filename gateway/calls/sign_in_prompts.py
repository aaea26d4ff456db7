"""Ask a caller to sign in to a server when a call requires the sign-in, and continue the call afterwards.

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
from gateway.calls.caller import Caller
from gateway.protocol.gateway_errors import RpcError
from gateway.protocol.versions import can_be_asked
from gateway.upstream.link import UpstreamLink
from gateway.upstream.oauth.account_linking import user_of
from gateway.upstream.upstream_credentials import SignInFailed, SignInRequired

_KEY: Final = "sign-in"
# Values of `Caller.peer` if there is no network connection: the caller is then the user who started this process.
_STDIO: Final = frozenset({"", "stdio"})
# Pause before checking a link again. A link processes new credentials within a few iterations of the event loop.
_POLL_S: Final = 0.05
_METHOD: Final = "elicitation/create"
# Distinguishes the gateway's own request state from an upstream's.
_PURPOSE: Final = "typegate: sign-in"


class SignInPrompts:
    """Asks callers to sign in, and shows the sign-in link only to callers who may follow it."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def is_answer(self, params: Mapping[str, Any], binding: tuple[str, ...]) -> bool:
        """Return whether a request contains the request state that was issued with a request to sign in."""
        state = params.get("requestState")
        if not isinstance(state, str):
            return False
        try:
            self._signer.verify(state, _PURPOSE, *binding)
        except BadSignature:
            return False
        return True

    async def prompt_user(
        self,
        error: SignInRequired,
        caller: Caller,
        link: UpstreamLink,
        *,
        binding: tuple[str, ...],
        answer: object = None,
        was_asked: bool = False,
    ) -> dict[str, Any] | None:
        """Ask the caller to sign in, and wait for the sign-in if the protocol version allows it.

        Args:
            error: The reason why the call was not sent.
            link: The link to the server.
            binding: The values to which a request state is bound.
            answer: The user's answer to the request to sign in, if the request contains one.
            was_asked: True if an earlier result has asked the caller to sign in.

        Returns:
            A result that asks for the sign-in, after which the caller repeats the request; None once the sign-in is
            complete.

        Raises:
            SignInRequired: The sign-in is not complete. The text says what to do. It contains the link if the caller
                may follow the link, but cannot be asked.
        """
        source = error.source
        # The user may have just signed in, possibly through another process. The call then has to succeed at once.
        if await source.has_newer_credentials(source.version):
            with anyio.move_on_after(link.config.call_timeout):
                await _until_connected(link, source.version)
                return None
        # If each caller signs in separately, a sign-in link identifies the user who follows it. Show it only to the
        # caller for whom it was created.
        is_own = source.create_link_for_caller is not None and source.owner == user_of(caller.principal)
        if not is_own and (source.owner or not may_follow(caller)):
            raise error
        if was_asked:
            await self._wait(error, link, accepted=_is_accepted(answer))
            return None
        create_link = source.create_link_for_caller if is_own and caller.peer not in _STDIO else source.create_link
        assert create_link is not None
        try:
            url = (await create_link()).url
        except SignInFailed as failure:
            raise SignInRequired(error.server, f"{error} {failure}.", source=error.source) from None
        message = f"Sign in to server '{error.server}' to continue this call."
        question = {"mode": "url", "url": url, "message": message, "elicitationId": secrets.token_urlsafe(16)}
        if not can_be_asked(caller.capabilities, _METHOD, question) or (not caller.modern and caller.ask is None):
            text = f"{error} Open this link to sign in, then call again: {url}"
            raise SignInRequired(error.server, text, source=error.source)
        if caller.modern:
            return {
                "resultType": "input_required",
                "inputRequests": {_KEY: {"method": _METHOD, "params": question}},
                "requestState": self._signer.sign(_KEY, _PURPOSE, *binding),
            }
        assert caller.ask is not None
        try:
            response = await caller.ask(_METHOD, question)
        except RpcError:
            response = None
        await self._wait(error, link, accepted=_is_accepted(response))
        if caller.host is not None:
            done = {"elicitationId": question["elicitationId"]}
            caller.host.notify({"jsonrpc": "2.0", "method": "notifications/elicitation/complete", "params": done})
        return None

    async def _wait(self, error: SignInRequired, link: UpstreamLink, *, accepted: bool) -> None:
        if not accepted:
            raise SignInRequired(error.server, f"{error} The user declined to sign in.", source=error.source)
        # Wait as long as a call may wait for its upstream.
        with anyio.move_on_after(link.config.call_timeout) as waited:
            await error.source.wait_changed(error.source.version)
            await _until_connected(link, error.source.version)
        if waited.cancelled_caught:
            text = f"{error} No user signed in within {link.config.call_timeout:g} s."
            raise SignInRequired(error.server, text, source=error.source)


async def _until_connected(link: UpstreamLink, version: int) -> None:
    while True:
        try:
            await link.wait_ready(link.patience_s)
        except SignInRequired as error:
            # The link may not have processed the new credentials yet.
            if error.source.version != version:
                raise
            await anyio.sleep(_POLL_S)
        else:
            return


def may_follow(caller: Caller) -> bool:
    """Return whether the person who follows a link is certainly the caller.

    This requires a local caller without credentials on the machine of the gateway, where there is a single user.

    Source: MCP 2025-11-25, "Elicitation", "Phishing".
    """
    if caller.principal is not LOCAL:
        return False
    if caller.peer in _STDIO:
        return True
    host = caller.peer.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def answer_in(params: Mapping[str, Any]) -> object:
    """Return the user's answer to the gateway's request to sign in; None if there is none."""
    answers = params.get("inputResponses")
    return answers.get(_KEY) if isinstance(answers, dict) else None


def _is_accepted(answer: object) -> bool:
    return isinstance(answer, dict) and answer.get("action") == "accept"
