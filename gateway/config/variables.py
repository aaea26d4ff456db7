"""`${NAME}`, `${NAME:-default}` and `${file:/path}` in any string of the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gateway.config.source import join
from gateway.errors import ConfigError, together
from gateway.secrets import is_secret

# Larger than any key or certificate chain; a path to something else is not to be read whole.
MAX_SECRET_BYTES: Final = 64 * 1024

_FORMS: Final = "${NAME}, ${NAME:-default} or ${file:/path}; write $${ for a literal ${"
# `$${` stays as `${`; an unclosed `${` is ordinary text, as shells in args have it.
PLACEHOLDER: Final = re.compile(r"(\$)?\$\{([^{}]*)\}")
# `env:` is how VS Code and Cursor write the same thing.
_INPUT: Final = "input:"
_VARIABLE: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


def expand(
    root: dict[str, Any],
    *,
    environ: Mapping[str, str],
    file: str,
    folder: Path,
    secrets: set[str],
    files: set[Path] | None = None,
) -> dict[str, Any]:
    """A copy of `root` in which every placeholder is replaced.

    Args:
        root: Plain JSON values, of bounded depth.
        environ: The variables.
        file: How messages name the configuration file.
        folder: Where relative paths of `${file:…}` start.
        secrets: Takes what was put in and is a secret, by its name or form; of a file, whatever it holds.
        files: Takes the files that were read, or could not be.

    Raises:
        ConfigError: A variable is not set, a secret file cannot be read, or a form is unknown; it tells all of them.
    """
    problems: list[ConfigError] = []

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, str):
            return replace_all(value, path) if "${" in value else value
        if isinstance(value, dict):
            return {key: walk(member, join(path, key)) for key, member in value.items()}
        if isinstance(value, list):
            return [walk(member, join(path, i)) for i, member in enumerate(value)]
        return value

    def replace_all(value: str, path: str) -> str:
        try:
            return PLACEHOLDER.sub(lambda m: replace(m, path), value)
        except ConfigError as problem:
            # Whoever has to set three variables wants to know of three.
            problems.append(problem)
            return value

    def replace(found: re.Match[str], path: str) -> str:
        if found[1]:
            return found[0][1:]
        inside = found[2]
        if inside.startswith("file:"):
            named = inside.removeprefix("file:")
            if files is not None:
                with suppress(RuntimeError, ValueError):
                    files.add(folder / Path(named).expanduser())
            content = _secret(named, folder, file, path)
            secrets.add(content)
            return content
        if (known := _of_an_editor(inside, folder)) is not None:
            return known
        if inside.startswith(_INPUT):
            return asked(inside.removeprefix(_INPUT), path)
        variable = _VARIABLE.fullmatch(inside)
        if variable is None:
            raise ConfigError(f"${{{inside}}} is no placeholder; expected {_FORMS}", file=file, key=path)
        name, default = variable[1], variable[2]
        value = environ.get(name)
        if default is not None:
            value = value or default
        if value is None:
            what = f"the environment variable {name} is not set; expected it, or ${{{name}:-default}}"
            raise ConfigError(what, file=file, key=path)
        if is_secret(name, value):
            secrets.add(value)
        return value

    def asked(name: str, path: str) -> str:
        variable = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").upper()
        value = environ.get(variable)
        if value is None:
            what = f"stands for what an editor asks its user; expected the environment variable {variable} instead"
            raise ConfigError(f"${{{_INPUT}{name}}} {what}", file=file, key=path)
        # Editors ask for what nobody writes into a file.
        secrets.add(value)
        return value

    expanded = {key: walk(member, key) for key, member in root.items()}
    if problems:
        raise together(problems)
    return expanded


def _of_an_editor(name: str, folder: Path) -> str | None:
    """What VS Code and Cursor put in for a name of theirs."""
    if name == "userHome":
        return str(Path.home())
    if name == "workspaceFolder":
        here = folder.absolute()
        return str(here.parent if here.name in (".vscode", ".cursor") else here)
    return None


def _secret(name: str, folder: Path, file: str, key: str) -> str:
    try:
        path = folder / Path(name).expanduser()
        with path.open("rb") as stream:
            content = stream.read(MAX_SECRET_BYTES + 1)
        if len(content) > MAX_SECRET_BYTES:
            raise ConfigError(f"{path} is too big; expected at most 64 KiB", file=file, key=key)
        # Editors and secret mounts end files with a line break that is not part of the secret.
        return content.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not UTF-8; expected UTF-8 text", file=file, key=key) from None
    except (OSError, RuntimeError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else str(error)) or "unreadable"
        raise ConfigError(f"{name} cannot be read ({reason}); expected a file", file=file, key=key) from None
