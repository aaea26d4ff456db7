"""`typegate policy explain` and `policy test`."""

from __future__ import annotations

import json
import logging
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from gateway.commands import output
from gateway.commands.admin_client import (
    UsageError,
    ask_running_gateway,
    load_added_names,
    read_object,
    read_pairs,
    request_admin,
    state_dir,
)
from gateway.fleet import snapshot
from registry.catalog.listing import ServerListing
from registry.catalog.names import NAME_SEPARATOR, ServerName

if TYPE_CHECKING:
    from gateway.config.model import Config

_EXPECTED: Final = ("allow", "deny", "ask")
_KEYS: Final = frozenset(
    {"principal", "name", "wrapper", "expected", "profile", "arguments", "groups", "scopes", "claims"}
)
_COLUMNS: Final = ("principal", "name", "expected", "decision", "reason")
# More than any table that people review; a larger file was probably passed by mistake.
_MAX_ROWS: Final = 10_000


def explain_policy(args: Namespace) -> int:
    """Show the decision on one call and the rule that decides; exit code 0 if the call is allowed, otherwise 1.

    Raises:
        UsageError: The arguments are not a JSON object, or a claim has no value.
        ConfigError: The file cannot be used.
    """
    row: dict[str, Any] = {
        "principal": args.principal,
        "name": args.name,
        "profile": args.profile,
        "groups": args.group,
        "scopes": args.scope,
        "claims": read_pairs("--claim", args.claim),
    }
    if args.arguments is not None:
        row["arguments"] = read_object("--arguments", args.arguments)
    answer = _explain_rows(args, [row])[0]
    if args.json:
        output.print_json(answer)
    else:
        call = f"{answer['principal']}, {answer['name']} ({answer['profile']})"
        output.print_text(f"{answer['decision']}: {call}: {answer['reason']}")
        groups, scopes = ", ".join(answer["groups"]), ", ".join(answer["scopes"])
        if groups or scopes:
            output.say(f"groups: {groups or 'none'}; scopes: {scopes or 'all'}")
        if answer["rules"]:
            output.say(f"rules that match the item and the caller: {', '.join(answer['rules'])}")
    return int(answer["decision"] != "allow")


def check_policy(args: Namespace) -> int:
    """Compare a table of callers, names and expected decisions with the policy; exit code 1 if any decision differs.

    Raises:
        UsageError: The table is malformed.
        ConfigError: The configuration cannot be used.
    """
    table = _table(args.file)
    explanations = _explain_rows(args, table)
    rows = [
        {**answer, "expected": row["expected"], "as expected": answer["decision"] == row["expected"]}
        for row, answer in zip(table, explanations, strict=True)
    ]
    wrong = [row for row in rows if not row["as expected"]]
    if args.json:
        output.print_json(rows)
    elif wrong:
        output.print_table("not as expected", _COLUMNS, wrong)
    output.say(f"{len(rows) - len(wrong)} of {len(rows)} as expected")
    return int(bool(wrong))


def _explain_rows(args: Namespace, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if args.config is None:
        return ask_running_gateway(args, lambda url, token: [_explain_row(url, token, row) for row in rows])
    return _from_config(args, list(rows))


def _explain_row(url: str, token: str, row: Mapping[str, Any]) -> dict[str, Any]:
    query = [("principal", row["principal"]), ("name", row["name"]), ("profile", row.get("profile") or "default")]
    query += [
        (key, value) for key, member in (("group", "groups"), ("scope", "scopes")) for value in row.get(member, ())
    ]
    query += [("claim", f"{name}={value}") for name, value in row.get("claims", ())]
    if row.get("arguments") is not None:
        query.append(("arguments", json.dumps(row["arguments"])))
    explanation: dict[str, Any] = request_admin(url, "/admin/policy/explain", token, query)
    return explanation


def _from_config(args: Namespace, rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Explain the rows for a configuration without serving it.

    The tools of each server are read from the snapshot, which stores the latest tool lists in the state directory, or
    from the lock file. The gateway connects only to servers that are in neither file.
    """
    import anyio

    from gateway.config.load import load
    from gateway.telemetry import logs

    path: Path = args.config
    config = load(path, added=load_added_names(path, state_dir(args)))
    logs.start(logging.ERROR)
    logging.getLogger("gateway.fleet").setLevel(logging.CRITICAL)

    async def answered(folder: Path) -> list[dict[str, Any]]:
        from gateway.admin.policy_explained import Question, explain, rows_of_unmatched_rules
        from gateway.commands.first_contact import wait_until_settled
        from gateway.serving.app import open_gateway

        listings = load_known_listings(config, state_dir(args))
        snapshot.save(folder, snapshot.Snapshot(listings))
        async with open_gateway(config, state_dir=folder, resting=listings) as gateway:
            await wait_until_settled(gateway, say=lambda text: None)
            listed = gateway.registry.catalog.servers
            unknown = [alias for alias in config.servers if ServerName(alias) not in listed]
            output.warn(
                f"{alias}: not reached, and in neither snapshot nor lock file, so its tools are unknown"
                for alias in unknown
            )
            output.warn(rows_of_unmatched_rules(gateway.views, gateway.registry))
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


def load_known_listings(config: Config, state_dir: Path) -> dict[str, snapshot.SavedListing]:
    """Return the latest known tools and other items of each server, from the snapshot or the lock file."""
    from gateway.fleet.lock_file import lock_path, read_lockfile

    saved = snapshot.load(state_dir).listings
    lockfile = read_lockfile(lock_path(config))
    listings: dict[str, snapshot.SavedListing] = {}
    for alias, server in config.servers.items():
        mark = snapshot.fingerprint(server)
        if alias in saved and saved[alias].fingerprint == mark:
            listings[alias] = saved[alias]
        elif lockfile is not None and alias in lockfile.servers:
            surface = lockfile.servers[alias]
            listing = ServerListing(
                server=ServerName(alias),
                epoch=0,
                tools=tuple(surface.definitions("tools").values()),
                prompts=tuple(surface.definitions("prompts").values()),
                templates=tuple(surface.definitions("resourceTemplates").values()),
                skills=tuple(surface.definitions("skills").values()),
            )
            listings[alias] = snapshot.SavedListing(fingerprint=mark, at_s=0, listing=listing)
    return listings


def _with_unknown(answer: dict[str, Any], unknown: Iterable[str]) -> dict[str, Any]:
    """Change the decision to `unknown` if the item was not found and its server was not reached."""
    server = next((alias for alias in unknown if answer["name"].startswith(f"{alias}{NAME_SEPARATOR}")), None)
    if server is None or "kind" in answer:
        return answer
    return {**answer, "decision": "unknown", "reason": f"{server} was not reached, so its tools are unknown"}


def _table(path: Path) -> list[dict[str, Any]]:
    """Read a table in YAML or JSON, or with lines of three words.

    Raises:
        UsageError: The file cannot be read, or has neither form.
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
            raise UsageError(f"{path} is not a table: {str(error).partition(chr(10))[0]}") from None
    if not isinstance(rows, list) or not rows or len(rows) > _MAX_ROWS:
        raise UsageError(
            f"{path} is not a table; expected a list of principal, wrapper and expected, or lines of these"
        )
    return [_row(path, at, row) for at, row in enumerate(rows, 1)]


def _row(path: Path, at: int, row: Any) -> dict[str, Any]:
    where = f"{path}, row {at}"
    if not isinstance(row, dict):
        raise UsageError(f"{where}: not an object; expected principal, wrapper and expected")
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
    is_valid = all(isinstance(words, list) and all(isinstance(word, str) for word in words) for words in lists.values())
    if not is_valid or not isinstance(claims, dict) or not isinstance(arguments, dict | None):
        raise UsageError(
            f"{where}: expected lists of strings for groups and scopes, and objects for claims and arguments"
        )
    return {
        "principal": row["principal"],
        "name": name,
        "expected": row["expected"],
        "profile": row.get("profile"),
        "arguments": arguments,
        **lists,
        "claims": [(claim, str(value)) for claim, value in claims.items()],
    }
