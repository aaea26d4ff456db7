"""`/healthz`, `/readyz` and `/metrics`, and where browsers of sign-ins come back to: paths beside `/admin`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from gateway.admin.documents import Refusal
from gateway.admin.sign_in_pages import SignInPages
from gateway.upstream.oauth.clients import DOCUMENT_PATH
from gateway.upstream.oauth.sign_ins import SignIns

NO_SCRAPER: Final = "an API key for metrics or the admin token is needed (gateway.metrics.public opens this path)"


class Probes:
    """Answers there.

    Attributes:
        by_path: What answers, by its path.
    """

    def __init__(
        self,
        *,
        scrapers: Callable[[str], bool],
        metrics: Callable[[], tuple[bytes, str]],
        unready: Callable[[], str | None],
        sign_ins: SignIns,
    ) -> None:
        """Answer with these.

        Args:
            scrapers: Whether an Authorization header may read `/metrics`.
            metrics: The figures, and their media type.
            unready: Why calls cannot be answered well yet, or any more; None where they can.
            sign_ins: How upstreams are signed in to.
        """
        self.reads_metrics = scrapers
        self._text_of_metrics = metrics
        self._unready = unready
        self._sign_ins = sign_ins
        self.by_path: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
            DOCUMENT_PATH: self._client_document,
            **SignInPages(sign_ins).by_path,
        }

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        why = self._unready()
        return PlainTextResponse("ready\n") if why is None else PlainTextResponse(f"{why}\n", 503)

    async def _metrics(self, request: Request) -> Response:
        if not self.reads_metrics(request.headers.get("authorization", "")):
            return Refusal(401, NO_SCRAPER, headers={"www-authenticate": "Bearer"}).response()
        text, media_type = self._text_of_metrics()
        return Response(text, headers={"content-type": media_type})

    async def _client_document(self, request: Request) -> Response:
        document = self._sign_ins.document()
        if document is None:
            return Refusal(404, "there is nothing here").response()
        return JSONResponse(document, headers={"cache-control": "max-age=300"})
