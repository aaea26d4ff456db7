"""Opaque tokens: their issuer is asked what they are (RFC 7662)."""

from __future__ import annotations

import base64
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

import anyio

from gateway.access.oauth.documents import Fetch, Unobtainable, fetch_object
from gateway.config.issuers import Introspection

KNOWN_S: Final = 60.0
"""How long an answer is believed: as long may a token be of use that its issuer has revoked."""
# Enough for every user who comes back after a restart; more at once would be an attack on the issuer by way of us.
_MAX_AT_ONCE: Final = 16
# Those who wait for one of them: a minute's worth at some milliseconds each.
_MAX_WAITING: Final = 512
# A place has to be had in this time: with `FETCH_S` nobody waits longer than a caller does.
_WAIT_S: Final = 5.0


class Introspector:
    """Asks one issuer about opaque tokens."""

    def __init__(self, config: Introspection, fetch: Fetch) -> None:
        self._config = config
        self._fetch = fetch
        self._places = anyio.CapacityLimiter(_MAX_AT_ONCE)
        # RFC 6749, section 2.3.1: both are encoded as in a form first.
        pair = f"{quote_plus(config.client_id)}:{quote_plus(config.client_secret.get_secret_value())}"
        self._headers = {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    async def claims(self, token: str) -> dict[str, Any] | None:
        """What the issuer says of a token; None where it is not good, or not its own.

        Raises:
            Unobtainable: The issuer cannot be asked at present.
        """
        if self._places.statistics().tasks_waiting >= _MAX_WAITING:
            raise Unobtainable("too many tokens are being looked up")
        form = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        acquired = False
        try:
            with anyio.move_on_after(_WAIT_S):
                await self._places.acquire()
                acquired = True
            if not acquired:
                raise Unobtainable("too many tokens are being looked up")
            answer = await fetch_object(self._fetch, self._config.endpoint, headers=self._headers, form=form)
        finally:
            if acquired:
                self._places.release()
        # True itself: a text would be true as well, "false" too.
        if answer.get("active") is not True:
            return None
        kind = answer.get("token_type", "Bearer")
        # Some tell a refresh token by its type; one that is bound to a key says so here.
        if not isinstance(kind, str) or kind.lower() not in ("bearer", "access_token", "at+jwt"):
            return None
        return answer
