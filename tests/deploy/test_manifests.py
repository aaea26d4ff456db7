"""The Kubernetes manifests render, are valid, and match the README."""

import warnings
from typing import Any

import pytest
from support import manifests
from support.clients.installed import heavy_package
from support.manifests import FOLDER, rendered

from gateway.cli import parser
from gateway.config.load import parse
from gateway.config.model import Config

# The sidecar form of init containers is on by default since 1.29.
VERSIONS = ("1.29", "1.32")


def only(kind: str) -> dict[str, Any]:
    return manifests.only(rendered(FOLDER), kind)


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = only("Deployment")["spec"]["template"]["spec"]
    return spec


def typegate() -> dict[str, Any]:
    [found] = [container for container in pod()["initContainers"] if container["name"] == "typegate"]
    return dict(found)


def configuration() -> Config:
    # Secret files are mounted in the pod only.
    text = only("ConfigMap")["data"]["config.yaml"].replace("${file:", "${X:-")
    return parse(text, environ={})


@pytest.mark.heavy
@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid_for_kubernetes(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        kubernetes_validate = heavy_package("kubernetes_validate")
        for manifest in rendered(FOLDER):
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.heavy
def test_validator_detects_a_mistake() -> None:
    kubernetes_validate = heavy_package("kubernetes_validate")
    wrong = {**only("Deployment"), "spec": {"replicas": "many"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_config_map_holds_a_valid_configuration() -> None:
    config = configuration()
    assert list(config.servers) == ["calendar-mcp", "bank"]
    assert config.warnings == []
    assert config.gateway.listen.host == "127.0.0.1"


def test_sidecar_command_line_is_valid() -> None:
    args = parser().parse_args(typegate()["args"])
    assert (args.host, args.port, str(args.state_dir)) == ("127.0.0.1", 8765, "/state")


def test_config_map_is_mounted_where_the_command_line_reads_it() -> None:
    mounts = {mount["name"]: mount["mountPath"] for mount in typegate()["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    assert mounts["config"] == "/etc/typegate"
    assert volumes["config"]["configMap"]["name"] == only("ConfigMap")["metadata"]["name"]
    assert "emptyDir" in volumes["state"]


def test_gateway_container_is_unprivileged_and_writes_only_its_state() -> None:
    assert pod()["securityContext"]["runAsNonRoot"] is True
    context = typegate()["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_probes_query_healthz_and_readyz() -> None:
    assert "/healthz" in typegate()["livenessProbe"]["exec"]["command"][-1]
    assert "/readyz" in typegate()["readinessProbe"]["exec"]["command"][-1]


def test_termination_grace_period_exceeds_the_slowest_call() -> None:
    slowest_s = max(server.call_timeout for server in configuration().servers.values())
    assert pod()["terminationGracePeriodSeconds"] > slowest_s
