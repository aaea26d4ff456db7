"""The JSON Schema Test Suite, which the source distribution of `jsonschema` ships, and the validators of clients."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.clients import installed

SUITE = "jsonschema==4.26.0"
TYPESCRIPT_2 = ("@modelcontextprotocol/client@2.4.0",)
# The folders of the suite, each with the URI that declares its draft.
DRAFTS: Mapping[str, str] = {
    "draft3": "http://json-schema.org/draft-03/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
# As many schemas as the suite has are compiled by each client in seconds.
_DEADLINE_S = 300


class Case(NamedTuple):
    """One schema with instances that are valid against it."""

    where: str
    schema: Any
    valid: list[Any]


def cases(draft: str) -> Iterator[Case]:
    """Yield the schemas of one draft, each declaring it; what cannot be had skips the test."""
    for path in sorted((_suite() / draft).rglob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            schema = group["schema"]
            if isinstance(schema, dict):
                schema = {"$schema": DRAFTS[draft], **schema}
            valid = [test["data"] for test in group["tests"] if test["valid"]]
            yield Case(f"{draft}/{path.name}: {group['description']}", schema, valid)


@functools.cache
def _suite() -> Path:
    def install(place: Path) -> None:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        try:
            subprocess.run(
                [*pip, "--no-binary", ":all:", SUITE], cwd=place, check=True, capture_output=True, timeout=300
            )
        except (subprocess.SubprocessError, OSError) as error:
            installed.missing(f"pip could not download {SUITE}: {error}")
        [archive] = place.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(place, filter="data")
        archive.unlink()

    [tests] = installed.kept("schema-suite", (SUITE,), install).glob("*/json/tests")
    return tests


def client_verdicts(client: str, given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what the validator of a client of the TypeScript SDK makes of schemas; see `validators.mjs`.

    Args:
        client: `1.x` or `2.x`.
        given: `original`, `repaired` and `instances` of each schema.
    """
    if client == "1.x":
        modules = installed.npm("typescript", installed.TYPESCRIPT_SDK)
        provider = "@modelcontextprotocol/sdk/validation/ajv"
    else:
        modules = installed.npm("typescript2", TYPESCRIPT_2)
        provider = "@modelcontextprotocol/client/validators/ajv"
    program = installed.beside(modules, Path(installed.__file__).parent / "validators.mjs")
    done = subprocess.run(
        [str(installed.node()), str(program), provider],
        input=json.dumps(list(given)),
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
