"""What several processes cannot serve as one would: found before anything starts, and said with its reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from gateway.config.model import Config, ServerConfig
from gateway.errors import ConfigError

Rule = Callable[[Config], Iterable[str]]
"""The reasons why a configuration needs one process; none where it does not."""


def _private_processes(config: Config) -> Iterable[str]:
    names = [alias for alias, one in config.servers.items() if not may_be_copied(one)]
    if names:
        yield _about_processes(names)


RULES: list[Rule] = [_private_processes]
"""All of them. Whatever keeps state in one process adds its own."""


def may_be_copied(server: ServerConfig) -> bool:
    """Whether each worker may reach a server on its own."""
    return server.type != "stdio" or server.copies


def check(config: Config, *, file: str) -> None:
    """Refuse what needs one process.

    Raises:
        ConfigError: With every reason.
    """
    if sys.platform == "win32":
        raise ConfigError("several workers need Linux or macOS; leave --workers out", file=file)
    reasons = [reason for rule in RULES for reason in rule(config)]
    if reasons:
        raise ConfigError("\n".join(reasons), file=file)


def check_server(alias: str, server: ServerConfig) -> None:
    """Refuse one server that is to be added while several workers run.

    Raises:
        ConfigError: It needs one process.
    """
    if not may_be_copied(server):
        raise ConfigError(_about_processes([alias]), file="request", key=alias)


def _about_processes(names: list[str]) -> str:
    many = len(names) > 1
    return (
        f"--workers: {', '.join(names)} {'are processes' if many else 'is a process'} (stdio), and each worker would "
        f"start {'theirs' if many else 'its'} anew: what a call leaves in one, the next call may not find. "
        'Say "copies": true in the server\'s entry if that is fine, or leave --workers out'
    )
