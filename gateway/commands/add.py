"""`typegate add`: add a server from a registry, a package, a bundle or an address."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from gateway.commands import output
from gateway.commands.admin_client import UsageError, load_added_names, state_dir
from gateway.commands.hosts import SecretFiles, ask_user, confirm_change
from gateway.config.file_edits import literal
from gateway.config.load import parse
from gateway.config.model import Config
from gateway.config.server_entries import valid_alias
from gateway.config.source import read
from gateway.onboarding.bundles import bundle_proposal
from gateway.onboarding.host_file_edits import FileChange, back_up, edit_entries, parse_values, plan_edit
from gateway.onboarding.mcp_registry import registry_proposal
from gateway.onboarding.packages import Input, Proposal, alias_of, npm_proposal, pypi_proposal
from gateway.protocol.gateway_errors import GatewayError
from gateway.upstream.sandbox import BUNDLES, propose_sandbox

_SECRETS = "secrets"
# Maximum number of operations, and of warnings, to show for an HTTP API: a preview that fits on a screen.
_MAX_SHOWN = 20


class NotAdded(GatewayError):
    """The server does not work with the new entry. Exit code 1."""


def add(args: Namespace) -> int:
    """Find a server, show what it would run, ask for confirmation, start it once, and write its entry.

    If there is a lock file, the server's definitions are approved in it.

    Raises:
        UsageError: The arguments do not identify a server, or the configuration already has one with its name.
        SourceRefused: The source does not exist or is not trusted.
        NotAdded: The server does not start, or lists nothing.
        ConfigError: The configuration cannot be used.
    """
    if args.config is None:
        raise UsageError("add needs the configuration to write to; expected --config FILE")
    proposal = _proposal(args)
    alias = valid_alias(args.name) if args.name else proposal.alias
    ours = parse_values(read(args.config), args.config) if args.config.is_file() else {}
    block = "servers" if isinstance(ours.get("servers"), dict) else "mcpServers"
    if alias in (ours.get(block) or {}):
        raise UsageError(f"there is already a server '{alias}'; expected another --name")
    secret_files = SecretFiles(state_dir(args).absolute() / _SECRETS)
    given_values = _parse_inputs(args.set)
    _show(proposal, alias, is_confined=args.sandbox)
    entry = _fill_inputs(
        proposal, alias, given_values, secret_files, asks=not args.yes and sys.stdin.isatty() and not args.dry_run
    )
    if args.sandbox:
        sandbox = propose_sandbox(entry)
        if sandbox is None:
            raise UsageError("--sandbox is for programs of this machine; this server is not one")
        entry = {**entry, "sandbox": sandbox or True}
    change = plan_edit(args.config, lambda text: edit_entries(text, args.config, (block,), {alias: entry}))
    if not confirm_change(change, args):
        return 0
    secret_files.write()
    if not args.no_check:
        _check(change, alias, state_dir(args))
    back_up(state_dir(args), change)
    change.apply()
    output.say(f"{args.config}: {alias} added")
    return 0


def _proposal(args: Namespace) -> Proposal:
    what, more = args.what, list(args.arguments)
    kind, _, reference = what.partition(":")
    folder = state_dir(args).absolute() / BUNDLES
    is_api = kind == "openapi" and reference
    is_bundle = what.partition("?")[0].endswith((".mcpb", ".dxt"))
    is_url = not is_bundle and kind in ("http", "https") and reference.startswith("//")
    if more and (is_api or is_url):
        raise UsageError(f"{what} starts no program that takes arguments; expected none after --")
    if is_api:
        return _api_proposal(reference, args.config)
    if kind in ("npm", "pypi") and reference:
        return npm_proposal(reference, more) if kind == "npm" else pypi_proposal(reference, more)
    if is_bundle:
        if "://" not in what and not Path(what).is_file():
            raise UsageError(f"there is no file {what}")
        return bundle_proposal(what, sha256=args.sha256, folder=lambda: folder, arguments=more)
    if is_url:
        from urllib.parse import urlsplit

        name = _name_of_host(urlsplit(what).hostname or "")
        return Proposal(alias=alias_of(name), origin=what, entry={"type": "http", "url": literal(what)})
    if "://" in what or what.startswith((".", "/")):
        raise UsageError(
            f"{what!r} is not a source of servers; expected NAME, npm:PACKAGE, pypi:PACKAGE, openapi:DOCUMENT, "
            "FILE.mcpb or a URL"
        )
    return registry_proposal(what, base=args.registry, arguments=more, bundle_dir=lambda: folder)


def _api_proposal(spec: str, config: Path) -> Proposal:
    """Read an OpenAPI document, and propose an entry for the API that it describes.

    Raises:
        DocumentRefused: The document cannot be used.
    """
    import anyio

    from gateway.config.upstream_types.openapi_config import OpenapiConfig
    from gateway.upstream.openapi.openapi_session import preview_document

    path = Path(spec).expanduser().absolute()
    if "://" in spec:
        spec_text = spec
    else:
        home = config.absolute().parent
        spec_text = str(path.relative_to(home) if path.is_relative_to(home) else path)
    preview = anyio.run(preview_document, OpenapiConfig(spec=spec if "://" in spec else str(path)))
    tools = preview.tools
    entry: dict[str, Any] = {"type": "openapi", "spec": literal(spec_text)}
    inputs: list[Input] = []
    if preview.needs_base_url:
        inputs.append(Input(name="BASE_URL", about="the URL of the API", required=True))
        entry["baseUrl"] = "${BASE_URL}"
    if preview.credential is not None:
        header, form = preview.credential
        inputs.append(Input(name="API_KEY", about=f"the credential in the header {header}", secret=True, required=True))
        entry["headers"] = {header: form.replace("{}", "${API_KEY}")}
    operations = list(tools.operations.values())
    reading = sum(operation.definition["annotations"].get("readOnlyHint") is True for operation in operations)
    details = [f"describes: {tools.title} {tools.version}: {len(operations)} operations, {reading} of them only read"]
    details += [f"  {each.method} {each.path}: {each.name}" for each in operations[:_MAX_SHOWN]]
    if len(operations) > _MAX_SHOWN:
        details.append(f"  and {len(operations) - _MAX_SHOWN} more")
    warnings = [f"{issue.tool} is left out: {issue.detail}" for issue in tools.refused[:_MAX_SHOWN]]
    name = _name_of_host(preview.host) if preview.host else tools.title
    return Proposal(alias=alias_of(name), origin=spec, entry=entry, inputs=inputs, warnings=warnings, details=details)


def _name_of_host(host: str) -> str:
    """Return the distinctive part of a host name, such as `example` for `mcp.example.com`.

    A loopback address becomes `localhost`. Other IP addresses get the prefix `host-`: no alias starts with a digit.
    """
    try:
        address = ip_address(host)
    except ValueError:
        parts = [part for part in host.split(".") if part not in ("www", "mcp", "api")]
        return parts[0] if parts else host
    return "localhost" if address.is_loopback else f"host-{re.sub('[.:]+', '-', host)}"


def _show(proposal: Proposal, alias: str, *, is_confined: bool = False) -> None:
    """Show the program or URL of a proposal, its sandbox, and the names of the variables and headers it receives."""
    entry = proposal.entry
    output.say(f"{alias}: {proposal.origin}")
    sandbox = propose_sandbox(entry)
    if "command" in entry:
        line = [str(entry["command"]), *map(str, entry.get("args", []))]
        output.say(f"runs: {' '.join(map(shlex.quote, line))}")
        if sandbox is not None:
            output.say(_describe_sandbox(sandbox, is_written=is_confined))
    elif "url" in entry:
        output.say(f"connects to: {entry['url']}")
    for line_of_details in proposal.details:
        output.say(line_of_details)
    for name in (*entry.get("env", {}), *entry.get("headers", {})):
        output.say(f"receives: {name}")
    output.warn(proposal.warnings)


def _describe_sandbox(sandbox: Mapping[str, Any], *, is_written: bool) -> str:
    """Describe what a program may do in a sandbox.

    Args:
        sandbox: The `sandbox` of the entry.
        is_written: True if the entry will have the sandbox. Otherwise, the text names the option that adds it.
    """
    folders = sandbox.get("write", [])
    what = f"write {', '.join(folders)} and its own temporary files" if folders else "write only its temporary files"
    text = f"may {what}, read the system and its program, and connect to the network"
    return f"sandbox: {text}" if is_written else f"could run in a sandbox, where it {text} (--sandbox)"


def _parse_inputs(pairs: list[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {name!r} has no value; expected NAME=VALUE")
        values[name] = value
    return values


def _fill_inputs(
    proposal: Proposal, alias: str, given_values: Mapping[str, str], secret_files: SecretFiles, *, asks: bool
) -> dict[str, Any]:
    """Return the proposed entry with the placeholders of inputs replaced by values or by references to secret files.

    The placeholder of an environment variable that is set, or of a required input without a value, stays in the entry.
    """
    declared_names = {declared.name for declared in proposal.inputs}
    entry = proposal.entry
    for name in given_values:
        if name not in declared_names:
            if "command" not in entry:
                raise UsageError(
                    f"--set {name}: unknown; the server asks for {', '.join(sorted(declared_names)) or 'nothing'}"
                )
            # The name is an environment variable that the publisher has not declared.
            entry = {**entry, "env": {**entry.get("env", {}), name: f"${{{name}}}"}}
    inputs = [*proposal.inputs, *(Input(name=name, secret=True) for name in given_values if name not in declared_names)]
    values: dict[str, str] = {}
    for declared_input in inputs:
        name, about = declared_input.name, declared_input.about
        value = given_values.get(name)
        if value is None and name in os.environ:
            continue
        if value is None and asks and (declared_input.required or declared_input.secret):
            value = ask_user(f"{name}{f' ({about})' if about else ''}: ", secret=declared_input.secret) or None
        if value is not None:
            values[name] = secret_files.reference(alias, name, value) if declared_input.secret else literal(value)
        elif declared_input.default is not None:
            values[name] = literal(declared_input.default)
        elif not declared_input.required:
            values[name] = f"${{{name}:-}}"
        else:
            output.say(f"set the variable {name}{f': {about}' if about else ''}, or give --set {name}=…")
    filled: dict[str, Any] = _substitute(entry, {f"${{{name}}}": text for name, text in values.items()})
    return filled


def _substitute(value: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for placeholder, text in texts.items():
            value = value.replace(placeholder, text)
        return value
    if isinstance(value, list):
        return [_substitute(item, texts) for item in value]
    return {key: _substitute(item, texts) for key, item in value.items()} if isinstance(value, dict) else value


def _check(change: FileChange, alias: str, folder: Path) -> None:
    """Connect to the new server without exposing it, and approve its definitions if there is a lock file.

    Raises:
        NotAdded: The entry is disabled or invalid, or the server does not start or lists nothing.
        ConfigError: The changed configuration cannot be used.
    """
    import anyio

    from gateway.telemetry import logs

    config = parse(change.after.decode("utf-8"), path=change.path, added=load_added_names(change.path))
    if alias in config.left_out:
        raise NotAdded(f"{config.left_out[alias].reason}; --no-check writes it anyway")
    logs.start(logging.ERROR)
    logging.getLogger("gateway.fleet").setLevel(logging.CRITICAL)

    async def run() -> None:
        from gateway.admin.rows import flagged_rows
        from gateway.commands.first_contact import wait_until_settled
        from gateway.serving.app import BorrowedState, open_gateway

        alone: Config = replace(config, servers={alias: config.servers[alias]})
        async with open_gateway(alone, state_dir=None, borrowed=BorrowedState(snapshot_dir=folder)) as gateway:
            await wait_until_settled(gateway, say=output.say)
            if gateway.lock.listing_of(alias) is None:
                reason = gateway.fleet.links[alias].last_error or "the server listed nothing in time"
                raise NotAdded(f"{alias}: {reason}; --no-check writes it anyway")
            for row in flagged_rows(gateway.registry.catalog):
                output.say(f"warning: {row['tool']}: the text seems to instruct a model: {row['detail']}")
            if gateway.lock.lockfile is not None:
                gateway.lock.approve(alias)
                output.say(f"{gateway.lock.path}: {alias} locked")

    try:
        anyio.run(run, backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})
    except BaseExceptionGroup as group:
        cause = next((error for error in group.exceptions if isinstance(error, GatewayError)), None)
        if cause is None:
            raise
        raise cause from None
