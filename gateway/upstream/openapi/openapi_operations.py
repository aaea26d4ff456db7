"""Convert each operation of an OpenAPI document to a tool definition and a plan for building its requests.

The conversion has no side effects. An operation that cannot become a tool is reported with the file and the JSON
pointer of the defect, and does not affect the other operations.

Sources: OpenAPI 3.1.1, 3.0.4 and 2.0, sections "Operation Object", "Parameter Object" and "Media Type Object".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from gateway.config.upstream_types.openapi_config import Selection
from gateway.http.event_stream import media_type
from gateway.protocol import json_bytes
from gateway.upstream.openapi.openapi_messages import (
    BODY,
    VARIABLE,
    Body,
    BodyKind,
    Encoding,
    Operation,
    Parameter,
    PathRefused,
    Place,
    body_kind,
    concrete,
    is_header_text,
    is_json,
    preference,
    request_target,
)
from gateway.upstream.openapi.openapi_schemas import (
    Documents,
    Key,
    Node,
    OperationRefused,
    SchemaConverter,
    accepting_more,
    has_reference,
)
from registry.intake.issues import ItemIssue
from registry.schema.display_text import clean, excerpt

METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")
_PLACES: Final[tuple[Place, ...]] = ("path", "query", "header", "cookie")
OPERATION_KEY: Final = "openapi/operation"
"""The member of a definition's `_meta` with the method and the path. The lock file, which records approved definitions,
includes this member, so that a changed path is noticed."""
# Limit for an output schema, about 2,000 tokens. Three of four output schemas in GitHub's document are smaller; the
# inner parts of larger schemas are removed.
MAX_OUTPUT_BYTES: Final = 8 * 1024
_MAX_NAME: Final = 128
_MAX_ABOUT: Final = 500
_MAX_EXAMPLE_BYTES: Final = 2_000
# The largest published documents have fewer (Microsoft Graph: about 16,000).
MAX_OPERATIONS: Final = 20_000
# Limit for the definitions of all tools together. Each definition contains the schemas that it refers to, and a
# document can refer to one large schema thousands of times. The tools of Kubernetes have 19 MB.
MAX_TOOLS_BYTES: Final = 64 * 1024 * 1024
_DEFAULT_STYLES: Final = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_STYLES: Final = {
    "path": frozenset({"simple", "label", "matrix"}),
    "query": frozenset({"form", "spaceDelimited", "pipeDelimited", "tabDelimited", "deepObject"}),
    "header": frozenset({"simple"}),
    "cookie": frozenset({"form"}),
}
# The style and `explode` of OpenAPI 3 for each `collectionFormat` (Swagger 2.0, "Parameter Object").
_COLLECTION_FORMATS: Final = {
    "csv": ("form", False),
    "ssv": ("spaceDelimited", False),
    "tsv": ("tabDelimited", False),
    "pipes": ("pipeDelimited", False),
    "multi": ("form", True),
}
# Members of a Swagger 2.0 parameter that are not part of its schema.
_NOT_SCHEMA: Final = frozenset({"name", "in", "required", "description", "collectionFormat", "allowEmptyValue"})
# Headers that do not become arguments. OpenAPI 3.1.1, "Parameter Object", says to ignore parameters with the first
# three names. The other headers belong to the connection, so an argument must not set them.
_NOT_ARGUMENTS: Final = frozenset(
    {"accept", "content-type", "authorization", "host", "content-length", "transfer-encoding", "connection", "cookie"}
    | {"accept-encoding", "proxy-authorization", "te", "trailer", "upgrade", "expect", "keep-alive"}
)
# Vendor extensions that disable an operation, rename it, or give it annotations.
_VENDOR_HINTS: Final = ("x-mcp", "x-speakeasy-mcp", "x-gram", "x-zuplo-mcp")
_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_JSON: Final[tuple[str, BodyKind]] = ("application/json", "json")
_UNCLEAN: Final = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class ApiTools:
    """The tools of a document.

    Attributes:
        about: The API's summary, or else its description, cut to a limit.
        server: The absolute URL of the document's first server; None if the document names no HTTP server.
        operations: The operations that became tools, by tool name.
        refused: The operations that did not become tools, with the reasons.
        noted: Defects that did not prevent an operation from becoming a tool.
    """

    title: str
    version: str
    about: str
    server: str | None
    operations: Mapping[str, Operation] = field(default_factory=dict)
    refused: tuple[ItemIssue, ...] = ()
    noted: tuple[ItemIssue, ...] = ()


def tools_of(documents: Documents, selection: Selection) -> ApiTools:
    """Return the tools of a document, in the document's order; report defective operations in `refused`."""
    return _Builder(documents, selection).build()


class _Builder:
    def __init__(self, documents: Documents, selection: Selection) -> None:
        self._documents = documents
        self._selection = selection
        self._schemas = SchemaConverter(documents)
        # Swagger 2.0 declares bodies, media types and servers in other places than OpenAPI 3.
        self._old = documents.version == "2.0"
        self._operations: dict[str, Operation] = {}
        self._outputs: dict[tuple[str, bytes], tuple[dict[str, Any] | None, str]] = {}
        self._bytes_left = MAX_TOOLS_BYTES
        self._refused: list[ItemIssue] = []
        self._noted: list[ItemIssue] = []

    def build(self) -> ApiTools:
        root = self._documents.root
        count = 0
        for path, path_item in root.child("paths").items():
            if path.startswith("x-"):
                continue
            try:
                item = self._documents.follow(path_item)
            except OperationRefused as refused:
                self._refused.append(refused.finding(path))
                continue
            for method in METHODS:
                node = item.child(method)
                if node.value is None:
                    continue
                count += 1
                if count > MAX_OPERATIONS:
                    break
                self._add(node, item, path, method.upper())
        if count > MAX_OPERATIONS:
            detail = f"more than {MAX_OPERATIONS} operations; the rest is left out"
            self._refused.append(ItemIssue(tool="(document)", code="too_many", detail=detail))
        elif not count:
            empty = self._documents.refuse("no_operations", "the document has no operations", root.child("paths"))
            self._refused.append(empty.finding("(document)"))
        return ApiTools(
            title=excerpt(root.text("info", "title") or "API", _MAX_NAME),
            version=excerpt(str(root.child("info", "version").value or ""), 64),
            about=excerpt(root.text("info", "summary") or root.text("info", "description"), _MAX_ABOUT),
            server=self._server(root),
            operations=self._operations,
            refused=tuple(self._refused),
            noted=tuple(self._noted),
        )

    def _add(self, node: Node, item: Node, path: str, method: str) -> None:
        label = f"{method} {path}"
        try:
            if not isinstance(node.value, dict):
                raise self._documents.refuse("bad_operation", "is not an object; expected an operation", node)
            hints = self._hints(node)
            if hints is None or not self._selection.selects(method, path, node.text("operationId"), _tags(node)):
                return
            if self._bytes_left < 0:
                what = f"the tools before this operation have more than {MAX_TOOLS_BYTES} bytes"
                raise self._documents.refuse("too_large", what, node)
            name = self._name(node, hints, path, method)
            self._operations[name] = operation = self._operation(name, node, item, path, method, hints)
            self._bytes_left -= len(json_bytes.dumps(operation.definition))
        except OperationRefused as refused:
            self._refused.append(refused.finding(label))
        except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
            # Boundary: a defect of any kind in one operation must not affect the other operations.
            defect = self._documents.refuse("bad_operation", f"{type(error).__name__}: {error}", node)
            self._refused.append(defect.finding(label))

    def _hints(self, node: Node) -> Mapping[str, Any] | None:
        """Return the members of an operation's vendor extensions; None if an extension disables the operation."""
        merged: dict[str, Any] = {}
        for key in _VENDOR_HINTS:
            hint = node.value.get(key)
            if hint is False:
                return None
            if isinstance(hint, dict):
                if hint.get("disabled") is True or hint.get("enabled") is False:
                    return None
                inner = hint.get("annotations")
                merged = {**(inner if isinstance(inner, dict) else {}), **hint, **merged}
        return merged

    def _name(self, node: Node, hints: Mapping[str, Any], path: str, method: str) -> str:
        """Return a unique name: the name in a vendor extension, the operation id, or a name from method and path."""
        words = _UNCLEAN.sub("_", path).strip("_")
        formed = f"{method.lower()}_{words or 'root'}"[:_MAX_NAME]
        stated = clean(str(hints.get("name") or node.text("operationId"))).strip()
        if stated and len(stated) <= _MAX_NAME and stated.isprintable() and stated not in self._operations:
            return stated
        if stated:
            reason = "is taken" if stated in self._operations else "is not usable as a name"
            detail = f"{self._documents.place(node)}: the operation id {excerpt(stated, 60)} {reason}"
            self._noted.append(ItemIssue(tool=formed, code="operation_id", detail=detail))
        name, number = formed, 1
        while name in self._operations:
            number += 1
            name = f"{formed[: _MAX_NAME - 4]}_{number}"
        return name

    def _operation(
        self, name: str, node: Node, item: Node, path: str, method: str, hints: Mapping[str, Any]
    ) -> Operation:
        declared = self._parameters(node, item)
        body_node, body = self._body(node, declared)
        parameters = self._name_arguments(
            [entry for entry in declared if entry[1] in _PLACES], has_body=body is not None
        )
        try:
            target, sent = request_target(path, [parameter for parameter, _ in parameters])
        except PathRefused as refused:
            raise self._documents.refuse("bad_path", str(refused), node) from None
        parameters = [(parameter, source) for parameter, (_, source) in zip(sent, parameters, strict=True)]
        properties: dict[str, Any] = {}
        keys: set[Key] = set()
        for parameter, source in parameters:
            properties[parameter.argument] = self._parameter_schema(parameter, source, keys)
        if body is not None and body_node is not None:
            properties[BODY] = self._body_schema(body, body_node, keys)
        required = [parameter.argument for parameter, _ in parameters if parameter.required]
        required += [BODY] if body is not None and body.required else []
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        schema["additionalProperties"] = False
        if definitions := self._schemas.definitions(keys, "request"):
            schema["$defs"] = definitions
        definition: dict[str, Any] = {"name": name}
        title = str(hints.get("title") or node.text("summary"))
        if title:
            definition["title"] = excerpt(title, _MAX_NAME)
        definition["description"] = _description(node, hints, f"{method} {path}")
        definition["inputSchema"] = schema
        accept, output = self._output(node, name)
        if output is not None:
            definition["outputSchema"] = output
        definition["annotations"] = _annotations(method, hints)
        definition["_meta"] = {OPERATION_KEY: {"method": method, "path": path}}
        own = self._server(node) or self._server(item)
        if own is not None:
            definition["_meta"][OPERATION_KEY]["server"] = own
        return Operation(
            name=name,
            method=method,
            path=target,
            parameters=tuple(parameter for parameter, _ in parameters),
            body=body,
            definition=definition,
            accept=accept,
            server=own,
        )

    def _parameters(self, node: Node, item: Node) -> list[tuple[Node, str]]:
        """Return the parameters and their places.

        A parameter of the operation replaces the parameter of the path with the same name and place.
        """
        parameters: dict[tuple[str, str], Node] = {}
        for entry in (*item.child("parameters").elements(), *node.child("parameters").elements()):
            parameter = self._documents.follow(entry)
            name, place = parameter.child("name").value, parameter.child("in").value
            if not isinstance(name, str) or not name or not isinstance(place, str):
                raise self._documents.refuse("bad_parameter", "has no name or no valid `in`", parameter)
            if place == "querystring" or (place not in _PLACES and not (self._old and place in ("body", "formData"))):
                what = f"the place {excerpt(place, 40)} of parameter {excerpt(name, 60)} is not supported"
                raise self._documents.refuse("bad_parameter", what, parameter)
            if place == "header" and name.lower() in _NOT_ARGUMENTS | self._selection.headers:
                continue
            parameters[name, place] = parameter
        return [(parameter, place) for (_, place), parameter in parameters.items()]

    def _name_arguments(self, declared: Sequence[tuple[Node, str]], *, has_body: bool) -> list[tuple[Parameter, Node]]:
        """Give every parameter an argument name: its own name, or name and place if the name is already used."""
        used_names = {BODY} if has_body else set[str]()
        own = {str(node.value["name"]) for node, _ in declared}
        result: list[tuple[Parameter, Node]] = []
        for place in _PLACES:
            for node, _ in (entry for entry in declared if entry[1] == place):
                name = argument = str(node.value["name"])
                number = 1
                while argument in used_names or (argument != name and argument in own):
                    argument = f"{name}_{place}" if number == 1 else f"{name}_{place}_{number}"
                    number += 1
                used_names.add(argument)
                result.append((self._parameter(node, place, name, argument), node))
        return result

    def _parameter(self, node: Node, place: Place, name: str, argument: str) -> Parameter:
        value = node.value
        content = next(iter(value["content"]), None) if isinstance(value.get("content"), dict) else None
        style = str(value.get("style") or _DEFAULT_STYLES[place])
        explode = value.get("explode")
        if self._old:
            collection = str(value.get("collectionFormat") or "csv")
            style, explode = _COLLECTION_FORMATS.get(collection, ("form", False))
            style = style if place == "query" else _DEFAULT_STYLES[place]
        if style not in _STYLES[place]:
            what = f"the style {excerpt(style, 40)} is not one of {', '.join(sorted(_STYLES[place]))}"
            raise self._documents.refuse("bad_style", what, node)
        return Parameter(
            name=name,
            place=place,
            argument=argument,
            style=style,
            explode=explode if isinstance(explode, bool) else style in ("form", "deepObject"),
            required=place == "path" or value.get("required") is True,
            allow_reserved=value.get("allowReserved") is True,
            media_type=content,
        )

    def _parameter_schema(self, parameter: Parameter, node: Node, keys: set[Key]) -> Any:
        if parameter.media_type is not None:
            source = node.child("content", parameter.media_type, "schema")
        elif self._old and "schema" not in node.value:
            schema_members = {key: value for key, value in node.value.items() if key not in _NOT_SCHEMA}
            source = Node(schema_members, node.uri, node.pointer)
        else:
            source = node.child("schema")
        schema: Any = {}
        if source.value is not None:
            schema, referenced = self._schemas.convert(source, "request")
            keys |= referenced
        schema = dict(schema) if isinstance(schema, dict) else {"not": {}} if schema is False else {}
        about = [clean(node.text("description")) or str(schema.get("description") or "")]
        if parameter.argument != parameter.name:
            about.append(f"Sent as the {parameter.place} parameter `{clean(parameter.name)}`.")
        if description := " ".join(text for text in about if text):
            schema["description"] = description
        if node.value.get("deprecated") is True:
            schema["deprecated"] = True
        _add_examples(schema, node)
        return schema

    def _body(self, node: Node, declared: Sequence[tuple[Node, str]]) -> tuple[Node | None, Body | None]:
        """Return the node whose `schema` describes the request body, and how to write the body.

        Both are None if the operation has no body.
        """
        if self._old:
            return self._swagger_body(node, declared)
        if node.child("requestBody").value is None:
            return None, None
        source = self._documents.follow(node.child("requestBody"))
        options = [(str(name), body_kind(str(name))) for name in source.child("content").value or ()]
        if not options:
            return None, None
        name, kind = min(options, key=lambda option: preference(*option))
        media = source.child("content", name)
        schema = media.child("schema")
        content_type = "application/json" if "*" in name and kind == "json" else concrete(name)
        encodings = self._encodings(schema, media.child("encoding")) if kind in ("form", "multipart") else {}
        required = source.value.get("required") is True
        return media, Body(media_type=content_type, kind=kind, required=required, encodings=encodings)

    def _swagger_body(self, node: Node, declared: Sequence[tuple[Node, str]]) -> tuple[Node | None, Body | None]:
        """Return the same as `_body` for a Swagger 2.0 operation, from its `body` or `formData` parameters."""
        consumes = node.child("consumes").value or self._documents.root.child("consumes").value
        options = [(name, body_kind(name)) for name in consumes or () if isinstance(name, str)]
        body_parameter = next((parameter for parameter, place in declared if place == "body"), None)
        if body_parameter is not None:
            usable = [option for option in options if option[1] not in ("form", "multipart")]
            name, kind = min(usable, key=lambda option: preference(*option), default=_JSON)
            content_type = "application/json" if "*" in name else name
            return body_parameter, Body(
                media_type=content_type, kind=kind, required=body_parameter.value.get("required") is True
            )
        fields = [parameter for parameter, place in declared if place == "formData"]
        if not fields:
            return None, None
        has_file = any(parameter.value.get("type") == "file" for parameter in fields)
        is_multipart = has_file or (any(o[1] == "multipart" for o in options) and all(o[1] != "form" for o in options))
        properties: dict[str, Any] = {}
        encodings: dict[str, Encoding] = {}
        for parameter in fields:
            name = str(parameter.value["name"])
            properties[name] = {key: value for key, value in parameter.value.items() if key not in _NOT_SCHEMA}
            properties[name]["description"] = parameter.text("description")
            style, explode = _COLLECTION_FORMATS.get(str(parameter.value.get("collectionFormat")), ("form", False))
            is_list = parameter.value.get("type") == "array"
            encodings[name] = Encoding(
                style=style if is_list else None,
                explode=explode,
                is_binary=parameter.value.get("type") == "file",
            )
        needed = [str(parameter.value["name"]) for parameter in fields if parameter.value.get("required") is True]
        schema = {"type": "object", "properties": properties, "required": needed}
        media = Node({"schema": schema}, fields[0].uri, node.child("parameters").pointer)
        return media, Body(
            media_type="multipart/form-data" if is_multipart else "application/x-www-form-urlencoded",
            kind="multipart" if is_multipart else "form",
            required=bool(needed),
            encodings=encodings,
        )

    def _encodings(self, schema: Node, encoding_node: Node) -> dict[str, Encoding]:
        encodings: dict[str, Encoding] = {}
        for name, child in self._properties(schema, 0):
            value = self._documents.follow(child).value
            encoding = encoding_node.child(name).value
            encoding = encoding if isinstance(encoding, dict) else {}
            items = self._documents.follow(child.child("items")) if isinstance(value, dict) else child
            content_type = encoding.get("contentType")
            style = encoding.get("style")
            encodings[name] = Encoding(
                content_type=content_type.split(",")[0].strip() if isinstance(content_type, str) else None,
                style=style if isinstance(style, str) and style in _STYLES["query"] else None,
                explode=encoding["explode"] if isinstance(encoding.get("explode"), bool) else style in (None, "form"),
                allow_reserved=encoding.get("allowReserved") is True,
                is_binary=_is_binary(value) or _is_binary(items.value),
            )
        return encodings

    def _properties(self, schema: Node, depth: int) -> Iterator[tuple[str, Node]]:
        schema = self._documents.follow(schema)
        yield from schema.child("properties").items()
        for keyword in ("allOf", "anyOf", "oneOf") if depth < 4 else ():
            for part in schema.child(keyword).elements():
                yield from self._properties(part, depth + 1)

    def _body_schema(self, body: Body, media: Node, keys: set[Key]) -> Any:
        schema: Any = {}
        if body.kind == "binary":
            schema = {"type": "string", "contentEncoding": "base64", "description": "The bytes, encoded as base64."}
        elif media.child("schema").value is not None:
            schema, referenced = self._schemas.convert(media.child("schema"), "request")
            keys |= referenced
        elif body.kind in ("form", "multipart"):
            schema = {"type": "object"}
        elif body.kind == "text":
            schema = {"type": "string"}
        schema = dict(schema) if isinstance(schema, dict) else {}
        if "description" not in schema and (about := clean(media.text("description"))):
            schema["description"] = about
        _add_examples(schema, media)
        return schema

    def _output(self, node: Node, name: str) -> tuple[str, dict[str, Any] | None]:
        """Return the Accept header, and the schema of the structured result, which is None if no response has one."""
        chosen: Node | None = None
        accepted: list[str] = []
        responses = node.child("responses")
        for status in sorted(key for key, _ in responses.items() if str(key).upper().startswith("2")):
            response = self._documents.follow(responses.child(status))
            if self._old:
                produced = node.child("produces").value or self._documents.root.child("produces").value
                types = [kind for kind in produced or ["application/json"] if isinstance(kind, str)]
                schema = response.child("schema")
            else:
                types = [str(kind) for kind in response.child("content").value or ()]
                json = next((kind for kind in types if is_json(media_type(kind))), None)
                schema = response.child("content", json, "schema") if json is not None else Node(None, "", "")
            accepted += [kind for kind in types if kind not in accepted and is_header_text(kind)]
            if chosen is None and schema.value is not None and any(is_json(media_type(kind)) for kind in types):
                chosen = schema
        accepted.sort(key=lambda kind: not is_json(media_type(kind)))
        accept = ", ".join(accepted[:8]) or "application/json, */*;q=0.5"
        return accept, self._output_schema(chosen, name) if chosen is not None else None

    def _output_schema(self, node: Node, name: str) -> dict[str, Any] | None:
        """Return the schema of a structured result; add a note for the operator if the schema was cut or dropped."""
        key = (node.uri, json_bytes.dumps(node.value))
        if key not in self._outputs:
            try:
                self._outputs[key] = self._converted_output(node)
            except OperationRefused as refused:
                # The operation can be called without an output schema.
                self._outputs[key] = None, excerpt(f"the output schema was dropped: {refused}", 300)
        schema, note = self._outputs[key]
        if note:
            self._noted.append(ItemIssue(tool=name, code="output_schema", detail=note))
        return schema

    def _converted_output(self, node: Node) -> tuple[dict[str, Any] | None, str]:
        """Return the schema of a structured result, and a note for the operator, which is empty if nothing was cut."""
        schema, keys = self._schemas.convert(node, "response")
        definitions, cut = self._schemas.definitions_within(keys, "response", MAX_OUTPUT_BYTES)
        if not isinstance(schema, dict) or not schema:
            return None, ""
        if "type" not in schema:
            target = self._documents.follow(node).value
            if isinstance(target, dict) and target.get("type") == "object" and target.get("nullable") is not True:
                schema = {"type": "object", **schema}  # clients with earlier protocol versions require `type`
        is_cut = bool(cut)
        if len(json_bytes.dumps(schema)) > MAX_OUTPUT_BYTES:
            schema = {key: schema[key] for key in ("type", "description") if key in schema}
            definitions, cut, is_cut = {}, [], True
        note = f"the output schema was cut to {MAX_OUTPUT_BYTES} bytes: it does not describe all inner values"
        if definitions:
            schema = {**schema, "$defs": definitions}
        return (accepting_more(schema, cut) if cut else schema) or None, note if is_cut else ""

    def _server(self, node: Node) -> str | None:
        """Return the absolute URL of the first server of a document, path or operation, with its variables replaced."""
        if self._old:
            if node.pointer:
                return None
            host, scheme = node.text("host"), node.child("schemes").value
            schemes = [name for name in scheme if name in ("https", "http")] if isinstance(scheme, list) else []
            first = "https" if "https" in schemes or not schemes else "http"
            base = node.text("basePath")
            return self._absolute(f"{first}://{host}{base}" if host else base)
        servers = node.child("servers")
        if not isinstance(servers.value, list) or not servers.value:
            return self._absolute("/") if not node.pointer else None
        server = servers.child(0)
        values = {name: str(child.child("default").value) for name, child in server.child("variables").items()}
        values |= dict(self._selection.variables)
        url = VARIABLE.sub(lambda match: values.get(match[1], match[0]), server.text("url"))
        return self._absolute(url)

    def _absolute(self, url: str) -> str | None:
        """Resolve the URL of a server against the URL of the document; None if the result is not an HTTP URL."""
        base = self._documents.root.uri
        if url.startswith("//") and urlsplit(base).scheme not in ("http", "https"):
            url = f"https:{url}"  # the URL of a document in a file has no HTTP scheme to inherit
        try:
            absolute = urljoin(base, url) if urlsplit(base).scheme in ("http", "https") else url
            parts = urlsplit(absolute)
        except ValueError:
            return None
        return absolute.rstrip("/") if parts.scheme in ("http", "https") and parts.hostname else None


def _is_binary(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    encoded = "contentEncoding" in value or "contentMediaType" in value
    return value.get("format") in ("binary", "byte") or value.get("type") == "file" or encoded


def _tags(node: Node) -> list[str]:
    tags = node.child("tags").value
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []


def _description(node: Node, hints: Mapping[str, Any], label: str) -> str:
    """Return the summary and the description, then the method, path and tags, so that tool searches can match these."""
    stated = hints.get("description")
    summary, text = node.text("summary"), node.text("description")
    texts = [stated] if isinstance(stated, str) and stated.strip() else [summary, "" if text == summary else text]
    if node.value.get("deprecated") is True:
        texts.insert(0, "Deprecated.")
    tags = _tags(node)
    texts.append(f"{label} (tags: {', '.join(tags)})" if tags else label)
    return "\n\n".join(text.strip() for text in texts if text.strip())


def _annotations(method: str, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return the annotations that follow from the method (RFC 9110, section 9.2); vendor extensions override them."""
    reads = method in ("GET", "HEAD", "OPTIONS", "TRACE", "QUERY")
    tool_annotations: dict[str, Any] = {"readOnlyHint": reads}
    if method == "DELETE":
        tool_annotations["destructiveHint"] = True
    if reads or method in ("PUT", "DELETE"):
        tool_annotations["idempotentHint"] = True
    return tool_annotations | {name: hints[name] for name in _HINTS if isinstance(hints.get(name), bool)}


def _add_examples(schema: dict[str, Any], node: Node) -> None:
    """Add up to three small examples of a parameter or a media type to `schema`."""
    if "examples" in schema or not isinstance(node.value, dict):
        return
    examples = node.value.get("examples")
    values = [node.value["example"]] if "example" in node.value else []
    if isinstance(examples, dict):
        values += [entry["value"] for entry in examples.values() if isinstance(entry, dict) and "value" in entry]
    values = [value for value in values[:3] if not has_reference(value)]
    small = [value for value in values if len(json_bytes.dumps(value)) <= _MAX_EXAMPLE_BYTES]
    if small:
        schema["examples"] = small
