"""Words that hosts have of their own in the entry of a server, put into those that all others use.

One place for both ways in: a host's file that is served as it is, and one that is imported. In order: the words of the
connection, of the sign-in, and those that restrict which tools are used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from gateway.config.host_restrictions import put_restrictions_into_our_words

TOLERATED: Final = frozenset({"alwaysAllow", "autoApprove", "trust"})
"""What a host may do without asking its user: a matter between the two."""
# OpenCode and Copilot CLI; the Streamable HTTP transport as Cline, Roo Code, LibreChat and others write it.
_TYPES: Final = {
    "local": "stdio",
    "remote": "http",
    "streamable": "http",
    "streamablehttp": "http",
    "httpstream": "http",
    "httpstreaming": "http",
}
_SEPARATORS: Final = str.maketrans("", "", "-_ ")
# Claude Code: a command of the shell that prints headers.
_HELPER: Final = re.compile(r"(?:http)?headers?(?:helper|script|provider)")
_WITHOUT_PLACEHOLDERS: Final = re.compile(r"\$\{[^{}]*\}")
_OF_A_SHELL: Final = re.compile(r"[|&;<>()`$*?~#]")
# Keys of `oauth` in Claude Code, Gemini CLI, Qwen Code, OpenCode, Codex and LibreChat, and of `auth` in Cursor.
_CLIENT: Final = {"clientid": "clientId", "clientsecret": "clientSecret", "issuer": "issuer", "resource": "resource"}
_SCOPES: Final = ("scopes", "scope", "oauthscopes")
# Where the metadata of an issuer are; source: RFC 8414, section 3, and OpenID Connect Discovery.
_METADATA: Final = re.compile(r"(https?://[^/?#]+)/\.well-known/oauth-authorization-server(/[^?#]*)?")
_OPENID: Final = "/.well-known/openid-configuration"
# Copilot CLI and Codex, in the entry itself.
_BESIDE: Final = {"oauthclientid": "clientId", "oauthclientsecret": "clientSecret", "oauthresource": "resource"}
# LiteLLM: how `auth_value` is sent.
_SENT: Final = {
    "bearertoken": ("Authorization", "Bearer "),
    "basic": ("Authorization", "Basic "),
    "authorization": ("Authorization", ""),
    "apikey": ("x-api-key", ""),
}
# Gemini CLI, Qwen Code, Amazon Q and OpenCode have milliseconds in `timeout`; Cline and Roo Code seconds, which their
# users choose from a list. Nobody gives a server less than a second.
_FEWEST_MS: Final = 1_000
_LONG_IN_SECONDS: Final = frozenset({1_200, 1_800, 3_600})
# Of OpenCode it is the limit of lists; calls have the usual one, unless this is longer.
_USUAL_S: Final = 60
# The longest that a key of ours may say; a host's "never" is longer.
_MAX_S: Final = 86_400


def in_common_words(entry: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """The same entry as most hosts would write it; what is theirs alone and hides tools hides them here.

    Args:
        entry: The entry.
        name: The name of the server.

    Raises:
        PydanticCustomError: It says one thing twice, or restricts something in a form that is not known.
    """
    said = {key: value for key, value in entry.items() if value is not None and key not in TOLERATED}
    _connection(said)
    _sign_in(said)
    put_restrictions_into_our_words(said, name)
    return said


def is_local_or_remote(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is in the words of OpenCode, whose placeholders have no dollar."""
    return entry.get("type") in ("local", "remote")


def _connection(said: dict[str, Any]) -> None:
    # Gemini CLI, where `url` beside it is the address of the older transport.
    if "httpUrl" in said:
        said["url"] = said.pop("httpUrl")
    # Windsurf.
    if "serverUrl" in said and "url" not in said:
        said["url"] = said.pop("serverUrl")
    # OpenCode.
    is_opencode = is_local_or_remote(said)
    if isinstance(environment := said.get("environment"), dict) and isinstance(said.get("env", {}), dict):
        said["env"] = {**environment, **said.get("env", {})}
        del said["environment"]
    for theirs in ("transport", "transportType"):
        if isinstance(said.get(theirs), str) and "type" not in said:
            said["type"] = said.pop(theirs)
    if isinstance(kind := said.get("type"), str):
        said["type"] = _TYPES.get(kind.casefold().translate(_SEPARATORS), kind)
    command = said.get("command")
    if is_opencode and isinstance(command, list) and command and isinstance(said.get("args", []), list):
        said["command"], said["args"] = command[0], [*command[1:], *said.get("args", [])]
    if said.get("cwd") == "":
        del said["cwd"]
    timeout = said.get("timeout")
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0:
        del said["timeout"]
        seconds = timeout if timeout < _FEWEST_MS or timeout in _LONG_IN_SECONDS else timeout / 1000
        if not is_opencode or seconds > _USUAL_S:
            said.setdefault("callTimeout", min(int(seconds) if seconds == int(seconds) else seconds, _MAX_S))


def _sign_in(said: dict[str, Any]) -> None:
    """Read how a host gets the credentials of a server: by a program, by OAuth, or from a value of its own."""
    by_word = {key.casefold().translate(_SEPARATORS): key for key in said}
    for word in [word for word in by_word if _HELPER.fullmatch(word)]:
        helper = said.pop(by_word[word])
        if isinstance(helper, str) and _OF_A_SHELL.search(_WITHOUT_PLACEHOLDERS.sub("", helper)):
            helper = ["sh", "-c", helper]
        said.setdefault("headersCommand", helper)
    _sent_value(said, by_word)
    auth = said.get("auth")
    is_of_cursor = isinstance(auth, dict) and "CLIENT_ID" in auth
    oauth: dict[str, Any] = {}
    for key in ("oauth", "oauth2", "auth") if is_of_cursor else ("oauth", "oauth2"):
        written = said.pop(key, None)
        if written is False or (isinstance(written, dict) and written.get("enabled") is False):
            said.setdefault("auth", {"type": "none"})
            return
        oauth |= written if isinstance(written, dict) else {}
    oauth |= {ours: said.pop(by_word[theirs]) for theirs, ours in _BESIDE.items() if theirs in by_word}
    if "oauthscopes" in by_word:
        oauth["scopes"] = said.pop(by_word["oauthscopes"])
    authorized = any(name.casefold() == "authorization" for name in _object(said.get("headers")))
    # A header that is written out, or printed, counts before a sign-in.
    if oauth and "auth" not in said and "headersCommand" not in said and not authorized:
        said["auth"] = _client(oauth)


def _sent_value(said: dict[str, Any], by_word: Mapping[str, str]) -> None:
    """Read the credentials and headers of LiteLLM."""
    headers = dict(_object(said.get("headers")))
    if isinstance(static := said.get("static_headers"), dict):
        del said["static_headers"]
        headers = {**static, **headers}
    kind = str(said.get(by_word.get("authtype", ""), "")).casefold().translate(_SEPARATORS)
    value = said.get("auth_value", said.get("authentication_token"))
    if kind in _SENT and isinstance(value, str):
        name, before = _SENT[kind]
        headers.setdefault(name, value if value.startswith(before) else before + value)
    if kind in _SENT or kind == "none":
        for key in (by_word["authtype"], "auth_value", "authentication_token"):
            said.pop(key, None)
    if headers:
        said["headers"] = headers


def _client(oauth: Mapping[str, Any]) -> dict[str, Any]:
    """Return `auth` as ours has it; endpoints are found by the metadata of the server."""
    found: dict[str, Any] = {"type": "oauth"}
    for key, value in oauth.items():
        word = key.casefold().translate(_SEPARATORS)
        if value is None:
            continue
        if word in _CLIENT:
            found[_CLIENT[word]] = value
        elif word in _SCOPES and value:
            found["scopes"] = value
        elif word in ("authservermetadataurl", "metadataurl") and isinstance(value, str):
            placed = _METADATA.fullmatch(value)
            found["issuer"] = placed[1] + (placed[2] or "") if placed else value.removesuffix(_OPENID)
        elif word == "granttype" and value == "client_credentials":
            found["type"] = "clientCredentials"
    return found


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
