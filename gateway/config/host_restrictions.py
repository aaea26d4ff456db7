"""Restrictions in the entry of a server, in the words of hosts, gateways and frameworks.

A restriction that is read becomes `allow`, `deny` or `disabled`. One that cannot be read leaves the server out, since
without it the server would offer more than its owner wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from gateway.config.section import fault

# Our keys that narrow what a server shows. An entry with a misspelt key would show everything.
_NARROWING: Final = ("allow", "deny", "tools", "excludeMutations", "disabled", "validation")
# Close enough to be a slip, far enough from keys that hosts really have.
_SLIP: Final = 0.75
_SHOWS: Final = (
    r"(?:allow(?:ed|s)?(?:list)?|include[ds]?|enable[ds]?|whitelist(?:ed)?|permit(?:ted)?|only|available|"
    r"expose[ds]?|select(?:ed)?|visible|active|show(?:n)?)"
)
_HIDES: Final = (
    r"(?:den(?:y|ied)(?:list)?|disallow(?:ed)?(?:list)?|exclude[ds]?|disable[ds]?|block(?:ed|list(?:ed)?)?|"
    r"blacklist(?:ed)?|hid(?:e|den)|forbid(?:den)?|ban(?:ned)?|ignore[ds]?|omit(?:ted)?|reject(?:ed)?|"
    r"prohibit(?:ed)?|restrict(?:ed)?)"
)
_KINDS: Final = r"(?:mcp)?(?:tools?|functions?|prompts?|resources?|resourcetemplates?)"
_ENDING: Final = r"(?:names?|list|patterns?)?"
# `allowed_tools`, `toolAllowlist` and `disabledPrompts`, without their capitals and separators.
_LISTED: Final = re.compile(
    rf"(?:(?P<shows>{_SHOWS})|(?P<hides>{_HIDES}))(?P<kind>{_KINDS}){_ENDING}|"
    rf"(?P<kind_first>{_KINDS})(?:(?P<shows_after>{_SHOWS})|(?P<hides_after>{_HIDES})){_ENDING}"
)
_SHOWS_ALONE: Final = re.compile(rf"{_SHOWS}(?:list)?")
_HIDES_ALONE: Final = re.compile(rf"{_HIDES}(?:list)?")
_FILTER: Final = re.compile(r"tools?filters?")
_SWITCHES: Final = {"enabled": True, "isactive": True, "isenabled": True, "active": True, "isdisabled": False}
_SWITCH: Final[TypeAdapter[bool]] = TypeAdapter(bool)
# Keys about consent: whether a host asks its user before a call. `alwaysLoad` is a key of ours.
_APPROVALS: Final = re.compile(r"auto|always(?!load)|approv|confirm|trust|permissionmode")
_MAY_HIDE: Final = re.compile(
    r"(?:den(?:y|ied)|disallow|exclu|hid(?:e|den)|block|forbid|blacklist|restrict|prohibit|banned)"
)
_MAY_SHOW: Final = re.compile(r"(?:allow|include|whitelist|permit|only|expose|visible)")
_ABOUT_ITEMS: Final = re.compile(r"tool|prompt|resource|function")
_MAY_RESTRICT: Final = re.compile(r"access(?!token|key)|permissions?$|(?:^|e)acl$|rbac|readonly$|sandbox")
# Deep enough for `options.toolFilter.list`; deeper objects are data of other programs.
_DEPTH: Final = 3
_SEPARATORS: Final = str.maketrans("", "", "-_. ")
# Gemini CLI: `name(arguments)` names the tool.
_WITH_ARGUMENTS: Final = re.compile(r"([^\s()]+)\(.*\)", re.DOTALL)
_REMOVE: Final = "allow, deny or tools.NAME.hidden for what is to be hidden, and this key removed"


def put_restrictions_into_our_words(said: dict[str, Any], name: str = "") -> None:
    """Replace the restrictions of other programs in an entry by `allow`, `deny`, `tools` and `disabled`.

    Args:
        said: The entry; it is changed.
        name: The name of the server, which some programs put before the names of its tools.

    Raises:
        PydanticCustomError: A restriction has a form that is not known, or two contradict each other.
    """
    _switch(said)
    _tools(said, name)
    for key in list(said):
        compact = compacted(key)
        found = _LISTED.fullmatch(compact)
        if key in _NARROWING or _APPROVALS.search(compact):
            continue
        if found is not None:
            kind = _kind(found["kind"] or found["kind_first"])
            shows = bool(found["shows"] or found["shows_after"])
            if isinstance(value := said.pop(key), bool):
                # `enableTools: false` and `disablePrompts: true` are about all of a kind.
                if value is not shows:
                    deny(said, kind, ["*"])
                continue
            names = _names(value, key)
            if shows:
                _allow(said, kind, names, key)
            else:
                deny(said, kind, _with_bare_names(names, name))
        elif _FILTER.fullmatch(compact):
            _filter(said, said.pop(key), key)
        elif compact == "options" and isinstance(options := said[key], dict):
            # mcp-proxy.
            for inner in [inner for inner in options if _FILTER.fullmatch(compacted(inner))]:
                said[key] = {each: value for each, value in options.items() if each != inner}
                _filter(said, options[inner], f"{key}.{inner}")


def misread_restriction(key: str, value: Any) -> str | None:
    """Return what to write instead of an unknown key that may restrict something; None for other keys."""
    meant = get_close_matches(key, _NARROWING, n=1, cutoff=_SLIP)
    if meant:
        return f"{meant[0]} (did you mean it?)"
    return _REMOVE if any(_restricting(key, value, _DEPTH)) else None


def allow_too(said: dict[str, Any], kind: str, names: list[str], key: str) -> None:
    """Show only what both the entry and these patterns show.

    Raises:
        PydanticCustomError: The entry has patterns that cannot be combined with these.
    """
    ours = _by_kind(said.get("allow"), ("tools",))
    if ours is not None and isinstance(known := ours.get(kind), list):
        plain = [name for name in names if not set(name) & set("*?[")]
        if len(plain) != len(names) or any(set(str(name)) & set("*?[") for name in known):
            raise fault("stands beside allow", "one of the two", key=key)
        said["allow"] = {**ours, kind: [name for name in known if name in plain]}
        return
    _allow(said, kind, names, key)


def deny(said: dict[str, Any], kind: str, names: list[str]) -> None:
    """Add patterns to what an entry denies."""
    ours = said.get("deny")
    if ours is None:
        said["deny"] = {kind: names}
        return
    by_kind = _by_kind(ours, ("tools", "prompts", "resources"))
    # Where it has another form, its own error is reported when the entry is checked.
    if by_kind is not None and isinstance(known := by_kind.get(kind) or [], list):
        said["deny"] = {**by_kind, kind: [*known, *(name for name in names if name not in known)]}


def compacted(key: str) -> str:
    """Return a key without capitals and separators, which every program sets in its own way."""
    return key.casefold().translate(_SEPARATORS)


def _switch(said: dict[str, Any]) -> None:
    for key in list(said):
        if (on := _SWITCHES.get(compacted(key))) is None:
            continue
        if _boolean(said.pop(key), key) is not on:
            said["disabled"] = True
        else:
            said.setdefault("disabled", False)
    if isinstance(state := said.get("state"), str) and state.casefold() in ("disabled", "inactive", "off"):
        said["disabled"] = True


def _tools(said: dict[str, Any], name: str) -> None:
    """Read `tools`, which is ours, a list (Copilot), or an object with switches (mcphub, FastMCP, Codex)."""
    tools = said.get("tools")
    if tools == "*":
        del said["tools"]
    elif isinstance(tools, list):
        names = _names(said.pop("tools"), "tools")
        if "*" not in names:
            _allow(said, "tools", names, "tools")
    elif isinstance(tools, dict):
        kept: dict[str, Any] = {}
        hidden: list[str] = []
        shown: list[str] = []
        for tool, one in tools.items():
            switches, rest = _switches_of(tool, one)
            if rest:
                kept[tool] = rest
            if switches:
                (shown if all(switches) else hidden).append(tool)
        if "*" in hidden:
            _allow(said, "tools", _with_bare_names(shown, name), "tools")
            hidden.remove("*")
        if hidden:
            deny(said, "tools", _with_bare_names(hidden, name))
        if kept or not tools:
            said["tools"] = kept
        else:
            del said["tools"]


def _switches_of(tool: str, said: Any) -> tuple[list[bool], Any]:
    """Return whether a tool is shown, as often as it is said, and the rest of what is said of it."""
    if isinstance(said, bool):
        return [said], None
    if not isinstance(said, dict):
        return [], said
    rest = {key: value for key, value in said.items() if not _APPROVALS.search(compacted(key))}
    switches: list[bool] = []
    for key in list(rest):
        compact = compacted(key)
        if compact in _SWITCHES or compact == "disabled":
            on = _boolean(rest.pop(key), f"tools.{tool}.{key}")
            switches.append(on is _SWITCHES.get(compact, False))
    return switches, rest or (None if switches or said else rest)


def _filter(said: dict[str, Any], value: Any, key: str) -> None:
    """Read a filter of tools: `[...]`, `{mode: allow | block, list: [...]}`, or lists for what it allows and denies."""
    if value is None:
        return
    if isinstance(value, list):
        _allow(said, "tools", _names(value, key), key)
        return
    wrong = fault("is a filter of a form that is not known", _REMOVE, key=key)
    if not isinstance(value, dict):
        raise wrong
    by_word = {compacted(each): each for each in value}
    if (mode := by_word.get("mode")) is not None:
        word, [listed] = compacted(str(value[mode])), [each for each in value if each != mode] or [""]
        read = {word: listed} if listed else {}
    else:
        read = by_word
    if not read:
        raise wrong
    for word, named in read.items():
        names = _names(value[named], f"{key}.{named}")
        if _SHOWS_ALONE.fullmatch(word):
            _allow(said, "tools", names, f"{key}.{named}")
        elif _HIDES_ALONE.fullmatch(word):
            deny(said, "tools", names)
        else:
            raise wrong


def _allow(said: dict[str, Any], kind: str, names: list[str], key: str) -> None:
    ours = said.get("allow")
    if ours is None:
        said["allow"] = names if kind == "tools" else {kind: names}
        return
    by_kind = _by_kind(ours, ("tools",))
    if by_kind is None or by_kind.get(kind) is not None:
        raise fault("stands beside allow", "one of the two", key=key)
    said["allow"] = {**by_kind, kind: names}


def _by_kind(ours: Any, kinds: tuple[str, ...]) -> dict[str, Any] | None:
    if isinstance(ours, list):
        return dict.fromkeys(kinds, ours)
    return ours if isinstance(ours, dict) else None


def _names(value: Any, key: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise fault("is no list of names", "the names of tools", key=key)
    return [found[1] if (found := _WITH_ARGUMENTS.fullmatch(name)) else name for name in value]


def _with_bare_names(names: list[str], server: str) -> list[str]:
    """Add the names without that of the server before them, as mcphub and others write them."""
    found = list(names)
    for name in names:
        rest = name.removeprefix(server)
        if server and rest != name and (bare := rest.lstrip("-_:./")) and bare != rest and bare not in found:
            found.append(bare)
    return found


def _kind(word: str) -> str:
    word = word.removeprefix("mcp")
    return "prompts" if word.startswith("prompt") else "resources" if word.startswith("resource") else "tools"


def _boolean(value: Any, key: str) -> bool:
    try:
        return _SWITCH.validate_python(value)
    except ValidationError:
        raise fault("is not true or false", "true or false", key=key) from None


def _restricting(key: str, value: Any, depth: int, *, within: str = "") -> Iterator[bool]:
    """Yield True for each sign that a key restricts something."""
    compact = compacted(key)
    if _APPROVALS.search(compact):
        return
    items = _ABOUT_ITEMS.search(within + compact)
    if _MAY_HIDE.match(compact) or (items and re.search(_HIDES, compact)):
        yield True
    # `allowInsecure: true` opens something, and restricts nothing.
    if value is not True and (_MAY_SHOW.match(compact) or (items and re.search(_SHOWS, compact))):
        yield True
    if _MAY_RESTRICT.search(compact) and value not in (False, "", [], {}):
        yield True
    if isinstance(value, Mapping) and depth > 1:
        for inner, one in value.items():
            if items and compacted(str(inner)) in _SWITCHES and one is not True:
                yield True
            yield from _restricting(str(inner), one, depth - 1, within=within + compact)
