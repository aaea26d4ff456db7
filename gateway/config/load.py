"""Read, validate and watch a configuration file; every error names the file and the key.

An included file has the same form as the main file. Objects are merged key by key; any other value may be given in one
file only. Relative paths in all files start at the folder of the main file.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
from pydantic import ValidationError

from gateway.config.cluster_config import EXTRA as CLUSTER_EXTRA
from gateway.config.host_settings import HostSettings, restricting_keys
from gateway.config.model import Config, GatewayConfig, GatewayPart, LeftOut
from gateway.config.section import refusal, suggestion
from gateway.config.server_entries import LEFT_OUT, Entries, check_exchanges, read_entries
from gateway.config.source import MAX_FILE_BYTES, join, kind, read, values
from gateway.config.unmatched_names import NOTHING_ADDED, AddedNames, unmatched_in_rules, unmatched_names
from gateway.config.variables import expand, input_defaults, variables_in
from gateway.embeddings.tool_vectors import EXTRA, missing_packages
from gateway.process.extras import install_command
from gateway.process.tasks import HANGUP, open_signals
from gateway.protocol.gateway_errors import ConfigError, combine_errors

# Editors write a file in several steps, tens of milliseconds apart. Waiting avoids a reload of a partial file.
_DEBOUNCE_MS: Final = 100
# Interval at which the watching thread checks for events and for the stop event. It delays a reload by at most half of
# the debounce time.
_STEP_MS: Final = 50

# After this time, watching has certainly started. The files are then compared, to detect earlier changes.
_SETTLED_MS: Final = 500


def digest_of(path: Path) -> bytes | None:
    """Return the SHA-256 of a file's content; None if the file cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None


def folders_of(path: Path) -> frozenset[Path]:
    """Return the directories to watch for a file: its directory and, for a symbolic link, the target's directory."""
    return frozenset({path.absolute().parent, path.resolve().parent})


class ReloadRequests:
    """Pending requests for a reload. Requests that arrive before the next reload are combined into one."""

    def __init__(self) -> None:
        self._requested = anyio.Event()
        self._forced = False

    def add(self, *, forced: bool) -> None:
        """Request a reload. A forced reload happens even if no file has changed."""
        self._forced = self._forced or forced
        self._requested.set()

    async def next(self) -> bool:
        """Wait for a request and return true if any of the combined requests was forced."""
        await self._requested.wait()
        forced, self._forced, self._requested = self._forced, False, anyio.Event()
        return forced


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFiles:
    """Paths to watch in addition to the main file.

    Attributes:
        files: The files, whether they exist or not.
        folders: Folders in which further files may appear.
    """

    files: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()


async def follow(
    path: Path,
    changed: Callable[[], Awaitable[None]],
    *,
    hangups: bool,
    other_files: Callable[[], Awaitable[OtherFiles]],
    seen: Mapping[Path, bytes | None] | None = None,
) -> None:
    """Call `changed` whenever the content of a file changes, until cancelled.

    Args:
        path: The main file. While it does not exist, changes are ignored.
        changed: The callback. Calls do not overlap.
        hangups: Whether SIGHUP also triggers a call, even if no file has changed.
        other_files: Returns the other files to watch at present.
        seen: Digests of files at the time they were read, to detect changes between then and this call.
    """
    # Requests during a reload are combined: the next reload reads the files again and covers all of them.
    requests = ReloadRequests()
    now = await other_files()
    digests = digests_of((path, *now.files))
    digests |= {file: digest for file, digest in (seen or {}).items() if file in digests}
    stopped = anyio.Event()
    watched = _folders(path, now)
    ended = False

    async def watch_files() -> None:
        nonlocal stopped, watched
        from watchfiles import awatch  # imported lazily: the first request does not need it

        while not ended:
            # Watch folders instead of files: when a file is replaced by a rename, a watch would stay on the old inode.
            watched = _folders(path, now)
            is_new = True
            async for changes in awatch(
                *watched,
                recursive=False,
                debounce=_DEBOUNCE_MS,
                step=_STEP_MS,
                rust_timeout=_SETTLED_MS,
                yield_on_timeout=True,
                stop_event=stopped,
            ):
                # Compare in the first iteration even without events: changes before the watch cause no events.
                if changes or is_new:
                    requests.add(forced=False)
                is_new = False
            stopped = anyio.Event()

    async def stop_watching() -> None:
        nonlocal ended
        # The watching thread cannot be cancelled; without this event it would delay the shutdown by seconds.
        try:
            await anyio.sleep_forever()
        finally:
            ended = True
            stopped.set()

    async def watch_signal() -> None:
        assert HANGUP is not None
        with open_signals(HANGUP) as signals:
            async for _ in signals:
                requests.add(forced=True)

    async with anyio.create_task_group() as group:
        group.start_soon(watch_files)
        group.start_soon(stop_watching)
        if hangups and HANGUP is not None:
            group.start_soon(watch_signal)
        while True:
            forced = await requests.next()
            now = await other_files()
            current = digests_of((path, *now.files))
            if forced or (current[path] is not None and current != digests):
                digests = current
                await changed()
                # The reload may have changed which files are watched. A new file in an included folder may have
                # appeared after the reload read the folder, so leave it without a digest: the next comparison differs.
                now = await other_files()
                new = digests_of(file for file in now.files if file not in digests and file.parent not in now.folders)
                # Forget unchanged files that are no longer watched. Remember a file that was deleted during the reload,
                # so that the next comparison differs and causes another reload, without the file.
                still_watched = {
                    file: digest
                    for file, digest in digests.items()
                    if file in (path, *now.files) or digest_of(file) != digest
                }
                digests = still_watched | new
            if _folders(path, now) != watched:
                stopped.set()


def digests_of(files: Iterable[Path]) -> dict[Path, bytes | None]:
    """Return the digest of each file."""
    return {file: digest_of(file) for file in files}


def _folders(path: Path, other_files: OtherFiles) -> frozenset[Path]:
    # The creation of a missing folder is noticed as a change in its parent folder, if the parent is watched.
    folders = {*other_files.folders, *(folder for file in (path, *other_files.files) for folder in folders_of(file))}
    return frozenset(folder for folder in folders if folder.is_dir())


INCLUDE: Final = "include"
# Enough for a file per server in a large setup. More files indicate a pattern that matches too much.
_MAX_FILES: Final = 500
_BLOCKS: Final = ("mcpServers", "servers")
_KNOWN_KEYS: Final = (*_BLOCKS, "gateway")
_EXPECTED: Final = "a list of paths, with * only in file names"


@dataclass(slots=True)
class Included:
    """The files that the main file includes.

    Attributes:
        files: The files, in the order of the patterns, then by name.
        warnings: Patterns that match no file.
    """

    files: list[Path] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _origins: dict[str, str] = field(default_factory=dict)

    def file_of(self, key: str | None, main: str) -> str:
        """Return the file that contains a key. `key` is a path as in messages, such as `servers.bank.args[0]`."""
        best = max((above for above in self._origins if _is_below(key or "", above)), key=len, default=None)
        return main if best is None else self._origins[best]

    def located(self, error: ConfigError, main: str) -> ConfigError:
        """Return the error with the name of the file that contains its key."""
        file = self.file_of(error.key, main) if error.file == main else error.file
        return error if file == error.file else ConfigError(error.message, file=file, key=error.key)

    def record_origin(self, key: str, file: str) -> None:
        """Record that `file`, which is not the main file, contains a key."""
        self._origins[key] = file


def patterns_of(raw: dict[str, Any], folder: Path, file: str) -> tuple[Path, ...]:
    """Return the paths under `include`, which may have wildcards in their last component.

    Raises:
        ConfigError: The value is not a list of such paths.
    """
    patterns = raw.get(INCLUDE)
    if patterns is None:
        return ()
    if not isinstance(patterns, list):
        raise ConfigError(f"is {kind(patterns)}; expected {_EXPECTED}", file=file, key=INCLUDE)
    paths: list[Path] = []
    for index, pattern in enumerate(patterns):
        key = f"{INCLUDE}[{index}]"
        if not isinstance(pattern, str) or not pattern.strip() or "\0" in pattern:
            raise ConfigError(f"is {kind(pattern)}; expected a path in quotes", file=file, key=key)
        path = folder / pattern
        if glob.has_magic(str(Path(pattern).parent)):
            raise ConfigError(f"has a wildcard in the name of a folder; expected {_EXPECTED}", file=file, key=key)
        paths.append(path)
    return tuple(paths)


def matching(pattern: Path) -> list[Path]:
    """Return the existing files that match a pattern, sorted by name. A path without wildcards matches itself."""
    if not glob.has_magic(pattern.name):
        return [pattern]
    # glob skips hidden files, which editors leave behind.
    names = glob.glob(pattern.name, root_dir=pattern.parent)
    return [path for name in sorted(names) if (path := pattern.parent / name).is_file()]


def watched_by(path: Path) -> OtherFiles:
    """Return the files that the file at `path` includes, and the folders in which further files may appear.

    Both are empty if the file cannot be read.
    """
    try:
        patterns = patterns_of(values(read(path), file=str(path)), path.parent, str(path))
    except ConfigError:
        return OtherFiles()
    return OtherFiles(
        files=tuple(file for pattern in patterns for file in matching(pattern)),
        folders=tuple(pattern.parent for pattern in patterns),
    )


def join_included(raw: dict[str, Any], *, path: Path | None, file: str) -> Included:
    """Merge the included files into the values of the main file, in place.

    Args:
        raw: The values of the main file.
        path: The path of the main file.
        file: The name of the main file in messages.

    Raises:
        ConfigError: An included file cannot be used, or two files contain the same key.
    """
    included = Included()
    folder = path.parent if path is not None else Path()
    left_bytes = MAX_FILE_BYTES
    for index, pattern in enumerate(patterns_of(raw, folder, file)):
        files = [
            included_path for included_path in matching(pattern) if path is None or not _is_same(included_path, path)
        ]
        if not files:
            included.warnings.append(f"{INCLUDE}[{index}]: {raw[INCLUDE][index]} matches no file")
        for included_path in files:
            if any(_is_same(included_path, earlier) for earlier in included.files):
                continue
            if len(included.files) >= _MAX_FILES:
                raise ConfigError(f"matches more than {_MAX_FILES} files; expected fewer", file=file, key=INCLUDE)
            text = read(included_path)
            left_bytes -= len(text)
            if left_bytes < 0:
                raise ConfigError("is larger than 4 MiB in total; expected less", file=file, key=INCLUDE)
            included.files.append(included_path)
            _join_file(raw, values(text, file=str(included_path)), included, file, str(included_path))
    return included


def _join_file(raw: dict[str, Any], more: dict[str, Any], included: Included, main: str, file: str) -> None:
    if INCLUDE in more:
        raise ConfigError("is not allowed in an included file; expected it in the main file", file=file, key=INCLUDE)

    def join_value(into: dict[str, Any], key: str, value: Any, path: str) -> None:
        # The recursion is limited, because `values` rejects deeply nested files.
        present = into.get(key)
        if present is None:
            into[key] = value
            for below in _paths_in(value, path):
                included.record_origin(below, file)
        elif isinstance(present, dict) and isinstance(value, dict):
            for name, member in value.items():
                join_value(present, name, member, join(path, name))
        else:
            origin = included.file_of(path, main)
            raise ConfigError(f"is also given in {origin}; expected each key in one file", file=file, key=path)

    block = next((key for key in _BLOCKS if raw.get(key) is not None), None)
    for key, value in more.items():
        if key == "$schema":
            continue
        if key not in _KNOWN_KEYS:
            # Only typegate reads included files, so an unknown key is a mistake and not the key of a host.
            raise ConfigError(f"unknown key; expected {suggestion(key, list(_KNOWN_KEYS))}", file=file, key=key)
        target = block if key in _BLOCKS and block is not None else key
        if value is not None:
            join_value(raw, target, value, target)


def _paths_in(value: Any, path: str) -> Iterator[str]:
    yield path
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _paths_in(member, join(path, name))


def _is_below(key: str, above: str) -> bool:
    return key == above or key.startswith((f"{above}.", f"{above}["))


def _is_same(first: Path, second: Path) -> bool:
    return first.resolve() == second.resolve()


_CIRCULAR: Final = LeftOut(
    reason="skipped: it starts typegate with this configuration, which would be an endless loop", faulty=False
)


def load(
    path: Path,
    environ: Mapping[str, str] | None = None,
    *,
    strict: bool = False,
    added: AddedNames = NOTHING_ADDED,
) -> Config:
    """Load and validate the configuration in a file.

    Args:
        path: A JSON or YAML file.
        environ: The variables for `${NAME}`. By default the environment of the process.
        strict: Whether an invalid server entry is an error. Otherwise the server is left out.
        added: Names that administrators have added to the configuration.

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
    """Parse a configuration and check that the packages it requires are installed.

    Raises:
        ConfigError: The text cannot be used, or a package is missing.
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
    """Parse and validate a configuration. Relative paths in it start at the folder of `path`.

    A server with an invalid entry is left out, and `Config.left_out` gives the reason.

    Raises:
        ConfigError: The settings of the gateway are invalid, or all server entries are invalid, or, with `strict`, any
            entry is invalid. The error lists every problem.
    """
    file = str(path) if path is not None else "configuration"
    folder = path.parent if path is not None else Path()
    raw = values(text, file=file)
    included = join_included(raw, path=path, file=file)
    block = _block(raw, file)
    warnings = [f"{file}: {text}" for text in (*included.warnings, *_unknown_root_keys(raw, file))]
    secrets: set[str] = set()
    files: set[Path] = set()
    # Placeholders are replaced only in keys that typegate reads: in keys of other programs, `${…}` may have another
    # meaning.
    expand_here = partial(
        expand,
        environ=os.environ if environ is None else environ,
        file=file,
        folder=folder,
        secrets=secrets,
        files=files,
    )
    problems: list[ConfigError] = []
    # Start with the default settings of the gateway, because most files have no `gateway` key.
    gateway = GatewayConfig.model_construct()
    try:
        if raw.get("gateway") is not None:
            gateway = GatewayPart.model_validate(expand_here({"gateway": raw["gateway"]})).gateway
    except ValidationError as error:
        problems.append(refusal(error, file))
    except ConfigError as error:
        problems.append(error)
    entries = raw[block] if block is not None else {}
    if not isinstance(entries, dict):
        problems.append(ConfigError(f"is {kind(entries)}; expected an object", file=file, key=block))
        entries = {}
    variables = partial(variables_in, folder=folder, secrets=secrets, files=files)
    expand_here = partial(expand_here, inputs=input_defaults(raw))
    settings = HostSettings.read_beside(path, file, raw, files)
    read_servers = read_entries(
        str(block), entries, file=file, expand=expand_here, variables_in=variables, settings=settings
    )
    # Serve nothing if the settings of the gateway, which control access, are invalid, or if no entry is valid.
    if problems or (read_servers.problems and (strict or not read_servers.servers)):
        raise combine_errors([included.located(problem, file) for problem in (*problems, *read_servers.problems)])
    check_exchanges(read_servers.servers, has_issuers=gateway.auth.oauth is not None, file=file, block=str(block))
    _name_files(read_servers, included, file)
    # Relative paths start at the folder of the file, which may differ from the working directory of the gateway.
    servers = {
        alias: server.with_process_defaults(gateway.processes).with_absolute_paths(folder)
        for alias, server in read_servers.servers.items()
    }
    unmatched = unmatched_names(servers, read_servers.left_out, gateway, str(block))
    rules = list(unmatched_in_rules(servers, read_servers.left_out, gateway, added))
    if opening := [name for name in rules if name.opens]:
        expected = "an existing name, because otherwise the rule would restrict nothing"
        raise combine_errors(
            [ConfigError(f"{name.text}; expected {expected}", file=file, key=name.key) for name in opening]
        )
    circular = [alias for alias, server in servers.items() if path is not None and server.is_loop(path)]
    return Config(
        servers={alias: server for alias, server in servers.items() if alias not in circular},
        left_out={**read_servers.left_out, **dict.fromkeys(circular, _CIRCULAR)},
        gateway=gateway,
        warnings=[
            *warnings,
            *read_servers.warnings,
            *(f"{file}: {text}" for text in (gateway.cluster.warnings if gateway.cluster else ())),
            *(f"{file}: {text}" for text in unmatched),
            *(f"{file}: {name.key}: {name.text}" for name in rules),
        ],
        path=path,
        text=text,
        secrets=frozenset(secrets),
        files=frozenset(files),
    )


def _name_files(entries: Entries, included: Included, file: str) -> None:
    """Add the name of the included file to the reason why one of its entries is left out."""
    for alias, left_out in entries.left_out.items():
        key = left_out.reason.removeprefix(LEFT_OUT).partition(": ")[0]
        origin = included.file_of(key, file)
        if left_out.faulty and origin != file:
            reason = left_out.reason.removeprefix(LEFT_OUT)
            entries.left_out[alias] = LeftOut(reason=f"{LEFT_OUT}{origin}: {reason}", faulty=True)


def _block(raw: dict[str, Any], file: str) -> str | None:
    present = [key for key in ("mcpServers", "servers") if raw.get(key) is not None]
    # The two are not merged: no file has both on purpose, and an alias that occurs in both would be ambiguous.
    if len(present) == 2:
        raise ConfigError("cannot be combined with mcpServers; expected one of the two", file=file, key="servers")
    if present:
        return present[0]
    if "mcpServers" in raw or "servers" in raw or isinstance(raw.get("gateway"), dict):
        return None  # a gateway without upstreams: they can be added while it runs
    expected = 'an object "mcpServers" with a server for each alias'
    similar_keys = [key for key in raw if suggestion(key, ["mcpServers"]).startswith("mcpServers ")]
    hint = f" (is {similar_keys[0]} a misspelling of it?)" if similar_keys else ""
    raise ConfigError(f"has no mcpServers; expected {expected}{hint}", file=file)


def _unknown_root_keys(raw: dict[str, Any], file: str) -> Iterator[str]:
    """Yield a warning for each unknown top-level key. Unknown keys are allowed, as hosts store their settings there.

    Raises:
        ConfigError: A key is a misspelling of `gateway`, so that the restrictions in it would be ignored.
    """
    for key, value in raw.items():
        # `inputs` lists the values that VS Code asks its user for; `$schema` is for editors.
        if key not in {"mcpServers", "servers", "gateway", INCLUDE, "$schema", "inputs", *restricting_keys(raw)}:
            guess = suggestion(key, ["gateway", "mcpServers"]).split(", or")[0]
            if guess.startswith("gateway ") and isinstance(value, dict) and "gateway" not in raw:
                raise ConfigError(f"unknown key; expected {guess}", file=file, key=join("", key))
            hint = f"; expected {guess}" if "did you mean" in guess else ""
            yield f"{join('', key)}: unknown key, ignored{hint}"
