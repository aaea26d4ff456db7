"""Ask the issuer of a caller's tokens who sits at a browser: OpenID Connect, with a code, PKCE and a nonce.

Sources: OpenID Connect Core 1.0, section 3.1 "Authentication using the Authorization Code Flow"; RFC 7636; RFC 9207.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.access.oauth.claims import Rejected
from gateway.access.oauth.identity_tokens import name_in
from gateway.access.oauth.key_set import KeySet
from gateway.config.issuers import Issuer
from gateway.config.upstream_types.sign_in import SignInConfig
from gateway.secrets import SECRETS
from gateway.upstream.credentials import SignInFailed
from gateway.upstream.oauth.address_guard import AddressRefused
from gateway.upstream.oauth.addresses import Addresses
from gateway.upstream.oauth.authorization import (
    AnswerRefused,
    Returned,
    authorization_url,
    check_issuer,
    code_of,
    new_state,
    new_verifier,
)
from gateway.upstream.oauth.clients import Client
from gateway.upstream.oauth.discovery import MetadataRefused
from gateway.upstream.oauth.kept_sign_in import KeptSignIn
from gateway.upstream.oauth.obtaining import LINK_S, Obtaining
from gateway.upstream.oauth.store import Conflict, Store, StoreFailed
from gateway.upstream.oauth.tokens import TokenRefused

_OWNER: Final = "who sits there"
_NAME: Final = "the gateway"


class IdentityLogin:
    """One issuer of callers' tokens, as its client."""

    def __init__(
        self, issuer: Issuer, keys: Callable[[str], KeySet | None], store: Store, addresses: Addresses
    ) -> None:
        """Ask this issuer.

        Args:
            issuer: The issuer.
            keys: Its keys by its name, while its tokens are accepted.
            store: Keeps what is needed when the browser comes back.
            addresses: Where this gateway is.
        """
        own = issuer.sign_in
        secret = own.client_secret if own is not None else None
        host = urlsplit(issuer.issuer).hostname
        config = SignInConfig(
            client_id=own.client_id if own is not None else None,
            client_secret=secret.get_secret_value() if secret is not None else None,
            issuer=issuer.issuer,
            # What the operator wrote may be reached wherever it is.
            private_hosts=[host] if host else [],
        )
        self.issuer = issuer
        self._scopes = tuple(own.scopes if own is not None else ("openid",))
        self._keys = keys
        self._store = store
        self._addresses = addresses
        self._obtaining = Obtaining(_NAME, issuer.issuer, config, addresses, owner=_OWNER)

    def close(self) -> None:
        """Drop every idle connection."""
        self._obtaining.close()

    async def begin(self, about: Mapping[str, Any]) -> str:
        """Where the browser has to go to show who sits there.

        Args:
            about: What `end` is to be given back.

        Raises:
            SignInFailed: The issuer cannot be asked.
        """
        redirect_uri = self._addresses.redirect_uri()
        if redirect_uri is None:
            raise SignInFailed("no browser can come back to this process")
        issuer = self.issuer.issuer
        key = f"identity:{issuer}"
        kept = await self._store.load(key)
        known = KeptSignIn.of_document(kept.document) if kept is not None else KeptSignIn(issuer=issuer)
        state, verifier, nonce = new_state(), new_verifier(), new_state()

        def url_for(client: Client) -> str:
            return authorization_url(
                server.authorization_endpoint or "",
                client_id=client.client_id,
                redirect_uri=redirect_uri,
                state=state,
                verifier=verifier,
                resource="",
                scopes=self._scopes,
                nonce=nonce,
            )

        try:
            server = await self._obtaining.server_metadata(issuer, interactive=True)
            client = await self._obtaining.client_at(known, server, redirect_uri, self._scopes)
            if client == known.client:
                client = await self._obtaining.known_client(client, server, redirect_uri, self._scopes, url_for)
        except (MetadataRefused, AddressRefused, SignInFailed) as error:
            raise SignInFailed(
                f"the issuer {issuer} cannot be asked who you are: {error} (gateway.auth.oauth.issuers, signIn)"
            ) from None
        found = KeptSignIn(issuer=issuer, server=server, client=client)
        document = found.document(server=_NAME, principal="")
        pending = {
            "identity": issuer,
            "about": dict(about),
            "verifier": verifier,
            "nonce": nonce,
            "redirectUri": redirect_uri,
            "expires": time.time() + LINK_S,
            "kept": document,
        }
        try:
            if client.origin == "registered" and client != known.client:
                # Somebody else who came at the same time has registered, too: either will do.
                with suppress(Conflict):
                    await self._store.save(key, document, expected=kept.version if kept is not None else 0)
            await self._store.save(f"pending:{state}", pending, expected=0)
        except StoreFailed as error:
            raise SignInFailed(str(error)) from None
        return url_for(client)

    async def end(self, returned: Returned, pending: Mapping[str, Any]) -> str:
        """The name of the caller who sits at the browser that has come back.

        Raises:
            SignInFailed: The issuer does not say who it is, or what it says is not to be believed.
        """
        kept, keys = KeptSignIn.of_document(pending["kept"]), self._keys(self.issuer.issuer)
        try:
            if kept.server is None or kept.client is None or keys is None:
                raise AnswerRefused("its tokens are not accepted here any more")
            check_issuer(returned, issuer=kept.server.issuer, named=kept.server.names_issuer)
            token = await self._obtaining.endpoint(kept).identity_for_code(
                code_of(returned), verifier=str(pending["verifier"]), redirect_uri=str(pending["redirectUri"])
            )
            return await name_in(token, keys, client_id=kept.client.client_id, nonce=str(pending["nonce"]))
        except (AnswerRefused, TokenRefused, Rejected) as error:
            if isinstance(error, TokenRefused) and error.client_refused:
                with suppress(StoreFailed):
                    await self._store.remove(f"identity:{self.issuer.issuer}")
            reason = SECRETS.scrub(str(error))
            raise SignInFailed(f"{self.issuer.issuer} did not say who you are: {reason}") from None
