"""Ask an authorization server for tokens, one function for each grant.

Sources: RFC 6749, 7523 (jwt-bearer), 8693 (token exchange), 8707 (resource), 7009 (revocation).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.errors import GatewayError
from gateway.secrets import SECRETS
from gateway.upstream.oauth.address_guard import AddressRefused
from gateway.upstream.oauth.clients import Client, NoClient, proof_of
from gateway.upstream.oauth.discovery import ServerMetadata
from gateway.upstream.oauth.guarded_requests import Answer, GuardedRequests
from gateway.upstream.oauth.proof import ProofKey
from gateway.upstream.oauth.tokens import TokenRefused, Tokens, read_tokens

_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TYPE: Final = "urn:ietf:params:oauth:token-type:"


class TokenEndpoint:
    """The token endpoint of one authorization server, as one client of it."""

    def __init__(
        self,
        requests: GuardedRequests,
        server: ServerMetadata,
        client: Client,
        *,
        resource: str,
        owner: str,
        proof_key: str | None = None,
    ) -> None:
        """Ask as this client.

        Args:
            requests: Sends requests.
            server: The authorization server.
            client: How it knows us.
            resource: What tokens are to be for.
            owner: Whose secrets are kept out of every text.
            proof_key: What tokens are to be bound to; None for bearer tokens.
        """
        self._proof_key = ProofKey(proof_key) if proof_key is not None else None
        self._requests = requests
        self._owner = owner
        self._server = server
        self._client = client
        self._resource = resource

    async def for_code(self, code: str, *, verifier: str, redirect_uri: str) -> Tokens:
        """Tokens for what a browser brought.

        Raises:
            TokenRefused: There are none.
        """
        return await self._ask(self._code_form(code, verifier, redirect_uri))

    async def identity_for_code(self, code: str, *, verifier: str, redirect_uri: str) -> str:
        """The identity token for what a browser brought; nothing in it is verified.

        Raises:
            TokenRefused: There is none.
        """
        asked_at_s = time.time()
        answer = await self._answer(self._code_form(code, verifier, redirect_uri), asked_at_s=asked_at_s)
        tokens = read_tokens(answer.status, answer.document, now_s=asked_at_s, before=None, bearer=False)
        found = answer.document.get("id_token")
        if not isinstance(found, str):
            raise TokenRefused("the issuer gave no identity token")
        SECRETS.hide_latest(self._owner, [*tokens.secrets, found])
        return found

    def _code_form(self, code: str, verifier: str, redirect_uri: str) -> dict[str, str]:
        SECRETS.hide_latest(f"{self._owner}: code", [code, verifier])
        return {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }

    async def refreshed(self, tokens: Tokens) -> Tokens:
        """Tokens for a refresh token, which may be good for this once only.

        Raises:
            TokenRefused: There are none.
        """
        return await self._ask({"grant_type": "refresh_token", "refresh_token": tokens.refresh or ""}, before=tokens)

    async def for_client(self, scopes: Sequence[str]) -> Tokens:
        """Tokens of the client's own.

        Raises:
            TokenRefused: There are none.
        """
        return await self._ask({"grant_type": "client_credentials", **_scope(scopes)})

    async def for_assertion(self, assertion: str, scopes: Sequence[str]) -> Tokens:
        """Tokens for what another issuer has signed for this one.

        Raises:
            TokenRefused: There are none.
        """
        return await self._ask({"grant_type": _JWT_BEARER, "assertion": assertion, **_scope(scopes)})

    async def exchanged(
        self, subject: str, *, subject_type: str, requested_type: str, audience: str | None, scopes: Sequence[str]
    ) -> Tokens:
        """Tokens in exchange for another one.

        Args:
            subject: What is exchanged.
            subject_type, requested_type: Of what is exchanged and what is wanted, as `access_token` or a whole URN.
            audience: Whom it is to be for, beside the resource.
            scopes: What it is to allow.

        Raises:
            TokenRefused: There are none.
        """
        SECRETS.hide_latest(f"{self._owner}: subject", [subject])
        form = {
            "grant_type": _EXCHANGE,
            "subject_token": subject,
            "subject_token_type": _urn(subject_type),
            "requested_token_type": _urn(requested_type),
            **({"audience": audience} if audience else {}),
            **_scope(scopes),
        }
        return await self._ask(form, bearer=requested_type == "access_token")

    async def revoke(self, tokens: Tokens) -> bool:
        """Have the tokens revoked; whether the server took it."""
        endpoint = self._server.revocation_endpoint
        if endpoint is None:
            return False
        headers, proof = proof_of(self._client, self._server, now_s=time.time())
        token, hint = (tokens.refresh, "refresh_token") if tokens.refresh else (tokens.access, "access_token")
        form = {"token": token, "token_type_hint": hint, **proof}
        try:
            return 200 <= (await self._requests.post_form(endpoint, form, headers)).status < 300
        except GatewayError:
            return False

    async def _ask(self, form: Mapping[str, str], *, before: Tokens | None = None, bearer: bool = True) -> Tokens:
        asked_at_s = time.time()
        answer = await self._answer(form, asked_at_s=asked_at_s)
        proven = self._proof_key is not None
        tokens = read_tokens(
            answer.status, answer.document, now_s=asked_at_s, before=before, bearer=bearer, proven=proven
        )
        SECRETS.hide_latest(self._owner, tokens.secrets)
        return tokens

    async def _post(self, form: Mapping[str, str], headers: Mapping[str, str]) -> Answer:
        url = self._server.token_endpoint
        proof = {"dpop": self._proof_key.proof("POST", url)} if self._proof_key is not None else {}
        return await self._requests.post_form(url, form, {**headers, **proof})

    async def _answer(self, form: Mapping[str, str], *, asked_at_s: float) -> Answer:
        try:
            headers, proof = proof_of(self._client, self._server, now_s=asked_at_s)
        except NoClient as error:
            raise TokenRefused(str(error)) from None
        proofs = [value for value in (self._client.secret, proof.get("client_assertion")) if value]
        SECRETS.hide_latest(f"{self._owner}: client", proofs)
        resource = {"resource": self._resource} if self._resource else {}
        whole = {**form, **resource, **proof}
        try:
            answer = await self._post(whole, headers)
            key = self._proof_key
            # RFC 9449, section 8: nothing was spent by that.
            if key is not None and _wants_nonce(answer) and key.take_nonce(answer.nonce):
                answer = await self._post(whole, headers)
            return answer
        except AddressRefused as error:
            raise TokenRefused(str(error)) from None
        except GatewayError as error:
            raise TokenRefused(f"the token endpoint cannot be reached ({error})", passing=True) from None


def _wants_nonce(answer: Answer) -> bool:
    return isinstance(answer.document, dict) and answer.document.get("error") == "use_dpop_nonce"


def _scope(scopes: Sequence[str]) -> dict[str, str]:
    return {"scope": " ".join(scopes)} if scopes else {}


def _urn(kind: str) -> str:
    return kind if ":" in kind else f"{_TYPE}{kind}"
