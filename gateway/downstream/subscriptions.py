"""What callers listen to: `subscriptions/listen` of the modern era, `resources/subscribe` of the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio

from gateway import wire
from gateway.access.principal import Principal
from gateway.calls.profile_views import ProfileViews
from gateway.calls.prompts_and_resources import TaskIds
from gateway.calls.upstream_subscriptions import UpstreamSubscriptions
from gateway.downstream.changes import Announcer
from gateway.downstream.lists import SERVER_INFO
from gateway.downstream.sessions import Emit, Session
from gateway.errors import INTERNAL_ERROR, INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError
from gateway.protocol import SERVER_INFO_KEY, SUBSCRIPTION_KEY
from registry.catalog.catalog import ListKind

MAX_LISTENERS: Final = 1024
MAX_WATCHED: Final = 1024
_LISTS: Final[tuple[ListKind, ...]] = ("tools", "prompts", "resources")


class Listening:
    """Joins callers to changes of lists, and to what they watch at upstreams."""

    def __init__(
        self,
        views: ProfileViews,
        subscriptions: UpstreamSubscriptions,
        tasks: TaskIds,
        announcer: Announcer,
        *,
        pending: Callable[[], bool],
    ) -> None:
        self._views = views
        self._pending = pending
        self._subscriptions = subscriptions
        self._tasks = tasks
        self._announcer = announcer
        self._open = 0
        self.closing = anyio.Event()

    async def listen(
        self, request_id: str | int | float, params: dict[str, Any], principal: Principal, profile: str, emit: Emit
    ) -> bytes:
        """Serve `subscriptions/listen` (MCP 2026-07-28, "UpstreamSubscriptions") until it is cancelled or we close.

        Raises:
            RpcError: The request is unsound, or too many streams are open.
        """
        wanted = params.get("notifications")
        if not isinstance(wanted, dict):
            raise RpcError(INVALID_PARAMS, "params.notifications must be an object")
        if self._open >= MAX_LISTENERS:
            raise RpcError(INTERNAL_ERROR, "Too many subscriptions are open")
        uris = _texts(wanted, "resourceSubscriptions")
        task_ids = _texts(wanted, "taskIds")
        kinds = [kind for kind in _LISTS if wanted.get(f"{kind}ListChanged") is True and self._offers(kind, profile)]
        meta = {SUBSCRIPTION_KEY: request_id}

        # What happens before the acknowledgement is told after it: that one comes first on the stream.
        early: list[dict[str, Any]] | None = []

        def tell(method: str, told: dict[str, Any]) -> None:
            message = _marked(method, told, meta)
            emit(message) if early is None else early.append(message)

        def changed(changes: list[ListKind]) -> None:
            for kind in changes:
                if kind in kinds:
                    tell(f"{kind}/list_changed", {})

        honoured: dict[str, Any] = {f"{kind}ListChanged": True for kind in kinds}
        endings: list[Callable[[], None]] = []
        self._open += 1
        try:
            for uri in uris:
                if watched := await self._watch(uri, profile, lambda told: tell("resources/updated", told)):
                    endings += watched
                    honoured.setdefault("resourceSubscriptions", []).append(uri)
            for task_id in task_ids:
                endings.append(await self._watch_task(task_id, principal, lambda told: tell("tasks", told)))
            if task_ids:
                honoured["taskIds"] = task_ids
            if kinds:
                endings.append(self._announcer.listen(changed, profile))
            emit(_marked("subscriptions/acknowledged", {"notifications": honoured}, meta))
            held, early = early, None
            for message in held or ():
                emit(message)
            await self.closing.wait()
        finally:
            self._open -= 1
            for ending in endings:
                ending()
        return wire.dumps({"resultType": "complete", "_meta": {**meta, SERVER_INFO_KEY: SERVER_INFO}})

    async def subscribe(self, session: Session, params: dict[str, Any]) -> bytes:
        """Answer `resources/subscribe` (MCP 2025-11-25, "Resources", "UpstreamSubscriptions").

        Raises:
            RpcError: No server may know the URI, or the session watches too many.
        """
        uri = _uri(params)
        if uri in session.subscribed:
            return b"{}"
        if len(session.subscribed) >= MAX_WATCHED:
            raise RpcError(INVALID_PARAMS, f"A session may watch {MAX_WATCHED} resources")

        def updated(told: dict[str, Any]) -> None:
            session.notify({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": told})

        endings = await self._watch(uri, session.profile, updated)
        if not endings:
            raise RpcError(RESOURCE_NOT_FOUND, "Resource not found", {"uri": uri})

        def end() -> None:
            for ending in endings:
                ending()

        session.subscribed[uri] = end
        return b"{}"

    def unsubscribe(self, session: Session, params: dict[str, Any]) -> bytes:
        """Answer `resources/unsubscribe`; what was not watched is not watched afterwards either."""
        end = session.subscribed.pop(_uri(params), None)
        if end is not None:
            end()
        return b"{}"

    def _offers(self, kind: ListKind, profile: str) -> bool:
        said = (one.capabilities for one in self._views.view(profile).catalog.servers.values())
        return kind != "resources" or self._pending() or any(kind in one for one in said)

    async def _watch(self, uri: str, profile: str, tell: Callable[[dict[str, Any]], None]) -> list[Callable[[], None]]:
        def told(params: dict[str, Any]) -> None:
            tell({**params, "uri": uri})

        for server, original in self._views.view(profile).catalog.offerings.owners(uri)[:1]:
            ending = self._subscriptions.add(server, "resourceSubscriptions", original, told)
            await self._subscriptions.settled(server)
            return [ending]
        return []

    async def _watch_task(
        self, exposed: str, principal: Principal, tell: Callable[[dict[str, Any]], None]
    ) -> Callable[[], None]:
        server, original = self._tasks.owner(exposed, principal.name)

        def told(params: dict[str, Any]) -> None:
            tell(self._tasks.announced(params, server, principal.name))

        ending = self._subscriptions.add(server, "taskIds", original, told)
        await self._subscriptions.settled(server)
        return ending


def _marked(method: str, told: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    """A notification of a subscription, with the id that tells whose it is."""
    known = told.get("_meta")
    params = {**told, "_meta": {**(known if isinstance(known, dict) else {}), **meta}}
    return {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params}


def _texts(wanted: dict[str, Any], member: str) -> list[str]:
    value = wanted.get(member, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise RpcError(INVALID_PARAMS, f"params.notifications.{member} must be a list of strings")
    if len(value) > MAX_WATCHED:
        raise RpcError(INVALID_PARAMS, f"A subscription may watch {MAX_WATCHED} of them")
    return list(dict.fromkeys(value))


def _uri(params: dict[str, Any]) -> str:
    uri = params.get("uri")
    if not isinstance(uri, str):
        raise RpcError(INVALID_PARAMS, "params.uri must be a string")
    return uri
