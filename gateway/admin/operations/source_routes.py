"""`/admin/proposals`: what a server of a registry or a package would be added as."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.documents import JsonDocument, Refusal, read_body
from gateway.admin.routes import Merge, route
from gateway.config.section import Section
from gateway.server_sources.mcp_registry import registry_proposal
from gateway.server_sources.packages import npm_proposal, pypi_proposal
from gateway.server_sources.proposal import Proposal, SeveralFound, SourceRefused

# Nobody reads on: another word finds better.
_MAX_CHOICES: Final = 30


class ProposalRequest(Section):
    """The body of `POST /admin/proposals`."""

    what: str = Field(min_length=1, max_length=300, examples=["com.example/calendar"])
    """A name in the MCP registry, or a word of one; npm:PACKAGE or pypi:PACKAGE."""


class SourceRoutes:
    """Looks servers up where they are published."""

    @route(
        "POST",
        "/admin/proposals",
        merge=Merge.HERE,
        recorded=False,
        body=ProposalRequest,
        example={
            "alias": "calendar", "origin": "npm calendar 1.0.0", "warnings": [],
            "config": {"command": "npx", "args": ["-y", "calendar@1.0.0"], "env": {"KEY": "${KEY}"}},
            "inputs": [{"name": "KEY", "about": "Of the calendar", "secret": True, "required": True, "default": None}],
            "choices": [],
        },
    )  # fmt: skip
    async def propose_server(self, request: Request) -> Response:
        """Look up a server, in its exact version. Nothing is added.

        Returns:
            `alias`, `origin`, `config` with `${NAME}` for each of the `inputs`, and `warnings`. Where a word means
            several servers, only `choices`: name and about of each.

        Errors:
            400: The body is wrong.
            409: There is no such server, it was deleted, or it cannot be run from here; the reason is in `error`.
        """
        wanted = await read_body(request, ProposalRequest)
        try:
            found = await anyio.to_thread.run_sync(partial(_proposal, wanted.what), abandon_on_cancel=True)
        except SeveralFound as error:
            choices = [{"name": name, "about": about} for name, about in error.choices.items()]
            return JsonDocument({"choices": choices[:_MAX_CHOICES]})
        except SourceRefused as error:
            raise Refusal(409, str(error)) from None
        inputs: list[dict[str, Any]] = [
            {
                "name": one.name, "about": one.about, "secret": one.secret, "required": one.required,
                "default": one.default,
            }
            for one in found.inputs
        ]  # fmt: skip
        return JsonDocument(
            {
                "alias": found.alias,
                "origin": found.origin,
                "config": found.entry,
                "inputs": inputs,
                "warnings": found.warnings,
                "choices": [],
            }
        )


def _proposal(what: str) -> Proposal:
    kind, _, rest = what.partition(":")
    if kind in ("npm", "pypi") and rest:
        return npm_proposal(rest, []) if kind == "npm" else pypi_proposal(rest, [])
    return registry_proposal(what, base=None, arguments=[], bundle_dir=_no_bundles)


def _no_bundles() -> Path:
    raise SourceRefused("it is a bundle, which is unpacked by `typegate add` on the gateway's machine")
