"""GraphQL schemas from files: SDL, introspection JSON, and invalid content."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from graphql import build_schema, introspection_from_schema, print_schema
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.gateway_errors import GatewayError
from gateway.upstream.graphql.documents import FileRejected, read_document
from gateway.upstream.graphql.folder import FilesUnusable, read_folder
from gateway.upstream.graphql.graphql_schema import (
    get_schema_result,
    load_introspection,
    load_schema,
    payload_of,
    read_schema_file,
)
from gateway.upstream.graphql.operations import Operation
from gateway.upstream.graphql.tool_set import make_operation
from registry.intake.tool_intake import admit_tools

SDL = """
"A number." scalar N @specifiedBy(url: "http://n.test")
input I @oneOf { a: N b: Int }
type Query { a(i: I = {b: 1}): Int }
"""


def test_sdl_and_introspection_yield_the_same_schema() -> None:
    schema = build_schema(SDL)
    found = introspection_from_schema(schema)
    texts = [SDL, json.dumps(found), "\n " + json.dumps({"data": found, "extensions": {}}), "\ufeff" + SDL]
    for text in texts:
        assert print_schema(load_schema(text.encode(), "s")) == print_schema(schema)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("type Query {", r"s:1:13: Expected Name, found <EOF>"),
        ("type Query { a: Missing }", "Missing"),
        ("{", "JSON"),
        ('{"data": {}}', "no __schema"),
        ('{"__schema": {"types": 5}}', "s: "),
        ('{"a": ' + "[" * 100_000, "s: "),
        ("query { a }", "no type Query"),
        ("", "s:1:1"),
        ("type Query { a: " + "[" * 10_000, "nested too deeply"),
    ],
)
def test_file_that_is_not_a_schema_is_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(FilesUnusable, match=reason) as caught:
        load_schema(text.encode(), "s")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_invalid_utf_8_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FilesUnusable, match="not UTF-8"):
        load_schema(b"\xff\xfe", "s")
    with pytest.raises(FilesUnusable, match="there is no such file"):
        read_schema_file(tmp_path / "none")
    with pytest.raises(FilesUnusable, match="there is no such file"):
        read_schema_file(tmp_path)
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(17 * 1024 * 1024)
    with pytest.raises(FilesUnusable, match="more than 16777216 bytes"):
        read_schema_file(big)


def test_undefined_directives_in_a_schema_are_ignored() -> None:
    schema = load_schema(b'extend schema @link(url: "x") type Query @key(fields: "a") { a: Int @shareable }', "s")
    assert schema.query_type is not None


def test_folder_is_read_in_order_within_bounds_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.graphql", "a.gql", "c/d/e.graphql", ".x.graphql", ".git/y.graphql", "f.json", "g.GRAPHQL"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "dangling.graphql").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "directory.graphql").mkdir()
    files = {one.name: one for one in read_folder(tmp_path)}
    assert list(files) == ["a.gql", "b.graphql", "c/d/e.graphql", "dangling.graphql", "directory.graphql"]
    assert files["c/d/e.graphql"].data == b"c/d/e.graphql"
    assert files["directory.graphql"].refused == "not a regular file"
    assert "No such file" in (files["dangling.graphql"].refused or "")
    with pytest.raises(FilesUnusable, match="Not a directory"):
        read_folder(tmp_path / "b.graphql")


@pytest.mark.heavy
def test_files_beyond_ten_thousand_are_reported(tmp_path: Path) -> None:
    for number in range(10_005):
        (tmp_path / f"{number:05}.gql").touch()
    files = read_folder(tmp_path)
    assert [one.name for one in files[9_999:]] == ["09999.gql", "(folder)"]
    assert "more than 10000 files" in (files[-1].refused or "")


def test_caller_document_is_checked_before_it_is_sent() -> None:
    assert payload_of({"query": "{ a }"}, exclude_mutations=True) == {"query": "{ a }", "variables": {}}
    for query in ("fragment A on B { c }", "type A { b: Int }", "", "{ a " * 20_000, "\ud800"):
        assert isinstance(payload_of({"query": query}, exclude_mutations=False), str)


ODD_VALUES = st.sampled_from(
    [None, 5, "Int", "Missing", "OBJECT", "", [], {}, [None], {"kind": "LIST"}, "__x", True, "[["]
)
DOCUMENT = read_document(
    "a.graphql", b"query A($i: I, $n: [N!]) { a(i: $i) b: a(i: {a: $n}) ... on Query { c { d { a } } } }"
)
WIDE = SDL.replace(
    "type Query {", "interface D { a: Int } type C implements D { a: Int d: D } union U = C type Query { c: C u: U"
)


@given(
    st.lists(st.tuples(st.integers(0, 10_000), ODD_VALUES), min_size=1, max_size=3), st.sampled_from(["I", "C", "U"])
)
def test_invalid_part_of_a_schema_affects_only_what_uses_it(changes: list[tuple[int, Any]], name: str) -> None:
    found: Any = introspection_from_schema(build_schema(WIDE))
    for place, value in changes:
        holders: list[Any] = [found["__schema"]]
        for one in holders:
            below = one.values() if isinstance(one, dict) else one
            holders += [child for child in below if isinstance(child, dict | list) and child]
        holder = holders[place % len(holders)]
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        # A copy: one value in two places could hold itself.
        holder[keys[place % len(keys)]] = deepcopy(value)
    schema = loaded({"data": found})
    if schema is None:
        return
    made = make_operation(DOCUMENT, schema, {})
    assert isinstance(made, Operation | FileRejected)
    if isinstance(made, Operation):
        admit_tools([made.definition], transport="http")
    for arguments in ({}, {"type": name}):
        assert get_schema_result(schema, arguments)["content"]


def loaded(found: Any) -> Any:
    try:
        return load_introspection(json.dumps(found).encode())
    except GatewayError:
        return None


SUBGRAPH = """
extend schema @link(url: "https://specs.example.test/federation/v2.3", import: ["@key"])
directive @tag(name: String!) on FIELD_DEFINITION
type Product @key(fields: "id") { id: ID! name: String @shareable made: Date }
extend type Query { product(id: ID!): Product _entities(representations: [_Any!]!): [_Entity]! }
extend type Query { more(filter: Filter, by: Order): Thing }
extend type Mutation { rename(id: ID!, name: String!): Product }
extend union Found = Product | Other
type Shelf implements Node { id: ID! found: Found }
extend enum Order { UP DOWN }
extend input Filter { text: String order: Order }
"""


@pytest.mark.parametrize(
    ("sdl", "document"),
    [
        (SUBGRAPH, "query A($id: ID!) { product(id: $id) { id made } }"),
        (SUBGRAPH, "query A($r: [_Any!]!) { _entities(representations: $r) { ... on Product { name } } }"),
        (SUBGRAPH, "query A($f: Filter, $o: Order) { more(filter: $f, by: $o) }"),
        (SUBGRAPH, 'mutation A { rename(id: 1, name: "x") { id } }'),
        ("extend schema { query: Root } type Root { a: Int }", "{ a }"),
        ("schema { query: Root } extend type Root { a: Int }", "{ a }"),
        ("extend type Mutation { a: Int }", "mutation A { a }"),
        ("type Query { a(any: _Any): Int b: federation__FieldSet }", "query A($any: _Any) { a(any: $any) b }"),
    ],
)
def test_subgraph_schema_is_sufficient(sdl: str, document: str) -> None:
    made = make_operation(read_document("a.graphql", document.encode()), load_schema(sdl.encode(), "s"), {})
    assert isinstance(made, Operation), made


def test_descriptions_and_deprecations_reach_the_model() -> None:
    schema = load_schema(
        b"""
        "A colour." enum Color { "Like fire." RED  GREEN @deprecated(reason: "use BLUE") BLUE }
        input Filter { color: Color = RED  old: Int @deprecated(reason: "use color")  "Around it." frame: Color! }
        type Result { size: Int @deprecated(reason: "use width") width: Int }
        type Query {
          find(filter: Filter, color: Color, colors: [Color], deep: Int @deprecated(reason: "no")): Result
        }
        """,
        "s",
    )
    variables = "$f: Filter, $c: Color!, $cs: [Color], $d: Int"
    text = f"query A({variables}) {{ find(filter: $f, color: $c, colors: $cs, deep: $d) {{ size }} }}"
    made = make_operation(read_document("a.graphql", text.encode()), schema, {})
    assert isinstance(made, Operation)
    assert made.definition["description"].endswith("\nDeprecated field size: use width")
    found = made.definition["inputSchema"]["properties"]
    values = "- RED: Like fire.\n- GREEN: Deprecated: use BLUE"
    assert found["c"]["description"] == f"A colour.\n\n{values}"
    assert found["cs"]["items"]["description"] == f"A colour.\n\n{values}"
    assert (found["d"]["description"], found["d"]["deprecated"]) == ("Deprecated: no", True)
    members = found["f"]["properties"]
    assert members["frame"]["description"] == f"Around it.\n\n{values}"
    assert (members["old"]["description"], members["old"]["deprecated"]) == ("Deprecated: use color", True)
