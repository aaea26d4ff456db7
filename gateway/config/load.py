"""Read and check a configuration file. Every error names the file, the key and the expected form."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.cluster import EXTRA as CLUSTER_EXTRA
from gateway.config.entries import LEFT_OUT, Entries, read_entries
from gateway.config.host_settings import HostSettings, restricting_keys
from gateway.config.include import KEY as INCLUDE
from gateway.config.include import Included, join_included
from gateway.config.model import Config, GatewayConfig, LeftOut, OwnPart
from gateway.config.per_user import check_exchanges
from gateway.config.section import suggestion
from gateway.config.source import join, kind, read, values
from gateway.config.unmatched import unmatched_names
from gateway.config.unmatched_rules import NOTHING_ADDED, AddedNames, unmatched_in_rules
from gateway.config.variables import expand, input_defaults, variables_in
from gateway.config.wording import refusal
from gateway.embeddings.model import EXTRA, missing_packages
from gateway.errors import ConfigError, together
from gateway.extras import install_command

_CIRCULAR: Final = LeftOut(
    reason="skipped: it starts typegate with this very configuration, which would go on without end", faulty=False
)


def load(
    path: Path,
    environ: Mapping[str, str] | None = None,
    *,
    strict: bool = False,
    added: AddedNames = NOTHING_ADDED,
) -> Config:
    """The configuration in the file at `path`.

    Args:
        path: A JSON or YAML file.
        environ: What `${NAME}` stands for; the process's environment by default.
        strict: Whether a fault in the entry of one server is one of the whole file.
        added: What administrators have added to it.

    Raises:
        ConfigError: The file cannot be used.
    """
    return loaded(read(path), path=path, environ=environ, strict=strict, added=added)


def loaded(
    text: str,
    *,
    path: Path | None,
    environ: Mapping[str, str] | None = None,
    strict: bool = False,
    added: AddedNames = NOTHING_ADDED,
) -> Config:
    """As `parse`, and check that the packages that the configuration needs are installed.

    Raises:
        ConfigError: The text cannot be used, or lacks a package.
    """
    config = parse(text, path=path, environ=environ, strict=strict, added=added)
    if config.gateway.search.embeddings and (missing := missing_packages()):
        raise ConfigError(
            f"needs packages that are not installed ({', '.join(missing)}); expected {install_command(EXTRA)}",
            file=str(path or "configuration"),
            key="gateway.search.embeddings",
        )
    cluster = config.gateway.cluster
    if cluster is not None and (package := cluster.missing_package()):
        raise ConfigError(
            f"needs a package that is not installed ({package}); expected {install_command(CLUSTER_EXTRA)}",
            file=str(path or "configuration"),
            key="gateway.cluster.store",
        )
    return config


def parse(
    text: str,
    *,
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    strict: bool = False,
    added: AddedNames = NOTHING_ADDED,
) -> Config:
    """The configuration in `text`; relative paths in it start at the folder of `path`.

    A server whose entry has a fault is left out, and `Config.left_out` says why.

    Raises:
        ConfigError: The text cannot be used: what it says of the gateway, no entry, or with `strict` some entry. It
            tells every fault.
    """
    file = str(path) if path is not None else "configuration"
    folder = path.parent if path is not None else Path()
    raw = values(text, file=file)
    included = join_included(raw, path=path, file=file)
    block = _block(raw, file)
    warnings = [f"{file}: {text}" for text in (*included.warnings, *_unknown_root_keys(raw, file))]
    secrets: set[str] = set()
    files: set[Path] = set()
    # Only in our blocks: keys of other programs may hold `${…}` with another meaning.
    put_in = partial(
        expand,
        environ=os.environ if environ is None else environ,
        file=file,
        folder=folder,
        secrets=secrets,
        files=files,
    )
    problems: list[ConfigError] = []
    # Not of the whole file: entries are read one by one, and most files have nothing of ours.
    gateway = GatewayConfig.model_construct()
    try:
        if raw.get("gateway") is not None:
            gateway = OwnPart.model_validate(put_in({"gateway": raw["gateway"]})).gateway
    except ValidationError as error:
        problems.append(refusal(error, file))
    except ConfigError as error:
        problems.append(error)
    entries = raw[block] if block is not None else {}
    if not isinstance(entries, dict):
        problems.append(ConfigError(f"is {kind(entries)}; expected an object", file=file, key=block))
        entries = {}
    variables = partial(variables_in, folder=folder, secrets=secrets, files=files)
    put_in = partial(put_in, inputs=input_defaults(raw))
    settings = HostSettings.beside(path, file, raw, files)
    found = read_entries(str(block), entries, file=file, expand=put_in, variables_in=variables, settings=settings)
    # What is said of the gateway decides who may call what: without it nothing is served. And where no entry is sound,
    # there is nothing to go on with.
    if problems or (found.problems and (strict or not found.servers)):
        raise together([included.located(problem, file) for problem in (*problems, *found.problems)])
    check_exchanges(found.servers, has_issuers=gateway.auth.oauth is not None, file=file, block=str(block))
    _name_files(found, included, file)
    # The working directory of a server is not that of whoever wrote the file.
    servers = {alias: server.with_absolute_paths(folder) for alias, server in found.servers.items()}
    unmatched = unmatched_names(servers, found.left_out, gateway, str(block))
    rules = list(unmatched_in_rules(servers, found.left_out, gateway, added))
    if opening := [name for name in rules if name.opens]:
        expected = "names that there are, since it would close nothing"
        raise together([ConfigError(f"{name.text}; expected {expected}", file=file, key=name.key) for name in opening])
    circular = [alias for alias, server in servers.items() if path is not None and server.leads_back(path)]
    return Config(
        servers={alias: server for alias, server in servers.items() if alias not in circular},
        left_out={**found.left_out, **dict.fromkeys(circular, _CIRCULAR)},
        gateway=gateway,
        warnings=[
            *warnings,
            *found.warnings,
            *(f"{file}: {text}" for text in (gateway.cluster.warnings if gateway.cluster else ())),
            *(f"{file}: {text}" for text in unmatched),
            *(f"{file}: {name.key}: {name.text}" for name in rules),
        ],
        path=path,
        text=text,
        secrets=frozenset(secrets),
        files=frozenset(files),
    )


def _name_files(found: Entries, included: Included, file: str) -> None:
    """Put the included file before the reason why an entry is left out, where it stands there."""
    for alias, one in found.left_out.items():
        key = one.reason.removeprefix(LEFT_OUT).partition(": ")[0]
        origin = included.file_of(key, file)
        if one.faulty and origin != file:
            reason = one.reason.removeprefix(LEFT_OUT)
            found.left_out[alias] = LeftOut(reason=f"{LEFT_OUT}{origin}: {reason}", faulty=True)


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


def _unknown_root_keys(raw: dict[str, Any], file: str) -> Iterator[str]:
    """Warnings about keys beside our blocks. They are no errors: hosts keep settings of their own there.

    Raises:
        ConfigError: One is `gateway`, misspelt: without it what it restricts would be open to all.
    """
    for key, value in raw.items():
        # `inputs` is what VS Code asks its user for; `$schema` is for editors.
        if key not in {"mcpServers", "servers", "gateway", INCLUDE, "$schema", "inputs", *restricting_keys(raw)}:
            guess = suggestion(key, ["gateway", "mcpServers"]).split(", or")[0]
            if guess.startswith("gateway ") and isinstance(value, dict) and "gateway" not in raw:
                raise ConfigError(f"unknown key; expected {guess}", file=file, key=join("", key))
            hint = f"; expected {guess}" if "did you mean" in guess else ""
            yield f"{join('', key)}: unknown key, ignored{hint}"
