"""A denied URI is denied in every spelling that servers treat as equal."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.installed import node

from registry.catalog.uris import MAX_URI_CHARS, allows_uri, denies_uri, normalize_uri, pattern_of_template

DENIED = [
    "file:///etc/passwd", "file:///C:/secret/x", "file://server/share/x", "https://example.com/private/a",
    "https://example.com/", "https://user@example.com/a", "https://example.com/a?b=c#d", "http://h:8080/x",
    "http://127.0.0.1/admin", "http://[::1]/x", "https://münchen.example/straße", "note://work/secret",
    "note://Work/My%20note", "note:work/x", "note://work/a?b=c", "db:///main/x", "db://main:5432/rows",
    "screen://localhost/display1", "x-a+b://h/p", "urn:isbn:1", "resource://a//b",
]  # fmt: skip


_FULL_WIDTH = {character: character + 0xFEE0 for character in range(ord("!"), ord("~") + 1)}


def misspelt(uri: str, random: Random) -> str:
    """Change a URI in ways that URL parsers undo, and in some that they do not."""
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(uri) + 1)
        slashes = [place for place, character in enumerate(uri) if character == "/"] or [0]
        place = random.choice(slashes)
        segment = random.choice([".", "x/..", "%2e", "x/%2E.", "x/.%2e", "..", ".\t", ". ./.."])
        with_port = re.sub(r"^([a-zA-Z]+:/*[^/]*)", rf"\1{random.choice([':', ':80', ':443', ':0443', ':21'])}", uri)
        uri = random.choice(
            [
                uri[:at] + random.choice("\t\n\r") + uri[at:],
                random.choice(["\x00", " ", "\x1f", "\t", "\n"]) + uri,
                uri + random.choice(["\x00", " ", "\x1f", "\t", "\n", "?", "#"]),
                uri.replace("/", "\\", random.randint(1, 3)),
                uri.replace("//", random.choice(["/", "", "///", "////"]), 1),
                uri[:at].upper() + uri[at:],
                uri[:at] + uri[at:].upper(),
                uri[:at] + uri[at : at + 1].translate(_FULL_WIDTH) + uri[at + 1 :],
                uri[:at] + "".join(f"%{ord(c):02x}" for c in uri[at : at + 1] if ord(c) < 128) + uri[at + 1 :],
                uri.replace("//", "//" + random.choice(["@", ":@", "localhost", "LOCALHOST", "a@"]), 1),
                f"{uri[:place]}/{segment}{uri[place:]}",
                with_port,
                uri.replace(".", random.choice(["。", "．", "｡", "%2e"]), 1),
                uri.replace("127.0.0.1", random.choice(["127.1", "0x7f.1", "2130706433", "0177.0.0.1"])),
                uri.replace("::1", "0:0:0:0:0:0:0:1").replace("C:", "C|"),
            ]
        )  # fmt: skip
    return uri


@contextmanager
def node_parser() -> Iterator[subprocess.Popen[str]]:
    program = (
        "require('readline').createInterface({input: process.stdin}).on('line', line => {"
        "let href = null; try { href = new URL(JSON.parse(line)).href } catch {} console.log(JSON.stringify(href)) })"
    )
    with subprocess.Popen(
        [node(), "-e", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def href(parser: subprocess.Popen[str], uri: str) -> str | None:
    """A URI as TypeScript servers read it."""
    assert parser.stdin is not None
    assert parser.stdout is not None
    parser.stdin.write(json.dumps(uri) + "\n")
    parser.stdin.flush()
    found: str | None = json.loads(parser.stdout.readline())
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.heavy
def test_no_spelling_accepted_by_an_sdk_server_bypasses_a_denied_uri(seed: int) -> None:
    random, equal = Random(seed), 0
    with node_parser() as parser:
        canonical = {uri: href(parser, uri) for uri in DENIED}
        for _ in range(3_000):
            denied = random.choice(DENIED)
            spelled = misspelt(denied, random)
            parsed = normalize_uri(spelled)
            same = (parsed is not None and parsed == normalize_uri(denied)) or (
                canonical[denied] is not None and href(parser, spelled) == canonical[denied]
            )
            if not same:
                continue
            equal += 1
            assert denies_uri(spelled, (denied,)), spelled
            assert denies_uri(spelled, (f"{denied[:-1]}*",)), spelled
            # The spelling of the pattern does not matter either.
            if not re.search(r"[*?]|\[(?!::1|0:)", spelled):
                assert denies_uri(denied, (spelled,)), spelled
    assert equal > 500


@pytest.mark.parametrize(
    "spelled",
    [
        "file://localhost/etc/passwd", "file://LOCALHOST/etc/passwd", "file://loc%61lhost/etc/passwd",
        "file://ｌocalhost/etc/passwd", "file:/etc/passwd", "file:etc/passwd", "file:////etc/passwd",
        "file:\\\\\\etc\\passwd", "file:/\\/etc/passwd", " file:///etc/passwd", "file:///etc/passwd\n",
        "\x00file:///etc/passwd", "fi\nle:///etc/passwd", "file:///e\ttc/pass\rwd", "file:///etc/./passwd",
        "file:///etc/x/../passwd", "file:///etc/x/%2e%2E/passwd", "file:///etc/x/.\t./passwd", "FILE:///etc/passwd",
        "file:///%65tc/passwd", "file:///etc%2Fpasswd", "file:///%2565tc/passwd", "file:///etc//passwd",
        "file:///etc/passwd?x", "file:///etc/passwd#x", "file:///etc/passwd?", "file:///ETC/passwd",
        "file://localhost/%65tc/./passwd#", "file:///ｅtc/passwd", "file:///..//etc/passwd", "file:///x/..\\etc/passwd",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "pattern",
    [
        "file:///etc/passwd", "file:///etc/*", "file://localhost/etc/*", "*/passwd", "file:/etc/p?sswd",
        "file:///[e]tc/*",
    ],
)  # fmt: skip
def test_denied_file_is_denied_in_every_spelling_of_uri_and_pattern(spelled: str, pattern: str) -> None:
    assert denies_uri(spelled, (pattern,))


@pytest.mark.parametrize(
    ("pattern", "spelled"),
    [
        ("https://example.com/private/*", "https://EXAMPLE.com:443/private/a"),
        ("https://example.com/private/*", "https:example.com/private/a"),
        ("https://example.com/private/*", "https:\\\\example.com\\private\\a"),
        ("https://example.com/private/*", "https://@example.com/private/a"),
        ("https://example.com/private/*", "https://:@example.com/private/a"),
        ("https://example.com/private/*", "https://ｅｘａｍｐｌｅ。com/private/a"),
        ("https://example.com/private/*", "https://exa\u00admple.com/private/a"),
        ("https://example.com", "https://example.com/"),
        ("https://example.com/", "https://example.com"),
        ("https://example.com?key=*", "https://example.com/?key=1"),
        ("https://*:443/x", "https://h/x"),
        ("https://h:*/x", "https://h/x"),
        ("https://h/x", "https://h:0443/x"),
        ("http://[::1]/*", "http://[0:0:0:0:0:0:0:1]:80/x"),
        ("http://127.0.0.1/*", "http://2130706433/x"),
        ("https://münchen.example/*", "https://xn--mnchen-3ya.example/x"),
        ("https://xn--mnchen-3ya.example/*", "https://MÜNCHEN.example/x"),
        ("note://work/My note", "note://work/My%20note"),
        ("note://work/My%20note", "note://work/My note"),
        ("note://work/secret*", "note://@work/secret plan"),
        ("note://work/caf\u00e9", "note://work/cafe\u0301"),
        ("file:///C:/secret/*", "file:///C|/secret/x"),
    ],
)
def test_hosts_ports_and_text_are_compared_as_servers_read_them(pattern: str, spelled: str) -> None:
    assert denies_uri(spelled, (pattern,))


@pytest.mark.parametrize(
    ("pattern", "uri"),
    [
        ("file:///etc/*", "file:///home/etc/passwd"),
        ("https://example.com/private/*", "https://example.com/public/private"),
        ("https://example.com/private/*", "https://example.org/private/a"),
        ("https://*:443/x", "https://h:8443/x"),
        ("https://h/x", "https://h:8443/x"),
        ("note://work/secret", "note://work/secrets"),
        ("note://work/*", "note://home/work/secret"),
        ("http://[::1]/*", "http://[::2]/x"),
    ],
)
def test_different_uri_is_not_denied(pattern: str, uri: str) -> None:
    assert not denies_uri(uri, (pattern,))


@pytest.mark.parametrize(
    "uri",
    [
        "file:///public/../etc/passwd", "file:///public/%2e%2e/etc/passwd", "file:///public/.\t./etc/passwd",
        "file:///public/\n../etc/passwd", "file:///public/..\\etc/passwd", "file:///public/%252e%252e/etc/passwd",
        "file:///public\\..\\etc/passwd", "file:///public/.%2e/etc", "file:///public/. ./../../etc",
        "https://pub.example\\@evil.example/x", "https://pub.example\t/../x",
    ],
)  # fmt: skip
def test_no_spelling_escapes_an_allow_pattern(uri: str) -> None:
    assert not allows_uri(uri, ("file:///public/*", "https://pub.example/*"))


@pytest.mark.parametrize(
    ("pattern", "uri"),
    [
        ("https://example.com", "https://example.com"),
        ("https://example.com/*", "https://example.com/a%20b?x=y#z"),
        ("note://Work/My note", "note://Work/My note"),
        ("note://Work/*", "note://Work/a b/ü"),
        ("file:///C:\\Users\\*", "file:///C:\\Users\\me"),
        ("no url at all", "no url at all"),
        ("http://[::1]:80/*", "http://[::1]:80/x"),
        ("db://h/x?a=*", "db://h/x?a=1"),
    ],
)
def test_uri_as_written_in_the_allow_pattern_is_allowed(pattern: str, uri: str) -> None:
    assert allows_uri(uri, (pattern,))


@given(st.text(max_size=60))
@pytest.mark.heavy
def test_any_uri_is_denied_by_itself_and_by_a_star(uri: str) -> None:
    assert denies_uri(uri, ("*",))
    assert denies_uri(uri, (re.sub(r"([*?[])", r"[\1]", uri),))


def test_uri_too_long_to_compare_is_denied() -> None:
    uri = "file:///public/" + "x" * MAX_URI_CHARS
    assert denies_uri(uri, ("file:///etc/*",))
    assert not allows_uri(uri, ("file:///public/*",))
    assert not denies_uri(uri, ())
    assert not allows_uri("file:///public/x", ())
    assert allows_uri(uri, ("*",))


def test_uri_with_spellings_too_long_to_compare_is_denied() -> None:
    uri = "http://a/" + "\N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM}" * 8_000
    assert denies_uri(uri, ("file:///etc/*",))
    assert not allows_uri(uri, ("http://a/*",))
    # Its percent-encoded form has six times its length, which is compared.
    usual = "http://a/" + "\N{LATIN SMALL LETTER E WITH ACUTE}" * 5_000
    assert not denies_uri(usual, ("file:///etc/*",))
    assert denies_uri(usual, ("http://a/*",))
    assert allows_uri(usual, ("http://a/*",))


def test_template_matches_its_uris_and_literal_text_matches_itself() -> None:
    pattern = pattern_of_template("db://[x]*/{table}/rows")
    assert denies_uri("db://[x]*/main/rows", (pattern,))
    assert not denies_uri("db://xy/main/rows", (pattern,))
