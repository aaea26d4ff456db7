"""Errors of the configuration's model in the words of its files."""

from __future__ import annotations

import re
from typing import Final

from pydantic import ValidationError

from gateway.config.source import join, kind
from gateway.errors import ConfigError, together

# What a check says of a key below its own: names and places, as in `profiles.NAME.groups` or `[0].name`.
_STEPS: Final = re.compile(r"(?:\[\d+\]|[\w*-]+)(?:\.[\w*-]+|\[\d+\])*")


def refusal(error: ValidationError, file: str, *, within: str = "") -> ConfigError:
    """Translate pydantic's errors, one line for each. No value is repeated: it may be a secret.

    Args:
        error: What pydantic found.
        file: How messages name the file.
        within: The key of what was checked, where that is not the whole file.
    """
    problems: list[ConfigError] = []
    for found in error.errors(include_url=False):
        context = found.get("ctx", {})
        path = _path(found["loc"], within)
        if found["type"] == "typegate":
            key = context.get("key")
            path, text = _below(path, key) if key else path, f"{context['what']}; expected {context['expected']}"
        else:
            text = _worded(found["type"], found["msg"], found.get("input"))
        problems.append(ConfigError(text, file=file, key=path or None))
    return together(problems)


def _below(path: str, key: str) -> str:
    """The path of a key, or of several steps that are written like a path themselves."""
    if not _STEPS.fullmatch(key):
        return join(path, key)
    return f"{path}{key}" if key.startswith("[") or not path else f"{path}.{key}"


def _path(location: tuple[int | str, ...], within: str) -> str:
    path = within
    for part in location:
        # pydantic's mark for a wrong key of a mapping: the key itself stands before it.
        if part != "[key]":
            path = join(path, part)
    return path


def _worded(code: str, message: str, value: object) -> str:
    expected = {
        "string_type": "text, in quotes",
        "list_type": "a list",
        "dict_type": "an object",
        "model_type": "an object",
        "bool_parsing": "true or false",
        "bool_type": "true or false",
        "int_parsing": "a whole number",
        "int_from_float": "a whole number",
        "int_type": "a whole number",
        "float_parsing": "a number",
        "float_type": "a number",
        "string_too_short": "text that is not empty",
        "too_short": "text that is not empty",
    }.get(code)
    if code == "missing":
        return "is missing; expected text that is not empty"
    if expected is None:
        bound = message.removeprefix("Input should be ")
        return f"has a wrong value; expected {'a number ' if bound.startswith(('greater', 'less')) else ''}{bound}"
    what = f"is {kind(value)}" if code.endswith("_type") else "has a wrong value"
    return f"{what}; expected {expected}"
