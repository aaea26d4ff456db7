"""The pages that a browser is shown at the end of a sign-in: one sentence, without scripts."""

from __future__ import annotations

from html import escape
from typing import Final

from gateway.secrets import SECRETS
from gateway.upstream.credentials import SignInFailed
from gateway.upstream.oauth.sign_ins import SignIns

PAGE_HEADERS: Final = {
    # The address holds a code: it is neither kept, nor told to anybody, nor shown in a frame.
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
_STYLE: Final = "body{font:16px system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem}"


def page(title: str, text: str, *, more: str = "") -> str:
    """One page with a heading and a sentence, and more HTML below it."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)} - typegate</title><style>{_STYLE}</style>"
        f"<h1>{escape(title)}</h1><p>{escape(text)}</p>{more}</html>\n"
    )


def key_page(server: str, ticket: str) -> tuple[str, dict[str, str]]:
    """The page that asks a caller for its API key, and its headers."""
    text = (
        f"This link was made for one caller of this gateway. Enter the API key that your host uses here; you are then "
        f"sent on to sign in to {server}."
    )
    form = (
        f'<form method="post"><input type="hidden" name="ticket" value="{escape(ticket, quote=True)}">'
        '<p><label>API key<br><input type="password" name="key" autocomplete="off" required autofocus size="40">'
        "</label></p><p><button>Go on</button></p></form>"
    )
    headers = {
        **PAGE_HEADERS,
        # Without it the browser would not say that the form is our own.
        "referrer-policy": "same-origin",
    }
    return page(f"Sign in to {server}", text, more=form), headers


async def callback_page(sign_ins: SignIns, query: str, *, mark: str | None = None) -> tuple[int, str, str | None]:
    """What a browser is shown that comes back: status, page, and where it has to go once more.

    Args:
        sign_ins: Where sign-ins are.
        query: What it comes back with.
        mark: What it was given before (`connecting`).
    """
    try:
        finished = await sign_ins.finish(query, mark=mark)
    except SignInFailed as error:
        return 400, page("Not signed in", SECRETS.scrub(str(error))), None
    if finished.go_on_at is not None:
        return 302, "", finished.go_on_at
    return 200, page("Signed in", f"typegate is signed in to {finished.server}. This window can be closed."), None
