"""Modules that a gateway imports before it serves."""

from __future__ import annotations

from pathlib import Path

from support.gateways import running_gateway

# Another process, an issuer, a scrape, a GraphQL server: most gateways have none of these when they start.
_ELSEWHERE = {
    "cryptography", "gateway.cluster.worker_group", "gateway.cluster.replica", "graphql", "joserfc", "jsonschema",
    "mcp", "prometheus_client", "redis", "ruamel.yaml",
}  # fmt: skip


async def test_single_gateway_does_not_import_optional_modules(tmp_path: Path) -> None:
    variables = {"PYTHONPROFILEIMPORTTIME": "1"}
    async with running_gateway(tmp_path, {}, environment=variables, from_scratch=True) as gateway:
        lines = gateway.logged().splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert "gateway.serving.over_http" in imported
    assert not imported & _ELSEWHERE
