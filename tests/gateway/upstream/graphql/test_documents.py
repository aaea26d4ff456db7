"""Parsing of GraphQL documents: everything except gateway directives is kept byte for byte."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from graphql import build_schema, parse, print_ast
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.graphql.documents import Document, FileRejected, Fragment, read_document
from gateway.upstream.graphql.operations import snake_case, tool_of

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("query", "mutation", "subscription", "fragment", "on", "true", "false", "null")
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)
GAPS = st.sampled_from([" ", "\n", "\r\n", "\t ", " , ", ' # ünd \U0001f600 "so\n', "\ufeff ", "  "])
TYPES = st.sampled_from(["Int", "Int!", "[String!]!", "[[Boolean]]", "Custom"])
DEFAULTS = st.sampled_from(["", " = 5", '="a # b"', ' = """x\n """', " = [1, {a: $x}]".replace("$x", "E"), "=NAME"])
OTHERS = st.sampled_from(["", " @live", '@other(a: "@mcpTool(name: \\"x\\")")', "@deprecated @x(y: [1])"])

# A piece of text, and whether it is ours.
Piece = tuple[str, bool]


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@st.composite
def strings(draw: st.DrawFn) -> str:
    text = draw(TEXTS)
    if draw(st.booleans()):
        return quoted(text)
    return '"""' + text.replace('"', "'").replace("\\", "/") + '\n second """'


@st.composite
def documents(draw: st.DrawFn) -> list[Piece]:
    """A document as pieces in order."""
    pieces: list[Piece] = []

    def put(*texts: str, ours: bool = False) -> None:
        pieces.extend((text, ours) for text in texts)

    def maybe_described() -> None:
        if draw(st.booleans()):
            put(draw(strings()), ours=True)
            put(draw(GAPS))

    def fragment(name: str) -> None:
        maybe_described()
        put("fragment", draw(GAPS), name, draw(GAPS), "on T ", draw(OTHERS), "{ b }", draw(GAPS))

    put(draw(st.sampled_from(["", "# first\n", "\r\n"])))
    if draw(st.booleans()):
        fragment("First")
    maybe_described()
    put(draw(st.sampled_from(["query", "mutation"])), " ", draw(NAMES), draw(st.sampled_from(["", " ", "\n"])))
    variables = draw(st.lists(NAMES, max_size=4, unique=True))
    if variables:
        put("(")
        for name in variables:
            maybe_described()
            put(f"${name}", draw(GAPS), ":", draw(TYPES), draw(DEFAULTS), draw(OTHERS), draw(GAPS))
            if draw(st.booleans()):
                description = draw(st.sampled_from(['"said"', '"""\n  said "so"\n"""', '"\\u0041"']))
                put(f"@mcpToolArg{draw(GAPS)}(description:{draw(GAPS)}{description})", ours=True)
                put(draw(st.sampled_from(["", " ", "@more"])))
            put(draw(st.sampled_from(["", ",", "\n"])))
        put(")")
    put(draw(OTHERS))
    if draw(st.booleans()):
        put('@mcpTool(name:"tool")', ours=True)
    put(
        draw(OTHERS),
        draw(GAPS),
        '{ a(x: "@mcpTool", y: """ "quoted" @mcpToolArg(description: "z") """) @include(if: $x) }',
    )
    if draw(st.booleans()):
        put("\n")
        fragment("Last")
    return pieces


def text_of(pieces: Sequence[Piece], *, ours: bool) -> str:
    return "".join(text for text, is_ours in pieces if ours or not is_ours)


@given(documents())
def test_sent_document_is_the_file_without_gateway_directives(pieces: list[Piece]) -> None:
    text = text_of(pieces, ours=True)
    parse(text)
    document = read_document("a.graphql", text.encode())
    assert document.sent == text_of(pieces, ours=False)
    # And it reads the same to a server as what was validated here.
    assert print_ast(parse(document.sent)) == print_ast(document.node)
    for fragment in document.fragments.values():
        assert fragment.text in document.sent
        assert print_ast(parse(fragment.text)) == print_ast(fragment.node)


@given(documents())
def test_document_without_gateway_directives_is_sent_unchanged(pieces: list[Piece]) -> None:
    text = text_of(pieces, ours=False).removeprefix("\ufeff")
    assert read_document("a.graphql", text.encode()).sent == text
    # A byte order mark stays as well: endpoints that know their documents compare every byte.
    assert read_document("a.graphql", b"\xef\xbb\xbf" + text.encode()).sent == "\ufeff" + text


@given(st.binary(max_size=200))
def test_any_bytes_are_a_document_or_refused_with_a_location(data: bytes) -> None:
    refused = refusal_of(data)
    if refused is not None:
        assert refused.place.startswith("a.graphql:")
        assert len(refused.finding("a.graphql").detail) <= 300


def refusal_of(data: bytes) -> FileRejected | None:
    try:
        read_document("a.graphql", data)
    except FileRejected as refused:
        return refused
    return None


@given(st.from_regex(r"[_A-Za-z][_0-9A-Za-z]{0,40}", fullmatch=True))
def test_snake_case_keeps_letters_and_is_idempotent(name: str) -> None:
    snake = snake_case(name)
    assert snake.replace("_", "") == name.replace("_", "").lower()
    assert snake == snake.lower()
    assert snake_case(snake) == snake


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("GetEmployee", "get_employee"),
        ("getHTTPServer2Names", "get_http_server2_names"),
        ("userIDs", "user_ids"),
        ("UserID", "user_id"),
        ("already_snake", "already_snake"),
        ("Mixed_CaseName", "mixed_case_name"),
        ("_Private__Thing", "_private__thing"),
        ("A", "a"),
        ("ABC", "abc"),
    ],
)
def test_operation_names_become_snake_case(name: str, snake: str) -> None:
    assert snake_case(name) == snake


SCHEMA = build_schema("type T { b: Int t: T } type Query { a(x: String, y: String): Int t: T }")


def document(text: str, file: str = "a.graphql") -> Document:
    return read_document(file, text.encode())


def shared(**fragments: str) -> dict[str, Fragment]:
    found: dict[str, Fragment] = {}
    for name, text in fragments.items():
        found |= document(text, f"{name}.graphql").fragments
    return found


def test_fragments_of_other_files_are_included_and_cycles_refused() -> None:
    one = shared(x="fragment A on T { t { ...B } } fragment B on T { b } fragment Unused on T { nothing }")
    tool = tool_of(document("{ t { ...A } }"), SCHEMA, one)
    assert tool.text == "{ t { ...A } }\n\nfragment A on T { t { ...B } }\n\nfragment B on T { b }"
    circle = shared(x="fragment A on T { t { ...B } }\nfragment B on T { t { ...A } }")
    with pytest.raises(FileRejected, match=r"x\.graphql:1:23: Cannot spread fragment 'A' within itself"):
        tool_of(document("{ t { ...A } }"), SCHEMA, circle)
    with pytest.raises(FileRejected, match=r"a\.graphql:1:10: Unknown fragment 'C'"):
        tool_of(document("{ t { ...C } }"), SCHEMA, one)


def test_file_of_fragments_has_no_operation() -> None:
    assert document("fragment A on T { b }").operation is None


def test_operation_type_missing_from_the_schema_is_refused() -> None:
    with pytest.raises(FileRejected, match=r"a\.graphql:1:1: the schema has no mutation type"):
        tool_of(document("mutation { a }"), SCHEMA, {})


def test_error_location_refers_to_the_original_file() -> None:
    text = '"""\r\ntold\r\n"""\r\nquery A @mcpTool(name: "ä") {\r\n  t { wrong }\r\n}'
    with pytest.raises(FileRejected, match=r"a\.graphql:5:7: Cannot query field 'wrong'"):
        tool_of(document(text), SCHEMA, {})
