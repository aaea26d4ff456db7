"""Subscriptions of callers to list changes, resources and tasks, in both protocol eras.

In the modern era (MCP 2026-07-28), a caller subscribes with `subscriptions/listen`, whose response is a stream of
notifications. In the handshake era (every earlier version), a caller subscribes to single resources in its session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio

from gateway.access.principal import Principal
from gateway.calls.caller_ids import TaskIds, UpstreamSubscriptions
from gateway.calls.profile_views import ProfileViews
from gateway.calls.results import ResourceUris
from gateway.downstream.declarations import UpstreamStates
from gateway.downstream.messages import SERVER_INFO
from gateway.downstream.sessions import ChangeAnnouncer, Emit, Session
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import INTERNAL_ERROR, INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError
from gateway.protocol.versions import SERVER_INFO_KEY, SUBSCRIPTION_KEY
from gateway.upstream.caller_links import UserLinks
from registry.catalog.catalog import ListKind

MAX_STREAMS: Final = 4_096
"""The maximum number of open `subscriptions/listen` requests. A host opens about one for each window."""
MAX_SUBSCRIBED: Final = 1024
"""The limit of resources, and of tasks, per request or session. Each of them needs a subscription at its upstream."""
MAX_SUBSCRIBED_CHARS: Final = 128 * 1024
"""The maximum total length of the URIs and task ids in one request, enough for a thousand of the usual length."""
# The memory that a subscription takes in addition to its URI, including the subscription at the upstream.
_SUBSCRIPTION_BYTES: Final = 1024
_LISTS: Final[tuple[ListKind, ...]] = ("tools", "prompts", "resources")


class Subscriptions:
    """The subscriptions of all callers.

    Attributes:
        closing: Set when every stream has to end because the process is stopping.
    """

    def __init__(
        self,
        *,
        views: ProfileViews,
        upstream_subscriptions: UpstreamSubscriptions,
        task_ids: TaskIds,
        announcer: ChangeAnnouncer,
        upstreams: UpstreamStates,
        users: UserLinks,
        resource_uris: ResourceUris,
    ) -> None:
        self._views = views
        self._users = users
        self._uris = resource_uris
        self._upstreams = upstreams
        self._upstream_subscriptions = upstream_subscriptions
        self._task_ids = task_ids
        self.announcer = announcer
        self._open = 0
        self.closing = anyio.Event()

    async def listen(
        self, request_id: str | int | float, params: dict[str, Any], principal: Principal, profile: str, emit: Emit
    ) -> bytes:
        """Answer `subscriptions/listen` (MCP 2026-07-28, "Subscriptions"): notify the caller until `closing` is set.

        Returns:
            The serialized result, which ends the stream.

        Raises:
            RpcError: The request is invalid, or too many streams are open.
        """
        notifications = params.get("notifications")
        if not isinstance(notifications, dict):
            raise RpcError(INVALID_PARAMS, "params.notifications must be an object")
        if self._open >= MAX_STREAMS:
            raise RpcError(INTERNAL_ERROR, "Too many subscriptions are open")
        uris = _text_list(notifications, "resourceSubscriptions")
        task_ids = _text_list(notifications, "taskIds")
        if sum(map(len, uris)) + sum(map(len, task_ids)) > MAX_SUBSCRIBED_CHARS:
            raise RpcError(
                INVALID_PARAMS,
                f"URIs and ids of a subscription may have at most {MAX_SUBSCRIBED_CHARS} characters together",
            )
        kinds = [
            kind
            for kind in _LISTS
            if notifications.get(f"{kind}ListChanged") is True and self._offers(kind, profile, principal)
        ]
        meta = {SUBSCRIPTION_KEY: request_id}

        # The first message has to be the acknowledgement, so notifications before it are queued here.
        held: list[dict[str, Any]] | None = []

        def notify(method: str, params: dict[str, Any]) -> None:
            message = _notification(method, params, meta)
            emit(message) if held is None else held.append(message)

        def changed(changes: list[ListKind]) -> None:
            for kind in changes:
                if kind in kinds:
                    notify(f"{kind}/list_changed", {})

        honoured: dict[str, Any] = {f"{kind}ListChanged": True for kind in kinds}
        unsubscribes: list[Callable[[], None]] = []
        self._open += 1
        try:
            for uri in uris:
                if watched := await self._watch(
                    uri, profile, principal, lambda params: notify("resources/updated", params)
                ):
                    unsubscribes += watched
                    honoured.setdefault("resourceSubscriptions", []).append(uri)
            for task_id in task_ids:
                unsubscribes.append(
                    await self._watch_task(task_id, profile, principal, lambda params: notify("tasks", params))
                )
            if task_ids:
                honoured["taskIds"] = task_ids
            if kinds:
                unsubscribes.append(self.announcer.subscribe(changed, profile, lambda: principal))
            emit(_notification("subscriptions/acknowledged", {"notifications": honoured}, meta))
            early, held = held, None
            for message in early or ():
                emit(message)
            await self.closing.wait()
        finally:
            self._open -= 1
            for unsubscribe in unsubscribes:
                unsubscribe()
        return json_bytes.dumps({"resultType": "complete", "_meta": {**meta, SERVER_INFO_KEY: SERVER_INFO}})

    async def subscribe(self, session: Session, params: dict[str, Any]) -> bytes:
        """Answer `resources/subscribe` (MCP 2025-11-25, "Resources", "Subscriptions").

        Raises:
            RpcError: No upstream has a resource with this URI, or the session has too many subscriptions.
        """
        uri = _uri(params)
        if uri in session.subscribed:
            return b"{}"
        if len(session.subscribed) >= MAX_SUBSCRIBED:
            raise RpcError(INVALID_PARAMS, f"A session may watch at most {MAX_SUBSCRIBED} resources")

        def updated(params: dict[str, Any]) -> None:
            session.notify({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params})

        # Charged to the caller's memory quota until the subscription ends.
        held_bytes = _SUBSCRIPTION_BYTES + json_bytes.BYTES_OF_CHARACTER * len(uri)
        session.account.hold(held_bytes)
        try:
            unsubscribes = await self._watch(uri, session.profile, session.principal, updated)
        except BaseException:
            session.account.release(held_bytes)
            raise
        if not unsubscribes:
            session.account.release(held_bytes)
            raise RpcError(RESOURCE_NOT_FOUND, "Resource not found", {"uri": uri})

        def end() -> None:
            session.account.release(held_bytes)
            for unsubscribe in unsubscribes:
                unsubscribe()

        session.subscribed[uri] = end
        return b"{}"

    def unsubscribe(self, session: Session, params: dict[str, Any]) -> bytes:
        """Answer `resources/unsubscribe`; an unknown subscription is not an error."""
        end = session.subscribed.pop(_uri(params), None)
        if end is not None:
            end()
        return b"{}"

    def _offers(self, kind: ListKind, profile: str, principal: Principal) -> bool:
        servers = self._views.view(profile, principal).catalog.servers.values()
        # The gateway has tools and prompts of its own, but only the resources of upstreams. An upstream that has not
        # listed anything yet may have resources.
        return (
            kind != "resources" or self._upstreams.pending or any(kind in listing.capabilities for listing in servers)
        )

    async def _watch(
        self, uri: str, profile: str, principal: Principal, notify: Callable[[dict[str, Any]], None]
    ) -> list[Callable[[], None]]:
        owners = self._owners(uri, profile, principal)
        if not owners:
            return []
        server, original = owners[0]

        def updated(params: dict[str, Any]) -> None:
            # Check again: since the subscription began, a changed configuration may have denied the resource.
            if (server, original) in self._owners(uri, profile, principal):
                notify({**params, "uri": uri})  # the URI that the caller uses, not the upstream's

        link_key = self._users.key_of(server, principal)
        unsubscribe = self._upstream_subscriptions.add(link_key, "resourceSubscriptions", original, updated)
        await self._upstream_subscriptions.settled(link_key)
        return [unsubscribe]

    def _owners(self, uri: str, profile: str, principal: Principal) -> tuple[tuple[str, str], ...]:
        if profile not in self._views.profiles:
            return ()
        return self._uris.owners(self._views.view(profile, principal).catalog, uri, principal.name)

    async def _watch_task(
        self, exposed: str, profile: str, principal: Principal, notify: Callable[[dict[str, Any]], None]
    ) -> Callable[[], None]:
        task = self._task_ids.owner(exposed, principal.identity, self._views.view(profile, principal))

        def updated(params: dict[str, Any]) -> None:
            # Check again: since the subscription began, the caller may have lost access to the task's tool.
            if self._permits_task(exposed, profile, principal):
                in_parts = task.wrapper in self._views.view(profile, principal).result_rules
                notify(self._task_ids.announced(params, task, principal.identity, in_parts=in_parts))

        link_key = self._users.key_of(task.server, principal)
        unsubscribe = self._upstream_subscriptions.add(link_key, "taskIds", task.original, updated)
        await self._upstream_subscriptions.settled(link_key)
        return unsubscribe

    def _permits_task(self, exposed: str, profile: str, principal: Principal) -> bool:
        if profile not in self._views.profiles:
            return False
        try:
            self._task_ids.owner(exposed, principal.identity, self._views.view(profile, principal))
        except RpcError:
            return False
        return True


def _notification(method: str, params: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    """Return a notification with the subscription's id in `_meta`."""
    own = params.get("_meta")
    params = {**params, "_meta": {**(own if isinstance(own, dict) else {}), **meta}}
    return {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params}


def _text_list(notifications: dict[str, Any], member: str) -> list[str]:
    value = notifications.get(member, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RpcError(INVALID_PARAMS, f"params.notifications.{member} must be a list of strings")
    if len(value) > MAX_SUBSCRIBED:
        raise RpcError(INVALID_PARAMS, f"params.notifications.{member} may have at most {MAX_SUBSCRIBED} entries")
    return list(dict.fromkeys(value))


def _uri(params: dict[str, Any]) -> str:
    uri = params.get("uri")
    if not isinstance(uri, str):
        raise RpcError(INVALID_PARAMS, "params.uri must be a string")
    return uri
