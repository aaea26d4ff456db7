"""The targets of mutated bytes. Each raises only the permitted exceptions, and keeps no state."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.config.load import parse
from gateway.http.event_stream import EventParser
from gateway.process.files import LineSplitter
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import ConfigError, ConnectionLost
from gateway.protocol.jsonrpc import InvalidMessage, classify, read
from registry.arguments.prepare import prepare
from registry.catalog.catalog import ToolWrapper
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import build_catalog
from registry.catalog.shape import Shape
from registry.dialects.client_profiles import DIALECTS
from registry.dialects.definitions import lower_definition, map_arguments
from registry.intake.tool_intake import admit_tools
from tests.fuzz import http_requests, http_responses
from tests.fuzz.mutation import mutated, mutated_json, pieces

MAX_LINE_BYTES = 512
"""The limit of the line splitter is small, so that mutated lines exceed it."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parser.

    Attributes:
        name: The name on the command line.
        seeds: Sound inputs.
        is_json: They are JSON, so that half of the mutations leave them so.
        run: Feeds it one input; anything that is raised is a fault.
    """

    name: str
    seeds: Sequence[bytes]
    run: Callable[[bytes, random.Random], Awaitable[None]]
    is_json: bool = False

    def input(self, rng: random.Random) -> bytes:
        """One input."""
        return mutated_json(rng, self.seeds) if self.is_json and rng.random() < 0.7 else mutated(rng, self.seeds)


async def json_rpc(data: bytes, rng: random.Random) -> None:
    """One message of a caller; read in one go it is the same as taken apart first."""
    assert repr(_outcome(lambda: read(data))) == repr(_outcome(lambda: classify(json_bytes.loads(data)))), (
        "read otherwise"
    )
    try:
        message = json_bytes.loads(data)
    except json_bytes.MalformedJson:
        return
    again = json_bytes.loads(json_bytes.dumps(message))
    assert again == message or "NaN" in repr(message), "a message that was read and written again differs"


def _outcome(reading: Callable[[], Any]) -> Any:
    try:
        return reading()
    except json_bytes.MalformedJson:
        return "no JSON"
    except InvalidMessage as error:
        return error.code, str(error), error.request_id


async def lines(data: bytes, rng: random.Random) -> None:
    """Lines are the same however they are cut into chunks, and those over the bound are left out."""
    splitter = LineSplitter(MAX_LINE_BYTES)
    found = [line for piece in pieces(rng, data) for line in splitter.feed(piece)]
    *whole, _ = data.split(b"\n")
    kept = [line for line in whole if len(line) <= MAX_LINE_BYTES]
    short = [line for line in found if len(line) <= MAX_LINE_BYTES]
    assert short == kept, "a line was lost, cut or invented"


async def event_stream(data: bytes, rng: random.Random) -> None:
    """Events are the same however they are cut into chunks."""
    outcomes = []
    for parts in ([data], pieces(rng, data)):
        parser = EventParser()
        try:
            outcomes.append([event for part in parts for event in parser.feed(part)])
        except ConnectionLost:
            outcomes.append([])
    assert outcomes[0] == outcomes[1], "chunks made a difference"


async def configuration(data: bytes, rng: random.Random) -> None:
    """A file is read, or refused with a message."""
    message = "read"
    try:
        parse(data.decode("utf-8", "replace"), environ={"X": "1"})
    except ConfigError as error:
        message = str(error)
    assert message.strip(), "refused without a word"


async def schema(data: bytes, rng: random.Random) -> None:
    """A tool is admitted or not; what is admitted is lowered to every dialect, and takes any arguments."""
    wrapper = _wrapper(data)
    if wrapper is None:
        return
    arguments = _json(rng.choice(ARGUMENTS))
    for name in rng.sample(sorted(DIALECTS), 2):
        lowered = lower_definition({"name": "t", "inputSchema": wrapper.input_schema}, name)
        json.dumps(lowered.definition)
        map_arguments(arguments, lowered)
    prepare(wrapper, arguments, level=rng.choice(("off", "safe", "full")))


async def arguments(data: bytes, rng: random.Random) -> None:
    """Arguments are repaired, refused with reasons, or passed as they are."""
    wrapper = _wrapper(rng.choice(SCHEMAS))
    assert wrapper is not None
    try:
        given = json_bytes.loads(data)
    except json_bytes.MalformedJson:
        return
    prepared = prepare(wrapper, given, level=rng.choice(("off", "safe", "full")))
    assert prepared.problems or isinstance(prepared.arguments, dict), "sent what is no object"
    for problem in prepared.problems:
        assert str(problem).strip(), "refused without a word"


_SERVER = ServerName("s")


def _wrapper(text: bytes) -> ToolWrapper | None:
    given = _json(text)
    admitted = admit_tools([{"name": "t", "inputSchema": given}], transport="http").items
    if not admitted:
        return None
    listing = ServerListing(server=_SERVER, epoch=1, tools=tuple(admitted))
    return build_catalog({_SERVER: listing}, Shape(), version=1).resolve("s__t")


def _json(text: bytes) -> Any:
    try:
        return json_bytes.loads(text)
    except json_bytes.MalformedJson:
        return {"type": "object"}


def _texts(*values: object) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


SCHEMAS = _texts(
    {"type": "object", "properties": {"to": {"type": "string"}, "cc": {"type": "array", "items": {"type": "string"}}},
     "required": ["to"], "additionalProperties": False},
    {"type": "object", "properties": {"f": {"$ref": "#/$defs/f"}},
     "$defs": {"f": {"type": "object", "properties": {"and": {"type": "array", "items": {"$ref": "#/$defs/f"}},
                                                       "name": {"type": "string", "pattern": "^(a+)+$"}}}}},
    {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer", "minimum": 1}},
     "oneOf": [{"required": ["kind"]}, {"required": ["n"]}]},
    {"type": "object", "properties": {"at": {"type": "string", "format": "date-time", "pattern": "(?=.*Z)"}},
     "patternProperties": {"^x-": {"type": "number"}}, "dependentRequired": {"at": ["x-a"]}},
    {"type": ["object", "null"], "properties": {"t": {"items": [{"type": "string"}, {"type": "number"}]}},
     "$schema": "http://json-schema.org/draft-07/schema#", "if": {"required": ["t"]}, "then": {"minProperties": 2}},
)  # fmt: skip
ARGUMENTS = _texts(
    {"to": "a@example.test", "cc": ["b"]}, {"f": {"and": [{"name": "aaaa"}, {"and": []}]}}, {"kind": "a"}, {"n": "3"},
    {"at": "2026-01-01T00:00:00Z", "x-a": 1}, {"t": ["a", 1]}, {"arguments": {"to": "a"}}, '{"to": "a"}', None, [],
    "null",
)  # fmt: skip
_MESSAGES = _texts(
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "a", "arguments": {"b": [1.5, None, "€"]}}},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x"}},
    {"jsonrpc": "2.0", "id": "y", "result": {"content": []}},
    {"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "m"}},
)  # fmt: skip
_CONFIGURATIONS = (
    b'{"mcpServers": {"a": {"command": "x", "args": ["${X}"], "env": {"T": "${Y:-1}"}}}}',
    b"mcpServers:\n  a: {type: http, url: https://example.test/mcp, headers: {A: 'b ${X}'}}\n"
    b"gateway:\n  profiles: {p: {servers: [a], tools: ['a__*'], dialect: openai}}\n"
    b"  quotas: {default: {inFlight: 3}}\n",
    b"// a comment\n{\"servers\": {\"b\": {\"type\": \"stdio\", \"command\": \"y\",}}, \"inputs\": []}",
    b"mcpServers: &s\n  a: {command: x, tools: {t: {arguments: [{name: n, type: string}]}}}\nother: *s\n",
)  # fmt: skip
_EVENTS = (
    b'event: message\nid: 1\ndata: {"jsonrpc":"2.0"}\n\n', b": ping\n\ndata: a\ndata: b\n\n", b"data: x\r\n\r\n",
    b"retry: 100\nid\ndata\n\n",
)  # fmt: skip

TARGETS = (
    Target("http-request", http_requests.ALL_SEEDS, http_requests.compare),
    Target("http-response", http_responses.SEEDS, http_responses.compare),
    Target("event-stream", _EVENTS, event_stream),
    Target("lines", (b"a\nb\n", b"x" * 500 + b"\n" + b"y" * 600 + b"\nz\n"), lines),
    Target("json-rpc", _MESSAGES, json_rpc, is_json=True),
    Target("configuration", _CONFIGURATIONS, configuration),
    Target("schema", SCHEMAS, schema, is_json=True),
    Target("arguments", ARGUMENTS, arguments, is_json=True),
)
