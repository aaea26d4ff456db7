"""A pet shop as an HTTP API, run as a program: `api_server.py --port 0 --document openapi.json`.

`/openapi.json` is the document as the file says now. `/echo` returns the request as it arrived. `/private` wants the
token "right". The port is printed on standard output.
"""

from __future__ import annotations

import argparse
import base64
import json
import socket
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

PIXEL = b"\x89PNG\r\n\x1a\n and whatever follows"
PETS: dict[int, dict[str, Any]] = {
    1: {"id": 1, "name": "Rex", "parent": None},
    2: {"id": 2, "name": "Zoë", "parent": {"id": 1, "name": "Rex", "parent": None}},
}
DOCUMENT = Path()
DOCUMENT_REQUESTS: list[str] = []


def document(request: Request) -> Response:
    """Return the file, which a test may change."""
    DOCUMENT_REQUESTS.append(request.url.path)
    return Response(DOCUMENT.read_bytes(), media_type="application/json")


async def echo(request: Request) -> Response:
    """Return what arrived, byte for byte where it matters."""
    path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    return JSONResponse(
        {
            "method": request.method,
            "target": f"{path}?{query}" if query else path,
            "headers": dict(request.headers),
            "body": base64.b64encode(await request.body()).decode(),
        }
    )


async def list_pets(request: Request) -> Response:
    """Return a page of pets."""
    limit = int(request.query_params.get("limit", "10"))
    links = {"link": f'<{request.url.include_query_params(page=2)}>; rel="next"', "x-total-count": str(len(PETS))}
    return JSONResponse(list(PETS.values())[:limit], headers=links)


async def create_pet(request: Request) -> Response:
    """Add a pet; a name that is taken is an error in the form of FastAPI."""
    given = await request.json()
    if any(pet["name"] == given["name"] for pet in PETS.values()):
        return JSONResponse({"detail": [{"loc": ["body", "name"], "msg": "this name is taken", "type": "taken"}]}, 422)
    pet = {"id": max(PETS) + 1, "name": given["name"], "parent": None}
    PETS[pet["id"]] = pet
    return JSONResponse(pet, 201, headers={"location": f"/pets/{pet['id']}"})


async def get_pet(request: Request) -> Response:
    """Return one pet; a missing one causes an error in the form of RFC 9457."""
    pet = PETS.get(request.path_params["id"])
    if pet is None:
        problem = {"type": "about:blank", "title": "Not Found", "detail": "there is no such pet"}
        return JSONResponse(problem, 404, media_type="application/problem+json")
    return JSONResponse(pet)


async def delete_pet(request: Request) -> Response:
    """Remove a pet."""
    PETS.pop(request.path_params["id"], None)
    return Response(status_code=204)


async def private(request: Request) -> Response:
    """Want a token."""
    if request.headers.get("authorization") != "Bearer right":
        return JSONResponse({"message": "who are you?"}, 401, headers={"www-authenticate": "Bearer"})
    return JSONResponse({"secret": 42})


async def answer(request: Request) -> Response:
    """Return one of several answers that are not plain JSON."""
    match request.path_params["kind"]:
        case "photo":
            return Response(PIXEL, media_type="image/png")
        case "report":
            return PlainTextResponse("name;age\nZoë;3\n".encode("latin-1"), media_type="text/csv; charset=latin-1")
        case "sound":
            return Response(b"RIFF\0", media_type="audio/wav")
        case "octets":
            return Response(b"\0\xff", media_type="application/octet-stream")
        case "feed":
            return Response("<feed>é</feed>".encode(), media_type="application/atom+xml")
        case "limited":
            return JSONResponse({"message": "slow down"}, 429, headers={"retry-after": "7"})
        case "broken":
            return PlainTextResponse("<html><style>p{}</style><h1>Oh no</h1></html>", 500, media_type="text/html")
        case "lying":
            return JSONResponse({"id": "not a number"})
        case "cut":
            return Response(b'{"id": 1', media_type="application/json")
        case "huge":
            return Response(b'"' + b"x" * 70_000_000 + b'"', media_type="application/json")
        case "documentRequests":
            return JSONResponse(len(DOCUMENT_REQUESTS))
    return RedirectResponse(request.query_params["to"], 302)


def main() -> None:
    """Serve until killed."""
    global DOCUMENT
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--document", type=Path, required=True)
    given = options.parse_args()
    DOCUMENT = given.document
    any_method = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
    app = Starlette(
        routes=[
            Route("/openapi.json", document),
            Route("/echo{rest:path}", echo, methods=any_method),
            Route("/pets", list_pets),
            Route("/pets", create_pet, methods=["POST"]),
            Route("/pets/{id:int}", get_pet),
            Route("/pets/{id:int}", delete_pet, methods=["DELETE"]),
            Route("/private", private),
            Route("/answers/{kind}", answer),
        ]
    )
    listener = socket.create_server(("127.0.0.1", given.port))
    print(json.dumps(listener.getsockname()[1]), flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off")).run(sockets=[listener])


if __name__ == "__main__":
    main()
