"""`/admin/`: the page of administrators, as files of this package. They hold nothing that is secret."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.admin.changing import etag_of
from gateway.admin.documents import missing
from gateway.admin.routes import Merge, route

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_INDEX: Final = "index.html"


class PageRoutes:
    """Answers with the files of the page."""

    @route("GET", "/admin", merge=Merge.HERE, status=307, public=True, content="")
    async def page_without_slash(self, request: Request) -> Response:
        """Where the page is.

        Returns:
            Nothing but its address.
        """
        # Relative, so that it is right behind a proxy that has put something before it.
        return RedirectResponse("admin/", 307)

    @route("GET", "/admin/", merge=Merge.HERE, public=True, content="text/html", example="<!doctype html>…")
    async def page(self, request: Request) -> Response:
        """The web page.

        Returns:
            It, in HTML.
        """
        return _response(request, _INDEX)

    @route(
        "GET", "/admin/page/{file}", merge=Merge.HERE, public=True, content="*/*", examples={"file": "style.css"},
        example=":root { … }",
    )  # fmt: skip
    async def page_file(self, request: Request) -> Response:
        """A file of the web page.

        Returns:
            A script, a style sheet or an image.

        Errors:
            404: There is no such file.
        """
        name = request.path_params["file"]
        if name not in _page():
            raise missing("file of the page", name)
        return _response(request, name)


def _response(request: Request, name: str) -> Response:
    content, tag = _page()[name]
    # Asked about each time, and sent again only after an upgrade.
    headers = {"etag": tag, "cache-control": "no-cache", "content-type": _TYPES[name.rpartition(".")[2]]}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)


@cache
def _page() -> dict[str, tuple[bytes, str]]:
    folder = files("gateway.admin") / "page"
    found = {each.name: each.read_bytes() for each in folder.iterdir() if each.name.rpartition(".")[2] in _TYPES}
    return {name: (content, etag_of(content.decode())) for name, content in found.items()}
