"""The admin API of one gateway: every operation with what it answers about."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.access.administrators import Administrators
from gateway.access.principal import Principal
from gateway.admin.api import AdminApi
from gateway.admin.event_feed import EventFeed
from gateway.admin.operations.approval_routes import ApprovalRoutes
from gateway.admin.operations.audit_routes import AuditRoutes
from gateway.admin.operations.change_routes import ChangeRoutes
from gateway.admin.operations.config_routes import ConfigRoutes
from gateway.admin.operations.event_routes import EventRoutes
from gateway.admin.operations.fault_routes import FaultRoutes
from gateway.admin.operations.host_routes import HostRoutes
from gateway.admin.operations.key_routes import KeyRoutes
from gateway.admin.operations.note_routes import NoteRoutes
from gateway.admin.operations.overlay_routes import OverlayRoutes
from gateway.admin.operations.page_routes import PageRoutes
from gateway.admin.operations.policy_routes import PolicyRoutes
from gateway.admin.operations.profile_routes import ProfileRoutes
from gateway.admin.operations.server_routes import ServerRoutes
from gateway.admin.operations.session_routes import SessionRoutes
from gateway.admin.operations.sign_in_routes import SignInRoutes
from gateway.admin.operations.source_routes import SourceRoutes
from gateway.admin.operations.tool_routes import ToolRoutes
from gateway.admin.operations.try_routes import TryRoutes
from gateway.admin.probes import Probes
from gateway.app import Gateway
from gateway.config.auth import AuthConfig
from gateway.config.model import Config
from gateway.downstream.http.host_check import LOOPBACK
from gateway.reload import Reloader

if TYPE_CHECKING:
    from gateway.cluster.pod import Pod

_METRICS_SCOPE: Final = "metrics"


def admin_api(
    gateway: Gateway,
    reloader: Reloader,
    administrators: Administrators,
    feed: EventFeed,
    *,
    state_dir: Path,
    draining: Callable[[], bool],
    host: str,
    url: str,
    origin: str,
    pod: Pod | None,
) -> AdminApi:
    """The admin API of a gateway.

    Args:
        gateway: What there is to tell.
        reloader: Applies changes, and knows the configuration file.
        administrators: Whom it lets in.
        feed: What happens.
        state_dir: Where state is kept.
        draining: Whether the end has begun.
        host: The address that it listens to.
        url: Where MCP is served, by that address.
        origin: Where a browser of this machine reaches it.
        pod: This gateway in its cluster; None where it is alone.
    """

    def auth() -> AuthConfig:
        return gateway.config.gateway.auth

    loopback, settings = host in LOOPBACK, gateway.config.gateway
    # Behind another address, or for other machines too: whose files of hosts they are is not known.
    local_url = f"{origin}/mcp" if loopback and settings.public_url is None else None
    shared_keys = gateway.authenticator.keys if pod is not None and pod.changes is not None else None
    operations = (
        PageRoutes(),
        SessionRoutes(administrators),
        ServerRoutes(
            fleet=gateway.fleet,
            registry=gateway.registry,
            reloader=reloader,
            allows_commands=lambda: gateway.config.gateway.admin.allow_commands,
            are_mixed=lambda: not gateway.authenticator.required and not loopback,
            has_issuers=lambda: gateway.authenticator.accepts_tokens,
        ),
        SourceRoutes(),
        SignInRoutes(gateway.fleet, gateway.sign_ins),
        ToolRoutes(views=gateway.views, registry=gateway.registry, reloader=reloader),
        TryRoutes(server=gateway.server, views=gateway.views, quotas=gateway.quotas, auth=auth),
        ProfileRoutes(gateway.views, lambda: _address_of_callers(gateway.config, url)),
        FaultRoutes(gateway.registry, gateway.call_stats),
        NoteRoutes(gateway.notes, gateway.registry),
        ConfigRoutes(reloader, gateway.tool_vectors, gateway.hooks),
        OverlayRoutes(reloader),
        EventRoutes(feed, ending=draining, administrators=administrators),
        AuditRoutes(gateway.audit),
        ApprovalRoutes(gateway.approvals),
        ChangeRoutes(gateway.fleet),
        PolicyRoutes(auth=auth, views=gateway.views, registry=gateway.registry),
        KeyRoutes(reloader, shared_keys),
        HostRoutes(state_dir=state_dir, url=local_url, config=lambda: gateway.config, views=gateway.views),
        *(pod.routes if pod is not None else ()),
    )
    probes = Probes(
        scrapers=partial(_may_read_metrics, gateway, administrators),
        metrics=partial(_metrics, gateway, pod),
        unready=partial(_unready, gateway, draining),
        sign_ins=gateway.sign_ins,
    )
    changes = pod.changes if pod is not None else None
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


def _metrics(gateway: Gateway, pod: Pod | None) -> tuple[bytes, str]:
    # Late: the first answers of a start do not wait for this import.
    from gateway.telemetry.metrics import CONTENT_TYPE, render

    text = render(
        call_stats=gateway.call_stats,
        hooks=gateway.hooks,
        fleet=gateway.fleet,
        registry=gateway.registry,
        private_links=gateway.private,
        permission=gateway.permission,
        audit=gateway.audit,
    )
    return text + (pod.metrics().encode() if pod is not None else b""), CONTENT_TYPE


def _may_read_metrics(gateway: Gateway, administrators: Administrators, authorization: str) -> bool:
    """Whether this Authorization header, or its absence, may read `/metrics`; the administrator may in any case."""
    settings, authenticator = gateway.config.gateway, gateway.authenticator
    # Where nobody needs credentials, whoever reaches the port may list and call everything that it tells of.
    if settings.metrics.public or not (authenticator.required or settings.admin.token is not None):
        return True
    found = authenticator.principal(authorization) if authenticator.required else None
    # Nobody is asked about a token for this: one that is not known here opens nothing.
    if isinstance(found, Principal) and (not found.scopes or _METRICS_SCOPE in found.scopes):
        return True
    return administrators.by_token(authorization) is not None


def _address_of_callers(config: Config, url: str) -> str | None:
    """Where callers reach `/mcp`; None where that is beside the address at which administrators are answered."""
    if config.gateway.public_url is not None:
        return config.gateway.public_url.rstrip("/") + "/mcp"
    return url if config.gateway.admin.listen is not None else None
