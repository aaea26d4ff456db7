"""Configured names that no server has are reported, more severely if they were meant to hide."""

from typing import Any

from registry.catalog.listing import (
    HIDES_NOTHING,
    NO_SUCH_TOOL,
    SELECTS_NOTHING,
    ServerListing,
    suggestion_for,
    unmatched_names,
)
from registry.catalog.names import ServerName
from registry.catalog.overrides import DocumentedArgument, ToolOverride
from registry.catalog.shape import NameFilter, ServerShape
from registry.intake.issues import ItemIssue

HELD_BACK = ItemIssue(tool="odd", code="x", detail="y")


def listing(**members: Any) -> ServerListing:
    given: dict[str, Any] = {
        "tools": ({"name": "delete_file"}, {"name": "read_file"}),
        "prompts": ({"name": "summary"},),
        "resources": ({"uri": "file:///notes"},),
        "quarantined": (HELD_BACK,),
        **members,
    }
    return ServerListing(server=ServerName("s"), epoch=1, **given)


def codes(shape: ServerShape, **members: Any) -> dict[str, str]:
    return {issue.tool: issue.code for issue in unmatched_names(listing(**members), shape)}


def everywhere(*deny: str) -> ServerShape:
    one = NameFilter(deny=deny)
    return ServerShape(tools=one, prompts=one, resources=one)


def test_unmatched_hidden_name_is_distinguished_from_unmatched_documentation() -> None:
    shape = ServerShape(named=frozenset({"delete_fil", "raed", "read_file", "odd"}), hidden=frozenset({"delete_fil"}))
    assert codes(shape) == {"delete_fil": HIDES_NOTHING, "raed": NO_SUCH_TOOL}
    hidden, _ = unmatched_names(listing(), shape)
    assert hidden.detail.endswith("; did you mean delete_file?")


def test_unmatched_denied_name_is_an_error_and_unmatched_pattern_a_warning() -> None:
    found = codes(everywhere("delete_fil", "drop_*", "delete_*", "summary", "file:///*", "gone://x"))
    assert found == {"delete_fil": HIDES_NOTHING, "drop_*": SELECTS_NOTHING}


def test_unmatched_allow_pattern_is_a_warning() -> None:
    assert codes(ServerShape(tools=NameFilter(("read_*", "raed_*")))) == {"raed_*": SELECTS_NOTHING}


def test_default_for_an_unknown_parameter_is_reported() -> None:
    zoned = {"name": "events", "inputSchema": {"properties": {"timeZone": {"type": "string"}}}}
    shape = ServerShape(defaults={"timeZone": "UTC", "timezon": "UTC", "limit": 5})
    issues = {issue.tool: issue.detail for issue in unmatched_names(listing(tools=(zoned,), quarantined=()), shape)}
    assert issues == {
        "timezon": "defaults: no tool of this server has a parameter timezon; did you mean timeZone?",
        "limit": "defaults: no tool of this server has a parameter limit",
    }
    documented = ToolOverride(arguments=(DocumentedArgument(name="limit", type="integer"),))
    shape = ServerShape(defaults={"limit": 5}, overrides={"events": documented}, named=frozenset({"events"}))
    assert codes(shape, tools=(zoned,), quarantined=()) == {}
    assert codes(ServerShape(defaults={"x": 1})) == {}, "the tool that is held back may have it"


def test_snapshot_reports_no_unmatched_names() -> None:
    assert codes(everywhere("gone"), origin="snapshot") == {}
    assert codes(ServerShape()) == {}


def test_suggestion_is_the_most_similar_name_or_nothing() -> None:
    assert suggestion_for("Bnak", ["bank", "calendar"]) == "; did you mean bank?"
    assert suggestion_for("zzz", ["bank"]) == ""
