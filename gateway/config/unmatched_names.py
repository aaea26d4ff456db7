"""Find names and patterns in the configuration that match nothing.

A deny or ask rule that matches no caller because of a typing error restricts nothing. The same holds for an allow rule
if the default is to allow, since callers that no allow rule matches may use everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from gateway.config.auth_config import SCOPES, AuthConfig
from gateway.config.model import GatewayConfig
from gateway.config.policy_config import RuleConfig
from gateway.config.server import ServerConfig
from gateway.config.source import join
from registry.catalog.listing import suggestion_for
from registry.catalog.shape import server_of


def unmatched_names(
    servers: Mapping[str, ServerConfig], left_out: Iterable[str], gateway: GatewayConfig, block: str
) -> Iterator[str]:
    """Yield a warning for each pattern that matches nothing.

    Patterns of profiles are checked later, once the servers have returned their lists.

    Args:
        servers: The servers that are served.
        left_out: The aliases of servers that are not served; patterns may match them.
        gateway: The settings with the patterns.
        block: The key of the server entries in the file.
    """
    aliases = [*servers, *left_out]
    tags = list(dict.fromkeys(tag for server in servers.values() for tag in server.tags))
    for alias, server in servers.items():
        where = join(join(block, alias), "siblings")
        yield from _unmatched_patterns(where, server.siblings, aliases, "server")
    for name, group in gateway.groups.items():
        where = f"gateway.{join('groups', name)}"
        yield from _unmatched_patterns(f"{where}.servers", group.servers, aliases, "server")
        yield from _unmatched_patterns(f"{where}.tags", group.tags, tags, "tag")
        if not any(name in (profile.groups or ()) for profile in gateway.profiles.values()):
            yield f"{where}: no profile uses this group"
    if gateway.auth.oauth is None:
        # With an issuer, the groups cannot be checked: only the issuer knows the groups of its tokens.
        groups = {group for key in gateway.auth.api_keys for group in key.groups}
        yield from _unmatched_patterns("gateway.quotas.groups", gateway.quotas.groups, groups, "group of a key")
    for at, hook in enumerate(gateway.hooks):
        where = f"gateway.hooks[{at}].conditions"
        yield from _unmatched_patterns(f"{where}.servers", hook.conditions.servers, aliases, "server")
        yield from _unmatched_patterns(f"{where}.tags", hook.conditions.tags, tags, "tag")


def _unmatched_patterns(where: str, patterns: Iterable[str] | None, names: Collection[str], kind: str) -> Iterator[str]:
    for pattern in patterns or ():
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in names):
            yield f"{where}: {pattern} matches no {kind}{suggestion_for(pattern, names)}"


_LOCAL: Final = "local"


def unmatched_callers(
    patterns: Iterable[str], auth: AuthConfig, more_names: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield each pattern that matches no possible caller, and a suggestion to append to the message, possibly empty.

    The names of API keys are known. For callers with tokens, only the end of the name, `@ISSUER`, is known.

    Args:
        patterns: Patterns of callers.
        auth: The API keys and issuers.
        more_names: Names of API keys outside the configuration.
    """
    names = list(dict.fromkeys([_LOCAL, *(key.name for key in auth.api_keys), *more_names]))
    issuers = [issuer.name for issuer in auth.oauth.issuers] if auth.oauth is not None else []
    for pattern in patterns:
        if pattern == "*" or any(fnmatchcase(name, pattern) for name in names):
            continue
        if not any(_can_end_with(pattern, f"@{issuer}") for issuer in issuers):
            yield pattern, suggestion_for(pattern, names)


def is_named(caller: str, gateway: GatewayConfig) -> bool:
    """Return true if a pattern of a rule or hook, other than `*`, matches this caller."""
    patterns = [pattern for rule in gateway.policy.rules for pattern in rule.principals or ()]
    patterns += [pattern for hook in gateway.hooks for pattern in hook.conditions.principals or ()]
    return any(pattern != "*" and fnmatchcase(caller, pattern) for pattern in patterns)


def _can_end_with(pattern: str, ending: str) -> bool:
    """Return true if a pattern can match a name that ends with `ending` and is longer."""
    # The part of the name before the ending is unknown, so it matches any beginning of the pattern.
    starts = range(0 if pattern.startswith("*") else 1, len(pattern))
    return any(fnmatchcase(ending, pattern[start:]) for start in starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmatchedName:
    """A pattern that matches nothing.

    Attributes:
        key: The key of the pattern.
        text: The problem, with a suggestion.
        opens: True if the pattern is probably a typing error that prevents a restriction.
    """

    key: str
    text: str
    opens: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNames:
    """Names that administrators have added to the configuration.

    Attributes:
        keys: Names of API keys.
        groups: Groups of these keys.
        servers: Aliases of servers.
        tags: Tags of these servers.
    """

    keys: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


NOTHING_ADDED: Final = AddedNames()


def unmatched_in_rules(
    servers: Mapping[str, ServerConfig],
    left_out: Iterable[str],
    gateway: GatewayConfig,
    added: AddedNames = NOTHING_ADDED,
) -> Iterator[UnmatchedName]:
    """Yield the patterns in rules, and the patterns for callers in hooks, that match nothing.

    Patterns for tool names are not checked, since the tools are not known yet. `/admin/policy` reports those that match
    nothing.

    Args:
        servers: The servers that are served.
        left_out: The aliases of servers that are not served; patterns may match them.
        gateway: The settings with the rules, hooks and API keys.
        added: Names that administrators have added.
    """
    aliases = [*servers, *left_out, *added.servers]
    tags = list(dict.fromkeys([*(tag for server in servers.values() for tag in server.tags), *added.tags]))
    # With a shared store, an unmatched name is not an error: another replica may just have added it.
    shared = gateway.cluster is not None and gateway.cluster.store is not None
    for name in _unmatched_in_rules(gateway, added, aliases, tags):
        yield replace(name, opens=False) if shared else name


def _unmatched_in_rules(
    gateway: GatewayConfig, added: AddedNames, aliases: Collection[str], tags: Collection[str]
) -> Iterator[UnmatchedName]:
    keys = gateway.auth.api_keys
    yield from _in_hooks(gateway, added)
    for at, rule in enumerate(gateway.policy.rules):
        closes = rule.effect != "allow" or gateway.policy.default == "allow"
        names: list[tuple[str, Iterable[str] | None, Collection[str], str]] = [
            ("servers", rule.servers, aliases, "server"),
            ("tags", rule.tags, tags, "tag"),
            *((key, _aliases(patterns), aliases, "server") for key, patterns in _tool_patterns(rule)),
        ]
        for pattern, guess in unmatched_callers(rule.principals or (), gateway.auth, added.keys):
            yield UnmatchedName(
                key=f"gateway.policy.rules[{at}].principals",
                text=f"{pattern} matches no caller{guess}",
                opens=closes and bool(guess),
            )
        # Groups and scopes cannot be checked if there is an issuer, because only the issuer knows those in its tokens.
        if gateway.auth.oauth is None:
            groups = list(dict.fromkeys([*(group for key in keys for group in key.groups), *added.groups]))
            names += [
                ("groups", rule.groups, groups, "group"),
                ("scopes", rule.scopes, SCOPES, "scope"),
            ]
        for key, patterns, candidates, kind in names:
            for pattern in patterns or ():
                if pattern == "*" or any(fnmatchcase(name, pattern) for name in candidates):
                    continue
                guess = suggestion_for(pattern, candidates)
                text = f"{pattern} matches no {kind}{guess}"
                yield UnmatchedName(key=f"gateway.policy.rules[{at}].{key}", text=text, opens=closes and bool(guess))


def _in_hooks(gateway: GatewayConfig, added: AddedNames) -> Iterator[UnmatchedName]:
    for at, hook in enumerate(gateway.hooks):
        for pattern, guess in unmatched_callers(hook.conditions.principals or (), gateway.auth, added.keys):
            # A hook that only observes restricts nothing.
            yield UnmatchedName(
                key=f"gateway.hooks[{at}].conditions.principals",
                text=f"{pattern} matches no caller{guess}",
                opens=bool(guess) and hook.mode != "audit",
            )


def _tool_patterns(rule: RuleConfig) -> Iterator[tuple[str, list[str] | None]]:
    yield "wrappers", rule.wrappers
    yield rule.effect, rule.patterns


def _aliases(patterns: Iterable[str] | None) -> list[str]:
    return [alias for pattern in patterns or () if (alias := server_of(pattern)) is not None and ":" not in alias]
