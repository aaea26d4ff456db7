"""Build the HTTP request for a tool call.

Sources: OpenAPI 3.1.1, sections "Style Values" and "Encoding Object"; RFC 6570; RFC 7578 for multipart bodies.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from urllib.parse import quote, unquote, unquote_plus

from gateway.http.event_stream import media_type
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import GatewayError
from registry.schema.display_text import excerpt

Place = Literal["path", "query", "header", "cookie"]
BodyKind = Literal["json", "form", "multipart", "text", "binary"]
BODY: Final = "body"
"""The name of the tool argument with the request body."""
# Reserved characters that a value in a query may contain unencoded, as they do not end the value (RFC 3986, section
# 3.4).
_RESERVED_IN_QUERY: Final = ":/?@!$'()*,;"
# Characters that stay unencoded in the literal parts of a path template, including `%`: an author may have
# percent-encoded these parts already.
_LITERAL: Final = "/%:@!$&'()*+,;=~-._"
_DELIMITERS: Final = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C", "tabDelimited": "%09"}
VARIABLE: Final = re.compile(r"\{([^{}]+)\}")
"""A variable in a path or in a server's URL."""
_FILE: Final = "file"
_BRACE: Final = re.compile(r"[{}]")
_DATA_URL: Final = re.compile(r"data:([^;,]*)(?:;[^,]*?)?;base64,", re.IGNORECASE)
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Maximum nesting of `deepObject` values, which usually are filters; real filters have fewer levels.
_MAX_DEEP: Final = 16


class ArgumentRefused(GatewayError):
    """An argument cannot be written into the request; the message names the argument."""


class PathRefused(GatewayError):
    """No request can be built for a path of a document; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter and how it is written into the request.

    Attributes:
        argument: The name of the tool argument. It differs from `name` if another parameter, or the request body,
            already uses `name`.
        media_type: The media type of a parameter that is defined with `content`; None for a parameter with a style.
    """

    name: str
    place: Place
    argument: str
    style: str
    explode: bool
    required: bool = False
    allow_reserved: bool = False
    media_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How one property of a form or multipart body is written.

    Attributes:
        style: The style; None if the document states none. In a form, objects are then written as JSON, and other
            values in the style `form`.
    """

    content_type: str | None = None
    style: str | None = None
    explode: bool = True
    allow_reserved: bool = False
    is_binary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """How the argument `body` is written into the request."""

    media_type: str
    kind: BodyKind
    required: bool = False
    encodings: Mapping[str, Encoding] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A tool definition, and the plan for building the tool's requests.

    Attributes:
        path: The path template, with the query parameters and the fragment that the document fixes.
        definition: The tool definition.
        accept: The Accept header.
        server: The absolute URL of the operation's own server; None for the server of the whole document.
    """

    name: str
    method: str
    path: str
    parameters: tuple[Parameter, ...]
    body: Body | None
    definition: dict[str, Any]
    accept: str
    server: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParts:
    """A request without the address of the server.

    Attributes:
        target: The percent-encoded path, and the query.
        cookie: The Cookie header with the cookie parameters; empty if there are none.
    """

    method: str
    target: str
    headers: dict[str, str]
    cookie: str
    body: bytes


def request_target(path: str, parameters: Sequence[Parameter]) -> tuple[str, list[Parameter]]:
    """Return the path with its fixed query parameters, and the parameters with the place where each one is sent.

    Documents may write `?user={id}` into a path: the parameter `id` is then sent in the query, as `user`.

    Raises:
        PathRefused: The path is malformed, or contains a variable that no parameter fills.
    """
    if not path.startswith("/") or not path.isprintable():
        raise PathRefused("is not a path that begins with /")
    plain, mark, fragment = path.partition("#")
    plain, _, query = plain.partition("?")
    if VARIABLE.search(fragment):
        raise PathRefused("has a variable after #, which is never sent; expected a parameter of the query")
    sent = list(parameters)
    fixed: list[str] = []
    for pair in query.split("&") if query else ():
        key, _, value = pair.partition("=")
        variable = VARIABLE.fullmatch(value)
        if _BRACE.search(key if variable is not None else pair):
            raise PathRefused(f"the query part {excerpt(pair, 60)} is not supported; expected a value or NAME={{NAME}}")
        if variable is not None:
            index = _parameter_index(variable[1], ("query", "path"), parameters)
            style = parameters[index].style if parameters[index].place == "query" else "form"
            sent[index] = replace(parameters[index], name=unquote_plus(key), place="query", style=style)
        elif not any(p.place == "query" and p.required and p.name == unquote_plus(key) for p in parameters):
            fixed.append(pair)
    for name in VARIABLE.findall(plain):
        _parameter_index(name, ("path",), parameters)
    return f"{plain}?{'&'.join(fixed)}{mark}{fragment}" if fixed else f"{plain}{mark}{fragment}", sent


def _parameter_index(name: str, places: Sequence[Place], parameters: Sequence[Parameter]) -> int:
    """Return the index of the parameter with this name; the first of `places` with such a parameter decides.

    Raises:
        PathRefused: None of the places has a parameter with this name.
    """
    for place in places:
        for index, parameter in enumerate(parameters):
            if (parameter.place, parameter.name) == (place, name):
                return index
    raise PathRefused(f"the path has {{{excerpt(name, 60)}}}, and there is no parameter of this name")


def request_of(operation: Operation, arguments: Mapping[str, Any]) -> RequestParts:
    """Return the request for a call of an operation.

    Raises:
        ArgumentRefused: An argument is missing, or its value cannot be written into the request.
    """
    query: list[str] = []
    cookies: list[str] = []
    headers: dict[str, str] = {"accept": operation.accept}
    values: dict[str, str] = {}
    for parameter in operation.parameters:
        value = arguments.get(parameter.argument)
        if value is None:
            if parameter.required and (parameter.argument not in arguments or parameter.place == "path"):
                raise ArgumentRefused(f"{parameter.argument} is missing")
            continue
        if parameter.place == "path":
            values[parameter.name] = _path_value(parameter, value)
        elif parameter.place == "query":
            query += _query_pairs(parameter, value)
        elif parameter.place == "header":
            headers[parameter.name.lower()] = _header_value(parameter, value)
        else:
            cookies += _cookie_pairs(parameter, value)
    # Some documents distinguish operations with equal paths by a fragment, which is never sent, or by a fixed query.
    path, _, fixed = operation.path.partition("#")[0].partition("?")
    query = [quote(fixed, safe=_LITERAL + "?"), *query] if fixed else query
    target = quote(path, safe=_LITERAL + "{}")
    target = VARIABLE.sub(lambda match: values[match[1]], target)
    _check_segments(target, operation)
    content = b""
    if operation.body is not None and arguments.get(BODY) is not None:
        content, headers["content-type"] = _body(operation.body, arguments[BODY])
    elif operation.body is not None and operation.body.kind == "json" and BODY in arguments:
        content, headers["content-type"] = b"null", operation.body.media_type
    elif operation.body is not None and operation.body.required:
        raise ArgumentRefused(f"{BODY} is missing")
    return RequestParts(
        method=operation.method,
        target=f"{target}?{'&'.join(query)}" if query else target,
        headers=headers,
        cookie="; ".join(cookies),
        body=content,
    )


def _text(value: Any) -> str:
    """Return a string unchanged, and any other value as JSON text."""
    if isinstance(value, str):
        return value
    return json_bytes.dumps(value).decode()


def _encode(value: Any, *, allow_reserved: bool = False) -> str:
    try:
        return quote(_text(value), safe=_RESERVED_IN_QUERY if allow_reserved else "")
    except UnicodeEncodeError:
        raise ArgumentRefused("a text has a character that is not Unicode") from None


def _members(value: Any) -> list[tuple[str, Any]]:
    """Return the members of an object, without members whose value is None."""
    return [(str(name), member) for name, member in value.items() if member is not None]


def _present(value: Any) -> list[Any]:
    return [item for item in value if item is not None]


def _path_value(parameter: Parameter, value: Any) -> str:
    """Return the text of a path parameter. Source: RFC 6570, sections 3.2.2, 3.2.5 and 3.2.7."""
    name = quote(parameter.name, safe="")
    if parameter.media_type is not None:
        return _encode(json_bytes.dumps(value).decode())
    _check_pieces(parameter.argument, value)
    prefix = {"simple": "", "label": ".", "matrix": ";"}[parameter.style]
    joint = {"simple": ",", "label": ".", "matrix": ";"}[parameter.style] if parameter.explode else ","
    if isinstance(value, dict):
        members = _members(value)
        sign = "=" if parameter.explode else ","
        text = joint.join(f"{_encode(key)}{sign}{_encode(member)}" for key, member in members)
        has_name = parameter.style == "matrix" and not parameter.explode
    elif isinstance(value, list):
        exploded = parameter.style == "matrix" and parameter.explode
        text = joint.join(f"{name}={_encode(item)}" if exploded else _encode(item) for item in _present(value))
        has_name = parameter.style == "matrix" and not parameter.explode
    else:
        text = _encode(value)
        has_name = parameter.style == "matrix"
    if has_name:
        text = f"{name}={text}" if text else name
    if not text:
        raise ArgumentRefused(f"{parameter.argument} is empty; expected a value for the path")
    return prefix + text


def _check_pieces(argument: str, value: Any) -> None:
    """Refuse control characters, and dot segments (`.` and `..`).

    A dot segment would lead to another path on servers that decode a path before they resolve dot segments.
    """
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_pieces(argument, item)
        return
    text = _text(value)
    if any(piece in (".", "..") for piece in re.split(r"[/\\]", unquote(text))):
        raise ArgumentRefused(f"{argument} is {excerpt(text, 60)!r}, which would change the rest of the path")
    if any(character < " " or character == "\x7f" for character in text):
        raise ArgumentRefused(f"{argument} has control characters; expected text for the path")


def _check_segments(target: str, operation: Operation) -> None:
    """Refuse a path in which values, their separators and the text around them together form a dot segment."""
    if any(unquote(segment) in (".", "..") for segment in target.split("/")):
        names = ", ".join(p.argument for p in operation.parameters if p.place == "path")
        raise ArgumentRefused(f"the path {excerpt(target, 100)} leads out of {operation.path}; check {names}")


def _query_pairs(parameter: Parameter, value: Any) -> Iterator[str]:
    name = quote(parameter.name, safe="")
    if parameter.media_type is not None:
        yield f"{name}={_encode(json_bytes.dumps(value).decode())}"
        return
    yield from _pairs(
        name, value, style=parameter.style, explode=parameter.explode, allow_reserved=parameter.allow_reserved
    )


def _pairs(name: str, value: Any, *, style: str, explode: bool, allow_reserved: bool) -> Iterator[str]:
    """Yield the `name=value` pairs of a value in a query, a form or a cookie."""
    if style == "deepObject":
        yield from _deep_pairs(name, value, allow_reserved, 0)
    elif isinstance(value, dict):
        members = [(_encode(key), _encode(member, allow_reserved=allow_reserved)) for key, member in _members(value)]
        if style == "form" and explode:
            yield from (f"{key}={member}" for key, member in members)
        elif members:
            yield f"{name}={_DELIMITERS[style].join(f'{key}{_DELIMITERS[style]}{member}' for key, member in members)}"
    elif isinstance(value, list):
        items = [_encode(item, allow_reserved=allow_reserved) for item in _present(value)]
        if explode:
            yield from (f"{name}={item}" for item in items)
        elif items:
            yield f"{name}={_DELIMITERS[style].join(items)}"
    else:
        yield f"{name}={_encode(value, allow_reserved=allow_reserved)}"


def _deep_pairs(name: str, value: Any, allow_reserved: bool, depth: int) -> Iterator[str]:
    """Yield nested values as `name[key][0]=value`, the format that servers with nested parameters expect."""
    if depth > _MAX_DEEP:
        raise ArgumentRefused(f"{unquote(name)} is nested more than {_MAX_DEEP} levels")
    if isinstance(value, dict | list):
        entries = _members(value) if isinstance(value, dict) else list(enumerate(_present(value)))
        for key, member in entries:
            yield from _deep_pairs(f"{name}%5B{_encode(str(key))}%5D", member, allow_reserved, depth + 1)
    else:
        yield f"{name}={_encode(value, allow_reserved=allow_reserved)}"


def _header_value(parameter: Parameter, value: Any) -> str:
    if not _HEADER_NAME.fullmatch(parameter.name):
        raise ArgumentRefused(f"{parameter.argument} cannot be sent: its name is not a valid header name")
    if parameter.media_type is not None:
        # Escape all other characters, because a header contains only ASCII.
        text = json_bytes.dumps(value).decode()
        text = "".join(character if character.isascii() else _escape_character(character) for character in text)
    elif isinstance(value, dict):
        sign = "=" if parameter.explode else ","
        text = ",".join(f"{key}{sign}{_text(member)}" for key, member in _members(value))
    elif isinstance(value, list):
        text = ",".join(map(_text, _present(value)))
    else:
        text = _text(value)
    if not text.isascii() or not text.isprintable():
        raise ArgumentRefused(f"{parameter.argument} has characters that a header cannot contain; expected ASCII text")
    return text.strip()


def _escape_character(character: str) -> str:
    data = character.encode("utf-16-be")
    return "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2))


def _cookie_pairs(parameter: Parameter, value: Any) -> Iterator[str]:
    """Yield the pairs of a cookie parameter, percent-encoded, because a cookie cannot contain `;` or a space."""
    name = quote(parameter.name, safe="")
    if parameter.media_type is not None:
        yield f"{name}={_encode(json_bytes.dumps(value).decode())}"
        return
    yield from _pairs(name, value, style="form", explode=parameter.explode, allow_reserved=False)


def _body(body: Body, value: Any) -> tuple[bytes, str]:
    """Return the bytes and the Content-Type of the request body."""
    if body.kind == "json":
        return json_bytes.dumps(value), body.media_type
    if body.kind == "text":
        return _utf8(_text(value)), body.media_type
    if body.kind == "binary":
        return _decode_file(BODY, value)[0], body.media_type
    if body.kind == "multipart" and isinstance(value, str | list):
        # Some documents declare a multipart body as just the bytes of a file; most servers expect a part `file`.
        return _multipart(replace(body, encodings={_FILE: Encoding(is_binary=True)}), {_FILE: value})
    if not isinstance(value, dict):
        raise ArgumentRefused(f"{BODY} is not an object; expected the fields of the form")
    if body.kind == "multipart":
        return _multipart(body, value)
    pairs: list[str] = []
    for name, member in _members(value):
        encoding = body.encodings.get(name, Encoding())
        key = quote(name, safe="")
        if encoding.style is None and _holds_objects(member):
            # OpenAPI 3.1.1, "Encoding Object": without a style, an object is written as JSON.
            for item in member if isinstance(member, list) else [member]:
                pairs.append(f"{key}={_encode(json_bytes.dumps(item).decode())}")
        else:
            pairs += _pairs(
                key,
                member,
                style=encoding.style or "form",
                explode=encoding.explode,
                allow_reserved=encoding.allow_reserved,
            )
    return "&".join(pairs).encode("ascii"), body.media_type


def _holds_objects(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict | list) for item in value))


def _multipart(body: Body, value: Mapping[str, Any]) -> tuple[bytes, str]:
    parts: list[tuple[bytes, bytes]] = []
    for name, member in _members(value):
        encoding = body.encodings.get(name, Encoding())
        for item in _present(member) if isinstance(member, list) else [member]:
            parts.append(_part(name, item, encoding))
    # The boundary is a hash of the content, so equal calls send equal bytes, and nobody can craft a part
    # that contains the boundary.
    boundary = hashlib.sha256(b"\0".join(head + content for head, content in parts)).hexdigest()[:32]
    lines = [b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary.encode(), head, content) for head, content in parts]
    return b"".join([*lines, b"--%b--\r\n" % boundary.encode()]), f'{body.media_type}; boundary="{boundary}"'


def _part(name: str, value: Any, encoding: Encoding) -> tuple[bytes, bytes]:
    # Escape the name as browsers do (HTML, "Multipart form data").
    escaped_name = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    if encoding.is_binary and isinstance(value, str):
        content, kind = _decode_file(name, value)
        kind = encoding.content_type if encoding.content_type and "*" not in encoding.content_type else kind
        disposition = f'form-data; name="{escaped_name}"; filename="{escaped_name}"'
    else:
        kind = encoding.content_type or ("application/json" if isinstance(value, dict | list) else "text/plain")
        disposition = f'form-data; name="{escaped_name}"'
        content = json_bytes.dumps(value) if media_type(kind) == "application/json" else _utf8(_text(value))
    if not kind.isascii() or not kind.isprintable():
        raise ArgumentRefused(f"{BODY}.{name} has a media type that a header cannot contain")
    return _utf8(f"Content-Disposition: {disposition}\r\nContent-Type: {kind}"), content


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise ArgumentRefused("a text has a character that is not Unicode") from None


def _content_item(text: str) -> tuple[str, str]:
    """Return the base64 and the media type of an MCP content item, written as JSON; return other text unchanged.

    A caller can pass a handle, a reference to an earlier result, as the argument. The gateway then replaces the handle
    of a picture by the picture's content item.
    """
    try:
        item = json_bytes.loads(text.encode())
    except (json_bytes.MalformedJson, UnicodeEncodeError):
        return text, ""
    holder = item["resource"] if isinstance(item.get("resource"), dict) else item
    data, kind = holder.get("data", holder.get("blob")), holder.get("mimeType")
    return data if isinstance(data, str) else text, kind if isinstance(kind, str) else ""


def _decode_file(name: str, value: Any) -> tuple[bytes, str]:
    """Return the bytes and the media type of base64 text, a base64 `data:` URL, or a content item written as JSON."""
    if not isinstance(value, str):
        raise ArgumentRefused(f"{name} is not text; expected base64")
    kind = "application/octet-stream"
    if value.startswith("{"):
        value, stated = _content_item(value)
        kind = stated or kind
    if (match := _DATA_URL.match(value)) is not None:
        kind = match[1] or kind
        value = value[match.end() :]
    plain = "".join(value.split()).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True), kind
    except (binascii.Error, ValueError):
        raise ArgumentRefused(f"{name} is not base64; expected the bytes of the file, encoded as base64") from None


def is_json(kind: str) -> bool:
    """Return whether a media type without parameters is JSON, or a wildcard that includes JSON."""
    return kind in ("application/json", "text/json", "*/*", "application/*") or kind.endswith("+json")


def body_kind(name: str) -> BodyKind:
    """Return how a body with this media type is written."""
    kind = media_type(name)
    if is_json(kind):
        return "json"
    if kind == "application/x-www-form-urlencoded":
        return "form"
    if kind.startswith("multipart/"):
        return "multipart"
    return "text" if kind.startswith("text/") or kind.endswith(("xml", "yaml")) else "binary"


def preference(name: str, kind: BodyKind) -> tuple[int, int]:
    """Return the sort key for the media types that an operation accepts: JSON first, then forms, then others."""
    plain = media_type(name)
    # A JSON Patch, a list of changes, is harder to write than a merge patch, which looks like the resource.
    order = {"application/json": 0, "application/merge-patch+json": 1, "application/json-patch+json": 3}
    return ("json", "form", "multipart", "text", "binary").index(kind), order.get(plain, 4 if "*" in plain else 2)


def concrete(name: str) -> str:
    """Return the media type to send: a default if `name` has wildcards or characters that a header cannot contain."""
    if "*" in name or not is_header_text(name):
        return "text/plain" if name.startswith("text/") else "application/octet-stream"
    return name


def is_header_text(text: str) -> bool:
    return text.isascii() and text.isprintable()
