"""Upstreams of type stdio: a child process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from gateway.config.launch_identity import identity_of_command, is_loop
from gateway.config.operation_config import (
    ContainerConfig,
    IdleSeconds,
    ProcessesConfig,
    SandboxConfig,
    Sandboxing,
    StartMode,
    sandbox_of,
)
from gateway.config.section import OptionalText, Seconds, Texts, WrittenText, fault
from gateway.config.server import ServerConfig
from gateway.config.variables import ROOT, workspace_of

_LAUNCH_KEYS: Final = ("command", "url")
# Longer than a person usually pauses between two requests. After a longer pause, a call waits for a new start.
_IDLE_INSTANCE_S: Final = 600.0


class StdioConfig(ServerConfig):
    """An MCP server that runs as a child process."""

    connector = "gateway.upstream.mcp_connectors:StdioConnector"
    inferred_from = "command"
    listed_over = "stdio"
    identity = ("command", "args", "cwd")
    # `env` is not part of the identity, because it may contain credentials, and not even their digest may be stored.
    connection = ("elicitation", "env", "env_file", "sandbox", "container", "instances", "allowed_roots")
    # A change of the timeouts must not restart a process that is still starting.
    in_place = (*ServerConfig.in_place, "connect_timeout", "start_timeout", "start", "idle_timeout")

    type: Literal["stdio"] = "stdio"
    command: WrittenText = Field(default="", json_schema_extra={"default": None})
    """stdio: program to start."""
    args: Texts = Field(default_factory=list, repr=False)
    """stdio: arguments of the program."""
    env: dict[str, OptionalText] = Field(default_factory=dict, repr=False)
    """stdio: environment variables of the program; null removes an inherited variable. The program inherits only
    basic variables such as PATH and HOME, and those that configure network access, so that npx and uvx work behind a
    proxy: HTTPS_PROXY, HTTP_PROXY, NO_PROXY (also in lower case), SSL_CERT_FILE, SSL_CERT_DIR, REQUESTS_CA_BUNDLE and
    NODE_EXTRA_CA_CERTS."""
    env_file: str | None = None
    """stdio: file with additional variables, one NAME=value per line, in the format of VS Code and Cursor. `env` takes
    precedence."""
    cwd: str | None = None
    """stdio: working directory of the program, relative to the folder of the configuration file. The default is the
    gateway's. ${roots.0} stands for the first root of the host. It requires `instances` and `allowedRoots`, and may
    also be used in `args` and `sandbox`."""
    instances: Literal["shared", "session", "caller"] = "shared"
    """stdio: who shares a process of the program. shared: all callers. session: each session has its own process, and
    so has each caller without sessions (MCP 2026-07-28). caller: each caller has its own process; a caller is an API
    key, or a user and client of a sign-in. Such a process starts with the first call, and ends after `idleTimeout`, by
    default 600 seconds."""
    allowed_roots: list[str] = Field(default_factory=list)
    """stdio: allowed folders. A host's root replaces ${roots.0} only if it is in one of them. Paths may begin with `~`,
    and are relative to the folder of the configuration file. The tools are listed with the first folder as root."""
    # The first start of a package runner or a container may take minutes on a slow network.
    start_timeout: Seconds = 300.0
    """stdio: seconds to wait for the first response of the process before it is terminated. A short timeout would abort
    downloads that a first start requires."""
    start: StartMode | None = None
    """stdio: when the program is started. always: with the gateway. onDemand: by the first call; until then its tools
    are listed from the snapshot, and a server that is not in the snapshot is started once to be listed. By default as
    set by `gateway.processes.start`."""
    idle_timeout: IdleSeconds | None = None
    """stdio: seconds without a call after which the program is ended; the next call starts it again, and its tools stay
    listed. Open subscriptions and tasks count as calls. 0: never. By default as set by
    `gateway.processes.idleTimeout`."""
    sandbox: Sandboxing | None = None
    """stdio: access of the program. An object restricts files, network, memory and processes; true does so with the
    default values. false: the program may also signal other processes of this user, read their memory and environment,
    and gain privileges (`sudo`, programs of snap packages). By default as set by `gateway.processes.sandbox`. If that
    is not set either, on Linux 6.12 or later, the program can do this only with processes that it has started."""

    container: ContainerConfig | None = None
    """stdio: image to run as a container, instead of `command`. `sandbox` does not apply to it."""

    @property
    def line(self) -> tuple[str, list[str]]:
        """The program to start, and its arguments."""
        if self.container is None:
            return self.command, self.args
        names = [name for name, value in self.env.items() if value is not None]
        return self.container.engine, self.container.arguments(names, self.args)

    def identity_key(self) -> tuple[object, ...]:
        # Added only for containers, so that the stored tool lists of all other servers stay valid.
        own = () if self.container is None else (self.container.engine, self.container.image)
        return *super().identity_key(), *own

    @property
    def start_limit_s(self) -> float:
        return self.start_timeout

    @property
    def starts_on_demand(self) -> bool:
        return self.start == "onDemand" or self.has_instances

    @property
    def idle_s(self) -> float:
        return self.idle_timeout or (_IDLE_INSTANCE_S if self.has_instances else 0.0)

    @property
    def has_instances(self) -> bool:
        return self.instances != "shared"

    @property
    def lists_at_start(self) -> bool:
        return self.has_instances and self.start != "onDemand"

    @property
    def uses_roots(self) -> bool:
        return self.cwd == ROOT or any(ROOT in text for text in (*self.args, *self._sandbox_paths))

    @property
    def _sandbox_paths(self) -> list[str]:
        return [*self.sandbox.read, *self.sandbox.write] if isinstance(self.sandbox, SandboxConfig) else []

    def in_root(self, root: str = "") -> StdioConfig:
        if not self.uses_roots:
            return self
        folder = root or self.allowed_roots[0]
        changed: dict[str, Any] = {"args": [each.replace(ROOT, folder) for each in self.args]}
        if self.cwd == ROOT:
            changed["cwd"] = folder
        if isinstance(self.sandbox, SandboxConfig):
            read, write = (
                [folder if path == ROOT else path for path in paths]
                for paths in (self.sandbox.read, self.sandbox.write)
            )
            changed["sandbox"] = self.sandbox.model_copy(update={"read": read, "write": write})
        return self.model_copy(update=changed)

    def with_process_defaults(self, defaults: ProcessesConfig) -> StdioConfig:
        own_defaults = {
            name: getattr(defaults, name) for name in ("start", "idle_timeout") if getattr(self, name) is None
        }
        return self.model_copy(update={**own_defaults, "sandbox": sandbox_of(self.sandbox, defaults.sandbox)})

    @property
    def local_keys(self) -> tuple[str, ...]:
        return ("command",) if self.container is None else ("container",)

    def is_loop(self, path: Path) -> bool:
        return is_loop(self.command, self.args, cwd=self.cwd, path=path)

    def with_absolute_paths(self, folder: Path) -> StdioConfig:
        base = workspace_of(folder)

        def absolute(path: str) -> str:
            return path if path == ROOT else os.path.abspath(base / os.path.expanduser(path))

        changed: dict[str, Any] = {"allowed_roots": [absolute(path) for path in self.allowed_roots]}
        if self.cwd is not None:
            changed["cwd"] = absolute(self.cwd)
        if isinstance(self.sandbox, SandboxConfig):
            paths = {name: [absolute(path) for path in getattr(self.sandbox, name)] for name in ("read", "write")}
            changed["sandbox"] = self.sandbox.model_copy(update=paths)
        if self.container is not None:
            mounts = [
                f"{absolute(source)}:{target}"
                for source, _, target in (it.partition(":") for it in self.container.mounts)
            ]
            changed["container"] = self.container.model_copy(update={"mounts": mounts})
        return self.model_copy(update=changed)

    def launch_identity(self, folder: Path | None) -> str:
        command, args = self.line
        return identity_of_command(command, args, folder=folder, env=self.env, cwd=self.cwd)

    def check_entry(self, entry: Mapping[str, Any]) -> None:
        if entry.get("url") is not None:
            if entry.get("command") is not None:
                raise command_and_url()
            raise fault("is stdio, which has no url", "http or sse", key="type")
        self._check_roots()
        if self.container is not None:
            if self.command.strip():
                raise fault("has both command and container", "a program, or an image to run", key="container")
            return
        if not self.command.strip():
            raise fault(
                "is missing or empty", f"the program to start, or a url instead{_suggested_key(entry)}", key="command"
            )
        # Checked here, because the error of exec would name neither the file nor the key.
        if "\0" in self.command or any("\0" in arg for arg in self.args):
            raise fault("has a NUL character", "text that can be an argument of a program", key="command")

    def _check_roots(self) -> None:
        """Check the keys that refer to roots, the folders that a host has open.

        Raises:
            PydanticCustomError: A placeholder is part of a path, or a key is missing or has no effect.
        """
        places = [("cwd", self.cwd or ""), *(("sandbox", path) for path in self._sandbox_paths)]
        for key, path in places:
            if ROOT in path and path != ROOT:
                # A link in the root could lead such a path out of the allowed folders.
                raise fault(f"has a path with {ROOT}", f"{ROOT} alone, or a path without it", key=key)
        if not self.uses_roots:
            if self.allowed_roots:
                raise fault("has no effect", f"{ROOT} as cwd or in args, or no allowedRoots", key="allowedRoots")
            return
        if self.container is not None:
            raise fault(f"does not know {ROOT}", "a program, or an entry without it", key="container")
        if not self.has_instances:
            raise fault(f"has one process for all callers, whose {ROOT} differ", "session or caller", key="instances")
        if not self.allowed_roots:
            raise fault("is missing", f"the folders that {ROOT} has to be in", key="allowedRoots")


def _suggested_key(entry: Mapping[str, Any]) -> str:
    """Return a hint if a key of the entry is likely a misspelling of `command` or `url`."""
    for key in entry:
        if key not in _LAUNCH_KEYS and (near := get_close_matches(key, _LAUNCH_KEYS, n=1)):
            return f" ({key} is unknown; did you mean {near[0]}?)"
    return ""


def command_and_url() -> Exception:
    """Return the error for an entry that has both `command` and `url`."""
    return fault("has both command and url", "command for a process, or url for a server on the network")
