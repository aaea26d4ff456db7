"""The contents, schemas, resources, prompts and rounds that the conformance suite expects of an upstream."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

Answer = dict[str, Any]


def _png() -> str:
    """Return one red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def _wav() -> str:
    """Return two samples of silence."""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", 4) + bytes(4)
    return base64.b64encode(struct.pack("<4sI", b"RIFF", len(body)) + body).decode()


def text(words: str) -> Answer:
    """Return a text block."""
    return {"type": "text", "text": words}


def resource(uri: str, mime: str, words: str) -> Answer:
    """Return an embedded resource."""
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": words}}


IMAGE = {"type": "image", "data": _png(), "mimeType": "image/png"}
MIXED = resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
CONTENT: dict[str, list[Answer]] = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [IMAGE],
    "test_audio_content": [{"type": "audio", "data": _wav(), "mimeType": "audio/wav"}],
    "test_embedded_resource": [
        resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    ],
    "test_multiple_content_types": [text("Multiple content types test:"), IMAGE, MIXED],
}


def needs(*names: str) -> Answer:
    """Return a schema of required texts."""
    return {
        "type": "object",
        "properties": {one: {"type": "string"} for one in names},
        "required": list(names),
    }


_REGION = {"region": {"type": "string", "x-mcp-header": "Region"}, "query": {"type": "string"}}
_BY_PHONE = {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]}
_STREET = {"street": {"type": "string"}, "city": {"type": "string"}}
# The suite compares this schema with its own, keyword by keyword.
JSON_SCHEMA_2020_12 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": _STREET}},
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": _BY_PHONE,
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
SCHEMAS = {
    "json_schema_2020_12_tool": JSON_SCHEMA_2020_12,
    "test_sampling": needs("prompt"),
    "test_elicitation": needs("message"),
    "test_header_parameters": {"type": "object", "properties": _REGION, "required": ["region"]},
}


def form(message: str, **properties: Any) -> Answer:
    """Return an elicitation of a form whose fields are all required."""
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def sample(prompt: str, max_tokens: int) -> Answer:
    """Return a sampling request."""
    messages = [{"role": "user", "content": text(prompt)}]
    return {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": max_tokens}}


WORD = {"type": "string"}
_ROOTS = {"method": "roots/list", "params": {}}
_NAME = form("What is your name?", name=WORD)
_CONFIRM = form("Please confirm", ok={"type": "boolean"})
# rounds by tool; a round is over when all of its keys were answered
ROUNDS: dict[str, list[dict[str, Answer]]] = {
    "test_input_required_result_elicitation": [{"user_name": _NAME}],
    "test_input_required_result_sampling": [{"capital_question": sample("What is the capital of France?", 100)}],
    "test_input_required_result_list_roots": [{"client_roots": _ROOTS}],
    "test_input_required_result_request_state": [{"confirm": _CONFIRM}],
    "test_input_required_result_tampered_state": [{"confirm": _CONFIRM}],
    "test_input_required_result_multiple_inputs": [
        {"user_name": _NAME, "greeting": sample("Generate a greeting", 50), "client_roots": _ROOTS}
    ],
    "test_input_required_result_multi_round": [
        {"step1": form("Step 1: What is your name?", name=WORD)},
        {"step2": form("Step 2: What is your favorite color?", color=WORD)},
    ],
    "test_input_required_result_capabilities": [{"user_name": _NAME, "greeting": sample("Generate a greeting", 50)}],
    "test_streaming_elicitation": [{"user_name": _NAME}],
    "test_tool_with_task": [{"user_name": _NAME}],
}
RESOURCES: dict[str, Answer] = {
    "test://static-text": {
        "mimeType": "text/plain",
        "text": "This is the content of the static text resource.",
    },
    "test://static-binary": {"mimeType": "image/png", "blob": _png()},
    "test://watched-resource": {"mimeType": "text/plain", "text": "Watched."},
}
PROMPTS: dict[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}


def _choice(key: str, *names: str) -> list[Answer]:
    return [{"const": f"{key}{at}", "title": name} for at, name in enumerate(names, 1)]


_OPTIONS = ["option1", "option2", "option3"]
_TITLED = _choice("value", "First Option", "Second Option", "Third Option")
_CHOICES = _choice("value", "First Choice", "Second Choice", "Third Choice")
ENUMS = {
    "untitledSingle": {"type": "string", "enum": _OPTIONS},
    "titledSingle": {"type": "string", "oneOf": _TITLED},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _OPTIONS}},
    "titledMulti": {"type": "array", "items": {"anyOf": _CHOICES}},
}
DEFAULTS = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
