"""Metadata discovery: URLs that are tried, and documents that are accepted."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.upstream.oauth.metadata_discovery import (
    Challenge,
    InvalidMetadata,
    canonical_resource,
    covers,
    read_resource_metadata,
    read_server_metadata,
    resource_metadata_urls,
    server_metadata_urls,
)

URL = "https://mcp.example.test/team/mcp"
ISSUER = "https://auth.example.test"
SERVER: dict[str, Any] = {
    "issuer": ISSUER,
    "token_endpoint": f"{ISSUER}/token",
    "authorization_endpoint": f"{ISSUER}/authorize",
    "code_challenge_methods_supported": ["S256"],
}


def test_resource_metadata_is_tried_at_challenge_path_and_root() -> None:
    challenge = Challenge(scheme="bearer", parameters={"resource_metadata": "https://mcp.example.test/meta"})
    well_known = "https://mcp.example.test/.well-known/oauth-protected-resource"
    assert resource_metadata_urls(URL, challenge) == (
        "https://mcp.example.test/meta",
        f"{well_known}/team/mcp",
        well_known,
    )
    assert resource_metadata_urls("https://mcp.example.test/", None) == (well_known,)


def test_server_metadata_is_tried_at_specified_urls_first() -> None:
    for issuer in ("https://auth.example.test/tenant", "https://auth.example.test/tenant/"):
        assert server_metadata_urls(issuer) == (
            "https://auth.example.test/.well-known/oauth-authorization-server/tenant",
            "https://auth.example.test/.well-known/openid-configuration/tenant",
            "https://auth.example.test/tenant/.well-known/openid-configuration",
            "https://auth.example.test/tenant/.well-known/oauth-authorization-server",
            "https://auth.example.test/.well-known/oauth-authorization-server",
            "https://auth.example.test/.well-known/openid-configuration",
        )
    assert server_metadata_urls("https://auth.example.test:8443/") == (
        "https://auth.example.test:8443/.well-known/oauth-authorization-server",
        "https://auth.example.test:8443/.well-known/openid-configuration",
    )


@pytest.mark.parametrize(
    ("url", "resource"),
    [
        ("HTTPS://MCP.Example.test:443/mcp/", "https://mcp.example.test/mcp"),
        ("http://[::1]:8000/mcp?x=1#y", "http://[::1]:8000/mcp"),
        ("https://mcp.example.test", "https://mcp.example.test"),
    ],
)
def test_canonical_resource_url_omits_insignificant_parts(url: str, resource: str) -> None:
    assert canonical_resource(url) == resource


@pytest.mark.parametrize(
    ("resource", "good"),
    [
        (URL, True),
        (f"{URL}/", True),
        ("https://mcp.example.test/team", True),
        ("https://mcp.example.test", True),
        ("https://MCP.example.test:443/team/mcp", True),
        ("https://mcp.example.test/te", False),
        ("https://mcp.example.test/team/mcp/more", False),
        ("https://evil.example.test/team/mcp", False),
        ("http://mcp.example.test/team/mcp", False),
        ("https://mcp.example.test.evil.test/team/mcp", False),
        (f"{URL}#part", False),
        ("https://[bad", False),
        ("", False),
    ],
)
def test_token_for_another_resource_is_not_requested(resource: str, good: bool) -> None:
    assert covers(resource, URL) is good
    document = {"resource": resource, "authorization_servers": [ISSUER]}
    if good:
        assert read_resource_metadata(document, URL).resource == resource
    else:
        with pytest.raises(InvalidMetadata, match="another resource"):
            read_resource_metadata(document, URL)


@pytest.mark.parametrize("document", [None, [], {}, {"authorization_servers": [ISSUER]}])
def test_invalid_resource_metadata_is_refused(document: object) -> None:
    with pytest.raises(InvalidMetadata):
        read_resource_metadata(document, URL)


@pytest.mark.parametrize("servers", [{}, {"authorization_servers": [1]}, {"authorization_servers": []}])
def test_resource_metadata_may_name_no_authorization_server(servers: dict[str, object]) -> None:
    assert read_resource_metadata({"resource": URL, **servers}, URL).authorization_servers == ()


@pytest.mark.parametrize("issuer", [f"{ISSUER}/", "https://AUTH.example.test", "https://evil.example.test", None, 1])
def test_metadata_of_another_issuer_is_refused(issuer: object) -> None:
    with pytest.raises(InvalidMetadata, match="another issuer"):
        read_server_metadata({**SERVER, "issuer": issuer}, ISSUER, interactive=True)


@pytest.mark.parametrize("methods", [None, [], ["plain"], "S256", {"S256": 1}])
def test_server_without_s256_is_refused(methods: object) -> None:
    with pytest.raises(InvalidMetadata, match="PKCE"):
        read_server_metadata({**SERVER, "code_challenge_methods_supported": methods}, ISSUER, interactive=True)


def test_non_interactive_sign_in_needs_only_a_token_endpoint() -> None:
    document = {"issuer": ISSUER, "token_endpoint": f"{ISSUER}/token"}
    assert read_server_metadata(document, ISSUER, interactive=False).authorization_endpoint is None
    with pytest.raises(InvalidMetadata, match="no authorization_endpoint"):
        read_server_metadata(document, ISSUER, interactive=True)
    with pytest.raises(InvalidMetadata, match="no token_endpoint"):
        read_server_metadata({"issuer": ISSUER}, ISSUER, interactive=False)


def test_metadata_lists_are_bounded_and_only_strings_count() -> None:
    scopes = ["mcp", 1, None, "", "a\nb", *[f"s{number}" for number in range(10_000)]]
    found = read_server_metadata({**SERVER, "scopes_supported": scopes}, ISSUER, interactive=True)
    assert found.scopes_supported[:2] == ("mcp", "s0")
    assert len(found.scopes_supported) < 300
