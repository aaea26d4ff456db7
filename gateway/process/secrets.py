"""Find the secret values in a configuration and remove them from texts.

An upstream's error message may repeat a secret that the gateway sent to the upstream, and error messages reach callers,
administrators and the log. Results of successful calls are not scrubbed, because they are data and may be large; an
administrator can configure the hook `redact` for them.

A *form* of a secret is one way in which a text may contain it: verbatim, escaped in JSON, or percent-encoded.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import GatewayError, RpcError

ErrorT = TypeVar("ErrorT", bound=GatewayError)

HIDDEN: Final = "[hidden]"
"""The text that replaces a secret."""
# Shorter secrets are not removed from texts: they would often match ordinary words.
_MIN_CHARS: Final = 4
# Minimum length of a value whose name does not say that it is secret. Real credentials have at least 8 characters.
_MIN_LIKELY_CHARS: Final = 8
# Minimum length of a URL path segment that may be a secret. Tokens in URLs have at least 20 characters.
_MIN_PATH_CHARS: Final = 20
# Maximum number of forms: more than a configuration can contain. The least recently configured forms are dropped first.
_MAX_FORMS: Final = 50_000
# The number of tokens of one owner to hide: the current token and the previous two, because a message about a token can
# arrive shortly after the token was replaced.
_GENERATIONS: Final = 3
# Maximum number of owners. An owner stands for the tokens of one kind that belong to one sign-in to a server.
_MAX_OWNERS: Final = 10_000
# Up to this number of forms, searching a short text for each form (0.1 µs per form) is faster than a lookup at each
# character (12 µs for the whole text).
_FEW_FORMS: Final = 128
# The number of definitions that can be serialized and searched within a millisecond.
_CHUNK_ITEMS: Final = 200
# Values below this depth are not searched. Messages cannot be nested deeper.
_MAX_DEPTH: Final = 100
_SECRET_WORD: Final = re.compile(
    r"token|secret|passw|passphrase|credential|api[_-]?key|authorization|cookie|bearer|jwt"
    r"|(?:^|_)(?:auth|pass|pwd|pat)(?:_|$)"
    r"|(?:^|_)(?:access|private|signing|encryption|master|service|client|subscription|license|account|shared)_?key"
)
_LIKELY_WORD: Final = re.compile(r"(?:^|_)(?:keys?|session|signature|sig|dsn|pin|code|webhook)(?:_|$)")
# Flags that switch something off, and have no value.
_SWITCH: Final = re.compile(r"-{1,2}(?:no|without|disable|skip|allow|require)-")
# Values that occur in the same places as secrets, but are ordinary words.
_PLAIN: Final = frozenset(
    {"true", "false", "none", "null", "basic", "bearer", "oauth", "oauth2", "required", "optional", "default", "token"}
)
# Words, numbers, and names composed of words and numbers, such as regions and models. Credentials do not look like
# this.
_WORDS: Final = re.compile(r"-*(?:[A-Za-z]{1,14}|\d{1,8}|\w{1,3})(?:[-_.:,=/ ]+(?:[A-Za-z]{1,14}|\d{1,8}|\w{1,3}))*")
_PATH: Final = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[\\/][^\0\n]*")
_FILE_KEY: Final = re.compile(r"(?:file|path|dir|directory|folder|credentials)$")
_FILE_NAME: Final = re.compile(r"\.[A-Za-z]\w{0,5}$")
# Program arguments of the form `--flag=value`, `NAME=value` or `Name: value`.
_NAMED: Final = re.compile(r"-{0,2}([\w.-]+)\s*[=:]\s*(.+)", re.DOTALL)
# Variables that every process has. They contain a path, a locale or a name, not a secret.
_OPEN_VARIABLES: Final = frozenset(
    {"HOME", "HOSTNAME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TEMP", "TMP", "TMPDIR", "USER", "USERNAME"}
)
# Keys of objects whose values are all sent to a server, so each value may be a secret regardless of its key.
_HANDED_OVER: Final = frozenset({"headers", "env", "auth", "environment", "http_headers"})


class Scrubber:
    """The secrets of one process.

    Secrets stay hidden after the configuration changes, because texts may still contain earlier values.

    Attributes:
        generation: A number that increases each time the set of secrets changes.
    """

    def __init__(self, *, max_forms: int = _MAX_FORMS) -> None:
        self.generation = 0
        self._max_forms = max_forms
        self._forms: dict[str, None] = {}
        self._forms_by_owner: dict[str, list[set[str]]] = {}
        self._longest_first: tuple[str, ...] = ()
        # The forms by their first characters; empty if there are few enough forms to search for each in turn.
        self._by_start: dict[str, list[str]] = {}

    def hide(self, values: Iterable[str]) -> None:
        """Remove these values, in all their forms, from every text that is scrubbed from now on."""
        forms = {form for value in values for form in _encodings_of(value)}
        if not forms.issubset(self._forms):
            self._index(forms)

    def _index(self, new_forms: Iterable[str]) -> None:
        for form in new_forms:
            # Move the form to the end, so that currently configured values are evicted last.
            self._forms.pop(form, None)
            self._forms[form] = None
        while len(self._forms) > self._max_forms:
            if self._forms_by_owner:
                self._drop_oldest_owner()
            else:
                del self._forms[next(iter(self._forms))]
        # Sort long forms first, so that a secret that contains another secret is removed as a whole.
        self._longest_first = tuple(sorted(self._forms, key=len, reverse=True))
        self._by_start = {}
        if len(self._longest_first) > _FEW_FORMS:
            for form in self._longest_first:
                self._by_start.setdefault(form[:_MIN_CHARS], []).append(form)
        # Increase this last, so that a text that another thread scrubs meanwhile counts as scrubbed with the old set.
        self.generation += 1

    def hide_latest(self, owner: str, values: Iterable[str]) -> None:
        """Hide the current tokens of an owner. Of its earlier sets of tokens, only the most recent stay hidden.

        Tokens rotate for as long as the process lives. If old tokens stayed hidden, they would push out configured
        secrets.
        """
        generations = self._forms_by_owner.get(owner, [])
        own = {form for forms in generations for form in forms}
        # Leave out forms that are hidden for another reason, so that they are not removed with this owner's values.
        new_forms = {
            form for value in values for form in _encodings_of(value) if form in own or form not in self._forms
        }
        if generations and new_forms <= generations[-1]:
            return
        # Move the owner to the end, so that owners whose values still change are dropped last.
        self._forms_by_owner.pop(owner, None)
        self._forms_by_owner[owner] = generations
        generations.append(new_forms)
        if len(generations) > _GENERATIONS:
            for form in generations.pop(0).difference(*generations):
                self._forms.pop(form, None)
        if len(self._forms_by_owner) > _MAX_OWNERS:
            self._drop_oldest_owner()
        self._index(new_forms)

    def _drop_oldest_owner(self) -> None:
        for forms in self._forms_by_owner.pop(next(iter(self._forms_by_owner))):
            for form in forms:
                self._forms.pop(form, None)

    def scrub(self, text: str) -> str:
        """Return the text without secrets, or the same object if it contains none."""
        if self._by_start:
            return self._scrub_indexed(text)
        for form in self._longest_first:
            if form in text:
                text = text.replace(form, HIDDEN)
        return text

    def _scrub_indexed(self, text: str) -> str:
        by_start, parts, done, at = self._by_start, [], 0, 0
        while at <= len(text) - _MIN_CHARS:
            forms = by_start.get(text[at : at + _MIN_CHARS])
            secret = next((form for form in forms if text.startswith(form, at)), None) if forms is not None else None
            if secret is None:
                at += 1
                continue
            parts += [text[done:at], HIDDEN]
            at = done = at + len(secret)
        return "".join([*parts, text[done:]]) if parts else text

    def holds_secret(self, data: bytes) -> bool:
        """Return whether a JSON text contains something that `scrub_value` would remove."""
        return self.scrub(text := data.decode("utf-8", "replace")) is not text

    def scrub_value(self, value: Any, *, depth: int = 0) -> Any:
        """Return a JSON value without secrets, or the same object if it contains none."""
        if type(value) is str:
            return self.scrub(value)
        if depth > _MAX_DEPTH:
            return value
        if type(value) is dict:
            pairs = [(self.scrub(name), self.scrub_value(member, depth=depth + 1)) for name, member in value.items()]
            same = all(new[0] is old[0] and new[1] is old[1] for new, old in zip(pairs, value.items(), strict=True))
            return value if same else dict(pairs)
        if type(value) is list:
            items = [self.scrub_value(item, depth=depth + 1) for item in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        return value

    def scrub_descriptions(self, items: Any) -> Any:
        """Return a list of definitions with secrets removed from titles and descriptions.

        Other members, such as names and the values in schemas, stay unchanged, because calls depend on them.
        """
        if isinstance(items, list) and len(items) > _CHUNK_ITEMS:
            # Process the list in chunks, because other threads are blocked while a chunk is serialized and searched.
            starts = range(0, len(items), _CHUNK_ITEMS)
            parts = [self.scrub_descriptions(items[start : start + _CHUNK_ITEMS]) for start in starts]
            return [item for part in parts for item in part]
        try:
            return self._scrub_described(items) if self.holds_secret(json_bytes.dumps(items)) else items
        except json_bytes.MalformedJson:
            return self._scrub_described(items)

    def _scrub_described(self, value: Any, *, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            return value
        if isinstance(value, list):
            return [self._scrub_described(item, depth=depth + 1) for item in value]
        if isinstance(value, dict):
            return {
                name: self.scrub(member)
                if name in ("description", "title") and isinstance(member, str)
                else self._scrub_described(member, depth=depth + 1)
                for name, member in value.items()
            }
        return value

    def scrub_error(self, error: ErrorT) -> ErrorT:
        """Remove the secrets from the text and the data of an error in place, and return the error."""
        text = str(error)
        if (clean := self.scrub(text)) is not text:
            error.args = (clean,)
        if isinstance(error, RpcError):
            error.message, error.data = self.scrub(error.message), self.scrub_value(error.data)
        return error


SECRETS: Final = Scrubber()
"""The secrets of this process. There is a single instance, because all parts of the process produce logs and errors."""


def secrets_in(section: Any) -> set[str]:
    """Return the secret values in a part of a configuration.

    Args:
        section: JSON values, in which `SecretStr` may take the place of a string.
    """
    return set(_secrets(section, "", handed_over=False))


def split_credentials(url: str) -> tuple[str, str | None]:
    """Return an http URL without its user and password, and the Authorization header that sends them (RFC 7617).

    The header is None if the URL contains no credentials. httpx and curl convert such URLs in the same way.
    """
    parts = urlsplit(url)
    credentials, _, host = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    bare = parts._replace(netloc=host).geturl()
    if not (user or password):
        return bare, None
    return bare, f"Basic {base64.b64encode(f'{unquote(user)}:{unquote(password)}'.encode()).decode()}"


def is_secret(name: str, value: str) -> bool:
    """Return whether a value is probably a secret, judging by its name (of a variable, header or key) and its shape."""
    word = _as_words(name)
    if _SECRET_WORD.search(word):
        path = _PATH.fullmatch(value) and (_FILE_KEY.search(word) or _FILE_NAME.search(value))
        number = value.isdigit() and len(value) < _MIN_LIKELY_CHARS
        return len(value) >= _MIN_CHARS and value.lower() not in _PLAIN and not (path or number or "://" in value)
    return name.upper() not in _OPEN_VARIABLES and _is_likely(value)


def _secrets(value: Any, key: str, *, handed_over: bool) -> Iterator[str]:
    # Detect `SecretStr` by its method and not by its class: importing pydantic is slow, and this module is used before
    # pydantic is needed.
    if (reveal := getattr(value, "get_secret_value", None)) is not None:
        yield reveal()
    elif isinstance(value, str):
        word = _as_words(key)
        if (handed_over or _SECRET_WORD.search(word) or _LIKELY_WORD.search(word)) and is_secret(key, value):
            yield value
            # A server may repeat only the token of `Bearer TOKEN`.
            _, _, token = value.strip().rpartition(" ")
            yield token
            yield from _basic_password(value)
        yield from _secrets_in_url(value)
    elif isinstance(value, Mapping):
        for name, member in value.items():
            yield from _secrets(member, str(name), handed_over=handed_over or name in _HANDED_OVER)
    elif isinstance(value, list | tuple):
        if key in ("args", "command"):
            yield from _secrets_in_arguments([item for item in value if isinstance(item, str)])
        for item in value:
            yield from _secrets(item, key, handed_over=handed_over)


def _secrets_in_arguments(arguments: list[str]) -> Iterator[str]:
    flag = ""
    for item in arguments:
        assignment = _NAMED.fullmatch(item)
        if assignment is not None and _SECRET_WORD.search(_as_words(assignment[1])):
            yield from _secrets(assignment[2], assignment[1], handed_over=True)
        elif flag and not item.startswith("-"):
            yield from _secrets(item, flag, handed_over=True)
        # The item after `--token=TEXT` or `--no-auth` is no value of this flag.
        takes_value = item.startswith("-") and assignment is None and not _SWITCH.match(item)
        flag = item.lstrip("-") if takes_value and _SECRET_WORD.search(_as_words(item)) else ""


def _secrets_in_url(value: str) -> Iterator[str]:
    if "://" not in value:
        return
    try:
        parts = urlsplit(value)
        if parts.password:
            yield from (parts.password, unquote(parts.password))
        elif parts.username and _is_likely(parts.username):
            yield from (parts.username, unquote(parts.username))  # a token as user name, without a password
        for name, member in parse_qsl(parts.query):
            if is_secret(name, member):
                yield member
        for segment in parts.path.split("/"):
            if len(segment) >= _MIN_PATH_CHARS and _is_likely(segment):
                yield segment
    except ValueError:
        return


def _basic_password(value: str) -> Iterator[str]:
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
        # `_secrets_in_url` finds secrets inside URLs. A multi-line text is a secret only if it is a private key.
        return "PRIVATE KEY" in value
    return _WORDS.fullmatch(value) is None and _PATH.fullmatch(value) is None and value.lower() not in _PLAIN


def _as_words(name: str) -> str:
    """Return a key in lower case with `_` between its words: `apiKey` and `API_KEY` both become `api_key`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name).lower()


def _encodings_of(value: str) -> Iterator[str]:
    """Yield the forms in which a value may occur in a text: verbatim, inside a JSON string, and in a URL."""
    value = value.strip()
    if len(value) < _MIN_CHARS or value.lower() in _PLAIN:
        return
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield quote(value, safe="", errors="replace")
