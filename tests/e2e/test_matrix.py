"""Every server feature, in both eras, over both transports."""

from __future__ import annotations

import traceback
from pathlib import Path

import e2e.features_of_input
import e2e.features_of_surface  # noqa: F401 - both register their features
import pytest
from e2e.features import failures_on
from e2e.lanes import Lane, direct_lane, entries, gateway_lanes, whole_servers
from support.hosts import MODERN, VERSIONS
from support.hosts_connected import http_host
from support.upstreams.full_running import full_http, full_stdio
from support.worker_groups import ready, running_workers

# Every pair of eras and transports; single ones are tried everywhere.
pytestmark = pytest.mark.heavy


def describe_failures(failed: dict[str, BaseException]) -> str:
    """All failures, readable."""
    return "\n\n".join(f"{name}:\n{''.join(traceback.format_exception(one))}" for name, one in failed.items())


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_host_connected_directly_has_every_feature_of_a_server(
    version: str, transport: str, tmp_path: Path
) -> None:
    modern = version == MODERN
    if transport == "http":
        async with (
            full_http(tmp_path, "alone", modern=modern) as server,
            direct_lane(tmp_path, server, version) as lane,
        ):
            failed = await failures_on(lane)
    else:
        async with direct_lane(tmp_path, full_stdio(tmp_path, "alone", modern=modern), version) as lane:
            failed = await failures_on(lane)
    assert not failed, describe_failures(failed)


HEAVY = pytest.mark.heavy
# The whole matrix with `-m heavy`; by default each version and each transport once.
WAYS = [
    pytest.param(version, transport, marks=() if (version == MODERN) == (transport == "http") else HEAVY)
    for version in VERSIONS
    for transport in ("http", "stdio")
]


@pytest.mark.heavy
@pytest.mark.parametrize(("version", "transport"), WAYS)
async def test_host_has_every_feature_of_every_kind_of_server_through_the_gateway(
    version: str, transport: str, tmp_path: Path
) -> None:
    async with (
        whole_servers(tmp_path) as servers,
        gateway_lanes(tmp_path, servers, version, over_http=transport == "http") as lanes,
    ):
        failed: dict[str, BaseException] = {}
        for lane in lanes:
            failed |= await failures_on(lane)
    assert not failed, describe_failures(failed)


@pytest.mark.parametrize(
    "version", [version if version == MODERN else pytest.param(version, marks=HEAVY) for version in VERSIONS]
)
async def test_every_feature_of_network_servers_works_with_workers(tmp_path: Path, version: str) -> None:
    async with (
        # The features refer to the first server by this name, although it is reached over the network.
        full_http(tmp_path, "modern-stdio", modern=True) as modern,
        full_http(tmp_path, "handshake", modern=False) as older,
        full_http(tmp_path, "asking", modern=False, elicitation=True) as asking,
        running_workers(tmp_path, entries([modern, older, asking])) as gateway,
        http_host(gateway.url, version, gateway.client) as host,
    ):
        await ready(gateway)
        failed: dict[str, BaseException] = {}
        for server in (modern, older, asking):
            lane = Lane(host=host, server=server, through=True)
            await lane.ready()
            failed |= await failures_on(lane)
    assert not failed, describe_failures(failed)
