"""Translate keys and restrictions in server entries of other hosts, gateways and frameworks.

Restrictions become `allow`, `deny` or `disabled`. A restriction that cannot be read leaves the server out, because the
server would otherwise expose more than its owner intended.

This module is used to serve the file of a host directly, and by `typegate import`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from gateway.config.section import fault
from registry.schema.display_text import excerpt

# The restricting keys of typegate. An entry in which such a key is misspelt would not be restricted.
_NARROWING: Final = ("allow", "deny", "tools", "excludeMutations", "disabled", "validation")
# At this cutoff, difflib finds misspellings, but does not match keys that hosts actually use.
_MISSPELLING_CUTOFF: Final = 0.75
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
# Matches keys such as `allowed_tools`, `toolAllowlist` and `disabledPrompts` in lower case without separators.
_LISTED: Final = re.compile(
    rf"(?:(?P<shows>{_SHOWS})|(?P<hides>{_HIDES}))(?P<kind>{_KINDS}){_ENDING}|"
    rf"(?P<kind_first>{_KINDS})(?:(?P<shows_after>{_SHOWS})|(?P<hides_after>{_HIDES})){_ENDING}"
)
_SHOWS_ALONE: Final = re.compile(rf"{_SHOWS}(?:list)?")
_HIDES_ALONE: Final = re.compile(rf"{_HIDES}(?:list)?")
_FILTER: Final = re.compile(r"tools?filters?")
_SWITCHES: Final = {
    **dict.fromkeys(("enabled", "enable", "isactive", "isenabled", "active"), True),
    **dict.fromkeys(("isdisabled", "inactive", "off", "skip"), False),
}
# In an object of tools, these keys switch all tools on or off.
_ALL_TOOLS: Final = {**_SWITCHES, "disabled": False}
_OFF: Final = frozenset({"disabled", "inactive", "off"})
# Matches keys that list allowed tools, although they contain no word such as `allowed`. `tools` of Copilot is similar.
_NAMED: Final = re.compile(r"(?:mcp)?tool(?:names|list)|mcptools|functions|functionnames")
# Matches regular expressions and exclusions. typegate does not support them as patterns: they would match nothing.
_OTHER_PATTERN: Final = re.compile(r"[!-].*|/.*/\w*|.*(?:\.[*+]|[\^$\\|(]).*", re.DOTALL)
_SWITCH: Final[TypeAdapter[bool]] = TypeAdapter(bool)
# Keys that control whether a host asks its user before a call; `alwaysLoad`, a key of typegate, is excluded.
_APPROVALS: Final = re.compile(r"auto|always(?!load)|approv|confirm|trust|permissionmode")
_MAY_HIDE: Final = re.compile(
    r"(?:den(?:y|ied)|disallow|exclu|hid(?:e|den)|block|forbid|blacklist|restrict|prohibit|banned)"
)
_MAY_SHOW: Final = re.compile(r"(?:allow|include|whitelist|permit|only|expose|visible)")
_ABOUT_ITEMS: Final = re.compile(r"tool|prompt|resource|function")
_MAY_RESTRICT: Final = re.compile(
    r"access(?!token|key)|permissions?$|(?:^|e)acl$|rbac|readonly|safemode|sandbox|^roles?$|^rules?$|polic(?:y|ies)$|"
    r"^(?:tools?)?filters?$|tools?(?:names?)?(?:pattern|regex|glob|subset|selection)s?$"
)
# Deep enough for `options.toolFilter.list`. Deeper objects are data of other programs.
_DEPTH: Final = 3
# Maximum length of a quoted name in a message. Names of tools are shorter.
_MAX_QUOTED: Final = 80
_KEY_SEPARATORS: Final = str.maketrans("", "", "-_. ")
# Gemini CLI: `name(arguments)` denotes the tool `name`.
_WITH_ARGUMENTS: Final = re.compile(r"([^\s()]+)\(.*\)", re.DOTALL)
_REMOVE: Final = "allow, deny or tools.NAME.hidden instead of this key"


def translate_restrictions(entry: dict[str, Any], name: str = "") -> None:
    """Replace the restrictions of other programs in an entry with `allow`, `deny`, `tools` and `disabled`.

    Args:
        entry: The entry. It is modified.
        name: The name of the server, with which some programs prefix the names of its tools.

    Raises:
        PydanticCustomError: A restriction has an unknown form, or two restrictions cannot be combined.
    """
    _switch(entry)
    _tools(entry, name)
    for key in list(entry):
        compact = compacted(key)
        match = _LISTED.fullmatch(compact)
        if key in _NARROWING or _APPROVALS.search(compact):
            continue
        if match is not None:
            kind = _kind(match["kind"] or match["kind_first"])
            shows = bool(match["shows"] or match["shows_after"])
            if isinstance(value := entry.pop(key), bool):
                # `enableTools: false` and `disablePrompts: true` deny all items of a kind.
                if value is not shows:
                    deny(entry, kind, ["*"])
                continue
            names = _names(value, key)
            if shows:
                _allow(entry, kind, names, key)
            else:
                deny(entry, kind, _with_bare_names(names, name))
        elif _NAMED.fullmatch(compact):
            _allow(entry, "tools", _with_bare_names(_names(entry.pop(key), key), name), key)
        elif _FILTER.fullmatch(compact):
            _filter(entry, entry.pop(key), key)
        elif compact == "options" and isinstance(options := entry[key], dict):
            # The form of mcp-proxy.
            for inner in [inner for inner in options if _FILTER.fullmatch(compacted(inner))]:
                entry[key] = {each: value for each, value in options.items() if each != inner}
                _filter(entry, options[inner], f"{key}.{inner}")


def misread_restriction(key: str, value: Any) -> str | None:
    """Return what to write instead of an unknown key that may be a restriction; None for other keys."""
    similar = get_close_matches(key, _NARROWING, n=1, cutoff=_MISSPELLING_CUTOFF)
    if similar:
        return f"{similar[0]} (did you mean it?)"
    return _REMOVE if any(_restricting(key, value, _DEPTH)) else None


def restrict_allowed(entry: dict[str, Any], kind: str, names: list[str], key: str) -> None:
    """Restrict an entry to items that both its own `allow` and `names` match.

    Raises:
        PydanticCustomError: The patterns of the entry cannot be combined with `names`.
    """
    ours = _by_kind(entry.get("allow"), ("tools",))
    if ours is not None and isinstance(allowed := ours.get(kind), list):
        plain = [name for name in names if not set(name) & set("*?[")]
        if len(plain) != len(names) or any(set(str(name)) & set("*?[") for name in allowed):
            raise fault("cannot be combined with allow", "one of the two", key=key)
        entry["allow"] = {**ours, kind: [name for name in allowed if name in plain]}
        return
    _allow(entry, kind, names, key)


def deny(entry: dict[str, Any], kind: str, names: list[str]) -> None:
    """Add patterns to `deny` of an entry."""
    ours = entry.get("deny")
    if ours is None:
        entry["deny"] = {kind: names}
        return
    by_kind = _by_kind(ours, ("tools", "prompts", "resources"))
    # A `deny` in another form is invalid, which is reported when the entry is validated.
    if by_kind is not None and isinstance(denied := by_kind.get(kind) or [], list):
        entry["deny"] = {**by_kind, kind: [*denied, *(name for name in names if name not in denied)]}


def compacted(key: str) -> str:
    """Return a key in lower case without separators, which differ between programs."""
    return key.casefold().translate(_KEY_SEPARATORS)


def _switch(entry: dict[str, Any]) -> None:
    for key in list(entry):
        if (on := _SWITCHES.get(compacted(key))) is None:
            continue
        if _read_boolean(entry.pop(key), key) is not on:
            entry["disabled"] = True
        else:
            entry.setdefault("disabled", False)
    for key in ("state", "status"):
        if isinstance(state := entry.get(key), str) and state.casefold() in _OFF:
            entry["disabled"] = True


def _tools(entry: dict[str, Any], name: str) -> None:
    """Read `tools`: the key of typegate, a list (Copilot), or an object with switches (mcphub, FastMCP, Codex)."""
    tools = entry.get("tools")
    if tools == "*":
        del entry["tools"]
    elif isinstance(tools, list):
        names = _names(entry.pop("tools"), "tools")
        if "*" not in names:
            _allow(entry, "tools", names, "tools")
    elif isinstance(tools, dict):
        tool_entries: dict[str, Any] = {}
        hidden: list[str] = []
        allowed: list[str] = []
        for tool, tool_entry in tools.items():
            if isinstance(tool_entry, bool) and (on := _ALL_TOOLS.get(compacted(tool))) is not None:
                if tool_entry is not on:
                    hidden.append("*")
                continue
            switches, settings = _switches_of(tool, tool_entry)
            if settings:
                tool_entries[tool] = settings
            if switches:
                (allowed if all(switches) else hidden).append(tool)
        if "*" in hidden:
            _allow(entry, "tools", _with_bare_names(allowed, name), "tools")
            hidden.remove("*")
        if hidden:
            deny(entry, "tools", _with_bare_names(hidden, name))
        if tool_entries or not tools:
            entry["tools"] = tool_entries
        else:
            del entry["tools"]


def _switches_of(tool: str, entry: Any) -> tuple[list[bool], Any]:
    """Return the switches in the entry of a tool, each true if it shows the tool, and the remaining keys."""
    if isinstance(entry, int):
        return [bool(entry)], None
    if not isinstance(entry, dict):
        return [], entry
    settings = {key: value for key, value in entry.items() if not _APPROVALS.search(compacted(key))}
    switches: list[bool] = []
    for key in list(settings):
        compact = compacted(key)
        if compact in _SWITCHES or compact == "disabled":
            on = _read_boolean(settings.pop(key), f"tools.{tool}.{key}")
            switches.append(on is _SWITCHES.get(compact, False))
    return switches, settings or (None if switches or entry else settings)


def _filter(entry: dict[str, Any], value: Any, key: str) -> None:
    """Read a filter of tools: `[...]`, `{mode: allow | block, list: [...]}`, or an object with allow and deny lists."""
    if value is None:
        return
    if isinstance(value, list):
        _allow(entry, "tools", _names(value, key), key)
        return
    unknown_form = fault("is a filter of an unknown form", _REMOVE, key=key)
    if not isinstance(value, dict):
        raise unknown_form
    by_word = {compacted(each): each for each in value}
    if (mode := by_word.get("mode")) is not None:
        word, [listed] = compacted(str(value[mode])), [each for each in value if each != mode] or [""]
        read = {word: listed} if listed else {}
    else:
        read = by_word
    if not read:
        raise unknown_form
    for word, list_key in read.items():
        names = _names(value[list_key], f"{key}.{list_key}")
        if _SHOWS_ALONE.fullmatch(word):
            _allow(entry, "tools", names, f"{key}.{list_key}")
        elif _HIDES_ALONE.fullmatch(word):
            deny(entry, "tools", names)
        else:
            raise unknown_form


def _allow(entry: dict[str, Any], kind: str, names: list[str], key: str) -> None:
    ours = entry.get("allow")
    if ours is None:
        entry["allow"] = names if kind == "tools" else {kind: names}
        return
    by_kind = _by_kind(ours, ("tools",))
    if by_kind is None or by_kind.get(kind) is not None:
        raise fault("cannot be combined with allow", "one of the two", key=key)
    entry["allow"] = {**by_kind, kind: names}


def _by_kind(ours: Any, kinds: tuple[str, ...]) -> dict[str, Any] | None:
    if isinstance(ours, list):
        return dict.fromkeys(kinds, ours)
    return ours if isinstance(ours, dict) else None


def _names(value: Any, key: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise fault("is not a list of names", "a list of tool names", key=key)
    names = [match[1] if (match := _WITH_ARGUMENTS.fullmatch(name)) else name.strip() for name in value]
    if unsupported := next((name for name in names if "://" not in name and _OTHER_PATTERN.fullmatch(name)), None):
        raise fault(f"has a pattern of another kind ({excerpt(unsupported, _MAX_QUOTED)})", "names and `*`", key=key)
    return names


def _with_bare_names(names: list[str], server: str) -> list[str]:
    """Return the names and, for each name that mcphub has prefixed with the server's name, also the bare name."""
    all_names = list(names)
    plain = re.sub(r"[^A-Za-z0-9_]", "_", server)
    prefixes = [f"{before}{form}" for form in (server, plain) if form for before in ("", "mcp__", "mcp_")]
    for name in names:
        for prefix in prefixes:
            bare_name = name.removeprefix(prefix)
            if (
                bare_name != name
                and (bare := bare_name.lstrip("-_:./"))
                and bare != bare_name
                and bare not in all_names
            ):
                all_names.append(bare)
    return all_names


def _kind(word: str) -> str:
    word = word.removeprefix("mcp")
    return "prompts" if word.startswith("prompt") else "resources" if word.startswith("resource") else "tools"


def _read_boolean(value: Any, key: str) -> bool:
    try:
        return _SWITCH.validate_python(value)
    except ValidationError:
        raise fault("is not true or false", "true or false", key=key) from None


def _restricting(key: str, value: Any, depth: int, *, within: str = "") -> Iterator[bool]:
    """Yield True for each indication that a key restricts something."""
    compact = compacted(key)
    if _APPROVALS.search(compact):
        return
    items = _ABOUT_ITEMS.search(within + compact)
    if _MAY_HIDE.match(compact) or (items and re.search(_HIDES, compact)):
        yield True
    # A key such as `allowInsecure: true` does not restrict anything.
    if value is not True and (_MAY_SHOW.match(compact) or (items and re.search(_SHOWS, compact))):
        yield True
    if _MAY_RESTRICT.search(compact) and value not in (False, "", [], {}):
        yield True
    if isinstance(value, Mapping) and depth > 1:
        for inner, member in value.items():
            if items and compacted(str(inner)) in _SWITCHES and member is not True:
                yield True
            if member is False and _ABOUT_ITEMS.search(compacted(str(inner))):
                yield True
            yield from _restricting(str(inner), member, depth - 1, within=within + compact)


TOLERATED: Final = frozenset({"alwaysAllow", "autoApprove", "trust"})
"""Keys that let a host make calls without asking its user. They have no meaning for the gateway."""
# Types of OpenCode and Copilot CLI, and spellings of Streamable HTTP in Cline, Roo Code, LibreChat and others.
_TYPES: Final = {
    "local": "stdio",
    "remote": "http",
    "streamable": "http",
    "streamablehttp": "http",
    "httpstream": "http",
    "httpstreaming": "http",
}
_SEPARATORS: Final = str.maketrans("", "", "-_ ")
# Claude Code: a shell command that prints headers.
_HELPER: Final = re.compile(r"(?:http)?headers?(?:helper|script|provider)")
_WITHOUT_PLACEHOLDERS: Final = re.compile(r"\$\{[^{}]*\}")
_OF_A_SHELL: Final = re.compile(r"[|&;<>()`$*?~#]")
# Keys of `oauth` in Claude Code, Gemini CLI, Qwen Code, OpenCode, Codex and LibreChat, and of `auth` in Cursor.
_CLIENT: Final = {"clientid": "clientId", "clientsecret": "clientSecret", "issuer": "issuer", "resource": "resource"}
_SCOPES: Final = ("scopes", "scope", "oauthscopes")
# The URL of an issuer's metadata. Source: RFC 8414, section 3, and OpenID Connect Discovery.
_METADATA: Final = re.compile(r"(https?://[^/?#]+)/\.well-known/oauth-authorization-server(/[^?#]*)?")
_OPENID: Final = "/.well-known/openid-configuration"
# Keys that Copilot CLI and Codex use in the entry itself instead of in `oauth`.
_BESIDE: Final = {"oauthclientid": "clientId", "oauthclientsecret": "clientSecret", "oauthresource": "resource"}
# LiteLLM: the header that contains `auth_value`, and the prefix of the value, by type.
_SENT: Final = {
    "bearertoken": ("Authorization", "Bearer "),
    "basic": ("Authorization", "Basic "),
    "authorization": ("Authorization", ""),
    "apikey": ("x-api-key", ""),
}
# `timeout` is in milliseconds in Gemini CLI, Qwen Code, Amazon Q and OpenCode, and in seconds in Cline and Roo Code,
# whose users choose the value from a list. Values from 1,000 are taken as milliseconds.
_FEWEST_MS: Final = 1_000
# The values above 1,000 in the lists of Cline and Roo Code, which are in seconds.
_LONG_IN_SECONDS: Final = frozenset({1_200, 1_800, 3_600})
# In OpenCode, `timeout` limits list requests. It becomes `callTimeout` only if it exceeds the default of that key.
_USUAL_S: Final = 60
# The maximum of `callTimeout`. In files of hosts, larger values mean "never".
_MAX_S: Final = 86_400


def translate_entry(entry: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """Translate an entry of any host into the keys of typegate, including its restrictions.

    Args:
        entry: The entry. It is not modified.
        name: The name of the server.

    Raises:
        PydanticCustomError: A restriction has an unknown form, or two restrictions cannot be combined.
    """
    translated = {key: value for key, value in entry.items() if value is not None and key not in TOLERATED}
    _connection(translated)
    _sign_in(translated)
    translate_restrictions(translated, name)
    return translated


def is_opencode_entry(entry: Mapping[str, Any]) -> bool:
    """Return true if an entry is in the form of OpenCode, whose placeholders have no dollar sign."""
    return entry.get("type") in ("local", "remote")


def _connection(entry: dict[str, Any]) -> None:
    # Gemini CLI: `httpUrl` takes precedence over `url`, which is the address of the older SSE transport.
    if "httpUrl" in entry:
        entry["url"] = entry.pop("httpUrl")
    # Windsurf.
    if "serverUrl" in entry and "url" not in entry:
        entry["url"] = entry.pop("serverUrl")
    # OpenCode.
    is_opencode = is_opencode_entry(entry)
    if isinstance(environment := entry.get("environment"), dict) and isinstance(entry.get("env", {}), dict):
        entry["env"] = {**environment, **entry.get("env", {})}
        del entry["environment"]
    for theirs in ("transport", "transportType"):
        if isinstance(entry.get(theirs), str) and "type" not in entry:
            entry["type"] = entry.pop(theirs)
    if isinstance(kind := entry.get("type"), str):
        entry["type"] = _TYPES.get(kind.casefold().translate(_SEPARATORS), kind)
    command = entry.get("command")
    if is_opencode and isinstance(command, list) and command and isinstance(entry.get("args", []), list):
        entry["command"], entry["args"] = command[0], [*command[1:], *entry.get("args", [])]
    if entry.get("cwd") == "":
        del entry["cwd"]
    timeout = entry.get("timeout")
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0:
        del entry["timeout"]
        seconds = timeout if timeout < _FEWEST_MS or timeout in _LONG_IN_SECONDS else timeout / 1000
        if not is_opencode or seconds > _USUAL_S:
            entry.setdefault("callTimeout", min(int(seconds) if seconds == int(seconds) else seconds, _MAX_S))


def _sign_in(entry: dict[str, Any]) -> None:
    """Read how a host obtains the credentials of a server: from a program, by OAuth, or from a fixed value."""
    by_word = {key.casefold().translate(_SEPARATORS): key for key in entry}
    for word in [word for word in by_word if _HELPER.fullmatch(word)]:
        helper = entry.pop(by_word[word])
        if isinstance(helper, str) and _OF_A_SHELL.search(_WITHOUT_PLACEHOLDERS.sub("", helper)):
            helper = ["sh", "-c", helper]
        entry.setdefault("headersCommand", helper)
    _sent_value(entry, by_word)
    auth = entry.get("auth")
    is_of_cursor = isinstance(auth, dict) and "CLIENT_ID" in auth
    oauth: dict[str, Any] = {}
    for key in ("oauth", "oauth2", "auth") if is_of_cursor else ("oauth", "oauth2"):
        value = entry.pop(key, None)
        if value is False or (isinstance(value, dict) and value.get("enabled") is False):
            entry.setdefault("auth", {"type": "none"})
            return
        oauth |= value if isinstance(value, dict) else {}
    oauth |= {ours: entry.pop(by_word[theirs]) for theirs, ours in _BESIDE.items() if theirs in by_word}
    if "oauthscopes" in by_word:
        oauth["scopes"] = entry.pop(by_word["oauthscopes"])
    authorized = any(name.casefold() == "authorization" for name in _as_object(entry.get("headers")))
    # A fixed header, or a program that prints headers, takes precedence over a sign-in.
    if oauth and "auth" not in entry and "headersCommand" not in entry and not authorized:
        entry["auth"] = _client(oauth)


def _sent_value(entry: dict[str, Any], by_word: Mapping[str, str]) -> None:
    """Read the credentials and headers of LiteLLM."""
    headers = dict(_as_object(entry.get("headers")))
    if isinstance(static := entry.get("static_headers"), dict):
        del entry["static_headers"]
        headers = {**static, **headers}
    kind = str(entry.get(by_word.get("authtype", ""), "")).casefold().translate(_SEPARATORS)
    value = entry.get("auth_value", entry.get("authentication_token"))
    if kind in _SENT and isinstance(value, str):
        name, before = _SENT[kind]
        headers.setdefault(name, value if value.startswith(before) else before + value)
    if kind in _SENT or kind == "none":
        for key in (by_word["authtype"], "auth_value", "authentication_token"):
            entry.pop(key, None)
    if headers:
        entry["headers"] = headers


def _client(oauth: Mapping[str, Any]) -> dict[str, Any]:
    """Return `auth` in the form of typegate. Endpoints are dropped, because the server's metadata names them."""
    client: dict[str, Any] = {"type": "oauth"}
    for key, value in oauth.items():
        word = key.casefold().translate(_SEPARATORS)
        if value is None:
            continue
        if word in _CLIENT:
            client[_CLIENT[word]] = value
        elif word in _SCOPES and value:
            client["scopes"] = value
        elif word in ("authservermetadataurl", "metadataurl") and isinstance(value, str):
            placed = _METADATA.fullmatch(value)
            client["issuer"] = placed[1] + (placed[2] or "") if placed else value.removesuffix(_OPENID)
        elif word == "granttype" and value == "client_credentials":
            client["type"] = "clientCredentials"
    return client


def _as_object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
