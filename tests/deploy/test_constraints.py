"""What the image installs is locked, satisfies what the project asks for, and names no address."""

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
def test_every_package_is_locked_to_a_version_that_the_project_asks_for(file: str) -> None:
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


@pytest.mark.heavy
def test_the_locked_packages_install_by_their_hashes_and_make_a_bill_of_materials(tmp_path: Path) -> None:
    def run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    venv, bom = tmp_path / "image", tmp_path / "bom"
    pip = str(venv / "bin" / "pip")
    run(sys.executable, "-m", "venv", str(venv))
    run(pip, "install", "-q", "--require-hashes", "-r", "deploy/constraints.txt")
    run(pip, "install", "-q", "--no-deps", ".")
    run(pip, "check")
    assert run(str(venv / "bin" / "typegate"), "--version")
    run(sys.executable, "-m", "venv", str(bom))
    run(str(bom / "bin" / "pip"), "install", "-q", "cyclonedx-bom")
    made = run(
        str(bom / "bin" / "cyclonedx-py"), "environment", str(venv / "bin" / "python"), "--of", "JSON", "-o", "-"
    )
    names = {component["name"].lower() for component in json.loads(made)["components"]}
    assert {"typegate", "mcp", "uvicorn", "cryptography"} <= names
