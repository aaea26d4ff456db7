"""Every admin route declares its documentation and how answers of several processes are merged."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from support.gateways import running_gateway

from gateway.admin import operations
from gateway.admin.api import AdminApi, document
from gateway.admin.routes import AdminRoute, Combined, Merge, route, routes_of


def test_route_requires_a_merge_rule_and_documentation() -> None:
    async def documented(request: Request) -> Response:
        """Show it.

        Returns:
            It.
        """
        return Response()

    async def bare(request: Request) -> Response:
        """Show it."""
        return Response()

    assert route("GET", "/admin/x", merge=Merge.SAME, example={})(documented) is documented
    with pytest.raises(TypeError, match="needs an example"):
        route("GET", "/admin/x", merge=Merge.SAME)(documented)
    with pytest.raises(TypeError, match="merge"):
        route("GET", "/admin/x")  # type: ignore[call-arg] # that is the point
    with pytest.raises(TypeError, match=r"bare needs a docstring"):
        route("GET", "/admin/x", merge=Merge.SAME)(bare)


def every_route() -> tuple[AdminRoute, ...]:
    """Return every route of every class; the objects that the routes use do not matter here."""
    modules = [f"gateway.admin.operations.{each.name}" for each in iter_modules(operations.__path__)]
    found = []
    for name in ("gateway.admin.api", "gateway.cluster.replica", *modules):
        module = import_module(name)
        for each in vars(module).values():
            if isinstance(each, type) and each.__module__ == name and not issubclass(each, BaseModel):
                found += routes_of(object.__new__(each))
    return tuple(found)


def api_of(routes: tuple[AdminRoute, ...]) -> AdminApi:
    api = object.__new__(AdminApi)
    api.routes = routes
    return api


async def test_every_served_admin_route_is_declared(tmp_path: Path) -> None:
    routes = every_route()
    async with running_gateway(tmp_path, {}) as gateway:
        described = (await gateway.admin("openapi.json")).json()["paths"]
    served = {(path, method.upper()) for path, methods in described.items() for method in methods}
    alone = {(each.path, each.method) for each in routes if each.path != "/admin/cluster"}
    assert served == alone
    for each in routes:
        assert isinstance(each.merge, Merge | Combined)


def test_openapi_document_has_every_route_and_no_dangling_reference() -> None:
    routes = every_route()
    made = json.loads(json.dumps(document(routes)))
    assert {(path, method) for path, methods in made["paths"].items() for method in methods} == {
        (each.path, each.method.lower()) for each in routes
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


def test_path_matches_its_own_route_only() -> None:
    class Api:
        @route("GET", "/admin/a/{name}", merge=Merge.SAME, example={})
        async def show(self, request: Request) -> Response:
            """Show it.

            Returns:
                It.
            """
            return Response()

    api = api_of(routes_of(Api()))
    assert api.route_of("GET", "/admin/a/x") is api.routes[0]
    for method, path in (("POST", "/admin/a/x"), ("GET", "/admin/a/"), ("GET", "/admin/a"), ("GET", "/admin/a/x/y")):
        assert api.route_of(method, path) is None


async def test_running_gateway_serves_its_openapi_document(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        described = (await gateway.admin("openapi.json")).json()
        assert "/admin/servers/{name}/refresh" in described["paths"]
        assert described["openapi"].startswith("3.1")
        assert (await gateway.client.get(f"{gateway.origin}/admin/openapi.json")).status_code == 401
