"""Read and check a configuration file. Every error names the file, the key and the expected form."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.model import Config, ConfigFile
from gateway.config.section import suggestion
from gateway.config.server import ServerConfig
from gateway.config.source import join, kind, read, values
from gateway.config.upstream_types.registration import all_keys, unknown_keys
from gateway.config.variables import expand
from gateway.embeddings.model import EXTRA, missing_packages
from gateway.errors import ConfigError
from registry.catalog.names import check_aliases
from registry.errors import AliasError

# What a check says of a key below its own: names and places, as in `profiles.sec.groups` or `[0].name`.
_STEPS: Final = re.compile(r"(?:\[\d+\]|[\w*-]+)(?:\.[\w*-]+|\[\d+\])*")
# A screenful: more are usually consequences of the first ones.
_MAX_PROBLEMS_SHOWN: Final = 10


def load(path: Path, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration in the file at `path`.

    Args:
        path: A JSON or YAML file.
        environ: What `${NAME}` stands for; the process's environment by default.

    Raises:
        ConfigError: The file cannot be used.
    """
    return loaded(read(path), path=path, environ=environ)


def loaded(text: str, *, path: Path | None, environ: Mapping[str, str] | None = None) -> Config:
    """As `parse`, and check that the packages that the configuration needs are installed.

    Raises:
        ConfigError: The text cannot be used, or lacks a package.
    """
    config = parse(text, path=path, environ=environ)
    if config.gateway.search.embeddings and (missing := missing_packages()):
        raise ConfigError(
            f"needs packages that are not installed ({', '.join(missing)}); expected pip install '{EXTRA}'",
            file=str(path or "configuration"),
            key="gateway.search.embeddings",
        )
    return config


def parse(
    text: str,
    *,
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The configuration in `text`; relative paths in it start at the folder of `path`.

    Raises:
        ConfigError: The text cannot be used.
    """
    file = str(path) if path is not None else "configuration"
    folder = path.parent if path is not None else Path()
    raw = values(text, file=file)
    block = _block(raw, file)
    ours = {key: raw[key] for key in (block, "gateway") if key is not None and raw.get(key) is not None}
    warnings = [f"{file}: {text}" for text in _unknown_root_keys(raw)]

    servers = ours.get(block) if block is not None else None
    # Only in our blocks: keys of other programs may hold `${…}` with another meaning.
    secrets: set[str] = set()
    ours = expand(
        ours,
        environ=os.environ if environ is None else environ,
        file=file,
        folder=folder,
        secrets=secrets,
    )
    try:
        checked = ConfigFile.model_validate(ours)
    except ValidationError as error:
        raise refusal(error, file) from None
    found = checked.mcp_servers or checked.servers
    _check_aliases(found, str(block), file)
    if isinstance(servers, dict):
        warnings += [f"{file}: {text}" for text in _unknown_server_keys(servers, str(block))]
    # The working directory of a server is not that of whoever wrote the file.
    found = {alias: server.with_absolute_paths(folder) for alias, server in found.items()}
    return Config(servers=found, gateway=checked.gateway, warnings=warnings, path=path, secrets=frozenset(secrets))


def _block(raw: dict[str, Any], file: str) -> str | None:
    present = [key for key in ("mcpServers", "servers") if raw.get(key) is not None]
    # Merging them would need a rule for an alias in both; nobody has two on purpose.
    if len(present) == 2:
        raise ConfigError("stands beside mcpServers; expected one of the two", file=file, key="servers")
    if present:
        return present[0]
    if "mcpServers" in raw or "servers" in raw or isinstance(raw.get("gateway"), dict):
        return None  # a gateway without upstreams: they can be added while it runs
    expected = 'an object "mcpServers" with a server for each alias'
    others = [key for key in raw if suggestion(key, ["mcpServers"]).startswith("mcpServers ")]
    hint = f" (did you mean it by {others[0]}?)" if others else ""
    raise ConfigError(f"has no mcpServers; expected {expected}{hint}", file=file)


def _unknown_root_keys(raw: dict[str, Any]) -> Iterator[str]:
    """Warnings about keys beside our blocks. They are no errors: hosts keep settings of their own there."""
    for key in raw:
        # `inputs` is what VS Code asks its user for; `$schema` is for editors.
        if key not in {"mcpServers", "servers", "gateway", "$schema", "inputs"}:
            guess = suggestion(key, ["gateway", "mcpServers"]).split(", or")[0]
            hint = f"; expected {guess}" if "did you mean" in guess else ""
            yield f"{join('', key)}: unknown key, ignored{hint}"


def _unknown_server_keys(servers: dict[str, Any], block: str) -> Iterator[str]:
    known = all_keys()
    for alias, entry in servers.items():
        for key in unknown_keys(entry) if isinstance(entry, dict) else ():
            guess = suggestion(key, known).split(", or")[0]
            hint = f"; expected {guess}" if "did you mean" in guess and key not in known else ""
            yield f"{join(join(block, alias), key)}: unknown key, ignored{hint}"


def _check_aliases(servers: Mapping[str, ServerConfig], block: str, file: str) -> None:
    try:
        check_aliases(servers)
    except AliasError as error:
        expected = "letters and digits joined by single - or _, unlike every other alias"
        raise ConfigError(f"{error}; expected {expected}", file=file, key=block) from None


def refusal(error: ValidationError, file: str) -> ConfigError:
    """Translate pydantic's errors. No value is repeated: it may be a secret."""
    problems: list[tuple[str, str]] = []
    for found in error.errors(include_url=False):
        context = found.get("ctx", {})
        path = _path(found["loc"])
        if found["type"] == "typegate":
            key = context.get("key")
            problems.append((_below(path, key) if key else path, f"{context['what']}; expected {context['expected']}"))
        else:
            problems.append((path, _worded(found["type"], found["msg"], found.get("input"))))
    (first_key, first), *rest = problems
    shown = [first, *(f"{file}: {key}: {text}" for key, text in rest[: _MAX_PROBLEMS_SHOWN - 1])]
    if len(rest) >= _MAX_PROBLEMS_SHOWN:
        shown.append(f"{file}: and {len(rest) - _MAX_PROBLEMS_SHOWN + 1} more")
    return ConfigError("\n".join(shown), file=file, key=first_key or None)


def _below(path: str, key: str) -> str:
    """The path of a key, or of several steps that are written like a path themselves."""
    if not _STEPS.fullmatch(key):
        return join(path, key)
    return f"{path}{key}" if key.startswith("[") or not path else f"{path}.{key}"


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
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
        return f"has a wrong value; expected {message.removeprefix('Input should be ')}"
    what = f"is {kind(value)}" if code.endswith("_type") else "has a wrong value"
    return f"{what}; expected {expected}"
