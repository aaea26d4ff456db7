"""What several processes cannot serve as one would: refused before anything starts, with the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Final

from gateway.config.model import Config
from gateway.config.server import ServerConfig
from gateway.errors import ConfigError

Rule = Callable[[Config], Iterable[str]]
"""The reasons why a configuration needs one process; none where it does not."""


def _private_processes(config: Config) -> Iterable[str]:
    names = [alias for alias, one in config.servers.items() if not may_be_copied(one)]
    if names:
        yield _about_processes(names)


def _private_hooks(config: Config) -> Iterable[str]:
    for hook in config.gateway.hooks:
        if hook.use in _OF_ONE_PROCESS:
            yield (
                f"--workers: the hook {hook.name} ({hook.use}) {_OF_ONE_PROCESS[hook.use]}. Leave it or --workers out"
            )


_OF_ONE_PROCESS: Final = {
    "rate_limit": "counts in one process, and with several a caller would have its rate at each",
    "audit_log": "writes and rotates one file, which several processes would take from each other",
}


def _clusters(config: Config) -> Iterable[str]:
    if config.gateway.cluster is not None:
        yield "--workers: gateway.cluster makes one gateway of many processes already. Start more of them instead"


RULES: tuple[Rule, ...] = (_private_processes, _private_hooks, _clusters)
"""All of them."""


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
