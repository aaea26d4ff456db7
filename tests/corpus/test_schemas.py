"""No schema of the JSON Schema Test Suite or of a real server rejects a valid instance or breaks a list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest
from corpus import servers
from corpus.schema_suite import DRAFTS, Case, cases, client_verdicts
from jsonschema.validators import validator_for

from registry.arguments.prepare import prepare
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import ServerName, ToolName, WrapperName
from registry.intake.tool_intake import admit_tools
from registry.schema import schemas
from registry.schema.references import draft_of

# The drafts that servers declare, in the default tests; the heavy ones have all.
COMMON = ("draft7", "draft2020-12")


def admitted(**members: Any) -> Mapping[str, Any]:
    found = admit_tools([{"name": "t", "description": "A tool.", **members}], transport="stdio")
    [definition] = found.items
    return definition


def refusals(case: Case) -> Iterator[str]:
    """Yield the valid instances that a call of a tool with this input schema could not send."""
    for schema, instances in (
        (case.schema, [instance for instance in case.valid if isinstance(instance, dict)]),
        ({"type": "object", "properties": {"value": case.schema}}, [{"value": instance} for instance in case.valid]),
    ):
        if isinstance(case.schema, dict) and draft_of(case.schema["$schema"]) is None:
            continue  # its dialect is described elsewhere, and may leave out any keyword
        refers = re.search("[$](ref|recursiveRef|dynamicRef)", str(case.schema))
        if schema is not case.schema and (not isinstance(case.schema, dict) or refers):
            continue  # a reference to the root would change its meaning
        if schema is not case.schema:
            schema = {"$schema": case.schema["$schema"], **schema}
        definition = admitted(inputSchema=schema)
        shown = definition["inputSchema"]
        wrapper = ToolWrapper(
            name=WrapperName("s__t"), server=ServerName("s"), tool=ToolName("t"), definition=definition, digest="",
            schema_digest=schemas.digest(shown),
        )  # fmt: skip
        for instance in instances:
            prepared = prepare(wrapper, instance, level="off")
            if prepared.problems or prepared.arguments != instance:
                yield f"{case.where}: {instance!r}: {prepared.problems}"


def output_forms(found: list[Case]) -> list[tuple[Case, Any]]:
    forms = []
    for case in found:
        definition = admitted(inputSchema={"type": "object"}, outputSchema=case.schema)
        if "outputSchema" in definition:
            forms.append((case, definition["outputSchema"]))
    return forms


def wrong_for_typescript(forms: list[tuple[Case, Any]], client: str) -> list[str]:
    given = [{"original": case.schema, "repaired": shown, "instances": case.valid} for case, shown in forms]
    verdicts = client_verdicts(client, given)
    return [f"{case.where}: {one}" for (case, _), one in zip(forms, verdicts, strict=True) if one]


def wrong_for_python(forms: list[tuple[Case, Any]]) -> Iterator[str]:
    """Yield the schemas that the Python SDK cannot use, and the valid instances that it refuses by the repaired one."""
    for case, shown in forms:
        try:
            validator_for(shown).check_schema(shown)
        except jsonschema.SchemaError as error:
            yield f"{case.where}: {error.message}"
            continue
        for instance in case.valid:
            if _accepts(case.schema, instance) and not _accepts(shown, instance):
                yield f"{case.where}: {instance!r}"


def _accepts(schema: Any, instance: Any) -> bool:
    try:
        jsonschema.validate(instance, schema)
    except Exception:  # noqa: BLE001 - whatever is wrong, the client has no result
        return False
    return True


def check_suite(drafts: tuple[str, ...]) -> None:
    found = [case for draft in drafts for case in cases(draft)]
    assert len(found) > 200 * len(drafts)
    assert [line for case in found for line in refusals(case)] == []
    forms = output_forms([case for case in found if isinstance(case.schema, dict)])
    assert wrong_for_typescript(forms, "1.x") == []
    assert wrong_for_typescript(forms, "2.x") == []
    assert list(wrong_for_python(forms)) == []


@pytest.mark.heavy
def test_test_suite_schemas_of_common_drafts_pass() -> None:
    check_suite(COMMON)


@pytest.mark.heavy
def test_test_suite_schemas_of_every_draft_pass() -> None:
    check_suite(tuple(DRAFTS))


@pytest.mark.heavy
def test_schemas_of_real_servers_pass_as_input_and_output() -> None:
    found = [
        Case(f"{server}/{tool['name']}/{member}", tool[member], [])
        for server, tools in servers.listings().items()
        for tool in tools
        for member in ("inputSchema", "outputSchema")
        if isinstance(tool.get(member), dict)
    ]
    assert len(found) > 100
    for case in found:
        shown = admitted(inputSchema=case.schema)["inputSchema"]
        assert shown.get("properties", {}).keys() == case.schema.get("properties", {}).keys()
    forms = output_forms(found)
    assert len(forms) == len(found)
    assert wrong_for_typescript(forms, "1.x") == []
    assert wrong_for_typescript(forms, "2.x") == []
    assert list(wrong_for_python(forms)) == []
