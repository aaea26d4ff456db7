"""The part of a catalog that one profile shows to one caller."""

from __future__ import annotations

from collections.abc import Mapping

from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.names import ServerName
from registry.catalog.shape import ServerShape, Shape
from registry.catalog.uri_spellings import denies_uri, pattern_of_template
from registry.policy.grant import CallRules, Grant
from registry.views.profile import Profile


def narrow(
    catalog: Catalog, shape: Shape, profile: Profile, grant: Grant
) -> tuple[Catalog, Mapping[str, CallRules], tuple[ServerName, ...]]:
    """Return what is permitted of a catalog, by one profile and to one caller.

    Args:
        catalog: The whole catalog.
        shape: What configuration says about servers.
        profile: The profile.
        grant: What the caller may do.

    Returns:
        The narrowed catalog; the rules of the tools in it that look at arguments, by wrapper name; and every server
        that is configured and permitted, also one that has listed nothing yet.
    """

    def shape_of(server: str) -> ServerShape:
        return shape.of(ServerName(server))

    servers = tuple(server for server, own in shape.servers.items() if profile.permits_server(server, own))
    if profile.permits_all and grant.is_open:
        return catalog, {}, servers
    if grant.is_open:
        narrowed = catalog.narrowed(
            wrappers=lambda wrapper: profile.permits(wrapper, shape_of(wrapper.server)),
            server=lambda server: profile.permits_server(server, shape_of(server)),
            prompts=lambda prompt: profile.permits_prompt(prompt, shape_of(prompt.server)),
            resources=lambda item: profile.permits_uri(item.server, item.original, shape_of(item.server)),
            uris=lambda server, uri: profile.permits_uri(server, uri, shape_of(server)),
        )
        return narrowed, {}, servers

    call_rules: dict[str, CallRules] = {}

    def permits(wrapper: ToolWrapper) -> bool:
        own = shape_of(wrapper.server)
        if not profile.permits(wrapper, own):
            return False
        decided = grant.tool(wrapper, own, grant.of_server(wrapper.server, own))
        if isinstance(decided, CallRules):
            call_rules[wrapper.name] = decided
            return True
        return decided.effect != "deny"

    def permits_server(server: ServerName) -> bool:
        own = shape_of(server)
        return profile.permits_server(server, own) and grant.permits_server(server, own)

    def permits_uri(server: str, uri: str) -> bool:
        own = shape_of(server)
        return profile.permits_uri(server, uri, own) and grant.uri(server, uri, own).effect != "deny"

    # A template that a rule denies is denied with all its URIs, as where its server's `deny` names it.
    denied: dict[str, tuple[str, ...]] = {}
    for item in catalog.prompts_and_resources.templates:
        if grant.denies_uri(item.server, item.original, shape_of(item.server)):
            denied[item.server] = (*denied.get(item.server, ()), pattern_of_template(item.original))

    def narrowed_to(permits_server: Mapping[ServerName, bool]) -> Catalog:
        return catalog.narrowed(
            wrappers=permits,
            server=lambda server: permits_server[server],
            prompts=lambda prompt: (
                profile.permits_prompt(prompt, shape_of(prompt.server))
                and grant.prompt(prompt, shape_of(prompt.server)).effect != "deny"
            ),
            resources=lambda item: permits_uri(item.server, item.original),
            uris=permits_uri,
            never=lambda server, uri: (
                not grant.denies_uri(server, uri, shape_of(server)) and not denies_uri(uri, denied.get(server, ()))
            ),
        )

    permitted = {server: permits_server(server) for server in catalog.servers}
    narrowed = narrowed_to(permitted)
    # Of a server that has something, and nothing for this caller, not even the name is told.
    empty = {server for server in narrowed.servers if catalog.shows(server) and not narrowed.shows(server)}
    if empty:
        narrowed = narrowed_to({server: shown and server not in empty for server, shown in permitted.items()})
    return (
        narrowed,
        call_rules,
        tuple(server for server in servers if server not in empty and grant.permits_server(server, shape_of(server))),
    )
