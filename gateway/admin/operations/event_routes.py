"""`/admin/events` and `/admin/activity`: what happens now, and what has happened in the last hour."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.access.administrators import Administrators
from gateway.admin.activity import all_activity
from gateway.admin.documents import JsonDocument, Refusal, for_people
from gateway.admin.event_feed import MAX_WATCHERS, EventFeed, TooManyWatchers
from gateway.admin.routes import Combined, Merge, route
from gateway.downstream.http import sse

# A browser that has lost the stream comes back after this time.
_RETRY_MS: Final = 2_000
_FULL: Final = f"{MAX_WATCHERS} streams are open already"
_STREAM: Final = (
    'data: [{"event":"call","time":"2027-01-31T08:00:00.000Z","wrapper":"calendar__list_events","ms":8.1}]\n\n'
)
_FIGURES: Final = {"calls": 3, "errors": 1, "denied": 0, "totalMs": 30.1, "maxMs": 20.2, "p50Ms": 8.0, "p95Ms": 20.2,
                   "histogram": [0, 1, 2]}  # fmt: skip


class EventRoutes:
    """Streams events, and sums them up."""

    def __init__(self, feed: EventFeed, *, ending: Callable[[], bool], administrators: Administrators) -> None:
        """Answer about these.

        Args:
            feed: What happens.
            ending: Whether the process is about to end.
            administrators: Who may still watch.
        """
        self._feed = feed
        self._ending = ending
        self._administrators = administrators

    @route("GET", "/admin/events", merge=Merge.HERE, content="text/event-stream", example=_STREAM)
    async def events(self, request: Request) -> Response:
        """What happens from now on, as server-sent events.

        Returns:
            One event for each moment with news, whose data is a list: objects with `event`: `call`, `request`,
            `refused`, `changed`, `approval`, `sign_in` and others as in the record, `state` with the servers that have
            changed, `catalog` when tools have, `missed` with the number of lines that came too fast.

        Errors:
            503: Too many streams are open.
        """
        stream = self._frames(request)
        # Before anything is answered it is known whether there is room.
        try:
            first = await anext(stream)
        except TooManyWatchers:
            raise Refusal(503, _FULL, headers={"retry-after": "5"}) from None

        async def body() -> AsyncGenerator[bytes, None]:
            yield first
            async with aclosing(stream):
                async for frame in stream:
                    yield frame

        headers = {"content-type": "text/event-stream", "x-accel-buffering": "no"}
        return StreamingResponse(body(), headers=headers)

    @route(
        "GET",
        "/admin/activity",
        merge=Combined(all_activity),
        example={
            "bucketSeconds": 10,
            "buckets": [{"at": 1801382400, **_FIGURES}],
            "tools": [{"name": "calendar__list_events", **_FIGURES}],
            "callers": [{"name": "ci", **_FIGURES}],
        },
    )
    async def activity(self, request: Request) -> Response:
        """The calls of the last hour in figures, as far as the record is kept and this gateway has run.

        Returns:
            `buckets` of `bucketSeconds`: at (seconds since 1970), calls, errors, denied, and how long they took in
            milliseconds; the same for `tools` and `callers` by name.
        """
        return JsonDocument(self._feed.activity.document())

    async def _frames(self, request: Request) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._feed.watch(self._ending)) as watching:
            begun = False
            async for events in watching:
                if not begun:
                    begun = True
                    yield sse.event(b"[]", retry_ms=_RETRY_MS)
                    continue
                if not self._is_still_in(request):
                    return
                yield sse.event(for_people(events)) if events else sse.PING

    def _is_still_in(self, request: Request) -> bool:
        """Whether the credentials of a request that was let in are good by now."""
        if authorization := request.headers.get("authorization"):
            return self._administrators.by_token(authorization) is not None
        return self._administrators.by_cookie(request.headers.get("cookie", "")) is not None
