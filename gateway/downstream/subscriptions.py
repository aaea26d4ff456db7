"""What callers subscribe to: `subscriptions/listen` of the modern era, `resources/subscribe` of the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio

from gateway import wire
from gateway.access.principal import Principal
from gateway.calls.profile_views import ProfileViews
from gateway.calls.resource_uris import ResourceUris
from gateway.calls.task_ids import TaskIds
from gateway.calls.upstream_subscriptions import UpstreamSubscriptions
from gateway.downstream.changes import ChangeAnnouncer
from gateway.downstream.lists import SERVER_INFO
from gateway.downstream.sessions import Emit, Session
from gateway.errors import INTERNAL_ERROR, INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError
from gateway.protocol import SERVER_INFO_KEY, SUBSCRIPTION_KEY
from registry.catalog.catalog import ListKind

MAX_STREAMS: Final = 4_096
"""Open `subscriptions/listen` requests of all callers: one for each host window, half of the connections served."""
MAX_SUBSCRIBED: Final = 1024
"""Resources, and tasks, that one request or one session may subscribe to; each costs its upstream a subscription."""
MAX_SUBSCRIBED_CHARS: Final = 128 * 1024
"""Length of all URIs and ids of one request together: a thousand usual ones."""
# What a subscription takes beside its URI: an entry here and one at the upstream.
_SUBSCRIPTION_BYTES: Final = 1024
_LISTS: Final[tuple[ListKind, ...]] = ("tools", "prompts", "resources")


class Subscriptions:
    """Connects callers with changes of lists, and with the resources and tasks of upstreams.

    Attributes:
        closing: Set once every stream has to end.
    """

    def __init__(
        self,
        *,
        views: ProfileViews,
        upstream_subscriptions: UpstreamSubscriptions,
        task_ids: TaskIds,
        announcer: ChangeAnnouncer,
        pending: Callable[[], bool],
        key_of: Callable[[str, Principal], str],
        resource_uris: ResourceUris | None = None,
    ) -> None:
        self._views = views
        self._key_of = key_of
        self._uris = resource_uris or ResourceUris()
        self._pending = pending
        self._upstream_subscriptions = upstream_subscriptions
        self._task_ids = task_ids
        self._announcer = announcer
        self._open = 0
        self.closing = anyio.Event()

    async def listen(
        self, request_id: str | int | float, params: dict[str, Any], principal: Principal, profile: str, emit: Emit
    ) -> bytes:
        """Serve `subscriptions/listen` (MCP 2026-07-28, "Subscriptions") until it is cancelled or we close.

        Raises:
            RpcError: The request is unsound, or too many streams are open.
        """
        wanted = params.get("notifications")
        if not isinstance(wanted, dict):
            raise RpcError(INVALID_PARAMS, "params.notifications must be an object")
        if self._open >= MAX_STREAMS:
            raise RpcError(INTERNAL_ERROR, "Too many subscriptions are open")
        uris = _text_list(wanted, "resourceSubscriptions")
        task_ids = _text_list(wanted, "taskIds")
        if sum(map(len, uris)) + sum(map(len, task_ids)) > MAX_SUBSCRIBED_CHARS:
            raise RpcError(INVALID_PARAMS, f"A subscription may name {MAX_SUBSCRIBED_CHARS} characters of URIs and ids")
        kinds = [
            kind
            for kind in _LISTS
            if wanted.get(f"{kind}ListChanged") is True and self._offers(kind, profile, principal)
        ]
        meta = {SUBSCRIPTION_KEY: request_id}

        # The acknowledgement comes first on the stream: what happens before it is held until then.
        held: list[dict[str, Any]] | None = []

        def notify(method: str, params: dict[str, Any]) -> None:
            message = _notification(method, params, meta)
            emit(message) if held is None else held.append(message)

        def changed(changes: list[ListKind]) -> None:
            for kind in changes:
                if kind in kinds:
                    notify(f"{kind}/list_changed", {})

        honoured: dict[str, Any] = {f"{kind}ListChanged": True for kind in kinds}
        endings: list[Callable[[], None]] = []
        self._open += 1
        try:
            for uri in uris:
                if watched := await self._watch(
                    uri, profile, principal, lambda params: notify("resources/updated", params)
                ):
                    endings += watched
                    honoured.setdefault("resourceSubscriptions", []).append(uri)
            for task_id in task_ids:
                endings.append(
                    await self._watch_task(task_id, profile, principal, lambda params: notify("tasks", params))
                )
            if task_ids:
                honoured["taskIds"] = task_ids
            if kinds:
                endings.append(self._announcer.subscribe(changed, profile, lambda: principal))
            emit(_notification("subscriptions/acknowledged", {"notifications": honoured}, meta))
            early, held = held, None
            for message in early or ():
                emit(message)
            await self.closing.wait()
        finally:
            self._open -= 1
            for ending in endings:
                ending()
        return wire.dumps({"resultType": "complete", "_meta": {**meta, SERVER_INFO_KEY: SERVER_INFO}})

    async def subscribe(self, session: Session, params: dict[str, Any]) -> bytes:
        """Answer `resources/subscribe` (MCP 2025-11-25, "Resources", "Subscriptions").

        Raises:
            RpcError: No server may know the URI, or the session watches too many.
        """
        uri = _uri(params)
        if uri in session.subscribed:
            return b"{}"
        if len(session.subscribed) >= MAX_SUBSCRIBED:
            raise RpcError(INVALID_PARAMS, f"A session may watch {MAX_SUBSCRIBED} resources")

        def updated(params: dict[str, Any]) -> None:
            session.notify({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params})

        # For as long as the session has it.
        held_bytes = _SUBSCRIPTION_BYTES + wire.BYTES_OF_CHARACTER * len(uri)
        session.account.hold(held_bytes)
        try:
            endings = await self._watch(uri, session.profile, session.principal, updated)
        except BaseException:
            session.account.release(held_bytes)
            raise
        if not endings:
            session.account.release(held_bytes)
            raise RpcError(RESOURCE_NOT_FOUND, "Resource not found", {"uri": uri})

        def end() -> None:
            session.account.release(held_bytes)
            for ending in endings:
                ending()

        session.subscribed[uri] = end
        return b"{}"

    def unsubscribe(self, session: Session, params: dict[str, Any]) -> bytes:
        """Answer `resources/unsubscribe`; one that was never subscribed to is no error."""
        end = session.subscribed.pop(_uri(params), None)
        if end is not None:
            end()
        return b"{}"

    def _offers(self, kind: ListKind, profile: str, principal: Principal) -> bool:
        servers = self._views.view(profile, principal).catalog.servers.values()
        # Tools and prompts of our own are always there; of resources that is known once every upstream is.
        return kind != "resources" or self._pending() or any(kind in listing.capabilities for listing in servers)

    async def _watch(
        self, uri: str, profile: str, principal: Principal, tell: Callable[[dict[str, Any]], None]
    ) -> list[Callable[[], None]]:
        owners = self._owners(uri, profile, principal)
        if not owners:
            return []
        server, original = owners[0]

        def updated(params: dict[str, Any]) -> None:
            # A changed configuration may deny what was permitted when the subscription began.
            if (server, original) in self._owners(uri, profile, principal):
                tell({**params, "uri": uri})  # as the caller named it, not as the upstream does

        link_key = self._key_of(server, principal)
        ending = self._upstream_subscriptions.add(link_key, "resourceSubscriptions", original, updated)
        await self._upstream_subscriptions.settled(link_key)
        return [ending]

    def _owners(self, uri: str, profile: str, principal: Principal) -> tuple[tuple[str, str], ...]:
        if profile not in self._views.profiles:
            return ()
        return self._uris.owners(self._views.view(profile, principal).catalog, uri, principal.name)

    async def _watch_task(
        self, exposed: str, profile: str, principal: Principal, tell: Callable[[dict[str, Any]], None]
    ) -> Callable[[], None]:
        task = self._task_ids.owner(exposed, principal.identity, self._views.view(profile, principal))

        def updated(params: dict[str, Any]) -> None:
            # Its tool may have been denied since the subscription began.
            if self._permits_task(exposed, profile, principal):
                tell(self._task_ids.announced(params, task, principal.identity))

        link_key = self._key_of(task.server, principal)
        ending = self._upstream_subscriptions.add(link_key, "taskIds", task.original, updated)
        await self._upstream_subscriptions.settled(link_key)
        return ending

    def _permits_task(self, exposed: str, profile: str, principal: Principal) -> bool:
        if profile not in self._views.profiles:
            return False
        try:
            self._task_ids.owner(exposed, principal.identity, self._views.view(profile, principal))
        except RpcError:
            return False
        return True


def _notification(method: str, params: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    """A notification of a subscription, with the id of its subscription."""
    own = params.get("_meta")
    params = {**params, "_meta": {**(own if isinstance(own, dict) else {}), **meta}}
    return {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params}


def _text_list(wanted: dict[str, Any], member: str) -> list[str]:
    value = wanted.get(member, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RpcError(INVALID_PARAMS, f"params.notifications.{member} must be a list of strings")
    if len(value) > MAX_SUBSCRIBED:
        raise RpcError(INVALID_PARAMS, f"A subscription may watch {MAX_SUBSCRIBED} of them")
    return list(dict.fromkeys(value))


def _uri(params: dict[str, Any]) -> str:
    uri = params.get("uri")
    if not isinstance(uri, str):
        raise RpcError(INVALID_PARAMS, "params.uri must be a string")
    return uri
