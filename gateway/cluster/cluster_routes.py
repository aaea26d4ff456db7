"""`/admin/cluster`, and the metrics of a cluster: how this gateway and what it shares are doing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.documents import JsonDocument
from gateway.admin.routes import Merge, route
from gateway.cluster.pods import Pods
from gateway.cluster.shared_changes import SharedChanges
from gateway.cluster.shared_limits import SharedLimits
from gateway.cluster.status import StoreStatus

_OUTCOMES: Final = ("answered", "lost", "gone")
_TROUBLES: Final = ("down", "slow", "full")
_ROW: Final = {
    "name": "gateway-0", "peers": {"answered": 12, "lost": 0, "gone": 0},
    "store": {"state": "up", "since": 1801382400.5, "lastError": None, "failing": []}, "pendingChanges": 0,
    "replicas": 3, "limits": "shared",
}  # fmt: skip


class ClusterRoutes:
    """Tells of one gateway's place in its cluster."""

    def __init__(self, row: Callable[[], dict[str, Any]]) -> None:
        """Answer with this."""
        self._row = row

    @route("GET", "/admin/cluster", merge=Merge.SAME, example=_ROW)
    async def cluster(self, request: Request) -> Response:
        """This gateway in its cluster.

        Returns:
            `name`; `peers`: requests carried to other gateways by outcome, null without peers; `store`: state (up,
            down, slow, full, starting), since, lastError and what fails, null without a store; `pendingChanges`:
            changes here that the store does not have yet; `replicas`: gateways that are alive; `limits`: shared, or
            each (those of each gateway alone).
        """
        return JsonDocument(self._row())


def render(
    pods: Pods | None, status: StoreStatus | None, limits: SharedLimits | None, changes: SharedChanges | None
) -> str:
    """The figures of a cluster, in the text format of Prometheus."""
    lines: list[str] = []
    if pods is not None:
        carried = {outcome: pods.outcomes[outcome] for outcome in _OUTCOMES}
        lines += _family(
            "typegate_cluster_carried_total", "counter", "Requests carried to the gateway with their session.",
            {f'{{outcome="{outcome}"}}': count for outcome, count in carried.items()},
        )  # fmt: skip
    if status is not None and limits is not None and changes is not None:
        lines += _family(
            "typegate_cluster_store_up", "gauge", "Whether the shared store does what it is asked.",
            {"": int(status.state == "up")},
        )  # fmt: skip
        lines += _family(
            "typegate_cluster_store_errors_total", "counter", "Times that the shared store has not done it.",
            {f'{{kind="{kind}"}}': status.troubles[kind] for kind in _TROUBLES},
        )  # fmt: skip
        lines += _family(
            "typegate_cluster_pending_changes", "gauge", "Changes of this gateway that the store does not have yet.",
            {"": changes.pending},
        )  # fmt: skip
        lines += _family("typegate_cluster_replicas", "gauge", "Gateways that are alive.", {"": limits.replicas})
        lines += _family(
            "typegate_cluster_limits_shared", "gauge", "Whether calls a minute are counted by all gateways together.",
            {"": int(limits.shared)},
        )  # fmt: skip
    return "".join(f"{line}\n" for line in lines)


def _family(name: str, kind: str, text: str, samples: Mapping[str, Any]) -> list[str]:
    figures = [f"{name}{labels} {value}" for labels, value in samples.items()]
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *figures]
