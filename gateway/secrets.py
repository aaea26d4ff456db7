"""Configured secrets: which values of a configuration are secret, and texts without them.

Whatever an upstream says of a failure may repeat what it was sent, and such texts reach callers, administrators and the
log. Results of successful calls are passed on as they came: they are data, and may be large (the hook `redact` looks
into them where that is wanted).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from gateway import wire
from gateway.errors import GatewayError, RpcError

ErrorT = TypeVar("ErrorT", bound=GatewayError)

HIDDEN: Final = "[hidden]"
"""What stands in a text instead of a secret."""
# Below this, removing a value would spoil more words than it hides.
_MIN_CHARS: Final = 4
# Values that only may be secret have to be longer: credentials in use have at least 8 characters.
_MIN_LIKELY_CHARS: Final = 8
# Shorter parts of a path are names; tokens in URLs have at least 20 characters.
_MIN_PATH_CHARS: Final = 20
# Above the most that one configuration holds, each with its forms; servers that were removed are forgotten first.
_MAX_FORMS: Final = 50_000
# A text about a token is told soon after it was replaced: the one before, and the one before that.
_GENERATIONS: Final = 3
# Servers, each with what it is signed in to with.
_MAX_OWNERS: Final = 10_000
# Looking for one form takes a tenth of a microsecond in a short text; a look at each of its characters takes twelve.
_FEW_FORMS: Final = 128
# In 64 KiB, looking for one takes about ten: a third of a millisecond in all, and 5 ms for each megabyte.
_VERY_FEW_FORMS: Final = 32
# Definitions that are written, and searched, within a millisecond.
_LOOKED_AT_ONCE: Final = 200
# A value deeper than any message may be nested has nothing more to hide below.
_MAX_DEPTH: Final = 100
_SECRET_WORD: Final = re.compile(
    r"token|secret|passw|passphrase|credential|api[_-]?key|authorization|cookie|bearer|jwt"
    r"|(?:^|_)(?:auth|pass|pwd|pat)(?:_|$)"
    r"|(?:^|_)(?:access|private|signing|encryption|master|service|client|subscription|license|account|shared)_?key"
)
_LIKELY_WORD: Final = re.compile(r"(?:^|_)(?:keys?|session|signature|sig|dsn|pin|code|webhook)(?:_|$)")
# Beside secrets in the same objects, and in every second text.
_PLAIN: Final = frozenset(
    {"true", "false", "none", "null", "basic", "bearer", "oauth", "oauth2", "required", "optional", "default", "token"}
)
# Words, numbers and names made of them: regions, models, modes. No credential in use looks so.
_WORDS: Final = re.compile(r"-*(?:[A-Za-z]{1,14}|\d{1,8}|\w{1,3})(?:[-_.:,=/ ]+(?:[A-Za-z]{1,14}|\d{1,8}|\w{1,3}))*")
_PATH: Final = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[\\/][^\0\n]*")
_FILE_KEY: Final = re.compile(r"(?:file|path|dir|directory|folder|credentials)$")
_FILE_NAME: Final = re.compile(r"\.[A-Za-z]\w{0,5}$")
# `--flag=value`, `NAME=value`, `Name: value` among the arguments of a program.
_NAMED: Final = re.compile(r"-{0,2}([\w.-]+)\s*[=:]\s*(.+)", re.DOTALL)
# Variables of every process, which say where and who, and no more.
_OPEN_VARIABLES: Final = frozenset(
    {"HOME", "HOSTNAME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TEMP", "TMP", "TMPDIR", "USER", "USERNAME"}
)
# Objects all of whose values are handed to a server, whatever their keys are called.
_HANDED_OVER: Final = frozenset({"headers", "env", "auth", "environment", "http_headers"})


class Scrubber:
    """The secrets of one process. It outlives configurations: a text may still hold what was valid a moment ago.

    Attributes:
        generation: Another number after each change of what is secret.
        longest_bytes: Of the longest form of a secret.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.longest_bytes = 0
        self._forms: dict[str, None] = {}
        self._of_owner: dict[str, list[set[str]]] = {}
        self._longest_first: tuple[str, ...] = ()
        # The same by their first characters, where there are so many that looking for each of them is slower.
        self._by_start: dict[str, list[str]] = {}

    def hide(self, values: Iterable[str]) -> None:
        """Remove these values from every text from now on, in each form in which they are likely to be repeated."""
        found = {form for value in values for form in _forms(value)}
        if not found.issubset(self._forms):
            self._index(found)

    def _index(self, found: Iterable[str]) -> None:
        for form in found:
            # Again at the end: what is configured now is forgotten last.
            self._forms.pop(form, None)
            self._forms[form] = None
        while len(self._forms) > _MAX_FORMS:
            del self._forms[next(iter(self._forms))]
        self.longest_bytes = max(len(form.encode("utf-8", "replace")) for form in self._forms) if self._forms else 0
        # A secret that contains another is removed whole.
        self._longest_first = tuple(sorted(self._forms, key=len, reverse=True))
        self._by_start = {}
        if len(self._longest_first) > _FEW_FORMS:
            for form in self._longest_first:
                self._by_start.setdefault(form[:_MIN_CHARS], []).append(form)
        # Last: what another thread finds meanwhile counts as found before.
        self.generation += 1

    def hide_latest(self, owner: str, values: Iterable[str]) -> None:
        """As `hide`, for values that take the place of earlier ones of this owner, of which some are hidden still.

        Tokens come and go for as long as a process lives: without an end they would push out what is configured.
        """
        kept = self._of_owner.setdefault(owner, [])
        own = {form for forms in kept for form in forms}
        # What is hidden for another reason is not forgotten for this one.
        found = {form for value in values for form in _forms(value) if form in own or form not in self._forms}
        if kept and found <= kept[-1]:
            return
        kept.append(found)
        if len(kept) > _GENERATIONS:
            for form in kept.pop(0).difference(*kept):
                self._forms.pop(form, None)
        if len(self._of_owner) > _MAX_OWNERS:
            self._of_owner.pop(next(iter(self._of_owner)))
        self._index(found)

    def scrub(self, text: str) -> str:
        """The text without secrets; the same object where there are none."""
        if self._by_start:
            return self._scrub_of_many(text)
        for form in self._longest_first:
            if form in text:
                text = text.replace(form, HIDDEN)
        return text

    def _scrub_of_many(self, text: str) -> str:
        by_start, parts, done, at = self._by_start, [], 0, 0
        while at <= len(text) - _MIN_CHARS:
            forms = by_start.get(text[at : at + _MIN_CHARS])
            found = next((form for form in forms if text.startswith(form, at)), None) if forms is not None else None
            if found is None:
                at += 1
                continue
            parts += [text[done:at], HIDDEN]
            at = done = at + len(found)
        return "".join([*parts, text[done:]]) if parts else text

    @property
    def few(self) -> bool:
        """Whether so little is secret that a large text can be searched for it on the way of a call."""
        return len(self._longest_first) <= _VERY_FEW_FORMS

    def holds_secret(self, data: bytes) -> bool:
        """Whether a JSON text holds what `scrub_value` would remove."""
        return self.scrub(text := data.decode("utf-8", "replace")) is not text

    def scrub_value(self, value: Any, *, depth: int = 0) -> Any:
        """A JSON value without secrets; the same object where there are none."""
        if type(value) is str:
            return self.scrub(value)
        if depth > _MAX_DEPTH:
            return value
        if type(value) is dict:
            pairs = [(self.scrub(name), self.scrub_value(one, depth=depth + 1)) for name, one in value.items()]
            same = all(new[0] is old[0] and new[1] is old[1] for new, old in zip(pairs, value.items(), strict=True))
            return value if same else dict(pairs)
        if type(value) is list:
            items = [self.scrub_value(one, depth=depth + 1) for one in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        return value

    def scrub_descriptions(self, items: Any) -> Any:
        """What an upstream listed, without secrets in its texts; names and schemas stay, since calls depend on them."""
        if isinstance(items, list) and len(items) > _LOOKED_AT_ONCE:
            # In parts: other threads wait while one is written and searched.
            starts = range(0, len(items), _LOOKED_AT_ONCE)
            parts = [self.scrub_descriptions(items[start : start + _LOOKED_AT_ONCE]) for start in starts]
            return [one for part in parts for one in part]
        try:
            return self._described(items) if self.holds_secret(wire.dumps(items)) else items
        except wire.MalformedJson:
            return self._described(items)

    def _described(self, value: Any, *, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            return value
        if isinstance(value, list):
            return [self._described(one, depth=depth + 1) for one in value]
        if isinstance(value, dict):
            return {
                name: self.scrub(one)
                if name in ("description", "title") and isinstance(one, str)
                else self._described(one, depth=depth + 1)
                for name, one in value.items()
            }
        return value

    def scrub_error(self, error: ErrorT) -> ErrorT:
        """The same error with a text, and data, without secrets."""
        text = str(error)
        if (clean := self.scrub(text)) is not text:
            error.args = (clean,)
        if isinstance(error, RpcError):
            error.message, error.data = self.scrub(error.message), self.scrub_value(error.data)
        return error


SECRETS: Final = Scrubber()
"""Those of this process: logs and errors are everywhere, so there is one of it."""


def secrets_in(section: Any) -> set[str]:
    """The secret values in a part of a configuration, as it is written: plain JSON values by their keys."""
    return set(_secrets(section, "", handed_over=False))


def split_credentials(url: str) -> tuple[str, str | None]:
    """Return an http URL without its user and password, and the Authorization header that sends them (RFC 7617).

    The header is None where the URL has neither. As clients on httpx and curl do.
    """
    parts = urlsplit(url)
    credentials, _, host = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    bare = parts._replace(netloc=host).geturl()
    if not (user or password):
        return bare, None
    return bare, f"Basic {base64.b64encode(f'{unquote(user)}:{unquote(password)}'.encode()).decode()}"


def is_secret(name: str, value: str) -> bool:
    """Whether the value of this variable, header or key is a secret, judged by its name and its form."""
    word = _as_words(name)
    if _SECRET_WORD.search(word):
        path = _PATH.fullmatch(value) and (_FILE_KEY.search(word) or _FILE_NAME.search(value))
        number = value.isdigit() and len(value) < _MIN_LIKELY_CHARS
        return len(value) >= _MIN_CHARS and value.lower() not in _PLAIN and not (path or number or "://" in value)
    return name.upper() not in _OPEN_VARIABLES and _is_likely(value)


def _secrets(value: Any, key: str, *, handed_over: bool) -> Iterator[str]:
    # Not by its type: pydantic is slow to import, and logs are written before it is needed.
    if (reveal := getattr(value, "get_secret_value", None)) is not None:
        yield reveal()
    elif isinstance(value, str):
        word = _as_words(key)
        if (handed_over or _SECRET_WORD.search(word) or _LIKELY_WORD.search(word)) and is_secret(key, value):
            yield value
            # `Bearer abc`: a server may repeat the token alone.
            _, _, token = value.strip().rpartition(" ")
            yield token
            yield from _basic(value)
        yield from _of_url(value)
    elif isinstance(value, Mapping):
        for name, member in value.items():
            yield from _secrets(member, str(name), handed_over=handed_over or name in _HANDED_OVER)
    elif isinstance(value, list | tuple):
        if key in ("args", "command"):
            yield from _of_arguments([one for one in value if isinstance(one, str)])
        for one in value:
            yield from _secrets(one, key, handed_over=handed_over)


def _of_arguments(arguments: list[str]) -> Iterator[str]:
    flag = ""
    for one in arguments:
        named = _NAMED.fullmatch(one)
        if named is not None and _SECRET_WORD.search(_as_words(named[1])):
            yield from _secrets(named[2], named[1], handed_over=True)
        elif flag and not one.startswith("-"):
            yield from _secrets(one, flag, handed_over=True)
        flag = one.lstrip("-") if one.startswith("-") and _SECRET_WORD.search(_as_words(one.lstrip("-"))) else ""


def _of_url(value: str) -> Iterator[str]:
    if "://" not in value:
        return
    try:
        parts = urlsplit(value)
        if parts.password:
            yield from (parts.password, unquote(parts.password))
        elif parts.username and _is_likely(parts.username):
            yield from (parts.username, unquote(parts.username))  # a token that needs no password
        for name, member in parse_qsl(parts.query):
            if is_secret(name, member):
                yield member
        for segment in parts.path.split("/"):
            if len(segment) >= _MIN_PATH_CHARS and _is_likely(segment):
                yield segment
    except ValueError:
        return


def _basic(value: str) -> Iterator[str]:
    scheme, _, encoded = value.partition(" ")
    if scheme.lower() != "basic":
        return
    try:
        user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return
    yield password or user


def _is_likely(value: str) -> bool:
    if len(value) < _MIN_LIKELY_CHARS or "://" in value or "\n" in value:
        # Of several lines a private key is one secret; a URL's own secrets are found apart.
        return "PRIVATE KEY" in value
    return _WORDS.fullmatch(value) is None and _PATH.fullmatch(value) is None and value.lower() not in _PLAIN


def _as_words(name: str) -> str:
    """A key in small letters with `_` between its words: `apiKey`, `X-Api-Key` and `API_KEY` are one."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name).lower()


def _forms(value: str) -> Iterator[str]:
    """The value as it may stand in a text: as it is, inside JSON, in a URL."""
    value = value.strip()
    if len(value) < _MIN_CHARS or value.lower() in _PLAIN:
        return
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield quote(value, safe="", errors="replace")
