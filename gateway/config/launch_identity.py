"""What an entry starts or connects to, in words that hold no secret: package and version, or the origin of a URL."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
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
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash", "cmd", "powershell", "pwsh"})
_DIGEST_CHARS: Final = 16


def of_command(command: str, args: Sequence[str], *, folder: Path | None = None) -> str:
    """What a command line starts.

    Args:
        command: The program.
        args: Its arguments; they may hold secrets, of which nothing is repeated.
        folder: That of the configuration; paths below it are relative to it, and so equal on every machine.
    """
    words = _without_wrappers([command, *args])
    program, rest = _program(words[0]), list(words[1:])
    for runner, skipped in ((program, 0), (" ".join([program, *rest[:1]]), 1), (" ".join([program, *rest[:2]]), 2)):
        found = _of_runner(runner, rest[skipped:])
        if found is not None:
            return found
    if _INTERPRETERS.fullmatch(program):
        return _of_interpreter(program, rest, folder)
    if program in _SHELLS:
        digest = hashlib.sha256("\0".join(rest).encode()).hexdigest()[:_DIGEST_CHARS]
        return f"shell:{program} sha256:{digest}"
    return f"program:{_path(words[0], folder)}"


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


def _without_wrappers(words: Sequence[str]) -> list[str]:
    """The command line that `env` or `cmd /c` starts."""
    left = [*words]
    while len(left) > 1:
        program = _program(left[0])
        if program == "env":
            at = next((at for at, word in enumerate(left[1:], 1) if "=" not in word and not word.startswith("-")), 0)
        else:
            at = 2 if program == "cmd" and left[1].lower() == "/c" and len(left) > 2 else 0
        if not at:
            break
        left = left[at:]
    return left


def _of_runner(runner: str, args: Sequence[str]) -> str | None:
    match runner:
        case "npx" | "bunx" | "npm exec" | "npm x" | "pnpm dlx" | "pnpx" | "yarn dlx" | "bun x":
            options, words = _split(args, _NPM_VALUES)
            package = options.get("--package") or options.get("-p") or next(iter(words), None)
            return f"npm:{package}" if package else None
        case "uvx" | "uv tool run" | "uv run":
            options, words = _split(args, _UV_VALUES)
            named = options.get("--from")
            if named is None and runner == "uv run":
                named = options.get("--with")
            package = named or next(iter(words), None)
            return f"pypi:{package}" if package else None
        case "pipx run":
            options, words = _split(args, _PIPX_VALUES)
            package = options.get("--spec") or next(iter(words), None)
            return f"pypi:{package}" if package else None
        case "docker run" | "podman run" | "nerdctl run" | "docker container":
            image = _image([*args][1:] if runner == "docker container" else args)
            return f"image:{image}" if image else None
    return None


def _split(args: Sequence[str], with_value: frozenset[str]) -> tuple[dict[str, str], list[str]]:
    """Options with their values, and the first word that is none with what follows it."""
    options: dict[str, str] = {}
    left = [*args]
    while left and left[0].startswith("-"):
        option, equals, value = left.pop(0).partition("=")
        if option == "--":
            break
        if equals:
            options[option] = value
        elif option in with_value and left:
            options[option] = left.pop(0)
    return options, left


def _image(args: Sequence[str]) -> str | None:
    left = [*args]
    while left and left[0].startswith("-"):
        option, equals, _ = left.pop(0).partition("=")
        joined = len(option) > 2 and not option.startswith("--") and option not in _DOCKER_SWITCHES
        if not equals and option not in _DOCKER_SWITCHES and not joined and left:
            left.pop(0)
    return left[0] if left else None


def _of_interpreter(program: str, args: Sequence[str], folder: Path | None) -> str:
    language = re.sub(r"[\d.]+$", "", program)
    left = [*args]
    while left:
        word = left.pop(0)
        if word in ("-m", "-jar") and left:
            return f"{language}:{word} {left[0]}" if word == "-m" else f"{language}:{_path(left[0], folder)}"
        if word in ("-c", "-e", "--eval", "-p"):
            digest = hashlib.sha256("\0".join(left).encode()).hexdigest()[:_DIGEST_CHARS]
            return f"{language}:{word} sha256:{digest}"
        if not word.startswith("-") and word != "run":
            return f"{language}:{_path(word, folder)}"
    return f"program:{program}"


def _path(word: str, folder: Path | None) -> str:
    path = expand_home(word)
    if folder is not None and path.is_absolute():
        try:
            return path.relative_to(folder.absolute()).as_posix()
        except ValueError:
            pass
    return word.replace("\\", "/")
