"""The OpenAPI description of the admin API, made from its routes.

Source: OpenAPI Specification 3.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from gateway import __version__
from gateway.admin.routes import AdminRoute

_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_JSON: Final = "application/json"


def document(routes: Iterable[AdminRoute]) -> dict[str, Any]:
    """The description of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Error": {"type": "object", "properties": {"error": {"type": "string"}}}}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "typegate administration", "version": __version__},
        "security": [{"adminToken": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"adminToken": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: AdminRoute, schemas: dict[str, Any]) -> dict[str, Any]:
    said = route.operation
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    parameters += [
        {"name": name, "in": "query", "description": meaning, "schema": {"type": "string"}}
        for name, meaning in said.query.items()
    ]
    answer: dict[str, Any] = {"description": said.returns}
    if said.status != 204:
        answer["content"] = {_JSON: {"schema": {"type": "object"}}}
    errors = {401: "The admin token is missing or wrong", **said.errors}
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": said.summary,
        "responses": {
            str(said.status): answer,
            **{
                str(status): {
                    "description": reason,
                    "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
                }
                for status, reason in errors.items()
            },
        },
    }
    if parameters:
        operation["parameters"] = parameters
    if said.body is not None:
        schema = said.body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[said.body.__name__] = schema
        reference = {"$ref": f"#/components/schemas/{said.body.__name__}"}
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": reference}}}
    return operation
