"""What an entry starts or connects to, in words that hold no secret: package and version, or the origin of a URL."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gateway.files import expand_home

# Options after which the next word is their value, for each runner; all others are taken to have none.
_NPM_VALUES: Final = frozenset({"-p", "--package", "-c", "--call", "--registry", "--prefix", "-w", "--workspace"})
_UV_VALUES: Final = frozenset(
    {"--from", "--with", "--python", "-p", "--index", "--index-url", "--extra-index-url", "--directory", "--project",
     "--with-editable", "--with-requirements", "--env-file", "--cache-dir", "--config-file", "--default-index", "-i",
     "--find-links", "-f", "--refresh-package", "--constraints", "-c", "--overrides", "-w", "--color", "--extra"}
)  # fmt: skip
_PIPX_VALUES: Final = frozenset({"--spec", "--python", "--index-url", "-i", "--pip-args"})
# Docker is the other way round: nearly every option of `run` has a value.
_DOCKER_SWITCHES: Final = frozenset(
    {"-i", "-t", "-d", "-P", "-it", "-ti", "--interactive", "--tty", "--rm", "--init", "--detach", "--privileged",
     "--read-only", "--no-healthcheck", "--publish-all", "--sig-proxy", "--oom-kill-disable", "--quiet", "-q"}
)  # fmt: skip
_INTERPRETERS: Final = re.compile(r"(?:node|nodejs|bun|deno|python[\d.]*|py|ruby|php|perl|java|dotnet|tsx|ts-node)")
_INTERPRETER_VALUES: Final = frozenset(
    {"-r", "--require", "--import", "--loader", "--experimental-loader", "--preload", "--import-map", "--config", "-cp",
     "-classpath", "--class-path", "--conditions", "-C", "-W", "-X", "--env-file"}
)  # fmt: skip
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash", "cmd", "powershell", "pwsh"})
# Programs that run what their arguments say, in ways of their own.
_LAUNCHERS: Final = frozenset(
    {*_SHELLS, "asdf", "bun", "bundle", "busybox", "bwrap", "cargo", "conda", "direnv", "doas", "docker", "dotenv",
     "dotenvx", "firejail", "flatpak", "go", "hatch", "just", "make", "mamba", "micromamba", "mise", "nerdctl", "nice",
     "nix", "nix-shell", "nohup", "npm", "npx", "op", "pdm", "pipx", "pixi", "pnpm", "pnpx", "podman", "poetry",
     "setsid", "ssh", "stdbuf", "sudo", "systemd-run", "task", "timeout", "uv", "uvx", "wsl", "xargs", "xvfb-run",
     "yarn"}
)  # fmt: skip
_DIGEST_CHARS: Final = 16
# Options of runners and interpreters that change nothing about which code runs. All others count: who gains by one
# that is not known here is whoever wrote it.
_HARMLESS: Final = re.compile(
    r"-(?:y|q|s|d|S|E|u|B|O|OO|P|V|v|it|ti|-yes|-quiet|-silent|-verbose|-no-progress|-prefer-o(?:ff|n)line|-offline"
    r"|-no-update-notifier|-no-audit|-no-fund|-inspect(?:-\w+)?|-no-warnings|-no-deprecation|-trace-\w[\w-]*"
    r"|-enable-source-maps|-max-old-space-size|-stack-size|-allow-\w+|-isolated|-no-cache|-refresh|-color)"
)
# Of `docker run`, whose other options are about the machine.
_OF_IMAGES: Final = frozenset(
    {"--entrypoint", "--env-file", "--mount", "--pull", "--runtime", "-v", "--volume", "--volumes-from", "-w",
     "--workdir"}
)  # fmt: skip
# Variables that have interpreters, runners or the loader run other code, or get it from elsewhere.
_DECIDING: Final = re.compile(
    r"(?:LD|DYLD|NPM_CONFIG|NODE|BUN|DENO|PNPM|YARN|COREPACK|UV|PIP|PIPX|GEM|BUNDLE|DOTNET|CORECLR|COR|DOCKER|CONDA"
    r"|JAVA|JDK_JAVA|_JAVA|CARGO|RUSTUP|XDG|GIT(?!_AUTHOR|_COMMITTER))_.*|(?:PYTHON|RUBY|PERL5).*|VIRTUAL_ENV"
    r"|GO(?:BIN|ENV|FLAGS|PATH|PRIVATE|PROXY|ROOT|SUMDB|NOSUMDB|TOOLCHAIN)|CONTAINER_HOST|CLASSPATH|BASH_ENV|ENV|SHELLOPTS"
    r"|BASHOPTS|PATH|PATHEXT|COMSPEC|SHELL|HOME|USERPROFILE|APPDATA|GCONV_PATH|LOCPATH|PHPRC|PHP_INI_SCAN_DIR",
    re.DOTALL,
)
# Those that every child gets: the value of this process is no change.
_OURS: Final = frozenset({"HOME", "USERPROFILE", "APPDATA", "SHELL", "COMSPEC", "PATHEXT"})
_IDLE: Final = frozenset(
    {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONHASHSEED",
     "NODE_ENV", "NODE_NO_WARNINGS", "NODE_EXTRA_CA_CERTS"}
)  # fmt: skip
# What such a name holds is not even kept as a digest; it gets code from nowhere else.
_SECRET: Final = re.compile(r"TOKEN|PASSW|SECRET|USERNAME|AUTH|KEY|CREDENTIAL")


def of_command(
    command: str,
    args: Sequence[str],
    *,
    folder: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    cwd: str | None = None,
) -> str:
    """What a command line starts, and what decides which code that is.

    Args:
        command: The program.
        args: Its arguments; they may hold secrets, of which nothing is repeated.
        folder: That of the configuration; paths below it are relative to it, and so equal on every machine.
        env: The variables that it is given by name.
        cwd: The folder that it is started in.
    """
    words, given = _without_wrappers([command, *args])
    program, options = _started(words, folder)
    parts = [_option(option, value, folder) for option, value in options]
    parts += _variables({**(env or {}), **given}, folder)
    if cwd is not None:
        parts.append(f"in {_portable(_path(cwd, folder), folder)}")
    return program if not parts else f"{program} ({', '.join(parts)})"


def _started(words: Sequence[str], folder: Path | None) -> tuple[str, list[tuple[str, str]]]:
    """The program or package, and the options that decide which code of it runs."""
    program, rest = _program(words[0]), list(words[1:])
    for runner, skipped in ((program, 0), (" ".join([program, *rest[:1]]), 1), (" ".join([program, *rest[:2]]), 2)):
        found = _of_runner(runner, rest[skipped:], folder)
        if found is not None:
            return found
    if _INTERPRETERS.fullmatch(program):
        return _of_interpreter(program, rest, folder)
    if program in _LAUNCHERS and rest and rest != ["run"]:
        return f"{'shell' if program in _SHELLS else 'program'}:{program} {_digest(*rest)}", []
    return f"program:{_path(words[0], folder)}", []


def _option(option: str, value: str, folder: Path | None) -> str:
    return f"{option} {_shown(value, folder)}" if value else option


def _variables(given: Mapping[str, str | None], folder: Path | None) -> list[str]:
    found = []
    for name in sorted(given):
        value, upper = given[name], name.upper()
        if value is None or upper in _IDLE or not _DECIDING.fullmatch(upper) or _SECRET.search(upper):
            continue
        if upper == "PATH":
            # What this process has too says nothing of the configuration, and differs between machines.
            own = set(os.environ.get("PATH", "").split(os.pathsep))
            value = os.pathsep.join(one for one in value.split(os.pathsep) if one not in own)
        elif upper in _OURS and value == os.environ.get(name):
            continue
        if value:
            found.append(f"{name}={_shown(value, folder)}")
    return found


def _shown(value: str, folder: Path | None) -> str:
    """The address that a value is, without credentials; the digest of anything else, which may be a secret."""
    if re.match(r"[a-z][a-z0-9+.-]*://", value) and " " not in value:
        parts = urlsplit(value)
        return f"{of_url(value).removeprefix('origin:')}{parts.path}"
    return _digest(_portable(value, folder))


def _portable(value: str, folder: Path | None) -> str:
    """A value with the folders of this machine by other words."""
    for place, word in ((folder.absolute() if folder is not None else None, "."), (Path.home(), "~")):
        if place is not None and len(place.parts) > 1:
            value = value.replace(str(place), word)
    return value


def _digest(*words: str) -> str:
    return f"sha256:{hashlib.sha256(chr(0).join(words).encode()).hexdigest()[:_DIGEST_CHARS]}"


def of_url(url: str) -> str:
    """The origin of a URL: without user, password, path and query."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    host = (parts.hostname or "").lower()
    shown = f"[{host}]" if ":" in host else host
    return f"origin:{parts.scheme}://{shown}" + (f":{port}" if port not in (None, usual) else "")


def _program(word: str) -> str:
    name = re.split(r"[/\\]", word)[-1].lower()
    return re.sub(r"\.(?:exe|cmd|bat|ps1)$", "", name)


def _without_wrappers(words: Sequence[str]) -> tuple[list[str], dict[str, str | None]]:
    """The command line that `env` or `cmd /c` starts, and the variables that it is given."""
    left = [*words]
    given: dict[str, str | None] = {}
    while len(left) > 1:
        program = _program(left[0])
        if program == "env":
            at = next((at for at, word in enumerate(left[1:], 1) if "=" not in word and not word.startswith("-")), 0)
        else:
            at = 2 if program == "cmd" and left[1].lower() == "/c" and len(left) > 2 else 0
        if not at:
            break
        given |= dict(word.split("=", 1) for word in left[1:at] if "=" in word and not word.startswith("-"))
        left = left[at:]
    return left, given


def _of_runner(runner: str, args: Sequence[str], folder: Path | None) -> tuple[str, list[tuple[str, str]]] | None:
    match runner:
        case "npx" | "bunx" | "npm exec" | "npm x" | "pnpm dlx" | "pnpx" | "yarn dlx" | "bun x":
            options, words = _split(args, _NPM_VALUES)
            if runner in ("npm exec", "npm x"):
                # It reads its options behind the package too, up to `--`.
                options += [_parted(word) for word in words[: (*words, "--").index("--")] if word.startswith("--")]
            return _of_package("npm", options, words, ("--package", "-p"), folder)
        case "uvx" | "uv tool run" | "uv run":
            options, words = _split(args, _UV_VALUES)
            naming = ("--from", "--with") if runner == "uv run" else ("--from",)
            return _of_package("pypi", options, words, naming, folder)
        case "pipx run":
            options, words = _split(args, _PIPX_VALUES)
            return _of_package("pypi", options, words, ("--spec",), folder)
        case "docker run" | "podman run" | "nerdctl run" | "docker container":
            options, words = _of_container([*args][1:] if runner == "docker container" else args)
            given = [value.partition("=") for option, value in options if option in ("-e", "--env")]
            deciding = [(option, value) for option, value in options if option in _OF_IMAGES]
            named = _variables({name: value for name, _, value in given}, folder)
            return (f"image:{words[0]}", [*deciding, *((one, "") for one in named)]) if words else None
    return None


def _of_package(
    kind: str, options: list[tuple[str, str]], words: list[str], naming: tuple[str, ...], folder: Path | None
) -> tuple[str, list[tuple[str, str]]] | None:
    """The package that a runner gets, and the options that decide where from and what of it runs."""
    named = next((value for one in naming for option, value in reversed(options) if option == one), None)
    package = named or next(iter(words), None)
    if not package:
        return None
    counted = [
        (option, value)
        for option, value in options
        if (option, value) != (naming[0], package) and value != package and not _is_harmless(option, value)
    ]
    if (
        named is not None
        and words
        and (_program(words[0]) in _LAUNCHERS or _INTERPRETERS.fullmatch(_program(words[0])))
    ):
        # The package is there, and something else is run.
        program, more = _started(words, folder)
        counted += [(program, ""), *more]
    return f"{kind}:{package}", counted


def _is_harmless(option: str, value: str) -> bool:
    if option in ("--python", "-p"):
        # A version is one of many; a path may be anything.
        return re.fullmatch(r"(?:python|cpython@?)?[\d.]+", value) is not None
    return _HARMLESS.fullmatch(option) is not None


def _parted(word: str) -> tuple[str, str]:
    option, _, value = word.partition("=")
    return option, value


def _split(args: Sequence[str], with_value: frozenset[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Options with their values, and the first word that is none with what follows it."""
    options: list[tuple[str, str]] = []
    left = [*args]
    while left and left[0].startswith("-"):
        option, equals, value = left.pop(0).partition("=")
        if option == "--":
            break
        if not equals and option in with_value and left:
            value = left.pop(0)
        options.append((option, value))
    return options, left


def _of_container(args: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Options with their values, and the image with what follows it."""
    options: list[tuple[str, str]] = []
    left = [*args]
    while left and left[0].startswith("-"):
        option, equals, value = left.pop(0).partition("=")
        joined = len(option) > 2 and not option.startswith("--") and option not in _DOCKER_SWITCHES
        if joined:
            option, value = option[:2], option[2:] + equals + value
        elif not equals and option not in _DOCKER_SWITCHES and left:
            value = left.pop(0)
        options.append((option, value))
    return options, left


def _of_interpreter(program: str, args: Sequence[str], folder: Path | None) -> tuple[str, list[tuple[str, str]]]:
    language = re.sub(r"[\d.]+$", "", program)
    options: list[tuple[str, str]] = []
    left = [*args]
    while left:
        word = left.pop(0)
        if word in ("-m", "-jar") and left:
            return f"{language}:{word} {left[0] if word == '-m' else _path(left[0], folder)}".replace(
                ":-jar ", ":"
            ), options
        if word in ("-c", "-e", "--eval", "-p"):
            return f"{language}:{word} {_digest(*left)}", options
        if not word.startswith("-") and word != "run":
            return f"{language}:{_path(word, folder)}", options
        option, value = _parted(word)
        if option in _INTERPRETER_VALUES and not value and left:
            value = left.pop(0)
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
