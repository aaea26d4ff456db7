"""`redact`: replaces secrets and personal data in results, and if configured in arguments, by their kind.

The patterns of secrets are those of `detect-secrets`, with which many scan their repositories; its checks whether
a secret is alive are not used, so nothing leaves the process. Telephone numbers are found and checked by
`phonenumbers`; cards, IBANs and social security numbers have their check digits verified by `python-stdnum`, so
that numbers which only look like them stay. All three are plain Python with their data inside: no model, no
download, no telemetry. They are the extra `redact`.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gateway import wire
from gateway.extras import install_command
from gateway.hooks import settings
from gateway.hooks.hook import After, Before, Call, Hook, Result
from gateway.hooks.payloads import MAX_PAYLOAD_BYTES, BadPayload
from gateway.protocol import with_meta

REDACTED_KEY: Final = "typegate/redacted"
"""The member of a result's `_meta` that counts what was replaced, by kind."""
KINDS: Final = ("secret", "email", "phone", "card", "iban", "ssn", "ip")
DEFAULT: Final = ("secret", "email", "phone", "card", "iban", "ssn")
# Texts are searched in windows, so that no pattern can take time quadratic in the length of a large text.
WINDOW: Final = 64 * 1024
# What lies on the border of two windows is found in one of them if it is no longer than this; a private key of
# 8,192 bits has about 6,500 characters.
OVERLAP: Final = 8 * 1024
# It takes about 0.3 s for a megabyte, so about 0.6 s, in a thread, well within the default time-out.
_DEFAULT_BYTES: Final = 2 * 2**20
# Characters of an own pattern: longer ones are lists of words, which belong in several patterns.
_MAX_PATTERN_CHARS: Final = 1_000
# Of one window; each is parsed by the library, which takes far longer than finding it.
_MAX_PHONES: Final = 200

Span = tuple[int, int, str]
Find = Callable[[str], Iterator[Span]]

# Neither high entropy nor `password = …`: these detectors report too much that is no secret.
_DETECTORS: Final = (
    "artifactory.ArtifactoryDetector", "aws.AWSKeyDetector", "azure_storage_key.AzureStorageKeyDetector",
    "basic_auth.BasicAuthDetector", "discord.DiscordBotTokenDetector", "github_token.GitHubTokenDetector",
    "gitlab_token.GitLabTokenDetector", "jwt.JwtTokenDetector", "mailchimp.MailchimpDetector", "npm.NpmDetector",
    "openai.OpenAIDetector", "pypi_token.PypiTokenDetector", "sendgrid.SendGridDetector", "slack.SlackDetector",
    "square_oauth.SquareOAuthDetector", "stripe.StripeDetector", "telegram_token.TelegramBotTokenDetector",
    "twilio.TwilioKeyDetector",
)  # fmt: skip
# Of a private key the library matches only the first line.
_KEY = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?:[^-]{0,7000}-----END [A-Z ]{0,30}PRIVATE KEY-----)?")
# Every repetition is bounded, so that no text can make a pattern slow.
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{8,4000}\.[\w-]{2,4000}(?:\.[\w-]{0,2000})?")
_REST = re.compile(r"[\w+/=-]{0,4000}")
_PHONE = re.compile(r"\+\d[\d ().\u00a0/-]{5,40}")
_PARTS = re.compile(r"[ -]")
_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])")
_CARD = re.compile(r"(?<![\w.])\d(?:[ -]?\d){12,18}(?![\w])")
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}(?![A-Za-z0-9])")
_SSN = re.compile(r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])")
_BASE64 = re.compile(r"[A-Za-z0-9+/_\s-]*=?\s*=?\s*")
_IP = re.compile(r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w]|\.\d)")


class Redact(Hook):
    """Replaces what is found by `[redacted KIND]`.

    `config`: `kinds` (secret, email, phone, card, iban, ssn; also ip), `arguments` (false: what callers send is
    theirs, and tools need it), `regions` (countries whose telephone numbers are found without their prefix, as
    [US]), `patterns` (names with regular expressions of your own), `maxBytes` (2 MiB: more than that is withheld).
    Keys of objects stay, and base64 in images, sounds and resources. It takes about 0.3 s for a megabyte, in a thread.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        settings.check_keys(config, "kinds", "arguments", "regions", "patterns", "maxBytes")
        self._max_bytes = int(settings.number(config, "maxBytes", _DEFAULT_BYTES, least=1_000, most=MAX_PAYLOAD_BYTES))
        kinds = settings.words(config, "kinds", DEFAULT, KINDS)
        self._arguments = settings.flag(config, "arguments", False)
        regions = config.get("regions", [])
        if not isinstance(regions, list) or not all(isinstance(region, str) and len(region) == 2 for region in regions):
            raise ValueError("regions has a wrong value; expected a list of countries, as [US, DE]")
        try:
            self._finders: list[Find] = [*_finders(kinds, regions), *_own(config.get("patterns", {}))]
        except ImportError as error:
            raise ImportError(
                f"what redact finds things with is missing ({error}); {install_command('redact')}"
            ) from None

    def offers(self, phase: str) -> bool:
        """Results by default; arguments only if configured."""
        return phase.startswith("after_") or (
            self._arguments and phase in ("before_call", "before_prompt", "before_completion")
        )

    def before_call(self, call: Call) -> Before:
        """Redact arguments."""
        args = self._redacted(call.args, Counter())
        return None if args is call.args else call.with_args(args)

    before_prompt = before_completion = before_call

    def after_call(self, call: Call, result: Result) -> After:
        """Redact a result."""
        found: Counter[str] = Counter()
        # Refused, not passed on unread: with `onError: fail` nothing leaves that was not looked at.
        if len(wire.dumps(result.value)) > self._max_bytes:
            raise BadPayload(f"was given more than {self._max_bytes} bytes to look at (maxBytes)")
        value = self._redacted_result(result.value, found)
        if value is result.value:
            return None
        return Result(value=with_meta(value, REDACTED_KEY, dict(sorted(found.items()))))

    after_prompt = after_resource = after_completion = after_call

    def _redacted(self, value: Any, found: Counter[str], *, exempt: str | None = None) -> Any:
        """Redact a value; the member `exempt` of an object stays if it is base64."""
        if isinstance(value, str):
            return self.text(value, found)
        if isinstance(value, dict):
            redacted = {
                key: member if key == exempt and _is_base64(member) else self._redacted(member, found)
                for key, member in value.items()
            }
            return redacted if any(redacted[key] is not value[key] for key in value) else value
        if isinstance(value, list):
            return _mapped(value, lambda item: self._redacted(item, found))
        return value

    def _redacted_result(self, result: dict[str, Any], found: Counter[str]) -> dict[str, Any]:
        """Redact a result.

        Binary data of its content blocks stays: it may look like a secret by chance, and is useless once a part of it
        is replaced. Anywhere else a server may call anything `data`.
        """

        def block(item: Any) -> Any:
            kind = item.get("type") if isinstance(item, dict) else None
            if kind == "resource":
                return members(item, {"resource": contents})
            return self._redacted(item, found, exempt="data" if kind in ("image", "audio") else None)

        def contents(item: Any) -> Any:
            return self._redacted(item, found, exempt="blob")

        def message(item: Any) -> Any:
            return members(item, {"content": each(block)}) if isinstance(item, dict) else block(item)

        def each(redact: Callable[[Any], Any]) -> Callable[[Any], Any]:
            return lambda items: _mapped(items, redact) if isinstance(items, list) else redact(items)

        def members(value: dict[str, Any], special: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
            redacted = {
                key: special[key](member) if key in special else self._redacted(member, found)
                for key, member in value.items()
            }
            return redacted if any(redacted[key] is not value[key] for key in value) else value

        return members(result, {"content": each(block), "messages": each(message), "contents": each(contents)})

    def text(self, text: str, found: Counter[str]) -> str:
        """Return a text with everything that was found replaced; the same object if nothing was."""
        spans = self._spans(text)
        if not spans:
            return text
        parts: list[str] = []
        position = 0
        for start, end, kind in spans:
            parts += [text[position:start], f"[redacted {kind}]"]
            found[kind] += 1
            position = end
        return "".join([*parts, text[position:]])

    def _spans(self, text: str) -> list[Span]:
        spans: set[Span] = set()
        for base in range(0, max(len(text), 1), WINDOW):
            window = text[max(0, base - OVERLAP) : base + WINDOW + OVERLAP]
            offset = max(0, base - OVERLAP)
            for find in self._finders:
                spans.update((start + offset, end + offset, kind) for start, end, kind in find(window))
        # Spans of several patterns may overlap: they become one, of the kind that begins first.
        merged: list[Span] = []
        for start, end, kind in sorted(spans, key=lambda span: (span[0], -span[1])):
            if merged and start < merged[-1][1]:
                first, last, what = merged[-1]
                merged[-1] = (first, max(last, end), what)
            else:
                merged.append((start, end, kind))
        return merged


def _mapped(items: list[Any], redact: Callable[[Any], Any]) -> list[Any]:
    redacted = [redact(item) for item in items]
    return redacted if any(a is not b for a, b in zip(redacted, items, strict=True)) else items


def _is_base64(value: object) -> bool:
    return isinstance(value, str) and _BASE64.fullmatch(value) is not None


def _finders(kinds: tuple[str, ...], regions: list[str]) -> Iterator[Find]:
    for kind in kinds:
        if kind == "secret":
            yield _matches("secret", _KEY)
            yield _matches("secret", _JWT)
            for path in _DETECTORS:
                module, _, name = path.partition(".")
                detector = getattr(importlib.import_module(f"detect_secrets.plugins.{module}"), name)
                for pattern in detector.denylist:
                    yield _tokens(pattern, 1 if name == "BasicAuthDetector" else 0)
        elif kind == "phone":
            yield _phones(importlib.import_module("phonenumbers"), regions)
        elif kind == "card":
            yield _matches("card", _CARD, importlib.import_module("stdnum.luhn").is_valid)
        elif kind == "iban":
            yield _matches("iban", _IBAN, importlib.import_module("stdnum.iban").is_valid)
        elif kind == "ssn":
            yield _matches("ssn", _SSN, importlib.import_module("stdnum.us.ssn").is_valid)
        else:
            yield _matches(kind, _EMAIL if kind == "email" else _IP)


def _matches(
    kind: str, pattern: re.Pattern[str], valid: Callable[[str], bool] | None = None, *, group: int = 0
) -> Find:
    """Find a pattern; an invalid number may be a valid one with others after it, so its last parts are left off."""

    def find(text: str) -> Iterator[Span]:
        for match in pattern.finditer(text):
            start, end = match.span(group)
            while valid is not None and end > start and not valid(_PARTS.sub("", text[start:end])):
                end = max((text.rfind(part, start, end) for part in " -"), default=start)
            if end > start:
                yield start, end, kind

    return find


def _tokens(pattern: re.Pattern[str], group: int) -> Find:
    """Find a secret to its end: some patterns match only its beginning."""
    matches = _matches("secret", pattern, group=group)

    def find(text: str) -> Iterator[Span]:
        for start, end, kind in matches(text):
            rest = None if group else _REST.match(text, end)
            yield start, rest.end() if rest is not None else end, kind

    return find


def _phones(library: Any, regions: list[str]) -> Find:
    def find(text: str) -> Iterator[Span]:
        for count, near in enumerate(_PHONE.finditer(text)):
            if count >= _MAX_PHONES:
                yield *near.span(), "phone"  # beyond that, what looks like a number is taken for one
                continue
            for match in library.PhoneNumberMatcher(near[0], None):
                yield near.start() + match.start, near.start() + match.end, "phone"
        for region in regions:
            for match in library.PhoneNumberMatcher(text, region):
                yield match.start, match.end, "phone"

    return find


def _own(patterns: object) -> Iterator[Find]:
    if not isinstance(patterns, dict):
        raise ValueError("patterns has a wrong value; expected names with a regular expression for each")
    for name, text in patterns.items():
        if not isinstance(text, str) or len(text) > _MAX_PATTERN_CHARS:
            raise ValueError(f"patterns.{name} has a wrong value; expected a regular expression")
        try:
            yield _matches(str(name), re.compile(text))
        except re.error as error:
            raise ValueError(f"patterns.{name} is no regular expression: {error}") from None
