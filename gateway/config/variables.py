"""Replace placeholders in strings of the configuration.

The forms `${NAME}`, `${NAME:-default}` and `${file:/path}` are the same as in Claude Code, Cursor and Windsurf. For the
files of other hosts, the following are supported as well: variables of VS Code and Cursor such as `${workspaceFolder}`,
`{env:NAME}` and `{file:path}` of OpenCode, and `$NAME` of Gemini CLI and Qwen Code.
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
from gateway.process.files import expand_home
from gateway.process.secrets import is_secret
from gateway.protocol.gateway_errors import ConfigError, combine_errors

# Larger than any key or certificate chain, so that a wrong path does not read a huge file.
MAX_SECRET_BYTES: Final = 64 * 1024

_FORMS: Final = "${NAME}, ${NAME:-default} or ${file:/path}; write $${ for a literal ${"
# `$${` is replaced by `${`. An unclosed `${` is ordinary text, as in arguments for a shell.
PLACEHOLDER: Final = re.compile(r"(\$)?\$\{([^{}]*)\}")
# A placeholder in the default of another one, such as `${A:-${B}}`.
_NESTED: Final = re.compile(r"(?<!\$)\$\{(?:env:)?[A-Za-z_]\w*:-[^{}]*\$\{[^{}]*\}")
_INPUT: Final = "input:"
ROOT: Final = "${roots.0}"
"""The placeholder of the host's first root, a folder that the host has open. It is known only during a call."""
_PLACES_OF_ROOT: Final = re.compile(r"\.(?:cwd|args\[\d+\]|sandbox\.(?:read|write)\[\d+\])$")
# VS Code, Cursor and Windsurf prefix environment variables with `env:`.
_VARIABLE: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
# Matches the names of variables in a text, in all forms.
_NAMED: Final = re.compile(r"\$\{?(?:env:)?([A-Za-z_]\w*)|\{env:([^{}]+)\}")
# Folders in which editors and hosts store their settings of a project.
_HOST_FOLDERS: Final = frozenset(
    {".vscode", ".cursor", ".gemini", ".qwen", ".roo", ".kilocode", ".amazonq", ".copilot", ".claude-plugin"}
)
# Folders of hosts whose settings use `$NAME` without braces.
_BARE_FOLDERS: Final = frozenset({".gemini", ".qwen", ".copilot"})
# Variables of Claude Code for the folder of the plugin or project that contains the file.
_FOLDERS_OF_CLAUDE: Final = frozenset({"CLAUDE_PLUGIN_ROOT", "CLAUDE_PROJECT_DIR"})
# Source: the parser of the npm package dotenv, which VS Code uses for `envFile`.
_ASSIGNMENT: Final = re.compile(
    r"""^\s*(?:export\s+)?([\w.-]+)(?:\s*=[^\S\n]*?|:[^\S\n]+?)
    ([^\S\n]*'(?:\\'|[^'])*'|[^\S\n]*"(?:\\"|[^"])*"|[^\S\n]*`(?:\\`|[^`])*`|[^#\r\n]+)?\s*?(?:\#.*)?$""",
    re.MULTILINE | re.VERBOSE,
)
_QUOTED: Final = re.compile(r"(['\"`])(.*)\1", re.DOTALL)


def workspace_of(folder: Path) -> Path:
    """Return the workspace folder of a host that reads a configuration file in `folder`."""
    here = folder.absolute()
    return here.parent if here.name in _HOST_FOLDERS else here


def input_variable(name: str) -> str:
    """Return the environment variable that replaces the input `name`, which VS Code would ask its user for."""
    variable = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").upper()
    return f"_{variable}" if variable[:1].isdigit() else variable


def input_defaults(root: Mapping[str, Any]) -> dict[str, str]:
    """Return the defaults of the `inputs` of a VS Code file, by id."""
    inputs = root.get("inputs")
    return {
        each["id"]: each["default"]
        for each in (inputs if isinstance(inputs, list) else ())
        if isinstance(each, dict) and isinstance(each.get("id"), str) and isinstance(each.get("default"), str)
    }


def expand(  # noqa: C901 - one nested function per form of placeholder
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
    """Return a copy of `root` in which every placeholder is replaced.

    Args:
        root: Plain JSON values of bounded depth.
        environ: The environment variables.
        file: The name of the configuration file in messages.
        folder: The folder at which relative paths of `${file:…}` start.
        secrets: Receives the inserted values that are secret: values whose name or form indicates a secret, and the
            content of files.
        files: Receives the paths of the files that were read or are missing.
        inputs: Defaults of inputs, from `input_defaults`.
        braces: True to replace the placeholders of OpenCode as well.
        own: Variables that take precedence over `environ`.

    Raises:
        ConfigError: A variable is not set, a file cannot be read, or a placeholder is invalid. The error lists all
            problems.
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
            if (nested := _NESTED.search(value)) is not None:
                what = "has a placeholder in its default; expected a default without placeholders"
                raise ConfigError(f"{nested[0]}}} {what}", file=file, key=path)
            return pattern.sub(lambda m: replace(m, path), value)
        except ConfigError as problem:
            problems.append(problem)
            return value

    def replace(match: re.Match[str], path: str) -> str:
        if match[1]:
            return match[0][1:]
        groups = match.groupdict()
        if (name := groups.get("bare")) is not None:
            # Like hosts, keep the text if the variable is not set: the dollar sign may be part of a password.
            return variable(name, None, path) if name in environ else match[0]
        if (inside := match[2]) is None:
            inside = f"{groups['kind']}:{groups['braced']}"
        if inside.startswith("file:"):
            return content_of(inside.removeprefix("file:"), path)
        if (host_value := _host_variable(inside, folder, environ, file, path)) is not None:
            return host_value
        if inside.startswith(_INPUT):
            return input_value(inside.removeprefix(_INPUT), path)
        if match[0] == ROOT and _PLACES_OF_ROOT.search(path):
            return ROOT
        form = _VARIABLE.fullmatch(inside)
        if form is None:
            raise ConfigError(f"${{{inside}}} is not a valid placeholder; expected {_FORMS}", file=file, key=path)
        return variable(form[1], form[2], path)

    def content_of(name: str, path: str) -> str:
        if files is not None:
            with suppress(RuntimeError, ValueError):
                files.add(folder / expand_home(name))
        content = _read_secret_file(name, folder, file, path)
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

    def input_value(name: str, path: str) -> str:
        value = environ.get(input_variable(name), (inputs or {}).get(name))
        if value is None:
            variable = input_variable(name)
            what = f"is a value that an editor asks its user for; expected the environment variable {variable} instead"
            raise ConfigError(f"${{{_INPUT}{name}}} {what}", file=file, key=path)
        # Treat every input as secret, because most inputs are credentials.
        secrets.add(value)
        return value

    expanded = {key: walk(member, key) for key, member in root.items()}
    if problems:
        raise combine_errors(problems)
    return expanded


def expand_entry(  # noqa: C901 - one nested function per form of placeholder
    entry: Mapping[str, Any],
    where: str,
    *,
    expand: Callable[..., dict[str, Any]],
    more: Callable[[str], dict[str, str]],
) -> dict[str, Any]:
    """Return a server entry with its placeholders replaced. `env` of the entry takes precedence over the environment.

    Args:
        entry: The entry.
        where: The path of the entry in the file.
        expand: Replaces placeholders; a partial application of the function `expand`.
        more: Reads the variables of the file that the entry names in `envFile`.

    Raises:
        ConfigError: As for `expand`.
    """
    problems: list[ConfigError] = []
    expanded_entry = dict(entry)

    def expand_value(path: str, value: Any, own: Mapping[str, str]) -> Any:
        try:
            [expanded] = expand({path: value}, own=own).values()
        except ConfigError as error:
            problems.append(error)
            return value
        return expanded

    env = entry.get("env")
    own: dict[str, str] = {}
    if "command" in entry and isinstance(entry.get("envFile"), str):
        name = expand_value(join(where, "envFile"), expanded_entry.pop("envFile"), {})
        try:
            own |= more(name)
        except ConfigError as error:
            problems.append(error)
        if isinstance(env, dict | None):
            expanded_entry["env"] = {**own}
    if isinstance(env, dict):
        variables = own | {key: str(as_text(value)) for key, value in env.items() if value is not None}
        resolved: dict[str, Any] = {}

        def resolve(key: str, above: tuple[str, ...]) -> None:
            referenced = [name for forms in _NAMED.findall(str(env[key])) for name in forms if name in env]
            for dependency in referenced:
                if dependency not in (key, *above, *resolved):
                    resolve(dependency, (*above, key))
            # In the value of a variable, its own name refers to the environment: `PATH: /opt/bin:${PATH}`.
            own = {name: text for name, text in variables.items() if name not in (key, *above)}
            resolved[key] = expand_value(join(join(where, "env"), key), env[key], own)
            if env[key] is not None:
                variables[key] = str(as_text(resolved[key]))

        for key in env:
            if key not in resolved:
                resolve(key, ())
        expanded_entry["env"] = {**own, **{key: resolved[key] for key in env}}
        own = variables
    for key, value in expanded_entry.items():
        if key != "env" or not isinstance(value, dict):
            expanded_entry[key] = expand_value(join(where, key), value, own)
    if problems:
        raise combine_errors(problems)
    return expanded_entry


def variables_in(
    name: str, *, file: str, key: str, folder: Path, secrets: set[str], files: set[Path]
) -> dict[str, str]:
    """Return the variables in a file of lines `NAME=value`, parsed as hosts parse an `envFile`.

    Args:
        name: The path of the file. A relative path starts at the workspace folder of the host.
        file: The name of the configuration file in messages.
        key: The key that names the file, for messages.
        folder: The folder of the configuration.
        secrets: Receives the values whose name or form indicates a secret.
        files: Receives the path of the file.

    Raises:
        ConfigError: The file cannot be read.
    """
    start = workspace_of(folder)
    with suppress(RuntimeError, ValueError):
        files.add(start / expand_home(name))
    variables: dict[str, str] = {}
    for line in _ASSIGNMENT.finditer(
        _read_secret_file(name, start, file, key).removeprefix("\ufeff").replace("\r\n", "\n")
    ):
        value = (line[2] or "").strip()
        if (quoted := _QUOTED.fullmatch(value)) is not None:
            value = quoted[2]
            if quoted[1] == '"':
                value = value.replace("\\n", "\n").replace("\\r", "\r")
        variables[line[1]] = value
    secrets.update(value for variable, value in variables.items() if is_secret(variable, value))
    return variables


@cache
def _pattern(*, braces: bool, bare: bool) -> re.Pattern[str]:
    """Return the pattern of placeholders, extended by the forms of OpenCode (`braces`) and Gemini CLI (`bare`).

    The forms of typegate are matched first.
    """
    if not (braces or bare):
        return PLACEHOLDER
    opencode = r"|\{(?P<kind>env|file):(?P<braced>[^{}]+)\}" if braces else ""
    gemini = r"|\$(?P<bare>[A-Za-z_][A-Za-z0-9_]*)" if bare else ""
    return re.compile(PLACEHOLDER.pattern + opencode + gemini)


def _host_variable(name: str, folder: Path, environ: Mapping[str, str], file: str, key: str) -> str | None:
    """Return the value of a predefined variable of VS Code, Cursor or Claude Code; None for other names."""
    variable, _, _ = name.partition(":")
    workspace = workspace_of(folder)
    match variable:
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
                what = "the user of this process has no home directory; expected the variable HOME, or a path"
                raise ConfigError(what, file=file, key=key) from None
    if variable in _FOLDERS_OF_CLAUDE and not environ.get(variable):
        return str(workspace)
    return None


def _read_secret_file(name: str, folder: Path, file: str, key: str) -> str:
    try:
        path = folder / expand_home(name)
        with path.open("rb") as stream:
            content = stream.read(MAX_SECRET_BYTES + 1)
        if len(content) > MAX_SECRET_BYTES:
            raise ConfigError(f"{path} is too large; expected at most 64 KiB", file=file, key=key)
        # Editors and secret mounts add a final line break that is not part of the secret.
        return content.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not UTF-8; expected UTF-8 text", file=file, key=key) from None
    except (OSError, RuntimeError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else str(error)) or "unreadable"
        raise ConfigError(f"{name} cannot be read ({reason}); expected a file", file=file, key=key) from None
