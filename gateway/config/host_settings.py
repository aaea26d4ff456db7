"""Lists in the files of hosts, beside the entries of servers, that restrict which servers and tools are used.

Several hosts have such lists in the file of their servers, or in a file of settings next to it: Claude Code, Gemini
CLI, Qwen Code, OpenCode, Cursor and Amazon Q. Each form is recognized wherever it stands. A list that cannot be read
leaves every server out, since it may be about any of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from pydantic_core import PydanticCustomError

from gateway.config.host_restrictions import allow_too, compacted, deny
from gateway.config.source import join, read, values
from gateway.errors import ConfigError

# As `excludeMCPServers`, `deniedMcpServers` and `disabledMcpjsonServers`. `enabledMcpServers` of Claude Code, which
# switches single servers on, restricts nothing.
_SERVERS_HIDDEN: Final = re.compile(
    r"(?:exclude[ds]?|den(?:y|ied)|disable[ds]?|block(?:ed)?|disallow(?:ed)?|hidden|forbidden)(?:mcp)?(?:json)?servers?"
)
_SERVERS_SHOWN: Final = re.compile(r"(?:allow(?:ed)?|include[ds]?|whitelist(?:ed)?|permitted)(?:mcp)?servers?")
# Gemini CLI and Qwen Code, in `mcp`.
_HIDDEN: Final = re.compile(r"exclude[ds]?|den(?:y|ied)|disable[ds]?|block(?:ed)?")
_SHOWN: Final = re.compile(r"allow(?:ed)?|include[ds]?")
_TOOLS_HIDDEN: Final = frozenset({"excludetools", "disallowedtools", "deniedtools", "disabledtools", "blockedtools"})
# Gemini CLI, where a name without a server before it stands for a tool of any server.
_PLAIN: Final = "excludetools"
# Tools of Gemini CLI and Qwen Code themselves, which their lists name too.
_BUILT_IN: Final = frozenset(
    {"edit", "glob", "grep_search", "list_directory", "lsp", "google_web_search", "read_file", "read_many_files",
     "replace", "run_shell_command", "save_memory", "search_file_content", "task", "todo_write", "web_fetch",
     "web_search", "write_file", "write_todos"}
)  # fmt: skip
# Gemini CLI: which servers its user has switched off.
_ENABLEMENT: Final = "mcp-server-enablement.json"
_IN_CURSOR: Final = re.compile(r"mcp\((?P<server>[^:()]*):(?P<tool>[^()]*)\)", re.IGNORECASE)
# A name without a server before it that is not a class of Gemini CLI.
_OF_ANY_SERVER: Final = re.compile(r"(?!mcp_)(?!.*__)(?!.*Tool$)[\w*.-]+")
_ARGUMENTS: Final = re.compile(r"\(.*\)$", re.DOTALL)
_ON: Final = frozenset({"allow", "ask"})


@dataclass(slots=True)
class _Found:
    """The restrictions of one server.

    Attributes:
        off: The key that switches it off; empty where none does.
        denied: Patterns of tools.
        allowed: File, key and patterns of tools of each list that shows only some.
    """

    off: str = ""
    denied: list[str] = field(default_factory=list)
    allowed: list[tuple[str, str, list[str]]] = field(default_factory=list)


class HostSettings:
    """The lists of a host, from one file or several."""

    def __init__(self, roots: Sequence[tuple[str, Mapping[str, Any]]], unreadable: ConfigError | None = None) -> None:
        """Read the settings.

        Args:
            roots: The name of each file, and its values.
            unreadable: Why one of the files cannot be read.
        """
        self._roots = roots
        self._unreadable = unreadable

    @classmethod
    def beside(cls, path: Path | None, file: str, root: Mapping[str, Any], files: set[Path]) -> HostSettings:
        """Read a file of servers, and the files of settings that its host keeps next to it.

        Args:
            path: The file; None where there is none.
            file: How messages name it.
            root: Its values.
            files: Takes the files that were looked for.
        """
        found = [(file, root)]
        try:
            for each in settings_beside(path) if path is not None else ():
                files.add(each)
                if (settings := read_settings(each)) is not None:
                    found.append((str(each), settings))
        except ConfigError as error:
            return cls(found, error)
        return cls(found)

    def apply(self, said: dict[str, Any], written: str) -> str:
        """Put into an entry in common words what is said of its server elsewhere.

        Args:
            said: The entry; it is changed.
            written: The name of the server.

        Returns:
            The key that switches it off; empty where none does.

        Raises:
            ConfigError: Something that may be about this server cannot be read.
        """
        if self._unreadable is not None:
            raise self._unreadable
        found = _Found()
        for file, root in self._roots:
            _Reader(file, written, said, found).read(root)
        if found.denied:
            deny(said, "tools", found.denied)
        for file, key, names in found.allowed:
            try:
                allow_too(said, "tools", names, key)
            except PydanticCustomError as error:
                raise ConfigError(error.message(), file=file, key=key) from None
        if found.off:
            said["disabled"] = True
        return found.off


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one file for one server."""

    file: str
    server: str
    entry: Mapping[str, Any]
    found: _Found

    def read(self, root: Mapping[str, Any]) -> None:
        """Read all forms that are known."""
        for key, value in root.items():
            compact = compacted(str(key))
            if _SERVERS_HIDDEN.fullmatch(compact):
                self._hide(key, value)
            elif _SERVERS_SHOWN.fullmatch(compact):
                self._show(key, value)
            elif compact in _TOOLS_HIDDEN:
                self._deny(key, value, plain=compact == _PLAIN)
        self._of_mcp(root.get("mcp"))
        self._of_permissions(root.get("permissions"))
        self._of_tools(root.get("tools"))
        permission = root.get("permission")
        if isinstance(permission, Mapping):
            self._switches("permission", {key: self._permitted(key, value) for key, value in permission.items()})
        elif permission == "deny":
            self.found.off = "permission"

    def _of_mcp(self, mcp: Any) -> None:
        for key, value in mcp.items() if isinstance(mcp, Mapping) else ():
            # A server of OpenCode may have any name.
            if isinstance(value, Mapping):
                continue
            if _HIDDEN.fullmatch(compacted(key)):
                self._hide(join("mcp", key), value)
            elif _SHOWN.fullmatch(compacted(key)):
                self._show(join("mcp", key), value)

    def _of_permissions(self, permissions: Any) -> None:
        if isinstance(permissions, Mapping):
            self._deny("permissions.deny", permissions.get("deny"), plain=False)

    def _of_tools(self, tools: Any) -> None:
        if isinstance(tools, list):
            self._of_amazon_q(tools)
        elif isinstance(tools, Mapping):
            self._deny("tools.exclude", tools.get("exclude"), plain=True)
            switches = {key: value for key, value in tools.items() if isinstance(value, bool)}
            self._switches("tools", switches)

    def _of_amazon_q(self, tools: list[Any]) -> None:
        names = self._names("tools", tools)
        if "*" in names:
            return
        own = [rest for name in names for rest in _rests(name, [f"@{form}" for form in self._forms()])]
        if any(rest in ("", "/*", "*") for rest in own):
            return
        if chosen := [rest.removeprefix("/") for rest in own if rest.startswith("/")]:
            self.found.allowed.append((self.file, "tools", chosen))
        else:
            self.found.off = "tools"

    def _hide(self, key: str, value: Any) -> None:
        if any(self._is_meant(one, key) for one in self._listed(key, value)):
            self.found.off = key

    def _show(self, key: str, value: Any) -> None:
        if value is not None and not any(self._is_meant(one, key) for one in self._listed(key, value)):
            self.found.off = key

    def _listed(self, key: str, value: Any) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(key, "is no list", "a list of names of servers")
        return value

    def _is_meant(self, one: Any, key: str) -> bool:
        """Return whether an item of a list of servers is about this one."""
        if isinstance(one, str):
            return any(fnmatchcase(form, one) for form in self._forms())
        # Claude Code.
        if isinstance(one, Mapping) and len(one) == 1:
            [(by, what)] = one.items()
            if by == "serverName" and isinstance(what, str):
                return what in self._forms()
            if by == "serverUrl" and isinstance(what, str):
                url = self.entry.get("url")
                return isinstance(url, str) and fnmatchcase(url, what)
            if by == "serverCommand" and isinstance(what, list):
                return [self.entry.get("command"), *(self.entry.get("args") or [])] == what
        raise self._wrong(key, "names a server in a form that is not known", "the name of a server")

    def _deny(self, key: str, value: Any, *, plain: bool) -> None:
        """Deny tools by their names in a host.

        Args:
            key, value: The list.
            plain: Whether a name without a server before it stands for a tool of any server.
        """
        if value is None:
            return
        forms = self._forms()
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
            rests = [rest for rest in _rests(bare, before) if rest]
            if "*" in rests:
                self.found.off = key
            elif rests:
                self.found.denied += [rest for rest in rests if rest not in self.found.denied]
            elif plain and _OF_ANY_SERVER.fullmatch(bare) and bare not in _BUILT_IN:
                self.found.denied.append(bare)

    def _switches(self, key: str, switches: Mapping[str, bool]) -> None:
        """Read patterns of OpenCode, of which the most specific decides."""
        starts = [f"{form}_" for form in self._forms()]
        by_rest = {rest: on for name, on in switches.items() for rest in _rests(name, starts) if rest}
        hidden = [rest for rest, on in by_rest.items() if not on]
        shown = [rest for rest, on in by_rest.items() if on and rest != "*"]
        if "*" in hidden:
            if not shown:
                self.found.off = key
                return
            self.found.allowed.append((self.file, key, shown))
            hidden.remove("*")
        elif any(fnmatchcase(one, pattern) and one != pattern for one in shown for pattern in hidden):
            raise self._wrong(key, "shows some of the tools that a pattern in it hides", "patterns that do not overlap")
        self.found.denied += hidden

    def _permitted(self, tool: str, value: Any) -> bool:
        if isinstance(value, Mapping):
            # By patterns of arguments.
            if value and all(one == "deny" for one in value.values()):
                return False
            if "deny" in value.values() and any(_rests(tool, [f"{form}_" for form in self._forms()])):
                raise self._wrong(join("permission", tool), "depends on arguments", "gateway.policy for such a rule")
            return True
        return value in _ON

    def _names(self, key: str, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self._wrong(key, "is no list of names", "a list of the names of tools")
        return value

    def _forms(self) -> list[str]:
        """Return the name of the server as it is written, and as hosts put it before the names of tools."""
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", self.server)
        return list(dict.fromkeys((self.server, plain, re.sub(r"[^A-Za-z0-9_]", "_", self.server))))

    def _wrong(self, key: str, what: str, expected: str) -> ConfigError:
        return ConfigError(f"{what}, and may hide something; expected {expected}", file=self.file, key=key)


def settings_beside(path: Path) -> list[Path]:
    """Return the files next to a file of servers in which its host keeps what restricts them."""
    folder = path.absolute().parent
    match path.name:
        case ".mcp.json" | ".claude.json":
            # Qwen Code reads the same file of a project.
            own = [folder / ".claude" / name for name in ("settings.json", "settings.local.json")]
            return [*own, folder / ".qwen" / "settings.json"]
        case "mcp.json" if folder.name == ".cursor":
            return [folder / "cli.json", folder / "cli-config.json"]
        case "settings.json" if folder.name in (".gemini", ".qwen"):
            return [folder / _ENABLEMENT]
    return []


def read_settings(path: Path) -> Mapping[str, Any] | None:
    """Return the values of a file of settings; None where the file does not exist.

    Raises:
        ConfigError: It cannot be read.
    """
    if not path.is_file():
        return None
    found = values(read(path), file=str(path)) if path.stat().st_size else {}
    if path.name == _ENABLEMENT:
        off = [name for name, one in found.items() if not isinstance(one, dict) or one.get("enabled") is not True]
        return {"mcp": {"excluded": off}}
    return found


def restricting_keys(root: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys at the top of a file that `HostSettings` knows."""
    known = {"permissions", "permission", "tools", "mcp", "enabledMcpServers", "enabledMcpjsonServers"}
    return frozenset(
        key
        for key in root
        if key in known
        or _SERVERS_HIDDEN.fullmatch(compacted(key))
        or _SERVERS_SHOWN.fullmatch(compacted(key))
        or compacted(key) in _TOOLS_HIDDEN
    )


def _rests(pattern: str, starts: Sequence[str]) -> Iterator[str]:
    """Yield what is left of a pattern after each of the texts with which it can begin."""
    seen = set()
    for start in starts:
        for rest in _after(pattern, start):
            if rest not in seen:
                seen.add(rest)
                yield rest


def _after(pattern: str, start: str) -> Iterator[str]:
    if not start:
        yield pattern
    elif pattern.startswith("*"):
        yield from _after(pattern[1:], start)
        if len(start) == 1:
            yield pattern
        else:
            yield from _after(pattern, start[1:])
    elif pattern and (pattern[0] == start[0] or pattern[0] == "?"):
        yield from _after(pattern[1:], start[1:])
