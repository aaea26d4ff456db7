"""The OpenAPI description of the admin API, made from its routes.

Source: OpenAPI Specification 3.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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
    sections = route.sections
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    for name, meaning in _entries(sections.get("Query", [])):
        parameters.append({"name": name, "in": "query", "description": meaning, "schema": {"type": "string"}})
    answer: dict[str, Any] = {"description": " ".join(sections["Returns"])}
    if route.status != 204:
        answer["content"] = {_JSON: {"schema": {"type": "object"}}}
    responses = {str(route.status): answer}
    for status, reason in (("401", "The admin token is missing or wrong."), *_entries(sections.get("Errors", []))):
        responses[status] = {"description": reason, "content": {_JSON: {"schema": _reference("Error")}}}
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": " ".join(sections["Summary"]),
        "responses": responses,
    }
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        schema = route.body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[route.body.__name__] = schema
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": _reference(route.body.__name__)}}}
    return operation


def _entries(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, _, meaning = line.partition(": ")
        yield name, meaning


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
