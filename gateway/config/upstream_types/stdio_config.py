"""Upstreams of type stdio: a child process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from gateway.config.launch_identity import of_command
from gateway.config.leads_back import leads_back
from gateway.config.section import OptionalText, Seconds, Texts, WrittenText, fault
from gateway.config.server import ServerConfig
from gateway.config.variables import workspace_of

_WHAT_RUNS: Final = ("command", "url")


class StdioConfig(ServerConfig):
    """An MCP server that is started as a child process."""

    connector = "gateway.upstream.mcp_connectors:StdioConnector"
    inferred_from = "command"
    listed_over = "stdio"
    identity = ("command", "args", "cwd")
    # The environment holds credentials, of which nothing may be kept on disk, not even a digest.
    connection = ("elicitation", "env", "env_file", "sandbox")
    # A process that is starting goes on starting while its file is edited.
    in_place = (*ServerConfig.in_place, "connect_timeout", "start_timeout")

    type: Literal["stdio"] = "stdio"
    command: WrittenText = Field(default="", json_schema_extra={"default": None})
    """stdio: program to start."""
    args: Texts = Field(default_factory=list, repr=False)
    """stdio: arguments of the program."""
    env: dict[str, OptionalText] = Field(default_factory=dict, repr=False)
    """stdio: environment variables of the program; null takes one away that it would get otherwise. Of the gateway's
    own it gets a few basic ones such as PATH and HOME, and those that say how the network is reached, so that npx and
    uvx work behind a proxy: HTTPS_PROXY, HTTP_PROXY, NO_PROXY (also in small letters), SSL_CERT_FILE, SSL_CERT_DIR,
    REQUESTS_CA_BUNDLE, NODE_EXTRA_CA_CERTS."""
    env_file: str | None = None
    """stdio: file with more variables, one NAME=value a line, as VS Code and Cursor read it; `env` counts first."""
    cwd: str | None = None
    """stdio: working directory of the program; by default the gateway's. A relative one starts at the folder of the
    configuration file."""
    # A package runner or a container on a slow line takes minutes at its first start; what takes longer hangs.
    start_timeout: Seconds = 300.0
    """stdio: seconds to wait for a process that has been started and does not answer yet; then it is ended. Without
    an answer it is not ended before, as what it downloads would be lost."""
    sandbox: Literal[False] | None = None
    """stdio: false lets the program send signals to, and read the memory and environment of, other processes of this
    user, and lets it gain rights (`sudo`, programs of snap packages). By default it can do that only to processes that
    it has started, on Linux 6.12 or newer."""

    @property
    def start_limit_s(self) -> float:
        """See `ServerConfig.start_limit_s`."""
        return self.start_timeout

    @property
    def local_keys(self) -> tuple[str, ...]:
        """See `ServerConfig.local_keys`."""
        return ("command",)

    def leads_back(self, path: Path) -> bool:
        """See `ServerConfig.leads_back`."""
        return leads_back(self.command, self.args, cwd=self.cwd, path=path)

    def with_absolute_paths(self, folder: Path) -> StdioConfig:
        """See `ServerConfig.with_absolute_paths`."""
        if self.cwd is None:
            return self
        path = workspace_of(folder) / os.path.expanduser(self.cwd)
        return self.model_copy(update={"cwd": os.path.abspath(path)})

    def launch_identity(self, folder: Path | None) -> str:
        """See `ServerConfig.launch_identity`."""
        return of_command(self.command, self.args, folder=folder, env=self.env, cwd=self.cwd)

    def check_entry(self, entry: Mapping[str, Any]) -> None:
        """See `ServerConfig.check_entry`."""
        if entry.get("url") is not None:
            if entry.get("command") is not None:
                raise command_and_url()
            raise fault("is stdio, which has no url", "http or sse", key="type")
        if not self.command.strip():
            raise fault(
                "is missing or empty", f"the program to start, or a url beside it{_meant(entry)}", key="command"
            )
        # exec would fail on it with an error that names neither the file nor the key.
        if "\0" in self.command or any("\0" in arg for arg in self.args):
            raise fault("holds a NUL character", "text that can be an argument of a program", key="command")


def _meant(entry: Mapping[str, Any]) -> str:
    """What a misspelt key may be meant for, where neither of those is there of which one has to be."""
    for key in entry:
        if key not in _WHAT_RUNS and (near := get_close_matches(key, _WHAT_RUNS, n=1)):
            return f" ({key} is unknown; did you mean {near[0]}?)"
    return ""


def command_and_url() -> Exception:
    """The error of an entry that has both."""
    return fault("has both command and url", "command for a process, or url for a server on the network")
