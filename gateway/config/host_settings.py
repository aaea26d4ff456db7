"""Read the allow and deny lists for servers and tools in settings files of hosts.

Claude Code, Gemini CLI, Qwen Code, OpenCode, Cursor and Amazon Q have such lists, in the file of their servers or in a
settings file next to it. The forms of all hosts are recognized in every file. If a list cannot be read, all servers are
left out, because the list may restrict any of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from pydantic_core import PydanticCustomError

from gateway.config.host_entries import compacted, deny, restrict_allowed
from gateway.config.source import join, read, values
from gateway.protocol.gateway_errors import ConfigError

# Matches keys such as `excludeMCPServers`, `deniedMcpServers` and `disabledMcpjsonServers`. `enabledMcpServers` of
# Claude Code is not included: it enables single servers and restricts nothing.
_SERVERS_HIDDEN: Final = re.compile(
    r"(?:exclude[ds]?|den(?:y|ied)|disable[ds]?|block(?:ed)?|disallow(?:ed)?|hidden|forbidden)(?:mcp)?(?:json)?servers?"
)
_SERVERS_SHOWN: Final = re.compile(r"(?:allow(?:ed)?|include[ds]?|whitelist(?:ed)?|permitted)(?:mcp)?servers?")
# Keys of Gemini CLI and Qwen Code within `mcp`.
_HIDDEN: Final = re.compile(r"exclude[ds]?|den(?:y|ied)|disable[ds]?|block(?:ed)?")
_SHOWN: Final = re.compile(r"allow(?:ed)?|include[ds]?")
_TOOLS_HIDDEN: Final = frozenset({"excludetools", "disallowedtools", "deniedtools", "disabledtools", "blockedtools"})
# Gemini CLI: in this list, a name without a server prefix denotes a tool of any server.
_PLAIN: Final = "excludetools"
# Built-in tools of Gemini CLI and Qwen Code, which may appear in the same lists.
_BUILT_IN: Final = frozenset(
    {
        "edit",
        "glob",
        "grep_search",
        "list_directory",
        "lsp",
        "google_web_search",
        "read_file",
        "read_many_files",
        "replace",
        "run_shell_command",
        "save_memory",
        "search_file_content",
        "task",
        "todo_write",
        "web_fetch",
        "web_search",
        "write_file",
        "write_todos",
    }
)
# Gemini CLI: the file that lists the servers that the user has disabled.
_ENABLEMENT: Final = "mcp-server-enablement.json"
_IN_CURSOR: Final = re.compile(r"mcp\((?P<server>[^:()]*):(?P<tool>[^()]*)\)", re.IGNORECASE)
# Matches names without a server prefix, except names of tool classes of Gemini CLI, which end in `Tool`.
_OF_ANY_SERVER: Final = re.compile(r"(?!mcp_)(?!.*__)(?!.*Tool$)[\w*.-]+")
_ARGUMENTS: Final = re.compile(r"\(.*\)$", re.DOTALL)
_ON: Final = frozenset({"allow", "ask"})


@dataclass(slots=True)
class _Found:
    """The restrictions of one server.

    Attributes:
        off: The key that disables the server; empty if it is not disabled.
        denied: Patterns of denied tools.
        allowed: The lists of allowed tools. Each list is given as its file, its key and its patterns.
    """

    off: str = ""
    denied: list[str] = field(default_factory=list)
    allowed: list[tuple[str, str, list[str]]] = field(default_factory=list)


class HostSettings:
    """The allow and deny lists of a host, from one or more files."""

    def __init__(self, roots: Sequence[tuple[str, Mapping[str, Any]]], unreadable: ConfigError | None = None) -> None:
        """Read the settings.

        Args:
            roots: The name and the values of each file.
            unreadable: The error if one of the files cannot be read.
        """
        self._roots = roots
        self._unreadable = unreadable

    @classmethod
    def read_beside(cls, path: Path | None, file: str, root: Mapping[str, Any], files: set[Path]) -> HostSettings:
        """Read the settings in a file of servers, and in the settings files of its host next to it.

        Args:
            path: The file of servers; None if the values do not come from a file.
            file: The name of the file in messages.
            root: The values of the file.
            files: Receives the paths of the settings files, whether they exist or not.
        """
        roots = [(file, root)]
        try:
            for each in settings_beside(path) if path is not None else ():
                files.add(each)
                if (settings := read_settings(each)) is not None:
                    roots.append((str(each), settings))
        except ConfigError as error:
            return cls(roots, error)
        return cls(roots)

    def apply(self, entry: dict[str, Any], server_key: str) -> str:
        """Add the restrictions of the settings to a server entry.

        Args:
            entry: The entry, in the keys of typegate. It is modified.
            server_key: The name of the server in the file.

        Returns:
            The key that disables the server; empty if it is not disabled.

        Raises:
            ConfigError: A list that may restrict this server cannot be read.
        """
        if self._unreadable is not None:
            raise self._unreadable
        restrictions = _Found()
        for file, root in self._roots:
            _Reader(file, server_key, entry, restrictions).read(root)
        if restrictions.denied:
            deny(entry, "tools", restrictions.denied)
        for file, key, names in restrictions.allowed:
            try:
                restrict_allowed(entry, "tools", names, key)
            except PydanticCustomError as error:
                raise ConfigError(error.message(), file=file, key=key) from None
        if restrictions.off:
            entry["disabled"] = True
        return restrictions.off


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader of the restrictions that one file has for one server."""

    file: str
    server: str
    entry: Mapping[str, Any]
    found: _Found

    def read(self, root: Mapping[str, Any]) -> None:
        """Read all known forms of restrictions and add them to `found`."""
        for key, value in root.items():
            compact = compacted(str(key))
            if _SERVERS_HIDDEN.fullmatch(compact):
                self._hide(key, value)
            elif _SERVERS_SHOWN.fullmatch(compact):
                self._show(key, value)
            elif compact in _TOOLS_HIDDEN:
                self._deny(key, value, plain=compact == _PLAIN)
        self._read_mcp(root.get("mcp"))
        self._read_permissions(root.get("permissions"))
        self._read_tools(root.get("tools"))
        permission = root.get("permission")
        if isinstance(permission, Mapping):
            self._switches("permission", {key: self._is_permitted(key, value) for key, value in permission.items()})
        elif permission == "deny":
            self.found.off = "permission"

    def _read_mcp(self, mcp: Any) -> None:
        for key, value in mcp.items() if isinstance(mcp, Mapping) else ():
            # In OpenCode, the members of `mcp` are servers, and their names may look like the keys below.
            if isinstance(value, Mapping):
                continue
            if _HIDDEN.fullmatch(compacted(key)):
                self._hide(join("mcp", key), value)
            elif _SHOWN.fullmatch(compacted(key)):
                self._show(join("mcp", key), value)

    def _read_permissions(self, permissions: Any) -> None:
        if isinstance(permissions, Mapping):
            self._deny("permissions.deny", permissions.get("deny"), plain=False)

    def _read_tools(self, tools: Any) -> None:
        if isinstance(tools, list):
            self._read_amazon_q(tools)
        elif isinstance(tools, Mapping):
            self._deny("tools.exclude", tools.get("exclude"), plain=True)
            switches = {key: value for key, value in tools.items() if isinstance(value, bool)}
            self._switches("tools", switches)

    def _read_amazon_q(self, tools: list[Any]) -> None:
        names = self._names("tools", tools)
        if "*" in names:
            return
        own = [
            remainder for name in names for remainder in _remainders(name, [f"@{form}" for form in self._name_forms()])
        ]
        if any(remainder in ("", "/*", "*") for remainder in own):
            return
        if chosen := [remainder.removeprefix("/") for remainder in own if remainder.startswith("/")]:
            self.found.allowed.append((self.file, "tools", chosen))
        else:
            self.found.off = "tools"

    def _hide(self, key: str, value: Any) -> None:
        if any(self._matches_server(item, key) for item in self._read_list(key, value)):
            self.found.off = key

    def _show(self, key: str, value: Any) -> None:
        if value is not None and not any(self._matches_server(item, key) for item in self._read_list(key, value)):
            self.found.off = key

    def _read_list(self, key: str, value: Any) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._unreadable(key, "is not a list", "a list of server names")
        return value

    def _matches_server(self, item: Any, key: str) -> bool:
        """Return true if an item of a list of servers matches this server."""
        if isinstance(item, str):
            return any(fnmatchcase(form, item) for form in self._name_forms())
        # The form of Claude Code.
        if isinstance(item, Mapping) and len(item) == 1:
            [(by, what)] = item.items()
            if by == "serverName" and isinstance(what, str):
                return what in self._name_forms()
            if by == "serverUrl" and isinstance(what, str):
                url = self.entry.get("url")
                return isinstance(url, str) and fnmatchcase(url, what)
            if by == "serverCommand" and isinstance(what, list):
                return [self.entry.get("command"), *(self.entry.get("args") or [])] == what
        raise self._unreadable(key, "names a server in an unknown form", "the name of a server")

    def _deny(self, key: str, value: Any, *, plain: bool) -> None:
        """Read a list of denied tools.

        Args:
            key: The key of the list.
            value: The list.
            plain: Whether a name without a server prefix denotes a tool of any server.
        """
        if value is None:
            return
        forms = self._name_forms()
        before = [start for form in forms for start in (f"mcp__{form}__", f"mcp_{form}_", f"{form}__")]
        for name in self._names(key, value):
            if (cursor := _IN_CURSOR.fullmatch(name)) is not None:
                if any(fnmatchcase(form, cursor["server"]) for form in forms):
                    self.found.denied.append(cursor["tool"])
                continue
            bare = _ARGUMENTS.sub("", name)
            if bare in {f"mcp__{form}" for form in forms} or bare in ("*", "mcp__*"):
                self.found.off = key
                continue
            rests = [remainder for remainder in _remainders(bare, before) if remainder]
            if "*" in rests:
                self.found.off = key
            elif rests:
                self.found.denied += [remainder for remainder in rests if remainder not in self.found.denied]
            elif plain and _OF_ANY_SERVER.fullmatch(bare) and bare not in _BUILT_IN:
                self.found.denied.append(bare)

    def _switches(self, key: str, switches: Mapping[str, bool]) -> None:
        """Read the switches of OpenCode: a boolean for each pattern of tools. The most specific pattern decides."""
        starts = [f"{form}_" for form in self._name_forms()]
        by_rest = {
            remainder: on for name, on in switches.items() for remainder in _remainders(name, starts) if remainder
        }
        hidden = [remainder for remainder, on in by_rest.items() if not on]
        allowed = [remainder for remainder, on in by_rest.items() if on and remainder != "*"]
        if "*" in hidden:
            if not allowed:
                self.found.off = key
                return
            self.found.allowed.append((self.file, key, allowed))
            hidden.remove("*")
        elif any(fnmatchcase(name, pattern) and name != pattern for name in allowed for pattern in hidden):
            raise self._unreadable(key, "shows some of the tools that it hides", "patterns that do not overlap")
        self.found.denied += hidden

    def _is_permitted(self, tool: str, value: Any) -> bool:
        if isinstance(value, Mapping):
            # The object has a decision for each pattern of arguments.
            if value and all(decision == "deny" for decision in value.values()):
                return False
            if "deny" in value.values() and any(_remainders(tool, [f"{form}_" for form in self._name_forms()])):
                key = join("permission", tool)
                raise self._unreadable(key, "depends on arguments", "a rule in gateway.policy instead")
            return True
        return value in _ON

    def _names(self, key: str, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self._unreadable(key, "is not a list of names", "a list of tool names")
        return value

    def _name_forms(self) -> list[str]:
        """Return the server's name as written, and in each form that hosts use as a prefix of tool names."""
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", self.server)
        return list(dict.fromkeys((self.server, plain, re.sub(r"[^A-Za-z0-9_]", "_", self.server))))

    def _unreadable(self, key: str, what: str, expected: str) -> ConfigError:
        return ConfigError(f"{what}, and may hide something; expected {expected}", file=self.file, key=key)


def settings_beside(path: Path) -> list[Path]:
    """Return the settings files of a host that may restrict the servers in `path`."""
    folder = path.absolute().parent
    match path.name:
        case ".mcp.json" | ".claude.json":
            # Qwen Code also reads `.mcp.json`.
            own = [folder / ".claude" / name for name in ("settings.json", "settings.local.json")]
            return [*own, folder / ".qwen" / "settings.json"]
        case "mcp.json" if folder.name == ".cursor":
            return [folder / "cli.json", folder / "cli-config.json"]
        case "settings.json" if folder.name in (".gemini", ".qwen"):
            return [folder / _ENABLEMENT]
    return []


def read_settings(path: Path) -> Mapping[str, Any] | None:
    """Return the values of a settings file; None if the file does not exist.

    Raises:
        ConfigError: The file cannot be read.
    """
    if not path.is_file():
        return None
    settings = values(read(path), file=str(path)) if path.stat().st_size else {}
    if path.name == _ENABLEMENT:
        off = [
            name for name, state in settings.items() if not isinstance(state, dict) or state.get("enabled") is not True
        ]
        return {"mcp": {"excluded": off}}
    return settings


def restricting_keys(root: Mapping[str, Any]) -> frozenset[str]:
    """Return the top-level keys that `HostSettings` reads."""
    fixed_keys = {"permissions", "permission", "tools", "mcp", "enabledMcpServers", "enabledMcpjsonServers"}
    return frozenset(
        key
        for key in root
        if key in fixed_keys
        or _SERVERS_HIDDEN.fullmatch(compacted(key))
        or _SERVERS_SHOWN.fullmatch(compacted(key))
        or compacted(key) in _TOOLS_HIDDEN
    )


def _remainders(pattern: str, starts: Sequence[str]) -> Iterator[str]:
    """Yield the patterns that remain after removing one of `starts` from the beginning of `pattern`.

    A wildcard in the pattern may match all or part of a start, so that several patterns may remain.
    """
    seen = set()
    for start in starts:
        for remainder in _remainders_after(pattern, start):
            if remainder not in seen:
                seen.add(remainder)
                yield remainder


def _remainders_after(pattern: str, start: str) -> Iterator[str]:
    if not start:
        yield pattern
    elif pattern.startswith("*"):
        yield from _remainders_after(pattern[1:], start)
        if len(start) == 1:
            yield pattern
        else:
            yield from _remainders_after(pattern, start[1:])
    elif pattern and (pattern[0] == start[0] or pattern[0] == "?"):
        yield from _remainders_after(pattern[1:], start[1:])
