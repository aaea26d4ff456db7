"""Schemas from files: SDL or JSON, and whatever else a file may hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from graphql import build_schema, introspection_from_schema, print_schema

from gateway.upstream.graphql.exploring import payload_of
from gateway.upstream.graphql.folder import FilesUnusable, read_folder
from gateway.upstream.graphql.schema import load_schema, read_schema_file

SDL = """
"A number." scalar N @specifiedBy(url: "http://n.test")
input I @oneOf { a: N b: Int }
type Query { a(i: I = {b: 1}): Int }
"""


def test_a_schema_is_the_same_from_sdl_and_from_both_forms_of_introspection() -> None:
    schema = build_schema(SDL)
    found = introspection_from_schema(schema)
    texts = [SDL, json.dumps(found), "\n " + json.dumps({"data": found, "extensions": {}}), "\ufeff" + SDL]
    for text in texts:
        assert print_schema(load_schema(text.encode(), "s")) == print_schema(schema)


@pytest.mark.parametrize(
    ("text", "told"),
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
def test_a_file_that_is_no_schema_is_refused_in_one_line(text: str, told: str) -> None:
    with pytest.raises(FilesUnusable, match=told) as caught:
        load_schema(text.encode(), "s")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_bytes_that_are_no_text_and_files_that_are_none_are_refused(tmp_path: Path) -> None:
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


def test_directives_that_a_schema_uses_and_does_not_define_are_let_pass() -> None:
    schema = load_schema(b'extend schema @link(url: "x") type Query @key(fields: "a") { a: Int @shareable }', "s")
    assert schema.query_type is not None


def test_a_folder_is_read_in_order_within_bounds_and_without_what_is_hidden(tmp_path: Path) -> None:
    for name in ("b.graphql", "a.gql", "c/d/e.graphql", ".x.graphql", ".git/y.graphql", "f.json", "g.GRAPHQL"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "dangling.graphql").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "directory.graphql").mkdir()
    files = {one.name: one for one in read_folder(tmp_path)}
    assert list(files) == ["a.gql", "b.graphql", "c/d/e.graphql", "dangling.graphql", "directory.graphql"]
    assert files["c/d/e.graphql"].data == b"c/d/e.graphql"
    assert files["directory.graphql"].refused == "no ordinary file"
    assert "No such file" in (files["dangling.graphql"].refused or "")
    with pytest.raises(FilesUnusable, match="Not a directory"):
        read_folder(tmp_path / "b.graphql")


def test_a_document_of_a_caller_is_looked_at_before_it_is_sent() -> None:
    assert payload_of({"query": "{ a }"}, exclude_mutations=True) == {"query": "{ a }", "variables": {}}
    for query in ("fragment A on B { c }", "type A { b: Int }", "", "{ a " * 20_000, "\ud800"):
        assert isinstance(payload_of({"query": query}, exclude_mutations=False), str)
