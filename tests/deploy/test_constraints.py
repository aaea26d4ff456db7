"""Packages of the image are locked, satisfy the project's requirements, and name no index."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILES = {"constraints.txt": (), "constraints-extras.txt": ("cluster", "graphql", "otel", "redact")}
# The constraints of the tools that build the image.
BUILD = "constraints-build.txt"


def locked(file: str) -> dict[str, tuple[Requirement, int]]:
    """By name, each requirement and how many hashes it has."""
    text = (ROOT / "deploy" / file).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = {}
    for line in lines:
        requirement = Requirement(line.partition(" --hash=")[0])
        found[canonicalize_name(requirement.name)] = requirement, len(re.findall(r"--hash=sha256:[0-9a-f]{64}", line))
    return found


@pytest.mark.parametrize("file", FILES)
def test_every_package_is_locked_to_a_version_the_project_allows(file: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(one for extra in FILES[file] for one in project["optional-dependencies"][extra]),
    ]
    packages = locked(file)
    for requirement in map(Requirement, wanted):
        lock, _ = packages[canonicalize_name(requirement.name)]
        (version,) = [specifier.version for specifier in lock.specifier]
        assert requirement.specifier.contains(version), f"{lock} is not {requirement}: lock anew"
    for name, (lock, hashes) in packages.items():
        assert [specifier.operator for specifier in lock.specifier] == ["=="], name
        assert hashes, name
    assert "://" not in (ROOT / "deploy" / file).read_text()


def test_build_dependencies_of_the_image_are_locked() -> None:
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    packages = locked(BUILD)
    for requirement in map(Requirement, [*backend, "cyclonedx-bom"]):
        lock, _ = packages[canonicalize_name(requirement.name)]
        (version,) = [specifier.version for specifier in lock.specifier]
        assert requirement.specifier.contains(version), f"{lock} is not {requirement}: lock anew"
    for name, (lock, hashes) in packages.items():
        assert [specifier.operator for specifier in lock.specifier] == ["=="], name
        assert hashes, name
    assert "://" not in (ROOT / "deploy" / BUILD).read_text()
    # Every command of pip takes what is locked, or nothing from an index.
    text = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ")
    commands = re.findall(r"pip (?:install|wheel)[^&\n]*", text)
    assert len(commands) == 4
    assert all("--require-hashes" in one or "--no-index" in one for one in commands), commands
    assert all("--no-build-isolation" in one for one in commands if "pip wheel" in one)


@pytest.mark.heavy
def test_locked_packages_install_by_hash_and_yield_an_sbom(tmp_path: Path) -> None:
    def run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    venv, build, dist = tmp_path / "image", tmp_path / "build", tmp_path / "dist"
    pip = str(venv / "bin" / "pip")
    run(sys.executable, "-m", "venv", str(venv))
    run(pip, "install", "-q", "--require-hashes", "-r", "deploy/constraints.txt")
    run(sys.executable, "-m", "venv", str(build))
    builder = str(build / "bin" / "pip")
    run(builder, "install", "-q", "--require-hashes", "-r", f"deploy/{BUILD}")
    run(builder, "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(dist), ".")
    run(pip, "install", "-q", "--no-deps", "--no-index", *map(str, dist.iterdir()))
    run(pip, "check")
    assert run(str(venv / "bin" / "typegate"), "--version")
    # The pages of the manual are in the package.
    assert run(str(venv / "bin" / "typegate"), "docs", "security").startswith("# Security\n")
    made = run(
        str(build / "bin" / "cyclonedx-py"), "environment", str(venv / "bin" / "python"), "--of", "JSON", "-o", "-"
    )
    names = {component["name"].lower() for component in json.loads(made)["components"]}
    assert {"typegate", "mcp", "uvicorn", "cryptography"} <= names
