"""Which gateway runs here, and the token of its administrator: one of the user's, or the demo."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from gateway.access.admin_token import FILE_NAME, UntrustedFile, kept_token
from gateway.commands.admin_client import DEFAULT_URL
from gateway.commands.locations import NotReached, UsageError, admin_token, state_dir

# Where the demo notes its address for as long as it runs, beside its token.
_ADDRESS: Final = "address"
_DEMO: Final = "demo"

Answer = TypeVar("Answer")


def demo_dir(args: Namespace) -> Path:
    """Where the demo keeps its state: apart from that of a real gateway, which it must not replace."""
    return state_dir(args) / _DEMO


@contextmanager
def noted(folder: Path, url: str) -> Iterator[None]:
    """Keep the address of the demo where the command line finds it."""
    path = folder / _ADDRESS
    # A convenience: a demo whose address cannot be kept runs all the same.
    with suppress(OSError):
        path.write_text(url, encoding="utf-8")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def from_running(args: Namespace, ask: Callable[[str, str], Answer]) -> Answer:
    """What the running gateway answers.

    Args:
        args: Of a command with `--url` and `--state-dir`.
        ask: Given an address and a token.

    Raises:
        UsageError: There is no token.
        NotReached: None answers; the reason is that of the likeliest one.
    """
    refused: NotReached | None = None
    for url, token in _candidates(args):
        try:
            return ask(url, token)
        except NotReached as error:
            refused = refused or error
    # At least one was tried: without a token the first candidate has raised.
    raise refused or NotReached("no gateway answers")


def _candidates(args: Namespace) -> Iterator[tuple[str, str]]:
    """Addresses with tokens, the likeliest first."""
    url: str = args.url or DEFAULT_URL
    demo = _demo(args)
    # A demo that was killed has left its note: then the user's own gateway may be at that address by now.
    is_demo = demo is not None and urlsplit(demo[0]).netloc == urlsplit(url if "://" in url else f"http://{url}").netloc
    if demo is not None and is_demo:
        yield demo
    try:
        yield url, admin_token(args)
    except UsageError:
        if demo is None:
            raise
    if demo is not None and not is_demo and args.url is None:
        yield demo


def _demo(args: Namespace) -> tuple[str, str] | None:
    folder = demo_dir(args)
    try:
        url = (folder / _ADDRESS).read_text(encoding="utf-8")
        token = kept_token(folder / FILE_NAME)
    except (OSError, ValueError, UntrustedFile):
        return None
    return (url, token) if token else None
