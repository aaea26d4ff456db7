"""Names of servers, tags and groups in a configuration that stand for nothing in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from gateway.config.model import GatewayConfig
from gateway.config.server import ServerConfig
from gateway.config.source import join
from registry.catalog.unmatched import near_miss


def unmatched_names(
    servers: Mapping[str, ServerConfig], left_out: Iterable[str], gateway: GatewayConfig, block: str
) -> Iterator[str]:
    """A warning for each. What a profile itself selects is told with the profile, once servers have listed.

    Args:
        servers: Those that are served.
        left_out: Those that are not, which may be named all the same.
        gateway: What names them.
        block: The key of the block of servers.
    """
    aliases = [*servers, *left_out]
    tags = list(dict.fromkeys(tag for server in servers.values() for tag in server.tags))
    for alias, server in servers.items():
        where = join(join(block, alias), "siblings")
        yield from _unmatched(where, server.siblings, aliases, "server")
    for name, group in gateway.groups.items():
        where = f"gateway.{join('groups', name)}"
        yield from _unmatched(f"{where}.servers", group.servers, aliases, "server")
        yield from _unmatched(f"{where}.tags", group.tags, tags, "tag")
        if not any(name in (profile.groups or ()) for profile in gateway.profiles.values()):
            yield f"{where}: no profile uses this group"
    if gateway.auth.oauth is None:
        # Groups of tokens are known to their issuer alone.
        known = {group for key in gateway.auth.api_keys for group in key.groups}
        yield from _unmatched("gateway.quotas.groups", gateway.quotas.groups, known, "group of a key")
    for at, hook in enumerate(gateway.hooks):
        where = f"gateway.hooks[{at}].conditions"
        yield from _unmatched(f"{where}.servers", hook.conditions.servers, aliases, "server")
        yield from _unmatched(f"{where}.tags", hook.conditions.tags, tags, "tag")


def _unmatched(where: str, patterns: Iterable[str] | None, names: Collection[str], kind: str) -> Iterator[str]:
    for pattern in patterns or ():
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in names):
            yield f"{where}: {pattern} matches no {kind}{near_miss(pattern, names)}"
