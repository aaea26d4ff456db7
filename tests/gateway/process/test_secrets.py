"""Secret values of a configuration, and their removal from texts."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.load import parse
from gateway.process.secrets import HIDDEN, SECRETS, Scrubber, secrets_in
from gateway.protocol.gateway_errors import RpcError, UpstreamLost
from gateway.telemetry import logs


@pytest.mark.parametrize(
    ("entry", "secret"),
    [
        ({"headers": {"Authorization": "Bearer abc-1"}}, "abc-1"),
        ({"headers": {"authorization": "Basic dXNlcjpodW50ZXIy"}}, "hunter2"),
        ({"headers": {"X-Custom": "k7-zz-91xbq2"}}, "k7-zz-91xbq2"),
        ({"headers": {"Cookie": "sid=91xbq2"}}, "sid=91xbq2"),
        ({"env": {"DB_PASSWORD": "hunter2"}}, "hunter2"),
        ({"env": {"GITHUBTOKEN": "plain"}}, "plain"),
        ({"env": {"X": "AKIAIOSFODNN7EXAMPLE"}}, "AKIAIOSFODNN7EXAMPLE"),
        ({"env": {"DATABASE_URL": "postgres://u:pw-1%40@h/db"}}, "pw-1@"),
        ({"env": {"KEY": "-----BEGIN PRIVATE KEY-----\nabc\n"}}, "-----BEGIN PRIVATE KEY-----\nabc\n"),
        ({"auth": {"type": "client", "clientSecret": "s3cr"}}, "s3cr"),
        ({"auth": {"nested": {"refresh_token": "rrrr"}}}, "rrrr"),
        ({"args": ["--api-key", "sk-1"]}, "sk-1"),
        ({"args": ["--token=abcd", "--pass", "efgh"]}, "efgh"),
        ({"args": ["--token=abcd"]}, "abcd"),
        ({"args": ["--header", "Authorization: Bearer qqqq"]}, "qqqq"),
        ({"args": ["-e", "API_KEY=wwww"]}, "wwww"),
        ({"args": ["https://u:pass-9@host/mcp"]}, "pass-9"),
        ({"url": "https://host/mcp?api_key=zz99"}, "zz99"),
        ({"url": "https://host/s/0123456789abcdef0123/mcp"}, "0123456789abcdef0123"),
        ({"defaults": {"api_key": "kk11"}}, "kk11"),
        ({"apiKeys": [{"name": "ci", "key": "k-0123456789"}]}, "k-0123456789"),
    ],
)  # fmt: skip
def test_credentials_are_found_wherever_servers_accept_them(entry: dict[str, Any], secret: str) -> None:
    assert secret in secrets_in(entry)


@pytest.mark.parametrize(
    "entry",
    [
        {"headers": {"Accept": "application/json", "User-Agent": "typegate/1.0", "X-Env": "production"}},
        {"env": {"LOG_LEVEL": "info", "REGION": "ap-southeast-2", "MODEL": "claude-sonnet-4-5-20250929"}},
        {"env": {"PYTHONPATH": "/srv/a1b2c3d4e5", "TOKEN_FILE": "/run/secrets/token", "HOME": "/home/u-1a2b3c4d"}},
        {"env": {"GOOGLE_APPLICATION_CREDENTIALS": "/etc/key.json", "AUTH": "none", "MAX_TOKENS": "20000"}},
        {"env": {"TOKEN_URL": "https://issuer.example/token", "NODE_OPTIONS": "--max-old-space-size=4096"}},
        {"args": ["-y", "some-server@1.2.3", "/data/a1b2c3d4e5f6", "--verbose"], "tags": ["a1b2c3d4e5"]},
        {"args": ["--api-key=k", "serve", "--no-auth", "stdio", "--require-token", "http"]},
        {"url": "https://api.example.com/mcp/v1?region=eu-central-1", "command": "npx"},
    ],
)  # fmt: skip
def test_common_words_are_not_secrets(entry: dict[str, Any]) -> None:
    assert secrets_in(entry) == set()


def test_placeholder_value_is_secret_by_name_or_form_and_always_from_a_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "pin").write_text("blue\n")
    values = {"LIKE": "x9-77-bq1z", "MY_TOKEN": "tttt", "HOME": "/home/user", "STAGE": "production"}
    args = [*(f"${{{name}}}" for name in values), "${file:pin}", "${NOT_SET:-default-9x8y7z}"]
    config = parse(
        json.dumps({"mcpServers": {"a": {"command": "x", "args": args}}}), path=tmp_path / "f", environ=values
    )
    assert config.secrets == {"x9-77-bq1z", "tttt", "blue", "default-9x8y7z"}
    assert not any(secret in repr(config) for secret in config.secrets)


def test_secret_is_hidden_in_every_encoding() -> None:
    scrubber = Scrubber()
    scrubber.hide(['pa"ss/wörd', "short", "abc", "shorter-and-longer"])
    for text in (
        'x pa"ss/wörd',
        'x pa\\"ss/wörd',
        'x pa\\"ss/w\\u00f6rd',
        "x pa%22ss%2Fw%C3%B6rd",
        "x shorter-and-longer",
    ):
        assert scrubber.scrub(text) == f"x {HIDDEN}"
    # Three characters stand in every other word.
    assert scrubber.scrub("abc") == "abc"


@given(st.lists(st.sampled_from(["secret-1", "secret-12", "other-9", "x", "sec", " ", "secr"]), max_size=30))
def test_any_number_of_secrets_is_removed(words: list[str]) -> None:
    few, many = Scrubber(), Scrubber()
    few.hide(["secret-1", "secret-12", "other-9"])
    many.hide(["secret-1", "secret-12", "other-9", *(f"not-in-any-text-{number}" for number in range(1000))])
    text = "".join(words)
    assert many.scrub(text) == few.scrub(text)
    assert (many.scrub(text) is text) == (few.scrub(text) is text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_value_without_secrets_is_returned_unchanged(value: Any) -> None:
    scrubber = Scrubber()
    scrubber.hide(["never-in-generated-text-0123456789"])
    assert scrubber.scrub_value(value) is value


@given(JSON)
def test_secret_is_removed_at_any_depth_and_in_keys(value: Any) -> None:
    scrubber, secret = Scrubber(), "s3cret-0123"
    scrubber.hide([secret])
    shown = scrubber.scrub_value({"a": [value, f"x{secret}"], f"{secret}y": {"b": secret}, "c": value})
    assert secret not in json.dumps(shown)
    assert (shown["a"][0], shown["c"]) == (value, value)


def test_scrubbed_error_keeps_its_type_and_loses_the_secret() -> None:
    scrubber = Scrubber()
    scrubber.hide(["s3cret-0123"])
    lost = scrubber.scrub_error(UpstreamLost("up", "it said s3cret-0123"))
    assert (type(lost), str(lost), lost.server) == (UpstreamLost, f"it said {HIDDEN}", "up")
    error = scrubber.scrub_error(RpcError(-32000, "s3cret-0123", {"sent": ["Bearer s3cret-0123"], "n": 1}))
    assert error.to_object() == {"code": -32000, "message": HIDDEN, "data": {"sent": [f"Bearer {HIDDEN}"], "n": 1}}


def test_log_line_has_no_secret_no_escape_and_no_forged_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = io.StringIO()
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    monkeypatch.setattr("sys.stderr", sink)
    SECRETS.hide(["l0gged-s3cret"])
    try:
        # Those of other tests write to streams that are closed by now, and say so where this test listens.
        root.handlers[:] = []
        logs.start()
        log = logging.getLogger("gateway.test")
        log.info("from \x1b]0;title\x07\x1b[31mred l0gged-\u200bs3cret\nforged \x9b1A", extra={"server": "a\x1b[1m"})
        try:
            raise ValueError("in a traceback: l0gged-s3cret \x1b[2J")
        except ValueError:
            log.exception("failed")
    finally:
        root.handlers[:] = before
    text = sink.getvalue()
    assert "red" in text
    assert "in a traceback" in text
    assert not {"\x1b", "\x9b", "\x07"} & set(text)
    assert "l0gged-s3cret" not in text
    assert text.splitlines()[1].endswith("failed")


def test_replaced_tokens_are_forgotten_and_configured_ones_kept() -> None:
    scrubber = Scrubber()
    scrubber.hide(["the configured secret"])
    for number in range(100):
        # A refresh token that stays, and one that is configured too.
        scrubber.hide_latest("one", [f"access-token-{number:04}", "refresh-token-9d8c", "the configured secret"])
        scrubber.hide_latest("one", [f"access-token-{number:04}", "refresh-token-9d8c"])
        scrubber.hide_latest("other", ["another-token-4e5f"])
    assert len(scrubber._forms) < 20
    text = "access-token-0099 access-token-0098 refresh-token-9d8c another-token-4e5f the configured secret"
    assert set(scrubber.scrub(text).split(" ")) == {HIDDEN}
    assert scrubber.scrub("access-token-0001") == "access-token-0001"


def test_tokens_of_many_users_do_not_push_out_configured_secrets() -> None:
    scrubber = Scrubber(max_forms=200)
    scrubber.hide(["the configured secret"])
    for number in range(300):
        scrubber.hide_latest("busy", [f"token-of-busy-{number:04}"])
        scrubber.hide_latest(f"user-{number}", [f"access-token-{number:04}"])
    assert len(scrubber._forms) <= 200
    hidden = "the configured secret|token-of-busy-0299|token-of-busy-0298|access-token-0299|access-token-0290"
    assert set(scrubber.scrub(hidden).split("|")) == {HIDDEN}
    assert scrubber.scrub("access-token-0001") == "access-token-0001"
