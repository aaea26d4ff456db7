"""Decide what a confined server may use (folders, network, memory, processes), and create its command line.

A small program (`gateway.process.confine`) applies the rules to its own process and then executes the server. By
default, a server may read the system, its own program, and the paths on its command line. It may write only its own
temporary folder and the caches of package managers. No rule permits the gateway's configuration, or any part of the
gateway's state directory except installed bundles (packaged servers).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from gateway.config.operation_config import SandboxConfig
from gateway.protocol.gateway_errors import ConnectionLost

_SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/proc", "/sys", "/snap"),
    *("/nix/store", "/gnu/store", "/home/linuxbrew", "/run/current-system", "/run/systemd/resolve", "/run/resolvconf"),
    "/var/lib/ca-certificates",
)
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
# Keys and passwords of other programs. A permitted folder does not include these paths. A server may use such a path
# only if the configuration names the path.
_PRIVATE: Final = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store", ".netrc", ".npmrc", ".pypirc"),
    *(".git-credentials", ".cargo/credentials.toml", ".config/gcloud", ".config/gh"),
    *(".local/share/keyrings", ".local/state/typegate"),
)
_NODE: Final = frozenset({"npx", "npm", "node", "pnpm", "yarn"})
_UV: Final = frozenset({"uvx", "uv", "python", "python3", "pip", "pipx"})
# Programs that package runners start.
_TOOLS: Final = ("node", "npm", "npx", "uv", "uvx", "python3", "python", "git", "bun", "deno")
_BIN: Final = frozenset({"bin", "Scripts", "shims", "sbin"})
# A server may read only the `bin` folders in these folders, which contain much more than programs.
_SHARED_PREFIXES: Final = frozenset({".local", ".cargo"})
_MARKS_OF_PROJECTS: Final = ("package.json", "pyproject.toml", "node_modules", ".venv")
# The maximum number of rules; more rules might not fit on a command line. A permitted folder that contains an excluded
# path needs one rule for each of the folder's other entries.
_MAX_RULES: Final = 3_000
# Import `confine` instead of executing the file, so that Python uses the cached bytecode. The folder is the last in the
# module path, because some modules in the folder have the names of standard modules.
_FOLDER: Final = str(Path(__file__).parents[1] / "process")
_HELPER: Final = f"import sys; sys.path.append({_FOLDER!r}); import confine; confine.main(sys.argv[1:])"
# The kernel's limit counts all threads of the user, so the limit must exceed the number of running threads by a margin.
# `limit_processes` enforces the configured limit for each server.
_SPARE_TASKS: Final = 4_096
_MIB: Final = 1024 * 1024
# Longer arguments are not paths. Source: PATH_MAX of Linux.
_MAX_PATH_CHARS: Final = 4_096

BUNDLES: Final = "bundles"
"""The subfolder of the state directory in which `typegate add` stores bundles (packaged servers)."""

_protected: set[str] = set()


def protect_paths(paths: Iterable[Path | None]) -> None:
    """Exclude these paths of the gateway from every sandbox."""
    _protected.update(os.path.realpath(path) for path in paths if path is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """The command line in front of a program, its temporary folder, and the permitted paths.

    Attributes:
        missing: The configured paths that do not exist and can therefore not be permitted.
    """

    arguments: list[str]
    folder: str
    read: frozenset[str]
    write: frozenset[str]
    missing: list[str]


class Rules:
    """Finds the paths that a server needs."""

    def __init__(
        self, config: SandboxConfig, line: Sequence[str], environment: Mapping[str, str], cwd: str | None
    ) -> None:
        self._config = config
        self._program, self._arguments = line[0], line[1:]
        self._environment = environment
        self._cwd = cwd
        self._home = environment.get("HOME") or os.path.expanduser("~")
        self._private = {os.path.realpath(os.path.join(self._home, name)) for name in _PRIVATE}

    def find(self) -> Confinement:
        """Create the temporary folder and return the confinement.

        Raises:
            ConnectionLost: Excluding a private path from a permitted folder would require too many rules.
        """
        config = self._config
        read = self._expand([*_SYSTEM, *self._programs(), *self._named_paths()], _protected | self._private)
        write = self._expand(self._caches(), _protected | self._private)
        read |= {*self._own_bundles(), *self._expand_configured(config.read)}
        write |= self._expand_configured(config.write)
        if len(read) + len(write) > _MAX_RULES:
            text = f"a folder in its sandbox contains a private one beside more than {_MAX_RULES} entries"
            raise ConnectionLost(f"not started: {text}; name the folders that it needs instead", sent=False)
        folder = tempfile.mkdtemp(prefix="typegate-")
        write.add(os.path.realpath(folder))
        options = [("read", path) for path in sorted(read)] + [("write", path) for path in sorted(write)]
        options += [("devices", path) for path in _DEVICES] + [("network", config.network)]
        options += [("memory", str(config.memory * _MIB))] if config.memory else []
        options += [("cpu", str(config.cpu))] if config.cpu else []
        options += [("tasks", str(tasks_of_machine() + config.processes + _SPARE_TASKS))] if config.processes else []
        # Do not depend on the server's environment: -I ignores Python's variables, and -S skips site-packages.
        arguments = [sys.executable, "-I", "-S", "-B", "-c", _HELPER]
        for option, value in options:
            arguments += [f"--{option}", value]
        configured = dict.fromkeys([*config.read, *config.write])
        return Confinement(
            arguments=[*arguments, "--"],
            folder=folder,
            read=frozenset(read),
            write=frozenset(write),
            missing=[path for path in configured if not os.path.exists(os.path.expanduser(path))],
        )

    def _expand_configured(self, paths: Sequence[str]) -> set[str]:
        """Return the permitted paths for configured paths, which may be private paths or lie in private paths."""
        rules: set[str] = set()
        for path in paths:
            real = os.path.realpath(os.path.expanduser(path))
            rules |= self._expand([real], _protected | {each for each in self._private if not is_below(real, [each])})
        return rules

    def _expand(self, paths: Iterable[str], excluded: Iterable[str]) -> set[str]:
        """Return the real paths of `paths` without the excluded paths.

        A folder that contains an excluded path is replaced by the folder's other entries.
        """
        excluded = list(excluded)
        real_paths: set[str] = set()

        def add(path: str) -> None:
            if is_below(path, excluded) or len(real_paths) > _MAX_RULES:
                return
            if not any(is_below(each, [path]) for each in excluded):
                real_paths.add(path)
                return
            with suppress(OSError):
                for entry in os.scandir(path):
                    # Skip symbolic links: their targets require rules of their own.
                    if not entry.is_symlink():
                        add(entry.path)

        for path in dict.fromkeys(paths):
            add(os.path.realpath(path))
        return real_paths

    def _programs(self) -> Iterator[str]:
        """Yield the folders of the program and of the tools that it may start."""
        path = self._environment.get("PATH")
        tools = [tool_path for tool in _TOOLS if (tool_path := shutil.which(tool, path=path)) is not None]
        hops = dict.fromkeys(hop for program in (self._program, *tools) for hop in _link_targets(program))
        yield from hops
        for folder in dict.fromkeys(os.path.dirname(hop) for hop in hops):
            yield from self._prefix_of(folder)

    def _prefix_of(self, folder: str) -> Iterator[str]:
        prefix = os.path.dirname(folder)
        if not self._is_too_wide(folder):
            yield folder
        if os.path.basename(folder) not in _BIN or os.path.basename(prefix) in _SHARED_PREFIXES:
            return
        if self._is_too_wide(prefix):
            return
        yield prefix
        # `.pth` files name the folders of packages that were installed in development mode.
        for file in Path(prefix).glob("lib/python3*/site-packages/*.pth"):
            with suppress(OSError, ValueError):
                lines = file.read_text(errors="replace").splitlines()
                yield from (line for line in lines if line.startswith("/") and os.path.isdir(line))

    def _named_paths(self) -> Iterator[str]:
        """Yield the paths that the entry names in the command line, in variables, or as the working directory.

        Also yield the configuration folders of package managers.
        """
        start = self._cwd or os.getcwd()
        for argument in self._arguments:
            value = argument.rpartition("=")[2] if argument.startswith("-") else argument
            if len(value) > _MAX_PATH_CHARS or ("/" not in value and "." not in value):
                continue
            path = os.path.realpath(os.path.join(start, os.path.expanduser(value)))
            if os.path.isdir(path) and not self._is_too_wide(path):
                yield path
            elif os.path.isfile(path):
                yield from self._project_of(path)
        for name in ("PYTHONPATH", "NODE_PATH", "VIRTUAL_ENV", "JAVA_HOME"):
            yield from (path for path in self._environment.get(name, "").split(os.pathsep) if os.path.isabs(path))
        if self._cwd is not None and not self._is_too_wide(self._cwd):
            yield self._cwd
        for kind in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"):
            if certificates := self._environment.get(kind):
                yield certificates
        for name in (".config/uv", ".config/pip", ".cache/ms-playwright"):
            yield os.path.join(self._home, name)

    def _own_bundles(self) -> Iterator[str]:
        """Yield the folders of bundles that the command line names; bundles are in the protected state directory."""
        for text in (self._program, *self._arguments):
            real = os.path.realpath(text) if os.path.isabs(text) else ""
            for folder in (os.path.join(each, BUNDLES) for each in _protected):
                if is_below(real, [folder]) and real != folder:
                    yield os.path.join(folder, os.path.relpath(real, folder).split(os.sep)[0])

    def _project_of(self, file: str) -> Iterator[str]:
        """Yield a script, and the folder of its project, which contains the packages that the script uses."""
        yield file
        folders = [str(each) for each in Path(file).parents if not self._is_too_wide(str(each))]
        marked = (each for each in folders if any(os.path.exists(os.path.join(each, it)) for it in _MARKS_OF_PROJECTS))
        nearest = next(marked, next(iter(folders), None))
        if nearest is not None:
            yield nearest

    def _is_too_wide(self, path: str) -> bool:
        """Return whether a folder contains too much to permit it, such as the home directory or a folder above it."""
        path = os.path.realpath(path)
        wide = {os.path.realpath(tempfile.gettempdir()), "/tmp", "/var/tmp", "/var", "/home", "/srv", "/mnt", "/run"}
        return path in wide or is_below(os.path.realpath(self._home), [path])

    def _caches(self) -> Iterator[str]:
        """Yield the caches of package managers, and create the caches that the program is about to use."""
        environment, home = self._environment, self._home
        cache = environment.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
        data = environment.get("XDG_DATA_HOME") or os.path.join(home, ".local/share")
        npm = environment.get("npm_config_cache") or environment.get("NPM_CONFIG_CACHE") or os.path.join(home, ".npm")
        uv = environment.get("UV_CACHE_DIR") or os.path.join(cache, "uv")
        of_node = (npm, os.path.join(cache, "node"))
        of_uv = (uv, os.path.join(data, "uv"), environment.get("PIP_CACHE_DIR") or os.path.join(cache, "pip"))
        name = os.path.basename(self._program)
        for family, paths in ((_NODE, of_node), (_UV, of_uv)):
            for path in paths:
                # Create a missing folder now, because the server may not create it in the parent folder.
                if name in family and not os.path.exists(path):
                    with suppress(OSError):
                        os.makedirs(path, mode=0o700)
                yield path
        yield from (os.path.join(cache, "deno"), os.path.join(home, ".bun/install/cache"))


def propose_sandbox(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a `sandbox` setting for a configuration entry: the default with write access to the folders in `args`.

    Returns:
        The setting; None if the entry does not start a program, or starts a container, which is confined already.
    """
    command = entry.get("command")
    if not isinstance(command, str) or os.path.basename(command) in ("docker", "podman"):
        return None
    arguments = [str(each) for each in entry.get("args", [])]
    folders = [each for each in arguments if each.startswith(("/", "~/")) and os.path.isdir(os.path.expanduser(each))]
    return {"write": folders} if folders else {}


def _link_targets(program: str) -> Iterator[str]:
    """Yield the path of a program; if the path is a symbolic link, also yield each path on the way to the real file."""
    path, seen = program, set[str]()
    while path not in seen:  # links may form a loop
        yield path
        seen.add(path)
        if os.path.islink(path):
            path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    yield os.path.realpath(program)


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path is one of these folders or in one of them."""
    return f"{path.rstrip('/')}/".startswith(tuple(f"{folder.rstrip('/')}/" for folder in folders))


def tasks_of_machine() -> int:
    """Return the number of threads on this machine, which is an upper bound for the number of threads of one user."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return _SPARE_TASKS


log = logging.getLogger(__name__)

_MAX_DENIALS: Final = 20
# The first Landlock versions that can restrict files, TCP ports, and signals to other processes.
_FILES_SINCE, _NETWORK_SINCE, _SIGNALS_SINCE = 1, 4, 6
_REQUIREMENTS: Final = "Linux 6.12 with Landlock, on x86-64 or ARM64"


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """The confinement of one process.

    Attributes:
        config: The settings.
        arguments: The command line of the confining program, which precedes the server's own command line; empty if
            confinement is not available.
        state: `confined`, `partial` if the kernel supports only some of the restrictions, or `unconfined`.
        folder: The temporary folder of the process.
        read, write: The permitted paths.
        denials: The denials that the output of the server reports; shared by all processes of the server.
        latest: The latest denial in the output of this process.
    """

    config: SandboxConfig
    arguments: list[str] = field(default_factory=list)
    state: str = "unconfined"
    folder: str = ""
    read: frozenset[str] = frozenset()
    write: frozenset[str] = frozenset()
    denials: dict[str, None] = field(default_factory=dict)
    latest: str | None = None

    def note_output(self, line: str) -> None:
        """Record a denial if this line of output reports a denial."""
        denial = self.find_denial(line)
        if denial is not None:
            self.latest = denial
            if len(self.denials) < _MAX_DENIALS:
                self.denials[denial] = None

    def find_denial(self, line: str) -> str | None:
        """Return the denial that a line of output reports, and its setting; None if the line reports no denial."""
        if not self.arguments:
            return None
        if self.config.memory and _OUT_OF_MEMORY.search(line):
            return f"more memory than sandbox.memory ({self.config.memory} MiB)"
        if self.config.cpu and "SIGXCPU" in line:
            return f"more processor time than sandbox.cpu ({self.config.cpu} s)"
        if not _DENIED.search(line):
            return None
        if _PORT.search(line) and self.config.network != "all":
            return f"the network (sandbox.network: {_spell_network(self.config.network)})"
        paths = {path: real for path in _PATH.findall(line) if not is_below(real := os.path.realpath(path), self.write)}
        # Look for unreadable paths first. A line may begin with the path of the program. The server may not write the
        # program, so a check for unwritable paths would blame that path.
        for path, real in paths.items():
            if not is_below(real, self.read):
                return f"{path} (neither in sandbox.read nor in sandbox.write)"
        for path, real in paths.items():
            if os.access(real, os.W_OK) or not os.path.exists(real):
                return f"writing {path} (not in sandbox.write)"
        return None

    def explained(self, reason: str) -> str:
        """Return the reason why the process ended, followed by the denial that may have caused the end."""
        denial = self.find_denial(reason) or self.latest
        return f"{reason} (denied by the sandbox: {denial})" if denial is not None else reason

    def remove_folder(self) -> None:
        """Remove the temporary folder."""
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def confinement_of(config: SandboxConfig, version: int, *, can_filter_calls: bool = True) -> tuple[str, list[str]]:
    """Return the state of a sandbox, and the restrictions that the system does not support.

    Args:
        version: The Landlock version of the kernel; 0 if the kernel does not support Landlock.
        can_filter_calls: Whether the confining program knows the system calls of this architecture.
    """
    supported = {
        "files": version >= _FILES_SINCE,
        "TCP ports": version >= _NETWORK_SINCE or config.network == "all",
        "UDP": can_filter_calls or config.network != "none",
        "signals": version >= _SIGNALS_SINCE,
    }
    missing = [what for what, is_supported in supported.items() if not is_supported]
    return "unconfined" if "files" in missing else "partial" if missing else "confined", missing


_DENIED: Final = re.compile(
    r"\bE(?:ACCES|PERM|ROFS)\b|permission denied|not permitted|PermissionError|Errno 13\b|os error 13\b", re.I
)
_OUT_OF_MEMORY: Final = re.compile(r"MemoryError|out of memory|cannot allocate memory|ENOMEM|bad_alloc", re.I)
_PORT: Final = re.compile(
    r"\b(?:listen|bind|connect|socket)\b|attempting to bind|port \d|tcp|[\w.\]]:\d{2,5}\b|getaddrinfo|resolution",
    re.I,
)
_PATH: Final = re.compile(r"(?<![\w.:/])(/[^\s'\"`’”:,)\]]+)")


def _spell_network(network: str) -> str:
    return {"all": "true", "none": "false"}.get(network, network)


async def prepare_sandbox(
    config: SandboxConfig,
    line: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: str | None,
    server: str,
    denials: dict[str, None],
) -> Sandbox:
    """Return the confinement of a process that is about to start.

    Args:
        line: The path of the program, and its arguments.
        environment: The environment variables of the process.
        cwd: The working directory in the server's configuration entry.
        denials: Collects the denials of all processes of the server.

    Raises:
        ConnectionLost: The sandbox is required but not available on this machine, or its rules cannot be applied.
    """
    version, filters_calls = 0, False
    if sys.platform == "linux":
        # Imported lazily, because the module works only on Linux.
        from gateway.process.confine import can_filter_calls, landlock_version

        version, filters_calls = landlock_version(), can_filter_calls()
    state, missing = confinement_of(config, version, can_filter_calls=filters_calls)
    if missing:
        text = f"the sandbox cannot restrict {', '.join(missing)} on this system (requires {_REQUIREMENTS})"
        if config.required:
            raise ConnectionLost(f"not started: {text}, and its entry says `required: true`", sent=False)
        log.warning("sandbox incomplete: %s", text, extra={"server": server})
    if sys.platform != "linux":
        return Sandbox(config=config, denials=denials)
    rules = Rules(config, line, environment, cwd)
    # Run in a thread, so that a slow disk does not delay other callers.
    confinement = await anyio.to_thread.run_sync(rules.find)
    for path in confinement.missing:
        log.warning("its sandbox does not permit %s, which does not exist", path, extra={"server": server})
        denials[f"{path} (it does not exist: create it before the start)"] = None
    return Sandbox(
        config=config,
        arguments=confinement.arguments,
        state=state,
        folder=confinement.folder,
        read=confinement.read,
        write=confinement.write,
        denials=denials,
    )


# How often to check for new processes. A fork bomb starts a few thousand processes within this interval.
_COUNT_S: Final = 0.25
# Count the processes at least once in this many checks, even if the number of threads on the machine has hardly grown:
# threads of other programs may have ended in the meantime.
_COUNT_ANYWAY: Final = 20


@dataclass(slots=True)
class CountSchedule:
    """Decides when to count the processes of a server, which takes longer than reading the machine's thread count.

    Attributes:
        most: The maximum number of processes.
    """

    most: int
    _tasks: int = 0
    _room: int = 0
    _checks: int = 0

    def is_due(self, tasks: int) -> bool:
        """Return whether to count now, because the server may have more than `most` processes.

        `tasks` is the number of threads on the machine, to which each new process adds one. A server that could start
        N processes at the last count can only exceed the limit if the machine has at least N more threads.
        """
        self._checks += 1
        return tasks - self._tasks >= self._room or self._checks >= _COUNT_ANYWAY

    def note_count(self, tasks: int, running: int) -> None:
        """Note that the server had `running` processes when the machine had `tasks` threads."""
        self._tasks, self._room, self._checks = tasks, self.most - running, 0


async def limit_processes(pid: int, most: int) -> int:
    """Wait until a process and its descendants exceed `most` processes in total, and return their number."""
    schedule = CountSchedule(most)
    while True:
        tasks = tasks_of_machine()
        if schedule.is_due(tasks):
            running = len(processes_of(pid))
            if running > most:
                return running
            schedule.note_count(tasks, running)
        await anyio.sleep(_COUNT_S)


def processes_of(pid: int) -> list[int]:
    """Return the ids of a process, its descendants, and orphaned descendants that the gateway has adopted."""
    processes, pending = {pid}, [pid]
    while pending:
        for child in _children_of(pending.pop()):
            if child not in processes:
                processes.add(child)
                pending.append(child)
    orphans = [each for each in _children_of(os.getpid()) if each not in processes and _session_of(each) == pid]
    return [*processes, *orphans]


def _children_of(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
                children += map(int, text.split())
    return children


def _session_of(pid: int) -> int | None:
    with suppress(OSError):
        return os.getsid(pid)
    return None
