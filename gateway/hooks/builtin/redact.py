"""`redact`: replace secrets and personal data in results and arguments.

The patterns for secrets come from `detect-secrets`, a widely used repository scanner. Its online checks whether a
secret is valid are not used, so that nothing leaves the process. `phonenumbers` finds and checks telephone numbers.
`python-stdnum` validates card numbers, IBANs and social security numbers, so that numbers that only look similar are
not replaced. All three packages are pure Python with embedded data: no model, no download, no telemetry. They are
installed by the extra `redact`.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gateway.hooks import payloads
from gateway.hooks.hook import After, Before, Call, Hook, Result
from gateway.hooks.payloads import MAX_PAYLOAD_BYTES, BadPayload
from gateway.process.extras import install_command
from gateway.protocol import json_bytes
from gateway.protocol.versions import with_meta

REDACTED_KEY: Final = "typegate/redacted"
"""The member of a result's `_meta` that counts replacements by kind."""
KINDS: Final = ("secret", "email", "phone", "card", "iban", "ssn", "ip")
DEFAULT: Final = ("secret", "email", "phone", "card", "iban", "ssn")
# Texts are searched in windows, so that no pattern can take quadratic time on a large text.
WINDOW: Final = 64 * 1024
# The overlap of windows: a match across their border is found if it is no longer than this. An 8,192-bit private key
# has about 6,500 characters.
OVERLAP: Final = 8 * 1024
# Redacting takes about 0.3 s per megabyte, in a thread, so about 0.6 s: well within the default timeout of a hook.
_DEFAULT_BYTES: Final = 2 * 2**20
# Maximum length of a custom pattern. A longer pattern is a list of words, which can be split into several patterns.
_MAX_PATTERN_CHARS: Final = 1_000
# Maximum number of telephone numbers to validate per window, because the library needs far longer to validate a number
# than a pattern needs to find it.
_MAX_PHONES: Final = 200

Span = tuple[int, int, str]
Find = Callable[[str], Iterator[Span]]

# The detectors that are used. Those for high entropy and for `password = …` report too many false positives.
_DETECTORS: Final = (
    "artifactory.ArtifactoryDetector",
    "aws.AWSKeyDetector",
    "azure_storage_key.AzureStorageKeyDetector",
    "basic_auth.BasicAuthDetector",
    "discord.DiscordBotTokenDetector",
    "github_token.GitHubTokenDetector",
    "gitlab_token.GitLabTokenDetector",
    "jwt.JwtTokenDetector",
    "mailchimp.MailchimpDetector",
    "npm.NpmDetector",
    "openai.OpenAIDetector",
    "pypi_token.PypiTokenDetector",
    "sendgrid.SendGridDetector",
    "slack.SlackDetector",
    "square_oauth.SquareOAuthDetector",
    "stripe.StripeDetector",
    "telegram_token.TelegramBotTokenDetector",
    "twilio.TwilioKeyDetector",
)
# The library's pattern for private keys matches only the first line.
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
    """Replaces each match with `[redacted KIND]`.

    `config`: `kinds` (by default secret, email, phone, card, iban and ssn; `ip` may be added), `arguments` (whether to
    redact arguments, too; false, because tools need the data that callers send), `regions` (countries whose telephone
    numbers are found without a country code, for example [US]), `patterns` (custom regular expressions by name),
    `maxBytes` (2 MiB; a larger result is a failure of the hook). Keys of objects and base64 data in images, audio and
    resources are not changed. Redacting takes about 0.3 s per megabyte, in a thread.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        payloads.check_keys(config, "kinds", "arguments", "regions", "patterns", "maxBytes")
        self._max_bytes = int(
            payloads.read_number(config, "maxBytes", _DEFAULT_BYTES, least=1_000, most=MAX_PAYLOAD_BYTES)
        )
        kinds = payloads.read_words(config, "kinds", DEFAULT, KINDS)
        self._arguments = payloads.read_flag(config, "arguments", False)
        regions = config.get("regions", [])
        if not isinstance(regions, list) or not all(isinstance(region, str) and len(region) == 2 for region in regions):
            raise ValueError("regions has a wrong value; expected a list of countries, for example [US, DE]")
        try:
            self._finders: list[Find] = [*_finders(kinds, regions), *_custom_finders(config.get("patterns", {}))]
        except ImportError as error:
            raise ImportError(
                f"the packages that redact needs are missing ({error}); {install_command('redact')}"
            ) from None

    def offers(self, phase: str) -> bool:
        """Return whether the hook runs in a phase: after a call, and before it only if configured."""
        return phase.startswith("after_") or (
            self._arguments and phase in ("before_call", "before_prompt", "before_completion")
        )

    def before_call(self, call: Call) -> Before:
        """Redact arguments."""
        args = self._redact_value(call.args, Counter())
        return None if args is call.args else call.with_args(args)

    before_prompt = before_completion = before_call

    def after_call(self, call: Call, result: Result) -> After:
        """Redact a result."""
        counts: Counter[str] = Counter()
        # An error, so that with `onError: fail` no unchecked result leaves the gateway.
        if len(json_bytes.dumps(result.value)) > self._max_bytes:
            raise BadPayload(f"received more than {self._max_bytes} bytes to check (maxBytes)")
        value = self._redacted_result(result.value, counts)
        if value is result.value:
            return None
        return Result(value=with_meta(value, REDACTED_KEY, dict(sorted(counts.items()))))

    after_prompt = after_resource = after_completion = after_call

    def _redact_value(self, value: Any, counts: Counter[str], *, exempt: str | None = None) -> Any:
        """Redact a value. In objects, do not change the member named `exempt` if it is base64."""
        if isinstance(value, str):
            return self.text(value, counts)
        if isinstance(value, dict):
            redacted = {
                key: member if key == exempt and _is_base64(member) else self._redact_value(member, counts)
                for key, member in value.items()
            }
            return redacted if any(redacted[key] is not value[key] for key in value) else value
        if isinstance(value, list):
            return _map_items(value, lambda item: self._redact_value(item, counts))
        return value

    def _redacted_result(self, result: dict[str, Any], counts: Counter[str]) -> dict[str, Any]:
        """Redact a result.

        Binary data in content blocks is not changed: it may match a pattern by chance, and replacing a part would make
        the data useless. In other places, a member named `data` may contain anything and is redacted.
        """

        def block(item: Any) -> Any:
            kind = item.get("type") if isinstance(item, dict) else None
            if kind == "resource":
                return members(item, {"resource": contents})
            return self._redact_value(item, counts, exempt="data" if kind in ("image", "audio") else None)

        def contents(item: Any) -> Any:
            return self._redact_value(item, counts, exempt="blob")

        def message(item: Any) -> Any:
            return members(item, {"content": each(block)}) if isinstance(item, dict) else block(item)

        def each(redact: Callable[[Any], Any]) -> Callable[[Any], Any]:
            return lambda items: _map_items(items, redact) if isinstance(items, list) else redact(items)

        def members(value: dict[str, Any], special: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
            redacted = {
                key: special[key](member) if key in special else self._redact_value(member, counts)
                for key, member in value.items()
            }
            return redacted if any(redacted[key] is not value[key] for key in value) else value

        return members(result, {"content": each(block), "messages": each(message), "contents": each(contents)})

    def text(self, text: str, counts: Counter[str]) -> str:
        """Return the text with every match replaced, or the same object without a match; add each match to `counts`."""
        spans = self._spans(text)
        if not spans:
            return text
        parts: list[str] = []
        position = 0
        for start, end, kind in spans:
            parts += [text[position:start], f"[redacted {kind}]"]
            counts[kind] += 1
            position = end
        return "".join([*parts, text[position:]])

    def _spans(self, text: str) -> list[Span]:
        spans: set[Span] = set()
        for base in range(0, max(len(text), 1), WINDOW):
            window = text[max(0, base - OVERLAP) : base + WINDOW + OVERLAP]
            offset = max(0, base - OVERLAP)
            for find in self._finders:
                spans.update((start + offset, end + offset, kind) for start, end, kind in find(window))
        # Merge overlapping spans. A merged span has the kind of its first span.
        merged: list[Span] = []
        for start, end, kind in sorted(spans, key=lambda span: (span[0], -span[1])):
            if merged and start < merged[-1][1]:
                first, last, what = merged[-1]
                merged[-1] = (first, max(last, end), what)
            else:
                merged.append((start, end, kind))
        return merged


def _map_items(items: list[Any], redact: Callable[[Any], Any]) -> list[Any]:
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
    """Return a function that finds matches of a pattern in a text.

    If `valid` rejects a match, the part after its last space or hyphen is dropped, and so on: a valid number may be
    followed by other digits.
    """

    def find(text: str) -> Iterator[Span]:
        for match in pattern.finditer(text):
            start, end = match.span(group)
            while valid is not None and end > start and not valid(_PARTS.sub("", text[start:end])):
                end = max((text.rfind(part, start, end) for part in " -"), default=start)
            if end > start:
                yield start, end, kind

    return find


def _tokens(pattern: re.Pattern[str], group: int) -> Find:
    """Return a function that finds secrets in a text up to their end; some patterns match only the beginning."""
    matches = _matches("secret", pattern, group=group)

    def find(text: str) -> Iterator[Span]:
        for start, end, kind in matches(text):
            remainder = None if group else _REST.match(text, end)
            yield start, remainder.end() if remainder is not None else end, kind

    return find


def _phones(library: Any, regions: list[str]) -> Find:
    def find(text: str) -> Iterator[Span]:
        for count, near in enumerate(_PHONE.finditer(text)):
            if count >= _MAX_PHONES:
                yield *near.span(), "phone"  # beyond the limit, treat every match as a telephone number
                continue
            for match in library.PhoneNumberMatcher(near[0], None):
                yield near.start() + match.start, near.start() + match.end, "phone"
        for region in regions:
            for match in library.PhoneNumberMatcher(text, region):
                yield match.start, match.end, "phone"

    return find


def _custom_finders(patterns: object) -> Iterator[Find]:
    if not isinstance(patterns, dict):
        raise ValueError("patterns has a wrong value; expected names with a regular expression for each")
    for name, text in patterns.items():
        if not isinstance(text, str) or len(text) > _MAX_PATTERN_CHARS:
            raise ValueError(f"patterns.{name} has a wrong value; expected a regular expression")
        try:
            yield _matches(str(name), re.compile(text))
        except re.error as error:
            raise ValueError(f"patterns.{name} is not a valid regular expression: {error}") from None
