"""Names in rules that stand for nobody and nothing: told, and refused where the rule would be missed.

A rule that denies or asks, and is about nobody by a slip, leaves open what it was written to close. So does one that
allows, where everybody whom no such rule concerns may use everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from gateway.config.auth import SCOPES
from gateway.config.model import GatewayConfig
from gateway.config.named_callers import unmatched_callers
from gateway.config.policy import RuleConfig
from gateway.config.server import ServerConfig
from registry.catalog.filters import server_of
from registry.catalog.unmatched import near_miss


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmatchedName:
    """A pattern that matches nothing.

    Attributes:
        key: Where it stands.
        text: What is wrong with it, with the name that may be meant.
        opens: Whether it is likely a slip, and something stays open because of it.
    """

    key: str
    text: str
    opens: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNames:
    """Names that administrators have added to those of the configuration.

    Attributes:
        keys: Of API keys.
        groups: That these belong to.
        servers: Aliases.
        tags: Of these servers.
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
    """Find them, and callers that hooks are for. Which tools there are is known only later, see `/admin/policy`.

    Args:
        servers: Those that are served.
        left_out: Those that are not, which may be named all the same.
        gateway: Rules and keys.
        added: What administrators have added.
    """
    aliases = [*servers, *left_out, *added.servers]
    tags = list(dict.fromkeys([*(tag for server in servers.values() for tag in server.tags), *added.tags]))
    # What gateways share is known only once they run: another may have added what a rule names.
    shared = gateway.cluster is not None and gateway.cluster.store is not None
    for name in _unmatched(gateway, added, aliases, tags):
        yield replace(name, opens=False) if shared else name


def _unmatched(
    gateway: GatewayConfig, added: AddedNames, aliases: Collection[str], tags: Collection[str]
) -> Iterator[UnmatchedName]:
    keys = gateway.auth.api_keys
    yield from _in_hooks(gateway, added)
    for at, rule in enumerate(gateway.policy.rules):
        closes = rule.effect != "allow" or gateway.policy.default == "allow"
        names: list[tuple[str, Iterable[str] | None, Collection[str], str]] = [
            ("servers", rule.servers, aliases, "server"),
            ("tags", rule.tags, tags, "tag"),
            *((key, _aliases(patterns), aliases, "server") for key, patterns in _of_tools(rule)),
        ]
        for pattern, guess in unmatched_callers(rule.principals or (), gateway.auth, added.keys):
            yield UnmatchedName(
                key=f"gateway.policy.rules[{at}].principals", text=f"{pattern} matches no caller{guess}",
                opens=closes and bool(guess),
            )  # fmt: skip
        # What tokens will say of their callers is not known here.
        if gateway.auth.oauth is None:
            groups = list(dict.fromkeys([*(group for key in keys for group in key.groups), *added.groups]))
            names += [
                ("groups", rule.groups, groups, "group"),
                ("scopes", rule.scopes, SCOPES, "scope"),
            ]
        for key, patterns, known, kind in names:
            for pattern in patterns or ():
                if pattern == "*" or any(fnmatchcase(name, pattern) for name in known):
                    continue
                guess = near_miss(pattern, known)
                text = f"{pattern} matches no {kind}{guess}"
                yield UnmatchedName(key=f"gateway.policy.rules[{at}].{key}", text=text, opens=closes and bool(guess))


def _in_hooks(gateway: GatewayConfig, added: AddedNames) -> Iterator[UnmatchedName]:
    for at, hook in enumerate(gateway.hooks):
        for pattern, guess in unmatched_callers(hook.conditions.principals or (), gateway.auth, added.keys):
            # A hook that only watches opens nothing where it does not run.
            yield UnmatchedName(
                key=f"gateway.hooks[{at}].conditions.principals", text=f"{pattern} matches no caller{guess}",
                opens=bool(guess) and hook.mode != "audit",
            )  # fmt: skip


def _of_tools(rule: RuleConfig) -> Iterator[tuple[str, list[str] | None]]:
    yield "wrappers", rule.wrappers
    yield rule.effect, rule.patterns


def _aliases(patterns: Iterable[str] | None) -> list[str]:
    return [alias for pattern in patterns or () if (alias := server_of(pattern)) is not None and ":" not in alias]
