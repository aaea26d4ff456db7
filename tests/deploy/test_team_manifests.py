"""The manifests of a shared gateway are valid, locked down, and consistent with the configuration."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from ruamel.yaml import YAML
from support.clients.installed import heavy_package
from support.manifests import DEPLOY, FOLDER, Manifests, only, rendered, with_components

from gateway.cli import parser
from gateway.config.cluster_config import host_and_port
from gateway.config.load import parse
from gateway.config.model import Config

OVERLAY = FOLDER / "overlays/gateway"
VERSIONS = ("1.29", "1.32")
# Kinds of operators, whose schemas are not part of Kubernetes.
FOREIGN = {"ServiceMonitor", "PrometheusRule", "HTTPRoute"}
SECRETS = {
    "AGENT_KEY": "a" * 64, "METRICS_KEY": "b" * 64, "ADMIN_TOKEN": "c" * 64, "PEER_SECRET": "d" * 64,
    "STORE_PASSWORD": "e" * 64,
}  # fmt: skip


def pod(manifests: Manifests) -> dict[str, Any]:
    spec: dict[str, Any] = only(manifests, "StatefulSet", "typegate")["spec"]["template"]["spec"]
    return spec


def configuration(manifests: Manifests) -> Config:
    [text] = [
        one["data"]["config.yaml"] for one in manifests if one["kind"] == "ConfigMap" and "config.yaml" in one["data"]
    ]
    return parse(text, environ=SECRETS)


@pytest.mark.heavy
@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid_with_every_component(version: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        kubernetes_validate = heavy_package("kubernetes_validate")
        manifests = with_components(tmp_path, "monitoring", "httproute")
        for manifest in manifests:
            if manifest["kind"] not in FOREIGN:
                kubernetes_validate.validate(manifest, version, strict=True)
        assert {one["kind"] for one in manifests} >= {
            "StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy", "HorizontalPodAutoscaler", *FOREIGN,
        }  # fmt: skip


def test_configuration_is_valid_and_its_secrets_come_from_the_secret() -> None:
    manifests = rendered(OVERLAY)
    config = configuration(manifests)
    assert config.warnings == []
    assert [key.name for key in config.gateway.auth.api_keys] == ["agent", "prometheus"]
    [container] = pod(manifests)["containers"]
    given = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in container["env"]}
    assert {name: reference["name"] for name, reference in given.items()} == dict.fromkeys(SECRETS, "typegate")
    # The command that makes the secret makes each of its keys.
    made = (OVERLAY / "kustomization.yaml").read_text()
    assert all(f"--from-literal={reference['key']}=" in made for reference in given.values())
    args = parser().parse_args(container["args"])
    assert (args.host, args.port, str(args.state_dir), args.log_format) == ("0.0.0.0", 8765, "/state", "json")


def test_route_host_is_allowed_by_the_configuration(tmp_path: Path) -> None:
    manifests = with_components(tmp_path, "httproute")
    listen = configuration(manifests).gateway.listen
    route = only(manifests, "HTTPRoute")["spec"]
    assert route["hostnames"]
    assert set(route["hostnames"]) <= set(listen.allowed_hosts)


def test_grace_period_exceeds_drain_delay_and_slowest_call() -> None:
    manifests = rendered(OVERLAY)
    config, grace_s = configuration(manifests), pod(manifests)["terminationGracePeriodSeconds"]
    slowest_s = max(server.call_timeout for server in config.servers.values())
    assert grace_s > config.gateway.drain_delay + slowest_s
    probe = pod(manifests)["containers"][0]["readinessProbe"]
    # Load balancers notice the shutdown before the gateway answers its last new call.
    assert probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"] < config.gateway.drain_delay


def test_probes_services_and_policies_match_ports_and_pods() -> None:
    manifests = rendered(OVERLAY)
    [container] = pod(manifests)["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    labels = only(manifests, "StatefulSet", "typegate")["spec"]["template"]["metadata"]["labels"]
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"]["path"] == path
        assert container[probe]["httpGet"]["port"] in ports
    for name in ("typegate", "typegate-headless"):
        assert only(manifests, "Service", name)["spec"]["selector"].items() <= labels.items()
    assert only(manifests, "Service", "typegate")["spec"]["ports"][0]["targetPort"] in ports
    assert only(manifests, "StatefulSet", "typegate")["spec"]["serviceName"] == "typegate-headless"
    policy = only(manifests, "NetworkPolicy", "typegate")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    opened = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert opened == set(ports.values())
    # The metadata service of a cloud cannot be reached, whatever an upstream answers.
    blocks = [target["ipBlock"] for rule in policy["egress"] for target in rule.get("to", ()) if "ipBlock" in target]
    assert all("169.254.0.0/16" in block["except"] for block in blocks)
    assert only(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels.items()
    scaling = only(manifests, "HorizontalPodAutoscaler")["spec"]
    target = scaling["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("StatefulSet", "typegate")
    assert scaling["minReplicas"] >= 3
    # Otherwise each `kubectl apply` would end all other replicas.
    assert "replicas" not in only(manifests, "StatefulSet", "typegate")["spec"]
    # Callers never see the address of administrators.
    assert configuration(manifests).gateway.admin.listen == "127.0.0.1:8766"


def test_replicas_reach_each_other_and_the_store_and_no_other_pod_does() -> None:
    manifests = rendered(OVERLAY)
    cluster = configuration(manifests).gateway.cluster
    assert cluster is not None
    assert cluster.peers is not None
    assert cluster.store is not None
    state, namespace = only(manifests, "StatefulSet", "typegate"), "typegate"
    headless = only(manifests, "Service", "typegate-headless")
    # Pods of a StatefulSet are names in the domain of its service, also while they start or end.
    assert cluster.peers.discovery.dns == f"{headless['metadata']['name']}.{namespace}.svc"
    assert state["spec"]["serviceName"] == headless["metadata"]["name"]
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"] is True
    assert state["metadata"]["namespace"] == namespace
    [container] = state["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    _, peer_port = host_and_port(cluster.peers.listen)
    assert ports[headless["spec"]["ports"][0]["targetPort"]] == peer_port
    policy = only(manifests, "NetworkPolicy", "typegate")["spec"]
    for rules, side in ((policy["ingress"], "from"), (policy["egress"], "to")):
        [rule] = [one for one in rules if {"port": peer_port, "protocol": "TCP"} in one["ports"]]
        assert [one["podSelector"] for one in rule[side]] == [state["spec"]["selector"]]
    store = urlsplit(cluster.store.url)
    service = only(manifests, "Service", "valkey")
    assert store.hostname == f"{service['metadata']['name']}.{namespace}.svc"
    assert store.port == service["spec"]["ports"][0]["port"]
    [valkey] = only(manifests, "StatefulSet", "valkey")["spec"]["template"]["spec"]["containers"]
    # The store does not evict entries when it is full, and requires the password.
    assert valkey["args"][valkey["args"].index("--maxmemory-policy") + 1] == "noeviction"
    assert valkey["args"][valkey["args"].index("--requirepass") + 1] == "$(STORE_PASSWORD)"
    closed = only(manifests, "NetworkPolicy", "valkey")["spec"]
    assert [one["from"] for one in closed["ingress"]] == [[{"podSelector": state["spec"]["selector"]}]]


@pytest.mark.parametrize("name", ["typegate", "valkey"])
def test_containers_are_unprivileged_and_only_volumes_are_writable(name: str) -> None:
    spec = only(rendered(OVERLAY), "StatefulSet", name)["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]


def test_route_excludes_internal_paths(tmp_path: Path) -> None:
    route = only(with_components(tmp_path, "httproute"), "HTTPRoute")
    paths = [match["path"]["value"] for rule in route["spec"]["rules"] for match in rule["matches"]]
    assert not any(path.startswith(("/admin", "/metrics")) or path == "/" for path in paths)


def test_compose_file_has_a_valid_configuration() -> None:
    compose = YAML(typ="safe", pure=True).load(DEPLOY / "compose.yaml")
    gateways = [one for name, one in compose["services"].items() if name.startswith("typegate")]
    for service in gateways:
        args = parser().parse_args(service["command"])
        assert (args.host, args.port) == ("0.0.0.0", 8765)
    keys = {name: value.partition(":-")[2].rstrip("}") for name, value in service["environment"].items()}
    config = parse((DEPLOY / "compose/typegate.yaml").read_text(), environ=keys)
    assert config.warnings == []
    cluster = config.gateway.cluster
    assert cluster is not None
    assert cluster.peers is not None
    assert cluster.store is not None
    assert set(cluster.peers.discovery.addresses) == {service["hostname"] for service in gateways}
    assert urlsplit(cluster.store.url).hostname in compose["services"]
    scrape = YAML(typ="safe", pure=True).load(DEPLOY / "compose/prometheus.yaml")["scrape_configs"][0]
    assert scrape["authorization"]["credentials"] == keys["METRICS_KEY"]
    for volume in (volume for each in compose["services"].values() for volume in each.get("volumes", ())):
        source = volume.partition(":")[0]
        assert not source.startswith("./") or (DEPLOY / source).exists(), source
    # Nothing is reached from other machines.
    assert all(port.startswith("127.0.0.1:") for each in compose["services"].values() for port in each.get("ports", ()))


@pytest.mark.parametrize("folder", [FOLDER / "overlays/sidecar", OVERLAY])
def test_fs_group_does_not_change_file_modes_at_every_mount(folder: Path) -> None:
    pods = [one["spec"]["template"]["spec"] for one in rendered(folder) if one["kind"] in ("StatefulSet", "Deployment")]
    owned = [pod["securityContext"] for pod in pods if "fsGroup" in pod.get("securityContext", {})]
    assert owned
    assert {one.get("fsGroupChangePolicy") for one in owned} == {"OnRootMismatch"}
