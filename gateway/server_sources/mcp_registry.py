"""The entry that an MCP registry has of a server, as we would write it.

Source: the registry's published API, version v0.1, and the schema of server.json.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from gateway.server_sources import bundles
from gateway.server_sources.fetch import fetch_json
from gateway.server_sources.packages import alias_of
from gateway.server_sources.proposal import (
    IMAGE,
    Input,
    Proposal,
    SeveralFound,
    SourceRefused,
    npm_entry,
    pypi_entry,
    variable,
)
from registry.schema.display_text import excerpt

DEFAULT_BASE: Final = "https://registry.modelcontextprotocol.io"
_META: Final = "io.modelcontextprotocol.registry/official"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
# Enough for any word that somebody looks for; a registry that goes on is left.
_MAX_PAGES: Final = 5
_PAGE: Final = 50
_MAX_TOLD: Final = 8
_ABOUT_CHARS: Final = 120
# How entries name the registries that npx and uvx take packages from (MCP registry, `server.json`, `registryBaseUrl`).
# They are compared, and never asked: an entry about any other one means another package than would be run.
_HOMES: Final[Mapping[str, frozenset[str]]] = {
    "npm": frozenset({"https://registry.npmjs.org"}),
    "pypi": frozenset({"https://pypi.org", "https://pypi.org/simple"}),
}
_RUNTIMES: Final[Mapping[str, frozenset[str]]] = {
    "npm": frozenset({"npx"}),
    "pypi": frozenset({"uvx"}),
    "oci": frozenset({"docker"}),
}
# What a container may be given beside its image, each with a value; anything else could open this machine to it.
_CONTAINER_OPTIONS: Final = frozenset(
    {"-e", "--env", "-v", "--volume", "--mount", "--network", "--user", "-u", "--name"}
)
_VARIABLE_IN_TEXT: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")


def registry_proposal(name: str, *, base: str | None, arguments: list[str], bundle_dir: Callable[[], Any]) -> Proposal:
    """What a server of a registry would be written as.

    Args:
        name: Its name there, with @VERSION or without; or a word of it.
        base: The registry; by default TYPEGATE_REGISTRY_URL, or the public one.
        arguments: More arguments of its program.
        bundle_dir: Gives the folder that bundles are unpacked into.

    Raises:
        SourceRefused: There is no such server, it was deleted, or it cannot be run as the registry describes it.
    """
    root = (base or os.environ.get("TYPEGATE_REGISTRY_URL") or DEFAULT_BASE).rstrip("/")
    wanted, _, version = name.partition("@")
    if not _NAME.fullmatch(wanted):
        wanted = _only_match(root, wanted)
    path = f"/v0.1/servers/{quote(wanted, safe='')}/versions/{quote(version or 'latest', safe='')}"
    answer = fetch_json(root + path)
    server, status = _server(answer)
    if server.get("name") != wanted:
        raise SourceRefused(f"{root} answered with another server than {wanted}")
    if status == "deleted":
        raise SourceRefused(f"{wanted} was deleted from the registry; it may be harmful")
    proposal = _proposal(server, wanted, arguments, bundle_dir)
    if status == "deprecated":
        proposal.warnings.append("the registry has marked it as deprecated")
    return proposal


def _server(answer: Any) -> tuple[dict[str, Any], str]:
    whole = answer if isinstance(answer, dict) else {}
    server = whole.get("server", whole)
    if not isinstance(server, dict):
        raise SourceRefused("the registry answered with something that is no server")
    meta = (whole.get("_meta") or {}).get(_META) if isinstance(whole.get("_meta"), dict) else None
    stated = meta.get("status") if isinstance(meta, dict) else None
    # The stricter of the two places where it may stand.
    states = {str(each) for each in (stated, server.get("status")) if each is not None}
    return server, next((one for one in ("deleted", "deprecated") if one in states), "active")


def _only_match(root: str, word: str) -> str:
    """The name of the one server that a word finds."""
    found: dict[str, str] = {}
    cursor = ""
    for _ in range(_MAX_PAGES):
        query = {"search": word, "limit": str(_PAGE), "version": "latest", **({"cursor": cursor} if cursor else {})}
        page = fetch_json(f"{root}/v0.1/servers?{urlencode(query)}")
        entries = page.get("servers") if isinstance(page, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            server, status = _server(entry)
            name = server.get("name")
            if isinstance(name, str) and _NAME.fullmatch(name) and status != "deleted":
                found.setdefault(name, excerpt(str(server.get("description", "")), _ABOUT_CHARS))
        metadata = page.get("metadata") if isinstance(page, dict) else None
        after = metadata.get("nextCursor") if isinstance(metadata, dict) else None
        if not isinstance(after, str) or not after or after == cursor:
            break
        cursor = after
    exact = [name for name in found if name.rpartition("/")[2] == word]
    if len(found) == 1 or len(exact) == 1:
        return (exact or list(found))[0]
    if not found:
        raise SourceRefused(f"{root} has no server that is called {excerpt(word, 80)!r}")
    listed = "\n".join(f"  {name}  {about}" for name, about in list(found.items())[:_MAX_TOLD])
    raise SeveralFound(
        f"{root} has {len(found)} servers for {excerpt(word, 80)!r}; expected one by its name:\n{listed}", found
    )


def _proposal(server: Mapping[str, Any], name: str, arguments: list[str], bundle_dir: Callable[[], Any]) -> Proposal:
    reasons: list[str] = []
    packages = [one for one in server.get("packages") or () if isinstance(one, dict)]
    remotes = [one for one in server.get("remotes") or () if isinstance(one, dict)]
    # Packages first: their version is exact, while what an address serves may change at any time.
    for package in packages:
        try:
            return _of_package(package, name, arguments, bundle_dir)
        except SourceRefused as refused:
            reasons.append(str(refused))
    for remote in remotes:
        try:
            return _of_remote(remote, name)
        except SourceRefused as refused:
            reasons.append(str(refused))
    raise SourceRefused(f"{name}: {'; '.join(reasons) or 'the registry says of no way to run it'}")


def _of_package(package: Mapping[str, Any], name: str, arguments: list[str], bundle_dir: Callable[[], Any]) -> Proposal:
    kind = package.get("registryType", package.get("registry_type"))
    identifier, version = package.get("identifier"), package.get("version")
    transport = package.get("transport")
    if isinstance(transport, dict) and transport.get("type", "stdio") != "stdio":
        raise SourceRefused("its package serves an address of its own, which is not started here")
    if not isinstance(identifier, str):
        raise SourceRefused("its package has no identifier")
    home = package.get("registryBaseUrl", package.get("registry_base_url"))
    if isinstance(home, str) and kind in _HOMES and home.rstrip("/") not in _HOMES[kind]:
        raise SourceRefused(f"its package is in another registry than {kind}'s own ({excerpt(home, 80)})")
    runtime = package.get("runtimeHint", package.get("runtime_hint"))
    if runtime is not None and kind in _RUNTIMES and runtime not in _RUNTIMES[kind]:
        raise SourceRefused(f"it wants to be started by {excerpt(str(runtime), 40)!r}")
    inputs: list[Input] = []
    given = [*_arguments(package.get("packageArguments"), inputs), *arguments]
    runtime_arguments = _arguments(package.get("runtimeArguments"), inputs)
    env = _variables(package.get("environmentVariables"), inputs)
    origin = f"{name} from the registry: {kind} {identifier} {version}"
    match kind:
        case "npm" | "pypi":
            if [one for one in runtime_arguments if one not in ("-y", "--yes", "-q", "--quiet")]:
                # They could name another package, or a shell.
                raise SourceRefused(f"it wants options for {'npx' if kind == 'npm' else 'uvx'}: {runtime_arguments}")
            make = npm_entry if kind == "npm" else pypi_entry
            entry = make(identifier, str(version), given)
        case "oci":
            entry = _container(identifier, version, runtime_arguments, env, given)
        case "mcpb":
            proposal = bundles.bundle_proposal(
                identifier, sha256=package.get("fileSha256", package.get("file_sha256")), folder=bundle_dir
            )
            proposal.origin = f"{name} from the registry: {proposal.origin}"
            return proposal
        case _:
            raise SourceRefused(f"packages of the kind {excerpt(str(kind), 40)!r} cannot be run here")
    if env and "env" not in entry:
        entry["env"] = env
    return Proposal(alias=alias_of(name), origin=origin, entry=entry, inputs=inputs)


def _container(
    image: str, version: Any, options: list[str], env: Mapping[str, str], arguments: list[str]
) -> dict[str, Any]:
    if "@" not in image and ":" not in image.rpartition("/")[2] and isinstance(version, str):
        image = f"{image}:{version}"
    if not IMAGE.fullmatch(image) or image.endswith(":latest") or ("@" not in image and ":" not in image):
        raise SourceRefused(f"{excerpt(image, 120)!r} is no image with an exact version")
    line = ["run", "-i", "--rm"]
    left = [*options]
    while left:
        option, equals, value = left.pop(0).partition("=")
        if option in ("-i", "--interactive", "--rm", "--init"):
            continue
        if option not in _CONTAINER_OPTIONS or (not equals and not left):
            raise SourceRefused(f"it wants docker to be given {excerpt(option, 40)!r}")
        line += [option, value if equals else left.pop(0)]
    for name in env:
        line += ["-e", name]
    return {"command": "docker", "args": [*line, image, *arguments], **({"env": dict(env)} if env else {})}


def _of_remote(remote: Mapping[str, Any], name: str) -> Proposal:
    kind, url = remote.get("type"), remote.get("url")
    if kind not in ("streamable-http", "sse") or not isinstance(url, str):
        raise SourceRefused(f"an address of the kind {excerpt(str(kind), 40)!r} cannot be connected to")
    inputs: list[Input] = []
    url = _with_variables(url, remote.get("variables"), inputs)
    if not url.startswith("https://") or "$" in url.partition("//")[2].partition("/")[0]:
        raise SourceRefused(f"its address is not on https: {excerpt(url, 120)}")
    headers: dict[str, str] = {}
    for header in remote.get("headers") or ():
        if isinstance(header, dict) and isinstance(header.get("name"), str):
            headers[header["name"]] = _value(header, re.sub(r"\W", "_", header["name"]).upper(), inputs)
    entry: dict[str, Any] = {"type": "sse" if kind == "sse" else "http", "url": url}
    if headers:
        entry["headers"] = headers
    return Proposal(alias=alias_of(name), origin=f"{name} from the registry: {url}", entry=entry, inputs=inputs)


def _variables(listed: Any, inputs: list[Input]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict):
            name = variable(one.get("name"))
            found[name] = _value(one, name, inputs)
    return found


def _arguments(listed: Any, inputs: list[Input]) -> list[str]:
    words: list[str] = []
    for at, one in enumerate(listed if isinstance(listed, list) else ()):
        if not isinstance(one, dict):
            continue
        name = one.get("name")
        hint = re.sub(r"\W+", "_", str(name or one.get("valueHint") or f"ARGUMENT_{at + 1}")).strip("_").upper()
        value = _value(one, hint if hint[:1].isalpha() else f"ARGUMENT_{hint}", inputs)
        if one.get("type") == "named" and isinstance(name, str):
            words += [name, value] if value else [name]
        elif value:
            words.append(value)
    for word in words:
        if "\0" in word:
            raise SourceRefused("an argument holds a NUL character")
    return words


def _value(one: Mapping[str, Any], name: str, inputs: list[Input]) -> str:
    """The value of an input: given, or a placeholder for what somebody has to say."""
    value = one.get("value")
    if isinstance(value, str):
        return _with_variables(value, one.get("variables"), inputs)
    default = one.get("default")
    wanted = bool(one.get("isRequired", one.get("is_required")))
    secret = bool(one.get("isSecret", one.get("is_secret")))
    if default is None and not wanted and not secret and one.get("type") in ("named", "positional"):
        return ""
    inputs.append(
        Input(
            name=variable(name),
            about=excerpt(str(one.get("description") or ""), _ABOUT_CHARS),
            secret=secret,
            required=wanted,
            default=str(default) if default is not None else None,
        )
    )
    return f"${{{name}}}"


def _with_variables(text: str, variables: Any, inputs: list[Input]) -> str:
    """A text with its `{name}` as placeholders of ours; whatever else looks like one is meant literally."""
    known = variables if isinstance(variables, dict) else {}

    def asked(found: re.Match[str]) -> str:
        about = known.get(found[1])
        if not isinstance(about, dict):
            return found[0]
        return _value(about, re.sub(r"\W", "_", found[1]).upper(), inputs)

    return _VARIABLE_IN_TEXT.sub(asked, text.replace("${", "$${"))
