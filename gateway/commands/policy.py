"""`typegate policy explain` and `policy test`: why a caller may use something, and a table of that for CI."""

from __future__ import annotations

import json
import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from gateway import snapshot
from gateway.commands import output
from gateway.commands.admin_client import admin_document
from gateway.commands.locations import UsageError, added_over, state_dir
from gateway.commands.running import from_running
from registry.catalog.listing import ServerListing
from registry.catalog.names import NAME_SEPARATOR, ServerName

if TYPE_CHECKING:
    from gateway.config.model import Config

_EXPECTED: Final = ("allow", "deny", "ask")
_KEYS: Final = frozenset(
    {"principal", "name", "wrapper", "expected", "profile", "arguments", "groups", "scopes", "claims"}
)
_COLUMNS: Final = ("principal", "name", "expected", "decision", "reason")
# A table that somebody reviews; one of more lines is a program's, and was not meant for this.
_MAX_ROWS: Final = 10_000

Explain = Callable[[Mapping[str, Any]], dict[str, Any]]


def explain_policy(args: Namespace) -> int:
    """Show what becomes of one call and which rule decides; 0 if it is allowed, 1 if not.

    Raises:
        UsageError: The arguments are no JSON object, or a claim has no value.
        ConfigError: The file cannot be used.
    """
    row: dict[str, Any] = {
        "principal": args.principal, "name": args.name, "profile": args.profile,
        "groups": args.group, "scopes": args.scope, "claims": _claims(args.claim),
    }  # fmt: skip
    if args.arguments is not None:
        row["arguments"] = _arguments(args.arguments)
    found = _explained(args, [row])[0]
    if args.json:
        output.as_json(found)
    else:
        output.text(
            f"{found['decision']}: {found['principal']}, {found['name']} ({found['profile']}): {found['reason']}"
        )
        if found["groups"] or found["scopes"]:
            output.say(f"groups: {', '.join(found['groups']) or 'none'}; scopes: {', '.join(found['scopes']) or 'all'}")
        if found["rules"]:
            output.say(f"rules about it that concern this caller: {', '.join(found['rules'])}")
    return int(found["decision"] != "allow")


def check_policy(args: Namespace) -> int:
    """Compare a table of callers, names and expected decisions with the rules; 1 if one differs.

    Raises:
        UsageError: The table is not in its form.
        ConfigError: The configuration cannot be used.
    """
    table = _table(args.file)
    found = _explained(args, table)
    rows = [
        {**answer, "expected": row["expected"], "as expected": answer["decision"] == row["expected"]}
        for row, answer in zip(table, found, strict=True)
    ]
    wrong = [row for row in rows if not row["as expected"]]
    if args.json:
        output.as_json(rows)
    elif wrong:
        output.table("not as expected", _COLUMNS, wrong)
    output.say(f"{len(rows) - len(wrong)} of {len(rows)} as expected")
    return int(bool(wrong))


def _explained(args: Namespace, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if args.config is None:
        return from_running(args, lambda url, token: [_ask(url, token, row) for row in rows])
    return _from_config(args, list(rows))


def _ask(url: str, token: str, row: Mapping[str, Any]) -> dict[str, Any]:
    query = [("principal", row["principal"]), ("name", row["name"]), ("profile", row.get("profile") or "default")]
    query += [
        (key, value) for key, member in (("group", "groups"), ("scope", "scopes")) for value in row.get(member, ())
    ]
    query += [("claim", f"{name}={value}") for name, value in row.get("claims", ())]
    if row.get("arguments") is not None:
        query.append(("arguments", json.dumps(row["arguments"])))
    found: dict[str, Any] = admin_document(url, "/admin/policy/explain", token, query)
    return found


def _from_config(args: Namespace, rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Answer from what is known of the servers of a configuration, without serving it.

    The snapshot and the lock file say what servers list. A server that is in neither is connected to.
    """
    import anyio

    from gateway.config.load import load
    from gateway.telemetry import logs

    path: Path = args.config
    config = load(path, added=added_over(path, state_dir(args)))
    logs.start(logging.ERROR)
    logging.getLogger("gateway.fleet").setLevel(logging.CRITICAL)

    async def answered(folder: Path) -> list[dict[str, Any]]:
        from gateway.admin.policy_explained import Question, explain, vain_rules
        from gateway.app import open_gateway
        from gateway.commands.first_contact import until_settled

        known = known_listings(config, state_dir(args))
        snapshot.save(folder, snapshot.Snapshot(known))
        async with open_gateway(config, state_dir=folder, resting=known) as gateway:
            await until_settled(gateway, say=lambda text: None)
            listed = gateway.registry.catalog.servers
            unknown = [alias for alias in config.servers if ServerName(alias) not in listed]
            output.warn(
                f"{alias}: not reached, and in neither snapshot nor lock file, so that its tools are not known"
                for alias in unknown
            )
            output.warn(vain_rules(gateway.views, gateway.registry))
            return [
                _with_unknown(
                    await explain(
                        Question(
                            principal=row["principal"],
                            name=row["name"],
                            profile=row.get("profile") or "default",
                            arguments=row.get("arguments"),
                            groups=frozenset(row.get("groups", ())),
                            scopes=frozenset(row.get("scopes", ())),
                            claims=frozenset(row.get("claims", ())),
                        ),
                        auth=config.gateway.auth,
                        views=gateway.views,
                        registry=gateway.registry,
                    ),
                    unknown,
                )
                for row in rows
            ]

    with TemporaryDirectory() as scratch:
        return anyio.run(
            answered, Path(scratch), backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"}
        )


def known_listings(config: Config, state_dir: Path) -> dict[str, snapshot.Saved]:
    """Return the latest known listing of each server, from the snapshot or from the lock file."""
    from gateway.lock.lock_file import lock_path, read_lockfile

    saved = snapshot.load(state_dir).listings
    lockfile = read_lockfile(lock_path(config))
    found: dict[str, snapshot.Saved] = {}
    for alias, server in config.servers.items():
        mark = snapshot.fingerprint(server)
        if alias in saved and saved[alias].fingerprint == mark:
            found[alias] = saved[alias]
        elif lockfile is not None and alias in lockfile.servers:
            surface = lockfile.servers[alias]
            listing = ServerListing(
                server=ServerName(alias),
                epoch=0,
                tools=tuple(surface.of("tools").values()),
                prompts=tuple(surface.of("prompts").values()),
                templates=tuple(surface.of("resourceTemplates").values()),
            )
            found[alias] = snapshot.Saved(fingerprint=mark, at_s=0, listing=listing)
    return found


def _with_unknown(answer: dict[str, Any], unknown: Iterable[str]) -> dict[str, Any]:
    """Return an answer that does not say that there is no such tool where nobody can know."""
    server = next((alias for alias in unknown if answer["name"].startswith(f"{alias}{NAME_SEPARATOR}")), None)
    if server is None or "kind" in answer:
        return answer
    return {**answer, "decision": "unknown", "reason": f"{server} has not been reached, so its tools are not known"}


def _table(path: Path) -> list[dict[str, Any]]:
    """The rows of a table: YAML or JSON, or lines of three words.

    Raises:
        UsageError: It is neither.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if lines and all(len(words) == 3 for words in lines) and lines[-1][2] in _EXPECTED:
        lines = lines[1:] if lines[0][2] not in _EXPECTED else lines
        rows: Any = [{"principal": who, "name": name, "expected": expected} for who, name, expected in lines]
    else:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        try:
            rows = YAML(typ="safe", pure=True).load(text)
        except (YAMLError, ValueError, RecursionError) as error:
            raise UsageError(f"{path} is no table: {str(error).partition(chr(10))[0]}") from None
    if not isinstance(rows, list) or not rows or len(rows) > _MAX_ROWS:
        raise UsageError(f"{path} is no table; expected a list of principal, wrapper and expected, or lines of these")
    return [_row(path, at, row) for at, row in enumerate(rows, 1)]


def _row(path: Path, at: int, row: Any) -> dict[str, Any]:
    where = f"{path}, row {at}"
    if not isinstance(row, dict):
        raise UsageError(f"{where}: is no object; expected principal, wrapper and expected")
    unknown = [key for key in row if key not in _KEYS]
    name = row.get("name", row.get("wrapper"))
    if unknown:
        raise UsageError(f"{where}: unknown key {unknown[0]}; expected one of {', '.join(sorted(_KEYS))}")
    if not isinstance(row.get("principal"), str) or not isinstance(name, str):
        raise UsageError(f"{where}: principal or wrapper is missing")
    if row.get("expected") not in _EXPECTED:
        raise UsageError(f"{where}: expected is {row.get('expected')!r}; expected {', '.join(_EXPECTED)}")
    lists = {key: row.get(key, []) for key in ("groups", "scopes")}
    claims, arguments = row.get("claims", {}), row.get("arguments")
    sound = all(isinstance(words, list) and all(isinstance(word, str) for word in words) for words in lists.values())
    if not sound or not isinstance(claims, dict) or not isinstance(arguments, dict | None):
        raise UsageError(f"{where}: groups and scopes are lists of words, claims and arguments are objects")
    return {
        "principal": row["principal"], "name": name, "expected": row["expected"], "profile": row.get("profile"),
        "arguments": arguments, **lists, "claims": [(claim, str(value)) for claim, value in claims.items()],
    }  # fmt: skip


def _claims(given: list[str]) -> list[tuple[str, str]]:
    parts = [claim.partition("=") for claim in given]
    if not all(separator for _, separator, _ in parts):
        raise UsageError("--claim: expected NAME=VALUE")
    return [(name, value) for name, _, value in parts]


def _arguments(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise UsageError("--arguments: expected a JSON object")
    return given
