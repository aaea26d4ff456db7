"""Parse a configuration file, JSON or YAML, into plain JSON values."""

from __future__ import annotations

import json
import re
import warnings
from datetime import date
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.protocol.gateway_errors import ConfigError

# Enough for ten thousand servers with documented tools. A larger file is the wrong file and must not fill the memory.
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
# Deeper than any real file, and well below the interpreter's recursion limit.
MAX_DEPTH: Final = 100
# More values than a file of the maximum size has without YAML aliases. Aliases can expand a small file enormously.
MAX_NODES: Final = 500_000

_EXPECTED_ROOT: Final = 'an object with "mcpServers"'
# Comments and trailing commas of JSON with Comments. Strings are matched first, so that their content is skipped.
_COMMENT: Final = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA: Final = re.compile(r'("(?:[^"\\\n]|\\.)*")|,(?=\s*[}\]])')


class _Repeated(dict[str, Any]):
    """An object in which `key` occurs twice."""

    key: str = ""


def read(path: Path) -> str:
    """Return the text of the file at `path`.

    Raises:
        ConfigError: The file does not exist, cannot be read, is larger than `MAX_FILE_BYTES`, or is not UTF-8.
    """
    file = str(path)
    try:
        if path.is_dir():
            raise ConfigError("is a directory; expected a JSON or YAML file", file=file)
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError("no such file; expected a JSON or YAML file", file=file) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"cannot be read ({reason}); expected a readable file", file=file) from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError("is too large; expected at most 4 MiB", file=file)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 at byte {error.start}; expected UTF-8 text", file=file) from None


def values(text: str, *, file: str) -> dict[str, Any]:
    """Parse `text` as JSON or YAML, depending on its content, and return the object.

    Raises:
        ConfigError: The text is empty, malformed, not an object, or contains a key twice.
    """
    stripped = text.lstrip("\ufeff \t\r\n")
    if not stripped:
        raise ConfigError(f"is empty; expected {_EXPECTED_ROOT}", file=file)
    # Both formats may begin with comments.
    looks_like_json = _blank(_COMMENT, stripped).lstrip()[:1] in ("{", "[")
    if looks_like_json and not file.endswith((".yaml", ".yml")):
        root = _json(text.removeprefix("\ufeff"), file)
    else:
        root = _yaml(text.removeprefix("\ufeff"), file)
    if root is None:
        raise ConfigError(f"is empty; expected {_EXPECTED_ROOT}", file=file)
    if not isinstance(root, dict):
        raise ConfigError(f"is {kind(root)}; expected {_EXPECTED_ROOT}", file=file)
    _write_out_expiries(root)
    _check(root, file)
    return root


def kind(value: object) -> str:
    """Describe the type of a value, without the value itself, which may be a secret."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "an object"
    return f"a {type(value).__name__}"


def join(path: str, key: object) -> str:
    """Return the path of `key` below `path`, as messages show it: `servers.bank.args[0]`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    name = str(key)
    if not re.fullmatch(r"[\w*-]+", name):
        return f"{path}[{json.dumps(name, ensure_ascii=False)}]"
    return f"{path}.{name}" if path else name


def _json(text: str, file: str) -> Any:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        text = _blank(_TRAILING_COMMA, _blank(_COMMENT, text))
        try:
            orjson.loads(text)
        except orjson.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}"
            raise ConfigError(f"is not JSON at {where}: {error.msg}; expected JSON or YAML", file=file) from None
    try:
        # Parsed again, because orjson does not detect repeated keys and does not accept integers beyond 64 bits.
        return json.loads(text, object_pairs_hook=_pairs)
    except RecursionError:
        raise ConfigError(f"is nested too deeply; expected at most {MAX_DEPTH} levels", file=file) from None


def _blank(pattern: re.Pattern[str], text: str) -> str:
    # Replace the matches with spaces, so that lines and columns in messages match the file.
    return pattern.sub(lambda m: m[1] or re.sub(r"[^\n]", " ", m[0]), text)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    repeated, seen = _Repeated(members), set[str]()
    for key, _ in pairs:
        if key in seen:
            repeated.key = key
            break
        seen.add(key)
    return repeated


def _yaml(text: str, file: str) -> Any:
    from ruamel.yaml import YAML  # imported lazily: JSON files do not need it
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError

    try:
        with warnings.catch_warnings():
            # YAML allows an anchor to be redefined, and the warning would print source code to operators.
            warnings.simplefilter("ignore", ReusedAnchorWarning)
            return YAML(typ="safe", pure=True).load(text)
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        what = f"line {line}: {str(error.problem).split(' with value')[0]}"
        raise ConfigError(f"{what}; expected each key once", file=file) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "an unknown line"
        what = error.problem or error.context or "malformed"
        raise ConfigError(f"is not YAML at {where}: {what}; expected JSON or YAML", file=file) from None
    except RecursionError:
        raise ConfigError(f"is nested too deeply; expected at most {MAX_DEPTH} levels", file=file) from None
    except (YAMLError, ValueError, TypeError) as error:
        what = str(error).splitlines()[0]
        raise ConfigError(f"is not YAML: {what}; expected JSON or YAML", file=file) from None


def _write_out_expiries(root: dict[str, Any]) -> None:
    """Replace YAML dates in `gateway.auth.apiKeys[].expires` by text; no other key accepts a date."""
    section: Any = root
    for name in ("gateway", "auth", "apiKeys"):
        section = section.get(name) if isinstance(section, dict) else None
    for key in section if isinstance(section, list) else ():
        if isinstance(key, dict) and isinstance(key.get("expires"), date):
            key["expires"] = key["expires"].isoformat()


def _check(root: dict[str, Any], file: str) -> None:
    """Reject values that are not plain JSON: repeated keys, keys that are not text, dates, excessive aliases."""
    pending: list[tuple[Any, str, int]] = [(root, "", 1)]
    nodes = 0
    while pending:
        value, path, depth = pending.pop()
        nodes += 1
        if depth > MAX_DEPTH:
            raise ConfigError(f"is nested too deeply; expected at most {MAX_DEPTH} levels", file=file)
        if nodes > MAX_NODES:
            raise ConfigError("expands to too many values; expected fewer aliases", file=file)
        if isinstance(value, _Repeated):
            raise ConfigError("the key is given twice; expected it once", file=file, key=join(path, value.key))
        if isinstance(value, dict):
            for key, member in value.items():
                if not isinstance(key, str):
                    what = f"a key here is {kind(key)}; expected text: put quotes around it"
                    raise ConfigError(what, file=file, key=path or None)
                pending.append((member, join(path, key), depth + 1))
        elif isinstance(value, list):
            pending.extend((member, join(path, i), depth + 1) for i, member in enumerate(value))
        elif value is not None and not isinstance(value, bool | int | float | str):
            what = f"is {kind(value)}; expected text: put quotes around it"
            raise ConfigError(what, file=file, key=path or None)
