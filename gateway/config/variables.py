"""Placeholders in any string of the configuration, and files of variables.

`${NAME}`, `${NAME:-default}` and `${file:/path}` are ours, and Claude Code's, Cursor's and Windsurf's too. VS Code and
Cursor have names of their own, as `${workspaceFolder}`; OpenCode writes `{env:NAME}` and `{file:path}`, and Gemini CLI
and Qwen Code `$NAME` as well.
"""

from __future__ import annotations

import os
import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from gateway.config.section import as_text
from gateway.config.source import join
from gateway.errors import ConfigError, together
from gateway.files import expand_home
from gateway.secrets import is_secret

# Larger than any key or certificate chain; a path to something else is not to be read whole.
MAX_SECRET_BYTES: Final = 64 * 1024

_FORMS: Final = "${NAME}, ${NAME:-default} or ${file:/path}; write $${ for a literal ${"
# `$${` stays as `${`; an unclosed `${` is ordinary text, as shells in args have it.
PLACEHOLDER: Final = re.compile(r"(\$)?\$\{([^{}]*)\}")
_INPUT: Final = "input:"
# `env:` is how VS Code, Cursor and Windsurf write the same thing.
_VARIABLE: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
# Names of variables in a text, in all of the forms.
_NAMED: Final = re.compile(r"\$\{?(?:env:)?([A-Za-z_]\w*)|\{env:([^{}]+)\}")
# Folders in which editors and hosts keep their part of a project.
_HOST_FOLDERS: Final = frozenset(
    {".vscode", ".cursor", ".gemini", ".qwen", ".roo", ".kilocode", ".amazonq", ".copilot", ".claude-plugin"}
)
# Their settings have `$NAME` without braces.
_BARE_FOLDERS: Final = frozenset({".gemini", ".qwen", ".copilot"})
# Claude Code: the folder of a plugin, or of the project, in which the file is.
_FOLDERS_OF_CLAUDE: Final = frozenset({"CLAUDE_PLUGIN_ROOT", "CLAUDE_PROJECT_DIR"})
# Source: the parser of dotenv, which VS Code uses for an `envFile`.
_ASSIGNMENT: Final = re.compile(
    r"""^\s*(?:export\s+)?([\w.-]+)(?:\s*=[^\S\n]*?|:[^\S\n]+?)
    ([^\S\n]*'(?:\\'|[^'])*'|[^\S\n]*"(?:\\"|[^"])*"|[^\S\n]*`(?:\\`|[^`])*`|[^#\r\n]+)?\s*?(?:\#.*)?$""",
    re.MULTILINE | re.VERBOSE,
)
_QUOTED: Final = re.compile(r"(['\"`])(.*)\1", re.DOTALL)


def workspace_of(folder: Path) -> Path:
    """Return the folder that a host has open where it reads a file in this folder."""
    here = folder.absolute()
    return here.parent if here.name in _HOST_FOLDERS else here


def input_variable(name: str) -> str:
    """Return the variable that stands for what an editor asks its user, by the id of the question."""
    variable = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").upper()
    return f"_{variable}" if variable[:1].isdigit() else variable


def input_defaults(root: Mapping[str, Any]) -> dict[str, str]:
    """Return what an editor offers its user as the answer to each question of a file, by the id of the question."""
    inputs = root.get("inputs")
    return {
        one["id"]: one["default"]
        for one in (inputs if isinstance(inputs, list) else ())
        if isinstance(one, dict) and isinstance(one.get("id"), str) and isinstance(one.get("default"), str)
    }


def expand(
    root: dict[str, Any],
    *,
    environ: Mapping[str, str],
    file: str,
    folder: Path,
    secrets: set[str],
    files: set[Path] | None = None,
    inputs: Mapping[str, str] | None = None,
    braces: bool = False,
    own: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A copy of `root` in which every placeholder is replaced.

    Args:
        root: Plain JSON values, of bounded depth.
        environ: The variables.
        file: How messages name the configuration file.
        folder: Where relative paths of `${file:…}` start.
        secrets: Takes what was put in and is a secret, by its name or form; of a file, whatever it holds.
        files: Takes the files that were read, or could not be.
        inputs: See `input_defaults`.
        braces: The placeholders of OpenCode are replaced, too.
        own: Variables that count before `environ`.

    Raises:
        ConfigError: A variable is not set, a secret file cannot be read, or a form is unknown; it tells all of them.
    """
    problems: list[ConfigError] = []
    environ = ChainMap(dict(own), cast(dict[str, str], environ)) if own else environ
    pattern = _pattern(braces=braces, bare=folder.absolute().name in _BARE_FOLDERS)
    signs = "${" if pattern is PLACEHOLDER else "$" if not braces else ""

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, str):
            return replace_all(value, path) if signs in value else value
        if isinstance(value, dict):
            return {key: walk(member, join(path, key)) for key, member in value.items()}
        if isinstance(value, list):
            return [walk(member, join(path, i)) for i, member in enumerate(value)]
        return value

    def replace_all(value: str, path: str) -> str:
        try:
            return pattern.sub(lambda m: replace(m, path), value)
        except ConfigError as problem:
            # Whoever has to set three variables wants to know of three.
            problems.append(problem)
            return value

    def replace(found: re.Match[str], path: str) -> str:
        if found[1]:
            return found[0][1:]
        named = found.groupdict()
        if (name := named.get("bare")) is not None:
            # Hosts leave one that is not set as it is: the dollar may be part of a password.
            return variable(name, None, path) if name in environ else found[0]
        if (inside := found[2]) is None:
            inside = f"{named['kind']}:{named['braced']}"
        if inside.startswith("file:"):
            return content_of(inside.removeprefix("file:"), path)
        if (known := _of_a_host(inside, folder, environ, file, path)) is not None:
            return known
        if inside.startswith(_INPUT):
            return asked(inside.removeprefix(_INPUT), path)
        form = _VARIABLE.fullmatch(inside)
        if form is None:
            raise ConfigError(f"${{{inside}}} is no placeholder; expected {_FORMS}", file=file, key=path)
        return variable(form[1], form[2], path)

    def content_of(name: str, path: str) -> str:
        if files is not None:
            with suppress(RuntimeError, ValueError):
                files.add(folder / expand_home(name))
        content = _read(name, folder, file, path)
        secrets.add(content)
        return content

    def variable(name: str, default: str | None, path: str) -> str:
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
        value = environ.get(input_variable(name), (inputs or {}).get(name))
        if value is None:
            variable = input_variable(name)
            what = f"stands for what an editor asks its user; expected the environment variable {variable} instead"
            raise ConfigError(f"${{{_INPUT}{name}}} {what}", file=file, key=path)
        # Editors ask for what nobody writes into a file.
        secrets.add(value)
        return value

    expanded = {key: walk(member, key) for key, member in root.items()}
    if problems:
        raise together(problems)
    return expanded


def expand_entry(
    entry: Mapping[str, Any],
    where: str,
    *,
    expand: Callable[..., dict[str, Any]],
    more: Callable[[str], dict[str, str]],
) -> dict[str, Any]:
    """Return the entry of a server with its placeholders replaced; its own `env` counts before the environment.

    Args:
        entry: The entry.
        where: Its path in the file.
        expand: See `expand`.
        more: Reads the variables in the file that the entry names as `envFile`.

    Raises:
        ConfigError: See `expand`; it tells all problems.
    """
    problems: list[ConfigError] = []
    found = dict(entry)

    def put_in(path: str, value: Any, own: Mapping[str, str]) -> Any:
        try:
            [done] = expand({path: value}, own=own).values()
        except ConfigError as error:
            problems.append(error)
            return value
        return done

    env = entry.get("env")
    own: dict[str, str] = {}
    if "command" in entry and isinstance(entry.get("envFile"), str):
        name = put_in(join(where, "envFile"), found.pop("envFile"), {})
        try:
            own |= more(name)
        except ConfigError as error:
            problems.append(error)
        if isinstance(env, dict | None):
            found["env"] = {**own}
    if isinstance(env, dict):
        known = own | {key: str(as_text(value)) for key, value in env.items() if value is not None}
        resolved: dict[str, Any] = {}

        def resolve(key: str, above: tuple[str, ...]) -> None:
            named = [name for one in _NAMED.findall(str(env[key])) for name in one if name in env]
            for other in named:
                if other not in (key, *above, *resolved):
                    resolve(other, (*above, key))
            # Its own name is that of the environment: `PATH: /opt/bin:${PATH}`.
            own = {name: text for name, text in known.items() if name not in (key, *above)}
            resolved[key] = put_in(join(join(where, "env"), key), env[key], own)
            if env[key] is not None:
                known[key] = str(as_text(resolved[key]))

        for key in env:
            if key not in resolved:
                resolve(key, ())
        found["env"] = {**own, **{key: resolved[key] for key in env}}
        own = known
    for key, value in found.items():
        if key != "env" or not isinstance(value, dict):
            found[key] = put_in(join(where, key), value, own)
    if problems:
        raise together(problems)
    return found


def variables_in(
    name: str, *, file: str, key: str, folder: Path, secrets: set[str], files: set[Path]
) -> dict[str, str]:
    """Return the variables in a file of lines `NAME=value`, as hosts read an `envFile`.

    Args:
        name: Its path; a relative one starts at the folder that the host has open.
        file, key: How messages name the place where it is named.
        folder: That of the configuration.
        secrets: Takes the values that are secrets, by their names or forms.
        files: Takes the path.

    Raises:
        ConfigError: It cannot be read.
    """
    start = workspace_of(folder)
    with suppress(RuntimeError, ValueError):
        files.add(start / expand_home(name))
    found: dict[str, str] = {}
    for line in _ASSIGNMENT.finditer(_read(name, start, file, key).removeprefix("\ufeff").replace("\r\n", "\n")):
        value = (line[2] or "").strip()
        if (quoted := _QUOTED.fullmatch(value)) is not None:
            value = quoted[2]
            if quoted[1] == '"':
                value = value.replace("\\n", "\n").replace("\\r", "\r")
        found[line[1]] = value
    secrets.update(value for variable, value in found.items() if is_secret(variable, value))
    return found


@cache
def _pattern(*, braces: bool, bare: bool) -> re.Pattern[str]:
    """Return what finds the placeholders of these forms; a placeholder of ours is never read as another one's."""
    if not (braces or bare):
        return PLACEHOLDER
    opencode = r"|\{(?P<kind>env|file):(?P<braced>[^{}]+)\}" if braces else ""
    gemini = r"|\$(?P<bare>[A-Za-z_][A-Za-z0-9_]*)" if bare else ""
    return re.compile(PLACEHOLDER.pattern + opencode + gemini)


def _of_a_host(name: str, folder: Path, environ: Mapping[str, str], file: str, key: str) -> str | None:
    """Return what VS Code, Cursor and Claude Code put in for a name of theirs; None for other names."""
    known, _, _ = name.partition(":")
    workspace = workspace_of(folder)
    match known:
        case "workspaceFolder" | "workspaceRoot":
            return str(workspace)
        case "workspaceFolderBasename" | "workspaceRootFolderName":
            return workspace.name
        case "pathSeparator" | "/":
            return os.sep
        case "cwd":
            return str(Path.cwd())
        case "userHome":
            try:
                return str(Path.home())
            except RuntimeError:
                what = "the user of this process has no home; expected the variable HOME, or a path"
                raise ConfigError(what, file=file, key=key) from None
    if known in _FOLDERS_OF_CLAUDE and not environ.get(known):
        return str(workspace)
    return None


def _read(name: str, folder: Path, file: str, key: str) -> str:
    try:
        path = folder / expand_home(name)
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
