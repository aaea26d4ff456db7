"""Propose a configuration entry for a server in an MCP registry.

Source: the published API of the MCP registry, version v0.1, and the schema of server.json.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, urlencode

from gateway.onboarding import bundles
from gateway.onboarding.packages import (
    IMAGE,
    Input,
    Proposal,
    SeveralFound,
    SourceRefused,
    alias_of,
    fetch_json,
    npm_entry,
    pypi_entry,
    variable,
)
from registry.schema.display_text import excerpt

DEFAULT_BASE: Final = "https://registry.modelcontextprotocol.io"
_META: Final = "io.modelcontextprotocol.registry/official"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
# Maximum number of pages of search results. The limit also protects against a registry whose listing never ends.
_MAX_PAGES: Final = 5
_PAGE: Final = 50
_MAX_LISTED: Final = 8
_ABOUT_CHARS: Final = 120
# The values of `registryBaseUrl` in `server.json` that name the registries from which npx and uvx install packages.
# A package in another registry is refused, because npx and uvx would run a different package of the same name.
_HOMES: Final[Mapping[str, frozenset[str]]] = {
    "npm": frozenset({"https://registry.npmjs.org"}),
    "pypi": frozenset({"https://pypi.org", "https://pypi.org/simple"}),
}
_RUNTIMES: Final[Mapping[str, frozenset[str]]] = {
    "npm": frozenset({"npx"}),
    "pypi": frozenset({"uvx"}),
    "oci": frozenset({"docker"}),
}
# Allowed options of `docker run` that have a value. Other options could give the container access to this machine.
_CONTAINER_OPTIONS: Final = frozenset(
    {"-e", "--env", "-v", "--volume", "--mount", "--network", "--user", "-u", "--name"}
)
_VARIABLE_IN_TEXT: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")


def registry_proposal(name: str, *, base: str | None, arguments: list[str], bundle_dir: Callable[[], Any]) -> Proposal:
    """Return the proposed entry for a server in a registry.

    Args:
        name: The name, optionally with @VERSION, or a word to search for.
        base: The URL of the registry; by default TYPEGATE_REGISTRY_URL, or the public registry.
        arguments: Additional arguments of the server's command.
        bundle_dir: Returns the folder for unpacked bundles.

    Raises:
        SourceRefused: The server is unknown or deleted, or cannot be run as the registry describes it.
    """
    root = (base or os.environ.get("TYPEGATE_REGISTRY_URL") or DEFAULT_BASE).rstrip("/")
    server_name, _, version = name.partition("@")
    if not _NAME.fullmatch(server_name):
        server_name = _find_unique(root, server_name)
    path = f"/v0.1/servers/{quote(server_name, safe='')}/versions/{quote(version or 'latest', safe='')}"
    answer = fetch_json(root + path)
    server, status = _server(answer)
    if server.get("name") != server_name:
        raise SourceRefused(f"{root} returned a different server than {server_name}")
    if status == "deleted":
        raise SourceRefused(f"{server_name} was deleted from the registry; it may be harmful")
    proposal = _proposal(server, server_name, arguments, bundle_dir)
    if status == "deprecated":
        proposal.warnings.append("the registry has marked it as deprecated")
    return proposal


def _server(answer: Any) -> tuple[dict[str, Any], str]:
    envelope = answer if isinstance(answer, dict) else {}
    server = envelope.get("server", envelope)
    if not isinstance(server, dict):
        raise SourceRefused("the answer of the registry does not describe a server")
    meta = (envelope.get("_meta") or {}).get(_META) if isinstance(envelope.get("_meta"), dict) else None
    stated = meta.get("status") if isinstance(meta, dict) else None
    # The status can be in the envelope and in the server; the stricter status counts.
    states = {str(each) for each in (stated, server.get("status")) if each is not None}
    return server, next((state for state in ("deleted", "deprecated") if state in states), "active")


def _find_unique(root: str, word: str) -> str:
    """Return the name of the only server that matches a word."""
    about_by_name: dict[str, str] = {}
    cursor = ""
    for _ in range(_MAX_PAGES):
        query = {"search": word, "limit": str(_PAGE), "version": "latest", **({"cursor": cursor} if cursor else {})}
        page = fetch_json(f"{root}/v0.1/servers?{urlencode(query)}")
        entries = page.get("servers") if isinstance(page, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            server, status = _server(entry)
            name = server.get("name")
            if isinstance(name, str) and _NAME.fullmatch(name) and status != "deleted":
                about_by_name.setdefault(name, excerpt(str(server.get("description", "")), _ABOUT_CHARS))
        metadata = page.get("metadata") if isinstance(page, dict) else None
        after = metadata.get("nextCursor") if isinstance(metadata, dict) else None
        if not isinstance(after, str) or not after or after == cursor:
            break
        cursor = after
    exact = [name for name in about_by_name if name.rpartition("/")[2] == word]
    if len(about_by_name) == 1 or len(exact) == 1:
        return (exact or list(about_by_name))[0]
    if not about_by_name:
        raise SourceRefused(f"{root} has no server named {excerpt(word, 80)!r}")
    listed = "\n".join(f"  {name}  {about}" for name, about in list(about_by_name.items())[:_MAX_LISTED])
    raise SeveralFound(
        f"{root} has {len(about_by_name)} servers for {excerpt(word, 80)!r}; expected one of these names:\n{listed}",
        about_by_name,
    )


def _proposal(server: Mapping[str, Any], name: str, arguments: list[str], bundle_dir: Callable[[], Any]) -> Proposal:
    reasons: list[str] = []
    packages = [package for package in server.get("packages") or () if isinstance(package, dict)]
    remotes = [remote for remote in server.get("remotes") or () if isinstance(remote, dict)]
    # Prefer packages: a package has an exact version, while a remote server can change at any time.
    for package in packages:
        try:
            return _from_package(package, name, arguments, bundle_dir)
        except SourceRefused as refused:
            reasons.append(str(refused))
    for remote in remotes:
        if arguments:
            reasons.append("a remote server takes no arguments")
            break
        try:
            return _from_remote(remote, name)
        except SourceRefused as refused:
            reasons.append(str(refused))
    raise SourceRefused(f"{name}: {'; '.join(reasons) or 'the registry describes no way to run it'}")


def _from_package(
    package: Mapping[str, Any], name: str, arguments: list[str], bundle_dir: Callable[[], Any]
) -> Proposal:
    kind = package.get("registryType", package.get("registry_type"))
    identifier, version = package.get("identifier"), package.get("version")
    transport = package.get("transport")
    if isinstance(transport, dict) and transport.get("type", "stdio") != "stdio":
        raise SourceRefused("its package is an HTTP server, which the gateway does not start")
    if not isinstance(identifier, str):
        raise SourceRefused("its package has no identifier")
    home = package.get("registryBaseUrl", package.get("registry_base_url"))
    if isinstance(home, str) and kind in _HOMES and home.rstrip("/") not in _HOMES[kind]:
        raise SourceRefused(f"its package is not in the default registry of {kind}, but in {excerpt(home, 80)}")
    runtime = package.get("runtimeHint", package.get("runtime_hint"))
    if runtime is not None and kind in _RUNTIMES and runtime not in _RUNTIMES[kind]:
        raise SourceRefused(f"it must be started by {excerpt(str(runtime), 40)!r}, which is not supported")
    inputs: list[Input] = []
    program_arguments = [*_arguments(package.get("packageArguments"), inputs), *arguments]
    runtime_arguments = _arguments(package.get("runtimeArguments"), inputs)
    env = _variables(package.get("environmentVariables"), inputs)
    origin = f"{name} from the registry: {kind} {identifier} {version}"
    match kind:
        case "npm" | "pypi":
            if [word for word in runtime_arguments if word not in ("-y", "--yes", "-q", "--quiet")]:
                # Options could make the runner start another package or a shell.
                raise SourceRefused(f"it requires options of {'npx' if kind == 'npm' else 'uvx'}: {runtime_arguments}")
            make = npm_entry if kind == "npm" else pypi_entry
            entry = make(identifier, str(version), program_arguments)
        case "oci":
            entry = _container(identifier, version, runtime_arguments, env, program_arguments)
        case "mcpb":
            proposal = bundles.bundle_proposal(
                identifier,
                sha256=package.get("fileSha256", package.get("file_sha256")),
                folder=bundle_dir,
                arguments=program_arguments,
            )
            return replace(proposal, origin=f"{name} from the registry: {proposal.origin}")
        case _:
            raise SourceRefused(f"packages of the type {excerpt(str(kind), 40)!r} are not supported")
    if env and "env" not in entry:
        entry["env"] = env
    return Proposal(alias=alias_of(name), origin=origin, entry=entry, inputs=inputs)


def _container(
    image: str, version: Any, options: list[str], env: Mapping[str, str], arguments: list[str]
) -> dict[str, Any]:
    if "@" not in image and ":" not in image.rpartition("/")[2] and isinstance(version, str):
        image = f"{image}:{version}"
    if not IMAGE.fullmatch(image) or image.endswith(":latest") or ("@" not in image and ":" not in image):
        raise SourceRefused(f"{excerpt(image, 120)!r} is not an image with an exact version")
    line = ["run", "-i", "--rm"]
    remaining = [*options]
    while remaining:
        option, equals, value = remaining.pop(0).partition("=")
        if option in ("-i", "--interactive", "--rm", "--init"):
            continue
        if option not in _CONTAINER_OPTIONS or (not equals and not remaining):
            raise SourceRefused(f"it requires the docker option {excerpt(option, 40)!r}, which is not allowed")
        line += [option, value if equals else remaining.pop(0)]
    for name in env:
        line += ["-e", name]
    return {"command": "docker", "args": [*line, image, *arguments], **({"env": dict(env)} if env else {})}


def _from_remote(remote: Mapping[str, Any], name: str) -> Proposal:
    kind, url = remote.get("type"), remote.get("url")
    if kind not in ("streamable-http", "sse") or not isinstance(url, str):
        raise SourceRefused(f"remotes of the type {excerpt(str(kind), 40)!r} are not supported")
    inputs: list[Input] = []
    url = _with_variables(url, remote.get("variables"), inputs)
    if not url.startswith("https://") or "$" in url.partition("//")[2].partition("/")[0]:
        raise SourceRefused(f"its address does not use https: {excerpt(url, 120)}")
    headers: dict[str, str] = {}
    for header in remote.get("headers") or ():
        if isinstance(header, dict) and isinstance(header.get("name"), str):
            headers[header["name"]] = _input_value(header, re.sub(r"\W", "_", header["name"]).upper(), inputs)
    entry: dict[str, Any] = {"type": "sse" if kind == "sse" else "http", "url": url}
    if headers:
        entry["headers"] = headers
    return Proposal(alias=alias_of(name), origin=f"{name} from the registry: {url}", entry=entry, inputs=inputs)


def _variables(listed: Any, inputs: list[Input]) -> dict[str, str]:
    references: dict[str, str] = {}
    for declared in listed if isinstance(listed, list) else ():
        if isinstance(declared, dict):
            name = variable(declared.get("name"))
            references[name] = _input_value(declared, name, inputs)
    return references


# The formats of arguments that need a value, of those in the registry's schema; the other one is `boolean`.
_VALUE_FORMATS: Final = ("string", "number", "filepath")


def _arguments(listed: Any, inputs: list[Input]) -> list[str]:
    words: list[str] = []
    for at, declared in enumerate(listed if isinstance(listed, list) else ()):
        if not isinstance(declared, dict):
            continue
        name = declared.get("name")
        hint = re.sub(r"\W+", "_", str(name or declared.get("valueHint") or f"ARGUMENT_{at + 1}")).strip("_").upper()
        value = _input_value(declared, hint if hint[:1].isalpha() else f"ARGUMENT_{hint}", inputs)
        if declared.get("type") == "named" and isinstance(name, str):
            # An optional argument without a value is left out if it takes one; otherwise it is a flag, like `--stdio`.
            takes_value = "valueHint" in declared or "choices" in declared or declared.get("format") in _VALUE_FORMATS
            words += [name, value] if value else [] if takes_value else [name]
        elif value:
            words.append(value)
    for word in words:
        if "\0" in word:
            raise SourceRefused("an argument contains a NUL character")
    return words


def _input_value(declared: Mapping[str, Any], name: str, inputs: list[Input]) -> str:
    """Return the declared value, or else a `${NAME}` placeholder for a value that the user has to provide.

    The result is empty for an optional command-line argument that has neither a value nor a default.
    """
    value = declared.get("value")
    if isinstance(value, str):
        return _with_variables(value, declared.get("variables"), inputs)
    default = declared.get("default")
    required = bool(declared.get("isRequired", declared.get("is_required")))
    secret = bool(declared.get("isSecret", declared.get("is_secret")))
    if default is None and not required and not secret and declared.get("type") in ("named", "positional"):
        return ""
    inputs.append(
        Input(
            name=variable(name),
            about=excerpt(str(declared.get("description") or ""), _ABOUT_CHARS),
            secret=secret,
            required=required,
            default=str(default) if default is not None else None,
        )
    )
    return f"${{{name}}}"


def _with_variables(text: str, variables: Any, inputs: list[Input]) -> str:
    """Replace each declared `{name}` with its value or a `${NAME}` placeholder, and escape any other `${`."""
    declared = variables if isinstance(variables, dict) else {}

    def placeholder(match: re.Match[str]) -> str:
        about = declared.get(match[1])
        if not isinstance(about, dict):
            return match[0]
        return _input_value(about, re.sub(r"\W", "_", match[1]).upper(), inputs)

    return _VARIABLE_IN_TEXT.sub(placeholder, text.replace("${", "$${"))
