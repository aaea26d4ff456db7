"""Script-free pages that a browser shows during and after a sign-in, and the cookie that identifies this browser."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from gateway.process.secrets import SECRETS
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.upstream_credentials import SignInFailed

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

CALLERS_PATH: Final = "/me"
"""The path of the page for callers."""
_COOKIE: Final = "typegate-connect"
# Over https, the prefix prevents other hosts of the domain from setting this cookie.
_SECURE_COOKIE: Final = f"__Host-{_COOKIE}"
# The lifetime of the cookie: longer than that of a sign-in link.
_COOKIE_S: Final = 3_600
PAGE_HEADERS: Final = {
    # The URL of the page contains an authorization code, so the page must not be cached or framed, and the URL must not
    # be sent as a referrer.
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
SAFETY: Final = {
    # The page shows upstream texts: only its own scripts may run, and no other site may frame the page.
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; object-src 'none'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every response below `/admin` and `/me`."""
_STYLE: Final = "body{font:16px system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem}"


class SignInCookie:
    """The cookie of a browser that signs in: a sign-in continues only in the browser that has started the sign-in."""

    def __init__(self, sign_ins: SignIns) -> None:
        self._sign_ins = sign_ins

    @property
    def _is_secure(self) -> bool:
        return (self._sign_ins.addresses.connect_url() or "").startswith("https:")

    @property
    def _name(self) -> str:
        return _SECURE_COOKIE if self._is_secure else _COOKIE

    def value(self, request: Request) -> str | None:
        """Return the value of the cookie in a request; None if the request does not contain the cookie."""
        return request.cookies.get(self._name)

    def put(self, response: Response, value: str) -> None:
        """Set the cookie in a response."""
        response.set_cookie(
            self._name,
            value,
            max_age=_COOKIE_S,
            path="/",
            httponly=True,
            # The redirect from the issuer is a top-level navigation, for which browsers send cookies with SameSite=Lax.
            samesite="lax",
            secure=self._is_secure,
        )


def page(title: str, text: str, *, more: str = "") -> str:
    """Return a page with a heading, a sentence, and optionally more HTML."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)} - typegate</title><style>{_STYLE}</style>"
        f"<h1>{escape(title)}</h1><p>{escape(text)}</p>{more}</html>\n"
    )


def key_page(server: str, ticket: str) -> tuple[str, dict[str, str]]:
    """Return the page that asks the user for the caller's API key, and the headers of the page."""
    text = (
        f"This link is for one caller of this gateway. Enter the API key that your host uses here; you will then be "
        f"redirected to sign in to {server}."
    )
    form = (
        f'<form method="post"><input type="hidden" name="ticket" value="{escape(ticket, quote=True)}">'
        '<p><label>API key<br><input type="password" name="key" autocomplete="off" required autofocus size="40">'
        "</label></p><p><button>Continue</button></p></form>"
    )
    headers = {
        **PAGE_HEADERS,
        # This lets the browser send an Origin header with the form. The header shows that the gateway served the form.
        "referrer-policy": "same-origin",
    }
    return page(f"Sign in to {server}", text, more=form), headers


async def callback_page(sign_ins: SignIns, query: str, *, cookie: str | None = None) -> tuple[int, str, str | None]:
    """Finish a sign-in, and return the status, the page, and the URL of a further redirect.

    Args:
        sign_ins: The sign-ins in progress.
        query: The query string of the redirect from the authorization server.
        cookie: The cookie that this browser received when the sign-in began.
    """
    try:
        finished = await sign_ins.handle_callback(query, cookie=cookie)
    except SignInFailed as error:
        return 400, page("Not signed in", SECRETS.scrub(str(error))), None
    if finished.access_ticket is not None:
        # The URL is relative, because a public URL may have a path. Browsers do not send the fragment to any server.
        return 302, "", f"..{CALLERS_PATH}#signed-in={finished.access_ticket}"
    if finished.redirect_url is not None:
        return 302, "", finished.redirect_url
    return 200, page("Signed in", f"typegate is signed in to {finished.server}. This window can be closed."), None
