"""Build the admin API of a gateway from its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.access.administrators import Administrators
from gateway.access.principal import Principal
from gateway.admin.activity import EventFeed
from gateway.admin.api import AdminApi
from gateway.admin.caller_pages import CallerPages
from gateway.admin.operations.config_routes import ConfigRoutes, NoteRoutes, OverlayRoutes
from gateway.admin.operations.event_routes import AuditRoutes, EventRoutes, ProcessRoutes, ResultRoutes
from gateway.admin.operations.key_routes import ApprovalRoutes, KeyRoutes, SignInRoutes
from gateway.admin.operations.override_routes import MistakeRoutes, OverrideRoutes
from gateway.admin.operations.page_routes import PageRoutes, SessionRoutes
from gateway.admin.operations.policy_routes import PolicyRoutes, ProfileRoutes
from gateway.admin.operations.review_routes import ChangeRoutes
from gateway.admin.operations.server_routes import ServerRoutes, SourceRoutes
from gateway.admin.operations.tool_routes import FaultRoutes, ToolRoutes, TryRoutes
from gateway.admin.public_routes import Probes
from gateway.calls.advice.unknown_tool import near_tools
from gateway.config.auth_config import AuthConfig
from gateway.config.model import Config
from gateway.fleet.reload import Reloader
from gateway.http.origins import LOOPBACK
from gateway.serving.app import Gateway

if TYPE_CHECKING:
    from gateway.cluster.replica import Replica

_METRICS_SCOPE: Final = "metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAt:
    """The address and the state of a gateway's MCP endpoint.

    Attributes:
        host: The address that the gateway listens on.
        url: The URL of the MCP endpoint at that address.
        draining: Returns whether the gateway is shutting down.
    """

    host: str
    url: str
    draining: Callable[[], bool]


def admin_api(
    gateway: Gateway,
    reloader: Reloader,
    administrators: Administrators,
    feed: EventFeed,
    endpoint: ServedAt,
    replica: Replica | None,
) -> AdminApi:
    """Return the admin API of a gateway.

    Args:
        endpoint: The MCP endpoint of the gateway.
        replica: This replica in its cluster; None without a cluster.
    """

    def auth() -> AuthConfig:
        return gateway.config.gateway.auth

    loopback = endpoint.host in LOOPBACK
    shared_keys = gateway.authenticator.keys if replica is not None and replica.changes is not None else None
    servers = ServerRoutes(
        fleet=gateway.fleet,
        registry=gateway.registry,
        reloader=reloader,
        allows_commands=lambda: gateway.config.gateway.admin.allow_commands,
        are_mixed=lambda: not gateway.authenticator.required and not loopback,
        has_issuers=lambda: gateway.authenticator.accepts_tokens,
    )
    operations = (
        PageRoutes(),
        SessionRoutes(administrators),
        servers,
        SourceRoutes(),
        ProcessRoutes(gateway.fleet, gateway.private, servers.requested_config),
        SignInRoutes(gateway.fleet, gateway.sign_ins),
        ToolRoutes(views=gateway.views, registry=gateway.registry, reloader=reloader),
        TryRoutes(
            server=gateway.server,
            views=gateway.views,
            registry=gateway.registry,
            quotas=gateway.quotas,
            auth=auth,
            has_sessions=lambda server: (link := gateway.fleet.links.get(server)) is not None and link.elicitation,
        ),
        ProfileRoutes(gateway.views, lambda: _address_of_callers(gateway.config, endpoint.url)),
        FaultRoutes(gateway.registry, gateway.call_stats),
        ResultRoutes(gateway.results),
        NoteRoutes(gateway.notes, gateway.registry),
        MistakeRoutes(gateway.call_stats),
        OverrideRoutes(gateway.registry, reloader),
        ConfigRoutes(reloader, gateway.tool_vectors, gateway.hooks),
        OverlayRoutes(reloader),
        EventRoutes(
            feed,
            suggest=lambda name: next(iter(near_tools(gateway.registry.catalog, name)), None),
            ending=endpoint.draining,
            administrators=administrators,
        ),
        AuditRoutes(gateway.audit),
        ApprovalRoutes(gateway.approvals),
        ChangeRoutes(gateway.fleet),
        PolicyRoutes(auth=auth, views=gateway.views, registry=gateway.registry),
        KeyRoutes(reloader, shared_keys),
        *(replica.routes if replica is not None else ()),
    )
    probes = Probes(
        scrapers=partial(_may_read_metrics, gateway, administrators),
        metrics=partial(_metrics, gateway, replica),
        unready=partial(_unready, gateway, endpoint.draining),
        sign_ins=gateway.sign_ins,
        caller_pages=CallerPages(
            gateway.authenticator, gateway.views, gateway.fleet, gateway.sign_ins, gateway.audit, feed.history
        ),
    )
    changes = replica.changes if replica is not None else None
    return AdminApi(
        administrators=administrators,
        probes=probes,
        audit=gateway.audit,
        operations=operations,
        share=changes.sync if changes is not None else None,
    )


def _unready(gateway: Gateway, draining: Callable[[], bool]) -> str | None:
    if draining():
        return "draining"
    keys = gateway.authenticator.keys
    if keys.required and keys.withheld:
        return "waiting for the shared store"
    return None if gateway.fleet.ready else "connecting"


def _metrics(gateway: Gateway, replica: Replica | None) -> tuple[bytes, str]:
    # Imported lazily, so that the import does not delay the start.
    from gateway.admin.metrics import CONTENT_TYPE, MetricSources, render

    measured = MetricSources(
        call_stats=gateway.call_stats,
        hooks=gateway.hooks,
        fleet=gateway.fleet,
        registry=gateway.registry,
        private_links=gateway.private,
        permission=gateway.permission,
        audit=gateway.audit,
        results=gateway.results,
    )
    return render(measured) + (replica.metrics().encode() if replica is not None else b""), CONTENT_TYPE


def _may_read_metrics(gateway: Gateway, administrators: Administrators, authorization: str) -> bool:
    """Return whether a client with this Authorization header, which may be empty, may read `/metrics`.

    The metrics are readable for administrators, for callers with the scope `metrics` or without scopes, and for
    everyone if they are public or if neither callers nor administrators need credentials.
    """
    settings, authenticator = gateway.config.gateway, gateway.authenticator
    # If no credentials are required, every client can list and call everything that the metrics mention anyway.
    if settings.metrics.public or not (authenticator.required or settings.admin.token is not None):
        return True
    caller = authenticator.principal(authorization) if authenticator.required else None
    # An OAuth token is accepted only if the gateway has verified it already, because this function does not verify it.
    if isinstance(caller, Principal) and (not caller.scopes or _METRICS_SCOPE in caller.scopes):
        return True
    return administrators.by_token(authorization) is not None


def _address_of_callers(config: Config, url: str) -> str | None:
    """Return the URL of the MCP endpoint for callers; None if it has the same address as the admin API."""
    if config.gateway.public_url is not None:
        return config.gateway.public_url.rstrip("/") + "/mcp"
    return url if config.gateway.admin.listen is not None else None
