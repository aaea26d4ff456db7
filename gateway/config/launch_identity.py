"""Describe what a server entry starts or connects to, without secrets, and detect loops.

The lock file stores the description. A different program, package or address then counts as a change.

The configuration file of a host usually has an entry that starts typegate. If typegate served that entry, each gateway
would start another one, endlessly.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.config.source import read, values
from gateway.process.files import expand_home
from gateway.protocol.gateway_errors import ConfigError

# No intended chain of gateways is this long. A longer chain is a loop in which each gateway serves another file.
_LONGEST_CHAIN: Final = 8
# Allows each gateway of the longest chain a few processes: shells, package runners and interpreters.
_MOST_ANCESTORS: Final = 64
# typegate, typegate.exe, typegate@1.0, typegate==1.0
_PROGRAM: Final = re.compile(r"typegate(?:\.exe)?(?:\[[\w,]*\])?(?:(?:@|==)[\w.]+)?", re.IGNORECASE)
_SCRIPT_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash"})


def is_loop(command: str, args: Sequence[str], *, cwd: str | None, path: Path) -> bool:
    """Return true if a command starts a gateway that serves `path`, directly or through other gateways.

    Args:
        command: The program of a server entry.
        args: The arguments of the program.
        cwd: The working directory of the program.
        path: The configuration that contains the entry.
    """
    seen: set[Path] = set()
    waiting = list(_served_by([command, *args], cwd))
    while waiting and len(seen) < _LONGEST_CHAIN:
        config = waiting.pop()
        if _is_same_file(config, path):
            return True
        if config not in seen:
            seen.add(config)
            waiting += _served_configs(config)
    return False


def check_ancestors(path: Path) -> None:
    """Refuse to serve a configuration if an ancestor process serves it, directly or through scripts and runners.

    Ancestor processes can be found only on Linux. On other systems, only `is_loop` detects loops.

    Raises:
        ConfigError: A gateway that serves this configuration has started this process, or the chain of gateways is too
            long.
    """
    above = [served for words, cwd in _ancestors() if _is_gateway(words) for served in _served_by(words, cwd)]
    if any(_is_same_file(config, path) for config in above):
        what = "one of its servers is a loop: the gateway that started this process serves the same file"
        raise ConfigError(f"{what}; expected no entry that starts typegate with this file", file=str(path))
    if len(above) >= _LONGEST_CHAIN:
        what = f"{len(above)} gateways have started each other; expected at most {_LONGEST_CHAIN}"
        raise ConfigError(what, file=str(path))


def _ancestors() -> Iterator[tuple[list[str], str | None]]:
    """Yield each ancestor's command line and working directory. The directory is None if it cannot be read."""
    pid = os.getppid()
    for _ in range(_MOST_ANCESTORS):
        try:
            folder = Path(f"/proc/{pid}")
            words = os.fsdecode((folder / "cmdline").read_bytes()).split("\0")[:-1]
            # The second field, the name of the program, is in parentheses and may contain any character.
            parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
        try:
            yield words, os.readlink(folder / "cwd")
        except OSError:
            # A gateway prevents its servers from reading its working directory. None stands for the directory of this
            # process, which is usually the same, because most servers start in the gateway's directory.
            yield words, None
        pid = parent


def _is_gateway(words: Sequence[str]) -> bool:
    """Return true if a command line runs the gateway itself, and not a shell or a runner that starts it."""
    program, *arguments = words or [""]
    if Path(program).name.startswith("python"):
        while arguments and arguments[0].startswith("-") and arguments[0] != "-m":
            arguments = arguments[1:]
        return arguments[:2] == ["-m", "gateway"] or bool(arguments and _PROGRAM.fullmatch(Path(arguments[0]).name))
    return _PROGRAM.fullmatch(Path(program).name) is not None


def _served_by(words: Sequence[str], cwd: str | None) -> Iterator[Path]:
    """Yield the configurations that a command line serves, or nothing if it does not start typegate."""
    if Path(words[0]).name in _SCRIPT_SHELLS:
        try:
            words = [part for word in words for part in shlex.split(word)]
        except ValueError:
            return
    start = next((at for at, word in enumerate(words) if _PROGRAM.fullmatch(Path(word).name)), None)
    if start is None:
        start = next((at for at, pair in enumerate(pairwise(words)) if pair == ("-m", "gateway")), None)
    if start is None or not {"stdio", "serve"} & set(words[start:]):
        return
    arguments = words[start:]
    for word, value in zip(arguments, [*arguments[1:], ""], strict=True):
        config = value if word == "--config" else word.removeprefix("--config=") if "--config=" in word else ""
        if config:
            yield (Path(cwd) if cwd is not None else Path()).joinpath(expand_home(config))


def _served_configs(path: Path) -> Iterator[Path]:
    """Yield the configurations that the entries of a file serve. The file may be invalid."""
    try:
        root = values(read(path), file=str(path))
    except ConfigError:
        return
    for key in ("mcpServers", "servers"):
        block = root.get(key)
        for entry in block.values() if isinstance(block, dict) else ():
            if isinstance(entry, dict) and not entry.get("disabled"):
                yield from _served_by_entry(entry)


def _served_by_entry(entry: Mapping[str, Any]) -> Iterator[Path]:
    command, args, cwd = entry.get("command"), entry.get("args") or [], entry.get("cwd")
    if isinstance(command, str) and command and isinstance(args, list) and all(isinstance(arg, str) for arg in args):
        yield from _served_by([command, *args], cwd if isinstance(cwd, str) else None)


def _is_same_file(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:
        return first.absolute() == second.absolute()


# The options of each runner that take the next word as their value. Other options are assumed to have no value.
_NPM_VALUES: Final = frozenset({"-p", "--package", "-c", "--call", "--registry", "--prefix", "-w", "--workspace"})
_UV_VALUES: Final = frozenset(
    {
        "--from",
        "--with",
        "--python",
        "-p",
        "--index",
        "--index-url",
        "--extra-index-url",
        "--directory",
        "--project",
        "--with-editable",
        "--with-requirements",
        "--env-file",
        "--cache-dir",
        "--config-file",
        "--default-index",
        "-i",
        "--find-links",
        "-f",
        "--refresh-package",
        "--constraints",
        "-c",
        "--overrides",
        "-w",
        "--color",
        "--extra",
    }
)
_PIPX_VALUES: Final = frozenset({"--spec", "--python", "--index-url", "-i", "--pip-args"})
# The options of `docker run` without a value. They are listed because nearly all other options have a value.
_DOCKER_SWITCHES: Final = frozenset(
    {
        "-i",
        "-t",
        "-d",
        "-P",
        "-it",
        "-ti",
        "--interactive",
        "--tty",
        "--rm",
        "--init",
        "--detach",
        "--privileged",
        "--read-only",
        "--no-healthcheck",
        "--publish-all",
        "--sig-proxy",
        "--oom-kill-disable",
        "--quiet",
        "-q",
    }
)
_INTERPRETERS: Final = re.compile(r"(?:node|nodejs|bun|deno|python[\d.]*|py|ruby|php|perl|java|dotnet|tsx|ts-node)")
_INTERPRETER_VALUES: Final = frozenset(
    {
        "-r",
        "--require",
        "--import",
        "--loader",
        "--experimental-loader",
        "--preload",
        "--import-map",
        "--config",
        "-cp",
        "-classpath",
        "--class-path",
        "--conditions",
        "-C",
        "-W",
        "-X",
        "--env-file",
    }
)
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash", "cmd", "powershell", "pwsh"})
# Programs that run a command or a script given in their arguments.
_LAUNCHERS: Final = frozenset(
    {
        *_SHELLS,
        "asdf",
        "bun",
        "bundle",
        "busybox",
        "bwrap",
        "cargo",
        "conda",
        "direnv",
        "doas",
        "docker",
        "dotenv",
        "dotenvx",
        "firejail",
        "flatpak",
        "go",
        "hatch",
        "just",
        "make",
        "mamba",
        "micromamba",
        "mise",
        "nerdctl",
        "nice",
        "nix",
        "nix-shell",
        "nohup",
        "npm",
        "npx",
        "op",
        "pdm",
        "pipx",
        "pixi",
        "pnpm",
        "pnpx",
        "podman",
        "poetry",
        "setsid",
        "ssh",
        "stdbuf",
        "sudo",
        "systemd-run",
        "task",
        "timeout",
        "uv",
        "uvx",
        "wsl",
        "xargs",
        "xvfb-run",
        "yarn",
    }
)
_DIGEST_CHARS: Final = 16
# Options of runners and interpreters that do not affect which code runs. An option that is not listed is part of the
# identity, because an attacker could use it.
_HARMLESS: Final = re.compile(
    r"-(?:y|q|s|d|S|E|u|B|O|OO|P|V|v|it|ti|-yes|-quiet|-silent|-verbose|-no-progress|-prefer-o(?:ff|n)line|-offline"
    r"|-no-update-notifier|-no-audit|-no-fund|-inspect(?:-\w+)?|-no-warnings|-no-deprecation|-trace-\w[\w-]*"
    r"|-enable-source-maps|-max-old-space-size|-stack-size|-allow-\w+|-isolated|-no-cache|-refresh|-color)"
)
# The options of `docker run` that affect which code runs.
_DECIDING_OPTIONS: Final = frozenset(
    {
        "--entrypoint",
        "--env-file",
        "--mount",
        "--pull",
        "--runtime",
        "-v",
        "--volume",
        "--volumes-from",
        "-w",
        "--workdir",
    }
)
# Variables that make interpreters, runners or the dynamic loader run other code or load it from another place.
_DECIDING: Final = re.compile(
    r"(?:LD|DYLD|NPM_CONFIG|NODE|BUN|DENO|PNPM|YARN|COREPACK|UV|PIP|PIPX|GEM|BUNDLE|DOTNET|CORECLR|COR|DOCKER|CONDA"
    r"|JAVA|JDK_JAVA|_JAVA|CARGO|RUSTUP|XDG|GIT(?!_AUTHOR|_COMMITTER))_.*|(?:PYTHON|RUBY|PERL5).*|VIRTUAL_ENV"
    r"|GO(?:BIN|ENV|FLAGS|PATH|PRIVATE|PROXY|ROOT|SUMDB|NOSUMDB|TOOLCHAIN)|CONTAINER_HOST|CLASSPATH|BASH_ENV|ENV|SHELLOPTS"
    r"|BASHOPTS|PATH|PATHEXT|COMSPEC|SHELL|HOME|USERPROFILE|APPDATA|GCONV_PATH|LOCPATH|PHPRC|PHP_INI_SCAN_DIR",
    re.DOTALL,
)
# Variables that every child process inherits. They are part of the identity only if they differ from the variables of
# this process.
_INHERITED: Final = frozenset({"HOME", "USERPROFILE", "APPDATA", "SHELL", "COMSPEC", "PATHEXT"})
# Variables that match `_DECIDING`, but do not affect which code runs.
_IDLE: Final = frozenset(
    {
        "PYTHONUNBUFFERED",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONIOENCODING",
        "PYTHONUTF8",
        "PYTHONHASHSEED",
        "NODE_ENV",
        "NODE_NO_WARNINGS",
        "NODE_EXTRA_CA_CERTS",
    }
)
# Variables whose name matches are left out, because not even a digest of a secret may be stored. They do not affect
# which code runs.
_SECRET: Final = re.compile(r"TOKEN|PASSW|SECRET|USERNAME|AUTH|KEY|CREDENTIAL")


def identity_of_command(
    command: str,
    args: Sequence[str],
    *,
    folder: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    cwd: str | None = None,
) -> str:
    """Describe what a command line starts: the program or package, and everything that affects which code runs.

    Args:
        command: The program.
        args: The arguments of the program. The description does not repeat secrets in them.
        folder: The folder of the configuration. The description contains relative paths for files in this folder, so
            that it is the same on every machine.
        env: The environment variables that the entry sets.
        cwd: The working directory.
    """
    words, prefix_env = _without_prefix_commands([command, *args])
    program, options = _find_program(words, folder)
    parts = [_option(option, value, folder) for option, value in options]
    parts += _variables({**(env or {}), **prefix_env}, folder)
    if cwd is not None:
        parts.append(f"in {_portable(_path(cwd, folder), folder)}")
    return program if not parts else f"{program} ({', '.join(parts)})"


def _find_program(words: Sequence[str], folder: Path | None) -> tuple[str, list[tuple[str, str]]]:
    """Return the program or package, and the options that affect which code runs."""
    program, arguments = _program(words[0]), list(words[1:])
    for runner, skipped in (
        (program, 0),
        (" ".join([program, *arguments[:1]]), 1),
        (" ".join([program, *arguments[:2]]), 2),
    ):
        identified = _identify_runner(runner, arguments[skipped:], folder)
        if identified is not None:
            return identified
    if _INTERPRETERS.fullmatch(program):
        return _identify_interpreter(program, arguments, folder)
    if program in _LAUNCHERS and arguments and arguments != ["run"]:
        return f"{'shell' if program in _SHELLS else 'program'}:{program} {_digest(*arguments)}", []
    return f"program:{_path(words[0], folder)}", []


def _option(option: str, value: str, folder: Path | None) -> str:
    return f"{option} {_mask_value(value, folder)}" if value else option


def _variables(variables: Mapping[str, str | None], folder: Path | None) -> list[str]:
    deciding = []
    for name in sorted(variables):
        value, upper = variables[name], name.upper()
        if value is None or upper in _IDLE or not _DECIDING.fullmatch(upper) or _SECRET.search(upper):
            continue
        if upper == "PATH":
            # Skip the folders in the PATH of this process: the entry does not name them, and they differ per machine.
            own = set(os.environ.get("PATH", "").split(os.pathsep))
            value = os.pathsep.join(entry for entry in value.split(os.pathsep) if entry not in own)
        elif upper in _INHERITED and value == os.environ.get(name):
            continue
        if value:
            deciding.append(f"{name}={_mask_value(value, folder)}")
    return deciding


def _mask_value(value: str, folder: Path | None) -> str:
    """Return a URL without credentials, or a digest of any other value, which may be a secret."""
    if re.match(r"[a-z][a-z0-9+.-]*://", value) and " " not in value:
        parts = urlsplit(value)
        return f"{identity_of_url(value).removeprefix('origin:')}{parts.path}"
    return _digest(_portable(value, folder))


def _portable(value: str, folder: Path | None) -> str:
    """Replace the folder of the configuration by `.` and the home directory by `~`."""
    for place, word in ((folder.absolute() if folder is not None else None, "."), (Path.home(), "~")):
        if place is not None and len(place.parts) > 1:
            value = value.replace(str(place), word)
    return value


def _digest(*words: str) -> str:
    return f"sha256:{hashlib.sha256(chr(0).join(words).encode()).hexdigest()[:_DIGEST_CHARS]}"


def identity_of_url(url: str) -> str:
    """Return the origin of a URL, without user, password, path and query."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    host = (parts.hostname or "").lower()
    bracketed = f"[{host}]" if ":" in host else host
    return f"origin:{parts.scheme}://{bracketed}" + (f":{port}" if port not in (None, usual) else "")


def _program(word: str) -> str:
    name = re.split(r"[/\\]", word)[-1].lower()
    return re.sub(r"\.(?:exe|cmd|bat|ps1)$", "", name)


def _without_prefix_commands(words: Sequence[str]) -> tuple[list[str], dict[str, str | None]]:
    """Return the command line that `env` or `cmd /c` starts, and the variables that `env` sets."""
    remaining = [*words]
    variables: dict[str, str | None] = {}
    while len(remaining) > 1:
        program = _program(remaining[0])
        if program == "env":
            at = next(
                (at for at, word in enumerate(remaining[1:], 1) if "=" not in word and not word.startswith("-")), 0
            )
        else:
            at = 2 if program == "cmd" and remaining[1].lower() == "/c" and len(remaining) > 2 else 0
        if not at:
            break
        variables |= dict(word.split("=", 1) for word in remaining[1:at] if "=" in word and not word.startswith("-"))
        remaining = remaining[at:]
    return remaining, variables


def _identify_runner(runner: str, args: Sequence[str], folder: Path | None) -> tuple[str, list[tuple[str, str]]] | None:
    match runner:
        case "npx" | "bunx" | "npm exec" | "npm x" | "pnpm dlx" | "pnpx" | "yarn dlx" | "bun x":
            options, words = _split(args, _NPM_VALUES)
            if runner in ("npm exec", "npm x"):
                # npm also reads options after the name of the package, up to `--`.
                options += [
                    _option_and_value(word) for word in words[: (*words, "--").index("--")] if word.startswith("--")
                ]
            return _identify_package("npm", options, words, ("--package", "-p"), folder)
        case "uvx" | "uv tool run" | "uv run":
            options, words = _split(args, _UV_VALUES)
            naming = ("--from", "--with") if runner == "uv run" else ("--from",)
            return _identify_package("pypi", options, words, naming, folder)
        case "pipx run":
            options, words = _split(args, _PIPX_VALUES)
            return _identify_package("pypi", options, words, ("--spec",), folder)
        case "docker run" | "podman run" | "nerdctl run" | "docker container":
            options, words = _split_container_args([*args][1:] if runner == "docker container" else args)
            variables = [value.partition("=") for option, value in options if option in ("-e", "--env")]
            deciding = [(option, value) for option, value in options if option in _DECIDING_OPTIONS]
            deciding_variables = _variables({name: value for name, _, value in variables}, folder)
            return (f"image:{words[0]}", [*deciding, *((name, "") for name in deciding_variables)]) if words else None
    return None


def _identify_package(
    kind: str, options: list[tuple[str, str]], words: list[str], naming: tuple[str, ...], folder: Path | None
) -> tuple[str, list[tuple[str, str]]] | None:
    """Return the package that a runner installs, and the options that affect where it comes from or what runs."""
    named_package = next((value for name in naming for option, value in reversed(options) if option == name), None)
    package = named_package or next(iter(words), None)
    if not package:
        return None
    counted = [
        (option, value)
        for option, value in options
        if (option, value) != (naming[0], package) and value != package and not _is_harmless(option, value)
    ]
    if (
        named_package is not None
        and words
        and (_program(words[0]) in _LAUNCHERS or _INTERPRETERS.fullmatch(_program(words[0])))
    ):
        # The package is installed, but the runner starts another program.
        program, more = _find_program(words, folder)
        counted += [(program, ""), *more]
    return f"{kind}:{package}", counted


def _is_harmless(option: str, value: str) -> bool:
    if option in ("--python", "-p"):
        # A version number is harmless; a path could be any program.
        return re.fullmatch(r"(?:python|cpython@?)?[\d.]+", value) is not None
    return _HARMLESS.fullmatch(option) is not None


def _option_and_value(word: str) -> tuple[str, str]:
    option, _, value = word.partition("=")
    return option, value


def _split(args: Sequence[str], with_value: frozenset[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options with their values, and all words from the first word that is not an option."""
    options: list[tuple[str, str]] = []
    remaining = [*args]
    while remaining and remaining[0].startswith("-"):
        option, equals, value = remaining.pop(0).partition("=")
        if option == "--":
            break
        if not equals and option in with_value and remaining:
            value = remaining.pop(0)
        options.append((option, value))
    return options, remaining


def _split_container_args(args: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options of `docker run` with their values, and the image with the words after it."""
    options: list[tuple[str, str]] = []
    remaining = [*args]
    while remaining and remaining[0].startswith("-"):
        option, equals, value = remaining.pop(0).partition("=")
        joined = len(option) > 2 and not option.startswith("--") and option not in _DOCKER_SWITCHES
        if joined:
            option, value = option[:2], option[2:] + equals + value
        elif not equals and option not in _DOCKER_SWITCHES and remaining:
            value = remaining.pop(0)
        options.append((option, value))
    return options, remaining


def _identify_interpreter(program: str, args: Sequence[str], folder: Path | None) -> tuple[str, list[tuple[str, str]]]:
    language = re.sub(r"[\d.]+$", "", program)
    options: list[tuple[str, str]] = []
    remaining = [*args]
    while remaining:
        word = remaining.pop(0)
        if word in ("-m", "-jar") and remaining:
            return f"{language}:{word} {remaining[0] if word == '-m' else _path(remaining[0], folder)}".replace(
                ":-jar ", ":"
            ), options
        if word in ("-c", "-e", "--eval", "-p"):
            return f"{language}:{word} {_digest(*remaining)}", options
        if not word.startswith("-") and word != "run":
            return f"{language}:{_path(word, folder)}", options
        option, value = _option_and_value(word)
        if option in _INTERPRETER_VALUES and not value and remaining:
            value = remaining.pop(0)
        if word != "run" and not _is_harmless(option, value):
            options.append((option, value))
    return f"program:{program}", options


def _path(word: str, folder: Path | None) -> str:
    path = expand_home(word)
    if folder is not None and path.is_absolute():
        try:
            return path.relative_to(folder.absolute()).as_posix()
        except ValueError:
            pass
    return word.replace("\\", "/")
