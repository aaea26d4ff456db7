"""The OpenAPI description of the admin API, generated from its routes.

Source: OpenAPI Specification 3.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gateway import __version__
from gateway.admin.routes import JSON, MAX_ROWS, AdminRoute
from gateway.config.section import add_descriptions

_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_ABOUT: Final = """\
Changes by administrators survive a restart: added and removed servers and keys, and disabled servers and tools, are
stored in an overlay over the configuration (`/admin/overlay`) and can be reverted. Notes, and approvals for longer than
one call, have files of their own or end with the process, as their routes say.
Every change in a browser session (`POST /admin/session`) needs the `Origin` of the page and an `X-CSRF-Token`.
Lists accept `limit` and `cursor`; unknown query parameters are refused.
"""
_NUMBERS: Final = {
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_ROWS, "examples": [100]},
    "cursor": {"type": "string", "pattern": "^[0-9]{1,9}$", "examples": ["0"]},
}
_USUAL: Final = (
    ("400", "A parameter is unknown, or the request cannot be read."),
    ("401", "The admin token is missing or wrong, or the session has ended."),
    ("403", "The role does not allow this, or a change in a browser session lacks its Origin or X-CSRF-Token."),
    ("429", "Too many log-ins from this address have failed."),
)
_TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string"}
_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "examples": ["there is no server 'calender'"]}},
}


def document(routes: Iterable[AdminRoute]) -> dict[str, Any]:
    """Return the OpenAPI description of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Error": _ERROR}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "typegate administration", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "security": [{"adminToken": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "adminToken": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "typegate_…"},
            },
        },
    }


def _operation(route: AdminRoute, schemas: dict[str, Any]) -> dict[str, Any]:
    sections = route.sections
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string"},
            "example": route.examples.get(name, "x"),
        }
        for name in _PARAMETER.findall(route.path)
    ]
    for name, meaning in _entries(sections.get("Query", [])):
        schema = _NUMBERS.get(name, {"type": "string"}) if route.rows is not None else {"type": "string"}
        parameters.append({"name": name, "in": "query", "description": meaning, "schema": schema})
    answer: dict[str, Any] = {"description": " ".join(sections["Returns"])}
    if route.example is not None:
        answer["content"] = {route.content: {"schema": _schema_of(route.example), "example": route.example}}
    responses = {str(route.status): answer}
    errors = dict(() if route.public else _USUAL)
    errors |= dict(_entries(sections.get("Errors", [])))
    errors.setdefault("400", _USUAL[0][1])
    for status, reason in sorted(errors.items()):
        example = {"error": reason[0].lower() + reason[1:].rstrip(".")}
        responses[status] = {
            "description": reason,
            "content": {JSON: {"schema": _reference("Error"), "example": example}},
        }
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "tags": [route.path.split("/")[2] or "page"] if route.path.count("/") > 1 else ["page"],
        "summary": sections["Summary"][0],
        "description": " ".join(sections["Summary"]),
        "x-role": route.role,
        "responses": responses,
    }
    if route.public:
        operation["security"] = []
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        schema = route.body.model_json_schema(ref_template="#/components/schemas/{model}")
        add_descriptions(schema)
        schemas.update(schema.pop("$defs", {}))
        schemas[route.body.__name__] = schema
        media = {"schema": _reference(route.body.__name__)}
        if example := _example_of(schema):
            media["example"] = example
        operation["requestBody"] = {"required": True, "content": {JSON: media}}
    return operation


def _schema_of(example: Any) -> dict[str, Any]:
    """Derive a schema from an example response; every member is optional and nullable."""
    match example:
        case dict():
            return {"type": "object", "properties": {name: _nullable(value) for name, value in example.items()}}
        case list():
            return {"type": "array", "items": _schema_of(example[0]) if example else {}}
        case _:
            return {"type": _TYPES[type(example)]} if example is not None else {}


def _nullable(example: Any) -> dict[str, Any]:
    schema = _schema_of(example)
    return {**schema, "type": [schema["type"], "null"]} if "type" in schema else schema


def _example_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an example body, composed of the examples of the schema's members."""
    return {
        name: member["examples"][0] for name, member in schema.get("properties", {}).items() if member.get("examples")
    }


def _entries(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, colon, meaning = line.partition(": ")
        if colon:
            yield name, meaning


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
