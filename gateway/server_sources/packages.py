"""npm and PyPI, by name: the exact version that is the newest, or the one that is asked for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any, Final
from urllib.parse import quote

from gateway.config.entries import sound_alias
from gateway.server_sources.fetch import fetch_json
from gateway.server_sources.proposal import (
    EXACT_VERSION,
    NPM_NAME,
    PYPI_NAME,
    Proposal,
    SourceRefused,
    npm_entry,
    pypi_entry,
)
from registry.schema.display_text import excerpt

# A client that has to start, look into its settings, and ask a slow mirror.
_CLIENT_S: Final = 60.0
# Of what a client says went wrong: a line of it.
_REASON_CHARS: Final = 300


def npm_proposal(spec: str, arguments: list[str]) -> Proposal:
    """What a package of npm would be written as.

    Args:
        spec: Its name, with @VERSION or without.
        arguments: Of its program.

    Raises:
        SourceRefused: There is no such package or version.
    """
    at = spec.find("@", 1)
    name, wanted = (spec[:at], spec[at + 1 :]) if at > 0 else (spec, "")
    if not NPM_NAME.fullmatch(name):
        raise SourceRefused(f"{name!r} is no name of a package of npm")
    base = _npm_registry()
    found = fetch_json(f"{base}/{quote(name, safe='@')}/{quote(wanted or 'latest', safe='')}")
    version = found.get("version") if isinstance(found, dict) else None
    if not isinstance(version, str) or found.get("name") != name:
        raise SourceRefused(f"{base} has no version {wanted or 'latest'} of {name}")
    proposal = Proposal(alias=alias_of(name), origin=f"npm {name} {version}", entry=npm_entry(name, version, arguments))
    if found.get("deprecated"):
        proposal.warnings.append("its publisher has marked this version as deprecated")
    scripts = found.get("scripts")
    if isinstance(scripts, dict) and {"preinstall", "install", "postinstall"} & scripts.keys():
        proposal.warnings.append("it runs scripts of its own when it is installed")
    return proposal


def pypi_proposal(spec: str, arguments: list[str]) -> Proposal:
    """What a package of PyPI would be written as; see `npm_proposal`.

    Raises:
        SourceRefused: There is no such package or version.
    """
    parts = re.split(r"==|@", spec, maxsplit=1)
    name, wanted = parts[0], parts[1] if len(parts) == 2 else ""
    if not PYPI_NAME.fullmatch(name) or (wanted and not EXACT_VERSION.fullmatch(wanted)):
        raise SourceRefused(f"{spec!r} is no name of a package of PyPI, with ==VERSION or without")
    base = os.environ.get("TYPEGATE_PYPI_URL", "").rstrip("/")
    if base:
        found = fetch_json(f"{base}/pypi/{quote(name)}/{f'{quote(wanted)}/' if wanted else ''}json")
        info = found.get("info") if isinstance(found, dict) else None
    else:
        base, info = "pip's index", _of_pip(name, wanted)
    version = info.get("version") if isinstance(info, dict) else None
    if not isinstance(version, str) or not isinstance(info, dict) or _plain(str(info.get("name"))) != _plain(name):
        raise SourceRefused(f"{base} has no version {wanted or 'latest'} of {name}")
    proposal = Proposal(
        alias=alias_of(name), origin=f"PyPI {name} {version}", entry=pypi_entry(name, version, arguments)
    )
    if info.get("yanked"):
        raise SourceRefused(f"{name} {version} was withdrawn by its publisher (yanked)")
    return proposal


def _npm_registry() -> str:
    """Where npm takes packages from, which is where npx will: a mirror, where one is configured."""
    given = os.environ.get("NPM_CONFIG_REGISTRY") or os.environ.get("npm_config_registry")  # noqa: SIM112 - npm's own name
    return (given or _asked("npm", ["npm", "config", "get", "registry"])).strip().rstrip("/")


def _of_pip(name: str, wanted: str) -> dict[str, Any]:
    """What pip would install, from whichever index it is configured for; nothing is installed."""
    # Wheels only: to learn the name of a source distribution pip would run its code.
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed",
               "--only-binary", ":all:", "--disable-pip-version-check", "--report", "-",
               f"{name}=={wanted}" if wanted else name]  # fmt: skip
    try:
        [found] = json.loads(_asked("pip", command))["install"]
        return {**found["metadata"], "yanked": found.get("is_yanked") is True}
    except (ValueError, KeyError, TypeError):
        raise SourceRefused(f"pip has told nothing about {name}") from None


def _asked(client: str, command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CLIENT_S, check=True)
    except FileNotFoundError:
        raise SourceRefused(f"{client} is not installed, which is asked where packages are") from None
    except subprocess.TimeoutExpired:
        raise SourceRefused(f"{client} gave no answer within {_CLIENT_S:g} s") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["it gave no reason"]
        raise SourceRefused(f"{client}: {excerpt(lines[-1], _REASON_CHARS)}") from None
    return done.stdout


def alias_of(name: str) -> str:
    """A short alias for a server of this name."""
    words = re.split(r"[/.]", name.lower())
    last = words[-1] if words[-1] not in ("mcp", "server", "mcp-server") or len(words) == 1 else words[-2]
    short = re.sub(r"^(?:mcp-server-|server-|mcp-)|(?:-mcp-server|-mcp|-server)$", "", last.lstrip("@"))
    return sound_alias(short or last or name)


def _plain(name: str) -> str:
    # PEP 503, "Normalized Names".
    return re.sub(r"[-_.]+", "-", name).lower()
