"""Every admin route says how several processes' answers merge and what it is; none can be added without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from support.gateways import running_gateway

from gateway.admin.api import AdminApi
from gateway.admin.openapi import document
from gateway.admin.routes import Combined, Merge, route, routes_of


def test_a_route_without_a_merge_rule_or_documentation_cannot_be_declared() -> None:
    async def documented(request: Request) -> Response:
        """Show it.

        Returns:
            It.
        """
        return Response()

    async def bare(request: Request) -> Response:
        """Show it."""
        return Response()

    assert route("GET", "/admin/x", merge=Merge.SAME)(documented) is documented
    with pytest.raises(TypeError, match="merge"):
        route("GET", "/admin/x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"bare needs a docstring"):
        route("GET", "/admin/x", merge=Merge.SAME)(bare)


def test_what_is_declared_on_the_class_is_all_that_is_served_below_admin() -> None:
    api = object.__new__(AdminApi)
    api.routes = routes_of(api)
    served = {route.path: set(route.methods or ()) - {"HEAD"} for route in api.app().routes}  # type: ignore[attr-defined]
    below = {path: methods for path, methods in served.items() if path.startswith("/admin")}
    declared: dict[str, set[str]] = {}
    for each in api.routes:
        assert isinstance(each.merge, Merge | Combined)
        declared.setdefault(each.path, set()).add(each.method)
    assert below == declared
    assert set(served) - set(below) == {"/healthz", "/readyz", "/metrics"}


def test_the_description_has_every_route_and_every_reference_in_it_leads_somewhere() -> None:
    api = object.__new__(AdminApi)
    api.routes = routes_of(api)
    made = json.loads(json.dumps(document(api.routes)))
    assert {(path, method) for path, methods in made["paths"].items() for method in methods} == {
        (each.path, each.method.lower()) for each in api.routes
    }
    pending: list[Any] = [made["paths"], made["components"]]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if "$ref" in node:
                assert node["$ref"].removeprefix("#/components/schemas/") in made["components"]["schemas"]
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)


def test_a_path_finds_its_own_route_and_no_other() -> None:
    class Api:
        @route("GET", "/admin/a/{name}", merge=Merge.SAME)
        async def show(self, request: Request) -> Response:
            """Show it.

            Returns:
                It.
            """
            return Response()

    api = object.__new__(AdminApi)
    api.routes = routes_of(Api())
    assert api.route_of("GET", "/admin/a/x") is api.routes[0]
    for method, path in (("POST", "/admin/a/x"), ("GET", "/admin/a/"), ("GET", "/admin/a"), ("GET", "/admin/a/x/y")):
        assert api.route_of(method, path) is None


async def test_a_running_gateway_describes_its_admin_api_to_whoever_has_the_token(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        described = (await gateway.admin("openapi.json")).json()
        assert "/admin/servers/{name}/refresh" in described["paths"]
        assert described["openapi"].startswith("3.1")
        assert (await gateway.client.get(f"{gateway.origin}/admin/openapi.json")).status_code == 401
