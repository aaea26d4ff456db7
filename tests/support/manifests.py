"""Manifests as `kubectl kustomize` renders them."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

DEPLOY = Path(__file__).parents[2] / "deploy"
FOLDER = DEPLOY / "kubernetes"
Manifests = tuple[dict[str, Any], ...]


def program(name: str, package: str) -> str:
    """Return the path of a program; without it, skip the test, or fail it in CI."""
    found = shutil.which(name)
    if found is None:
        assert os.environ.get("CI") != "true", f"{name} is missing"
        pytest.skip(f"{name} is not installed (Debian package {package})")
    return found


@cache
def rendered(folder: Path) -> Manifests:
    """Return the manifests of a folder."""
    kubectl = program("kubectl", "kubernetes-client")
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{done.stderr}\nexpected kubectl 1.21 or newer"
    return tuple(YAML(typ="safe", pure=True).load_all(done.stdout))


def with_components(tmp_path: Path, *components: str) -> Manifests:
    """Return the manifests of the team's gateway with these components added."""
    copy = tmp_path / "kubernetes"
    shutil.copytree(FOLDER, copy, dirs_exist_ok=True)
    kustomization = copy / "overlays/gateway/kustomization.yaml"
    listed = ", ".join(f"../../components/{name}" for name in components)
    text = kustomization.read_text()
    assert "components: [" in text
    kustomization.write_text(text.replace("components: [", f"components: [{listed}, "))
    return rendered(copy / "overlays/gateway")


def only(manifests: Manifests, kind: str, name: str | None = None) -> dict[str, Any]:
    """Return the only manifest of a kind."""
    [found] = [one for one in manifests if one["kind"] == kind and name in (None, one["metadata"]["name"])]
    return found
