"""Builtin hooks, each alone, with a clock controlled by the test."""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.hooks import Answer, Block, Call, Hook, Metadata, Result
from gateway.hooks.builtin import audit_log
from gateway.hooks.builtin.audit_log import AuditLog
from gateway.hooks.builtin.cache import CACHED_KEY, Cache
from gateway.hooks.builtin.rate_limit import Bucket, RateLimit
from gateway.hooks.builtin.redact import REDACTED_KEY, WINDOW, Redact
from gateway.hooks.builtin.size_guard import CUT_KEY, SizeGuard, shorten
from gateway.hooks.hook_loading import BUILTIN_HOOKS
from gateway.protocol import json_bytes

METADATA = Metadata(
    kind="tool", wrapper="up__t", server="up", tool="t", principal="ann", session="s3ssion", request_id=1,
    call_id="c", via="wrapper", tags=(), profile="default", digest="d1", read_only=True,
)  # fmt: skip


class Clock:
    """Time as a test has it."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def call(args: dict[str, Any] | None = None, definition: dict[str, Any] | None = None, **known: Any) -> Call:
    return Call(name="t", args=args or {}, metadata=replace(METADATA, **known), definition=definition or {})


def text(body: str, **more: Any) -> Result:
    return Result(value={"content": [{"type": "text", "text": body}], **more})


# rate_limit

TIMES = st.lists(st.floats(min_value=0, max_value=1_000, allow_nan=False), max_size=80).map(sorted)


@given(times=TIMES, per_s=st.floats(min_value=0.01, max_value=50), burst=st.floats(min_value=1, max_value=20))
def test_bucket_never_exceeds_its_burst_and_rate(times: list[float], per_s: float, burst: float) -> None:
    bucket, passed = Bucket(tokens=burst, at_s=0.0), list[float]()
    for at_s in times:
        bucket = bucket.refilled(at_s, per_s=per_s, burst=burst)
        if (taken := bucket.take_token()) is not None:
            bucket = taken
            passed.append(at_s)
        else:
            assert bucket.refilled(at_s + bucket.wait_s(per_s), per_s=per_s, burst=burst).take_token() is not None
        assert 0 <= bucket.tokens <= burst
    for first, start_s in enumerate(passed):
        for last in range(first, len(passed)):
            assert last - first + 1 <= burst + (passed[last] - start_s) * per_s + 1e-6 * len(times) + 1e-9


async def test_limit_is_per_principal_and_tool_and_gives_a_retry_time() -> None:
    clock = Clock()
    hook = RateLimit({"perMinute": 6, "burst": 2}, clock=clock)
    assert [await hook.before_call(call()) for _ in range(2)] == [None, None]
    block = await hook.before_call(call())
    assert isinstance(block, Block)
    assert "6 calls per minute for up__t is used up" in block.reason
    assert block.description == "Try again in 10 s."
    assert await hook.before_call(call(principal="bob")) is None
    assert await hook.before_call(call(wrapper="up__other")) is None
    clock.now_s += 9.9
    assert isinstance(await hook.before_call(call()), Block)
    clock.now_s += 0.1
    assert await hook.before_call(call()) is None


async def test_prompts_resources_and_completions_are_limited_per_server_and_kind() -> None:
    hook = RateLimit({"perMinute": 1, "burst": 2}, clock=Clock())
    for kind in ("prompt", "resource", "completion"):
        decisions = [
            await hook.before_call(call(kind=kind, wrapper=f"x://{number}", tool=f"x://{number}"))
            for number in range(3)
        ]  # fmt: skip
        assert decisions[:2] == [None, None]
        assert isinstance(decisions[2], Block)
        assert f"for {kind}s of up is used up" in decisions[2].reason
        assert await hook.before_call(call(kind=kind, server="other")) is None
    assert await hook.before_call(call()) is None


async def test_other_callers_do_not_reset_a_used_up_limit() -> None:
    hook = RateLimit({"perMinute": 1, "burst": 1}, clock=Clock(), max_buckets=50)
    assert await hook.before_call(call()) is None
    for number in range(200):
        assert await hook.before_call(call(principal="bob", wrapper=f"up__{number}")) is None
    assert isinstance(await hook.before_call(call()), Block)


# cache


async def test_session_result_is_not_shared_and_a_private_one_not_cached() -> None:
    hook = Cache({})

    async def is_kept(**known: Any) -> bool:
        return await hook.before_call(call(**known)) is not None

    mine = call(shared_within="session", session="a")
    await hook.before_call(mine)
    await hook.after_call(mine, text("mine"))
    assert await is_kept(shared_within="session", session="a")
    assert not await is_kept(shared_within="session", session="b")
    assert not await is_kept(session="a")
    alone = call({"x": 1}, shared_within="request")
    await hook.before_call(alone)
    await hook.after_call(alone, text("alone"))
    for shared_within in ("request", "session", "principal"):
        assert await hook.before_call(call({"x": 1}, shared_within=shared_within)) is None


async def test_cached_result_is_per_principal_arguments_and_definition_until_its_ttl() -> None:
    clock = Clock()
    hook = Cache({"ttl": 60}, clock=clock)
    first = call({"b": 1, "a": 2})
    assert await hook.before_call(first) is None
    await hook.after_call(first, text("kept"))
    clock.now_s += 59
    again = await hook.before_call(call({"a": 2, "b": 1}))
    assert isinstance(again, Answer)
    assert again.value["content"] == [{"type": "text", "text": "kept"}]
    assert again.value["_meta"][CACHED_KEY] == 59
    for other in (
        call({"a": 2, "b": 1}, principal="bob"), call({"a": 2, "b": 1}, digest="d2"), call({"a": 2}),
        call({"a": 2, "b": 1}, wrapper="x__t"), call({"a": 2, "b": 1}, profile="p"), call({"a": 2, "b": 1.5}),
    ):  # fmt: skip
        assert await hook.before_call(other) is None
    clock.now_s += 2
    assert await hook.before_call(call({"a": 2, "b": 1})) is None


@pytest.mark.parametrize(
    "result",
    [
        text("failed", isError=True),
        text("asks", resultType="input_required"),
        text("later", resultType="task"),
        text("x" * 300_000),
    ],
)
async def test_errors_elicitations_tasks_and_large_results_are_not_cached(result: Result) -> None:
    hook = Cache({"maxBytes": 1_000_000})
    first = call()
    await hook.before_call(first)
    await hook.after_call(first, result)
    assert await hook.before_call(call()) is None


async def test_writing_calls_are_not_cached_and_the_cache_is_bounded() -> None:
    hook = Cache({"maxBytes": 20_000})
    writing = call(read_only=False)
    await hook.before_call(writing)
    await hook.after_call(writing, text("x"))
    assert await hook.before_call(call()) is None
    for number in range(100):
        one = call({"number": number})
        await hook.before_call(one)
        await hook.after_call(one, text("y" * 1_000))
    kept = [number for number in range(100) if await hook.before_call(call({"number": number})) is not None]
    assert 5 < len(kept) < 20


async def test_cached_answer_is_a_new_object_each_time() -> None:
    hook = Cache({})
    first = call()
    await hook.before_call(first)
    await hook.after_call(first, text("kept"))
    one = await hook.before_call(call())
    assert isinstance(one, Answer)
    one.value["content"].clear()
    two = await hook.before_call(call())
    assert isinstance(two, Answer)
    assert len(two.value["content"]) == 1


# redact

SECRETS = {
    "AKIAIOSFODNN7EXAMPLE": "secret",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789": "secret",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U": "secret",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIBOgIBAAJB\n-----END RSA PRIVATE KEY-----": "secret",
    "sk_live_abcdefghijklmnopqrstuvwx": "secret",
    "ann.other+x@mail.example.com": "email",
    "+49 30 901820": "phone",
    "4111 1111 1111 1111": "card",
    "DE89 3704 0044 0532 0130 00": "iban",
    "536-90-4399": "ssn",
}
HARMLESS = (
    "order 1234567890123456", "version 1.2.3.4.5", "GB12 ABCD 1234 5678 9012", "000-12-3456", "sha 3f2a9c", "a@b",
    "2026-07-28T12:00:00", "AKIA", "the quick brown fox", "+1 2", "é" * 100,
)  # fmt: skip


@pytest.mark.parametrize("found", SECRETS)
def test_secrets_and_personal_data_are_replaced_by_their_kind(found: str) -> None:
    counts: Counter[str] = Counter()
    redacted = Redact({}).text(f"before: {found}, after", counts)
    assert redacted == f"before: [redacted {SECRETS[found]}], after"
    assert counts == {SECRETS[found]: 1}


@pytest.mark.parametrize("harmless", HARMLESS)
def test_harmless_lookalikes_are_not_redacted(harmless: str) -> None:
    sentence = f"before: {harmless}, after"
    assert Redact({}).text(sentence, Counter()) is sentence


@settings(deadline=None, max_examples=30)
@given(before=st.integers(0, 3 * WINDOW), found=st.sampled_from(sorted(SECRETS)))
def test_secret_is_found_anywhere_in_a_long_text(before: int, found: str) -> None:
    redacted = Redact({}).text("-" * before + f" {found} " + "-" * 100, Counter())
    assert found not in redacted
    assert redacted == "-" * before + f" [redacted {SECRETS[found]}] " + "-" * 100


def test_redaction_covers_every_text_but_not_keys_and_binary_data() -> None:
    key = "AKIAIOSFODNN7EXAMPLE"
    image = {"type": "image", "data": key, "mimeType": "image/png"}
    content = [{"type": "text", "text": json.dumps({"k": key})}, image]
    result = Result(value={"content": content, "structuredContent": {key: [{"k": key}]}, "_meta": {"v": 1}})
    redacted = Redact({}).after_call(call(), result)
    assert isinstance(redacted, Result)
    assert json.loads(redacted.value["content"][0]["text"]) == {"k": "[redacted secret]"}
    assert redacted.value["content"][1] == image
    assert redacted.value["structuredContent"] == {key: [{"k": "[redacted secret]"}]}
    assert redacted.value["_meta"] == {"v": 1, REDACTED_KEY: {"secret": 2}}
    assert Redact({}).after_call(call(), text("nothing")) is None


def test_only_protocol_content_blocks_may_hold_unredacted_base64() -> None:
    key = "AKIAIOSFODNN7EXAMPLE"
    image = {"type": "image", "data": key, "mimeType": "image/png"}
    blob = {"uri": "x://y", "blob": key, "mimeType": "image/png"}

    def redacted(value: dict[str, Any]) -> Any:
        after = Redact({}).after_call(call(), Result(value=value))
        return None if after is None else after.value  # type: ignore[union-attr] # of hooks that rewrite

    for exempt in (
        {"content": [image, {**image, "type": "audio"}, {"type": "resource", "resource": blob}]},
        {"contents": [blob]},
        {"messages": [{"role": "user", "content": image}, {"role": "user", "content": [image]}]},
    ):
        assert redacted(exempt) is None
    for seen in (
        {"content": [{"type": "text", "text": "a", "data": key, "mimeType": "image/png"}]},
        {"content": [{**image, "data": f"the key {key}"}]},
        {"content": [{"type": "image", "data": "aGk=", "blob": key, "mimeType": "image/png"}]},
        {"content": [{"type": "image", "data": "aGk=", "mimeType": key}]},
        {"content": [{"type": "resource_link", "uri": "x://y", "data": key, "mimeType": "image/png"}]},
        {"content": [], "structuredContent": {"image": image, "blob": blob}},
        {"content": [], "structuredContent": {"content": [image], "contents": [blob]}},
        {"content": [], "_meta": {"data": key, "mimeType": "text/plain"}},
        {"contents": [{"uri": "x://y", "data": key, "mimeType": "image/png"}]},
        {"completion": {"values": [key]}},
    ):
        assert key not in json.dumps(redacted(seen)), seen


def test_arguments_are_redacted_only_on_request() -> None:
    assert not Redact({}).offers("before_call")
    hook = Redact({"arguments": True, "kinds": ["email"], "patterns": {"ticket": r"T-\d+"}})
    assert hook.offers("before_call")
    rewritten = hook.before_call(call({"a": ["x@example.com", "T-12", "+49 30 901820"]}))
    assert isinstance(rewritten, Call)
    assert rewritten.args == {"a": ["[redacted email]", "[redacted ticket]", "+49 30 901820"]}


# size_guard

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=10), inner, max_size=8),
    max_leaves=60,
)


def skeleton(value: Any) -> Any:
    """Return what may not change: types, and the keys of objects around a value."""
    return type(value), sorted(value) if isinstance(value, dict) else None


@given(value=JSON, budget=st.integers(200, 3_000))
def test_shortened_value_has_the_same_shape_and_fits_the_budget(value: Any, budget: int) -> None:
    cuts: list[dict[str, Any]] = []
    made = shorten(value, budget, "$", cuts)
    assert json_bytes.loads(json_bytes.dumps(made)) == made
    if len(json_bytes.dumps(value)) <= budget:
        assert made is value
        assert cuts == []

    def alike(a: Any, b: Any) -> None:
        assert skeleton(a) == skeleton(b)
        if isinstance(a, dict):
            for key in a:
                alike(a[key], b[key])
        elif isinstance(a, list):
            assert len(b) <= len(a)
            for one, other in zip(a, b, strict=False):
                alike(one, other)

    alike(value, made)
    if made != value:
        assert cuts


ROWS = [{"id": number, "name": f"row {number}", "note": "n" * 50} for number in range(2_000)]


def test_large_result_is_bounded_keeps_its_structure_and_notes_omissions() -> None:
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": {"required": ["id", "name"]}}}}
    value = {"rows": ROWS, "total": 2_000}
    result = text(json.dumps(value), structuredContent=value)
    shortened = SizeGuard({"maxBytes": 20_000}).after_call(call(definition={"outputSchema": schema}), result)
    assert isinstance(shortened, Result)
    assert len(json_bytes.dumps(shortened.value)) <= 20_000
    shown = json.loads(shortened.value["content"][0]["text"])
    assert shown["total"] == shortened.value["structuredContent"]["total"] == 2_000
    assert shown["rows"] == ROWS[: len(shown["rows"])]
    assert shortened.value["structuredContent"]["rows"] == ROWS[: len(shortened.value["structuredContent"]["rows"])]
    notice = shortened.value["content"][-1]["text"]
    assert "structuredContent.rows: " in notice
    assert "of 2000 items" in notice
    assert "does not fit" not in notice
    assert shortened.value["_meta"][CUT_KEY][0]["of"] == 2_000


def test_result_that_no_longer_fits_its_output_schema_is_reported() -> None:
    definition = {"outputSchema": {"type": "object", "properties": {"rows": {"type": "array", "minItems": 2_000}}}}
    result = text("{}", structuredContent={"rows": ROWS})
    shortened = SizeGuard({"maxBytes": 20_000}).after_call(call(definition=definition), result)
    assert isinstance(shortened, Result)
    assert "no longer conforms to the tool's output schema" in shortened.value["content"][-1]["text"]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "text", "text": "w" * 500_000},
        {"type": "text", "text": 'é\n"' * 200_000},
        {"type": "text", "text": "{broken json" * 50_000},
        {"type": "image", "data": "A" * 500_000, "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "w" * 500_000}},
        {"type": "text", "text": json.dumps(['"\\' * 10] * 20_000)},
    ],
)
def test_every_kind_of_content_item_is_bounded(item: dict[str, Any]) -> None:
    small = {"type": "text", "text": "small"}
    shortened = SizeGuard({"maxBytes": 10_000}).after_call(call(), Result(value={"content": [small, item]}))
    assert isinstance(shortened, Result)
    assert len(json_bytes.dumps(shortened.value)) <= 10_500
    assert shortened.value["content"][0] == small
    assert "Shortened by the gateway" in shortened.value["content"][-1]["text"]
    assert SizeGuard({"maxBytes": 10_000}).after_call(call(), Result(value={"content": [small]})) is None


# audit_log


async def test_audit_hook_writes_a_line_per_call_without_arguments_and_session(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    log = AuditLog({"file": str(file)}, clock=lambda: 1_700_000_000.5)
    await log.start()
    log.after_call(call({"secret": "s3cr3t"}, elapsed_ms=1.5), text("s3cr3t"))
    log.after_call(call(), text("x", isError=True))
    log.after_call(call(blocked_by="limit"), text("x", isError=True))
    await log.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["ok", "error", "blocked"]
    assert lines[0]["time"] == "2023-11-14T22:13:20.500+00:00"
    assert (lines[0]["principal"], lines[0]["wrapper"], lines[0]["elapsedMs"]) == ("ann", "up__t", 1.5)
    assert lines[2]["blockedBy"] == "limit"
    assert "s3cr3t" not in file.read_text()
    assert "s3ssion" not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_audit_hook_file_is_rotated_by_size(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    log = AuditLog({"file": str(file), "maxBytes": 2_000, "keep": 2, "arguments": True})
    await log.start()
    for number in range(60):
        log.after_call(call({"number": number}), text("x"))
    await log.close()
    assert sorted(os.listdir(tmp_path)) == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    files = [(tmp_path / name).stat() for name in os.listdir(tmp_path)]
    assert all(one.st_size <= 2_000 and stat.S_IMODE(one.st_mode) == 0o600 for one in files)
    order = [file.with_name(f"{file.name}.{at}") for at in (2, 1)] + [file]
    numbers = [json.loads(line)["arguments"]["number"] for one in order for line in one.read_text().splitlines()]
    assert numbers == list(range(numbers[0], 60))


async def test_unwritable_audit_hook_file_is_reported_at_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot write to"):
        await AuditLog({"file": str(tmp_path / "absent" / "audit.jsonl")}).start()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("hook", "config", "words"),
    [
        (RateLimit, {"perMinut": 5}, "perMinut: unknown key; expected perMinute (did you mean it?)"),
        (RateLimit, {"perMinute": True}, "perMinute has a wrong value"),
        (RateLimit, {"per": ["caller"]}, "per has a wrong value; expected a list of: principal, tool, server"),
        (Cache, {"ttl": -1}, "ttl has a wrong value; expected a number from 0.1 to 86400"),
        (SizeGuard, {"maxBytes": "1k"}, "maxBytes has a wrong value"),
        (AuditLog, {}, "file is missing"),
        (AuditLog, {"file": "x", "arguments": "yes"}, "arguments has a wrong value; expected true or false"),
        (Redact, {"kinds": ["names"]}, "kinds has a wrong value"),
        (Redact, {"patterns": {"x": "("}}, "patterns.x is not a valid regular expression"),
    ],
)
def test_invalid_hook_setting_is_refused_by_name(hook: Any, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        hook(config)


def test_every_builtin_hook_can_be_named_in_use() -> None:
    folder = Path(audit_log.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == set(BUILTIN_HOOKS)
    for name, place in BUILTIN_HOOKS.items():
        module, _, kind = place.partition(":")
        assert issubclass(getattr(import_module(module), kind), Hook), name
