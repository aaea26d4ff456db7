"""Starts the pet shop for a test: its document, an entry for the configuration, and a gateway before it."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.gateways import RunningGateway, running_gateway
from support.upstreams.running import kill_and_wait, listening

_PROGRAM = Path(__file__).parent / "api_server.py"
PET = {"$ref": "#/components/schemas/Pet"}


def parameter(name: str, place: str, kind: Any = "string", **more: Any) -> dict[str, Any]:
    """Return a parameter object; a path parameter is required."""
    schema = kind if isinstance(kind, dict) else {"type": kind}
    required = {"required": True} if place == "path" else {}
    return {"name": name, "in": place, "schema": schema, **required, **more}


def operation(name: str, *parameters: dict[str, Any], result: Any = None, **more: Any) -> dict[str, Any]:
    """Return an operation object with a JSON response of this schema."""
    content = {"content": {"application/json": {"schema": result}}} if result is not None else {}
    return {
        "operationId": name,
        "parameters": list(parameters),
        "responses": {"200": {"description": "ok", **content}},
        **more,
    }


def answer_operation(kind: str, media_type: str, **more: Any) -> dict[str, Any]:
    """Return an operation whose response is not of the media type JSON, or not as it declares."""
    content = {media_type: {"schema": more.pop("schema", {"type": "string"})}}
    return {"operationId": kind, "responses": {"200": {"description": "ok", "content": content}}, **more}


def pet_shop() -> dict[str, Any]:
    """Return a new copy of the document of the pet shop."""
    body = {"required": True, "content": {"application/json": {"schema": PET}}}
    document: dict[str, Any] = {
        "openapi": "3.0.3",
        "info": {"title": "Pet shop", "version": "1.2", "description": "Sells pets."},
        "paths": {
            "/pets": {
                "get": operation(
                    "listPets",
                    parameter("limit", "query", {"type": "integer", "minimum": 0, "exclusiveMinimum": True}),
                    result={"type": "array", "items": PET},
                    summary="List the pets",
                    tags=["pets"],
                ),
                "post": operation("createPet", result=PET, requestBody=body, tags=["pets"]),
            },
            "/pets/{id}": {
                "parameters": [parameter("id", "path", "integer", description="The number of the pet.")],
                "get": operation("getPet", result=PET, tags=["pets"]),
                "delete": {"operationId": "deletePet", "responses": {"204": {"description": "gone"}}},
            },
            "/private": {"get": operation("getSecret", result={"type": "object"}, tags=["secret"])},
            "/answers/photo": {"get": answer_operation("photo", "image/png")},
            "/answers/report": {"get": answer_operation("report", "text/csv")},
            "/answers/limited": {"get": answer_operation("limited", "application/json", schema={})},
            "/answers/broken": {"get": answer_operation("broken", "application/json", schema={})},
            "/answers/lying": {"get": answer_operation("lying", "application/json", schema=PET)},
            "/answers/cut": {"get": answer_operation("cut", "application/json", schema={})},
            "/answers/huge": {"get": answer_operation("huge", "application/json", schema={})},
            "/answers/away": {"get": operation("away", parameter("to", "query", required=True))},
        },
        "components": {
            "schemas": {
                "Pet": {
                    "type": "object",
                    "required": ["id", "name"],
                    "properties": {
                        "id": {"type": "integer", "readOnly": True},
                        "name": {"type": "string"},
                        "pin": {"type": "string", "writeOnly": True},
                        "parent": {"nullable": True, "allOf": [PET]},
                    },
                }
            }
        },
    }
    return document


@dataclass(slots=True, kw_only=True)
class ApiService:
    """The running pet shop.

    Attributes:
        origin: The URL of the service, without a path.
        document: The file that `/openapi.json` returns.
    """

    origin: str
    document: Path = field(repr=False)

    def entry(self, **more: Any) -> dict[str, Any]:
        """Return the entry for `mcpServers`, with the document as a file."""
        return {"spec": str(self.document), "baseUrl": self.origin, **more}

    def write(self, document: dict[str, Any] | str) -> None:
        """Replace the document, as an editor does."""
        draft = self.document.with_suffix(".draft")
        draft.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        draft.replace(self.document)


@asynccontextmanager
async def api_service(tmp_path: Path, document: dict[str, Any] | None = None) -> AsyncIterator[ApiService]:
    """Run the pet shop for as long as the block lasts."""
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(pet_shop() if document is None else document), encoding="utf-8")
    process, port = await listening([sys.executable, str(_PROGRAM), "--document", str(file)])
    try:
        yield ApiService(origin=f"http://127.0.0.1:{port}", document=file)
    finally:
        await kill_and_wait(process)


@asynccontextmanager
async def api_gateway(
    tmp_path: Path, document: dict[str, Any] | None = None, /, *, gateway: dict[str, Any] | None = None, **entry: Any
) -> AsyncIterator[tuple[ApiService, RunningGateway]]:
    """Run the pet shop, and a gateway that has it as `shop`, with these keys in its entry."""
    async with (
        api_service(tmp_path, document) as service,
        running_gateway(tmp_path, {"shop": service.entry(**entry)}, gateway=gateway) as running,
    ):
        yield service, running
