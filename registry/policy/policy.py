"""All rules, and which of them concern whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from registry.catalog.names import DEFAULT_NAME_LENGTH
from registry.policy.grant import EVERYTHING, Default, Grant
from registry.policy.rules import Rule, Subject

_MAX_REMEMBERED = 10_000
"""Callers whose grant is kept at hand: as many as sessions. Finding it anew takes some microseconds for each rule."""


class Policy:
    """Rules in the order of the file; the order decides only which of several that agree is named.

    Attributes:
        rules: The rules.
        default: What holds where no rule says anything.
    """

    def __init__(
        self, rules: Iterable[Rule] = (), *, default: Default = "allow", max_length: int = DEFAULT_NAME_LENGTH
    ) -> None:
        """Apply these rules.

        Args:
            rules: The rules.
            default: `deny` for: what no rule allows is not there.
            max_length: Of names, by which the aliases in them are known.
        """
        self.rules = tuple(rules)
        self.default: Default = default
        self._max_length = max_length
        self._by_subject: dict[Subject, Grant] = {}
        self._by_identity: dict[int, tuple[Subject, Grant]] = {}
        self._by_rights: dict[tuple[tuple[tuple[int, bool | None], ...], frozenset[str]], Grant] = {}

    def grant(self, subject: Subject) -> Grant:
        """Return what a caller may do; the same object for callers with the same rights."""
        # Usually it is the very object of the call before; to hash all that a caller is costs more than the rest.
        latest = self._by_identity.get(id(subject))
        if latest is not None and latest[0] is subject:
            return latest[1]
        if len(self._by_identity) >= _MAX_REMEMBERED:
            self._by_identity.clear()
        grant = self._of_subject(subject)
        self._by_identity[id(subject)] = subject, grant
        return grant

    def _of_subject(self, subject: Subject) -> Grant:
        known = self._by_subject.get(subject)
        if known is not None:
            return known
        if len(self._by_subject) >= _MAX_REMEMBERED:
            self._by_subject.clear()
        grant = self._by_subject[subject] = self._find(subject)
        return grant

    def _find(self, subject: Subject) -> Grant:
        scopes = subject.scopes
        answers = [rule.who.concerns(subject) for rule in self.rules]
        if not any(answer is not False for answer in answers) and not scopes and self.default == "allow":
            return EVERYTHING
        concerning = tuple((index, answer) for index, answer in enumerate(answers) if answer is not False)
        return self._of_rights(concerning, scopes)

    def _of_rights(self, concerning: tuple[tuple[int, bool | None], ...], scopes: frozenset[str]) -> Grant:
        key = (concerning, scopes)
        grant = self._by_rights.get(key)
        if grant is None:
            if len(self._by_rights) >= _MAX_REMEMBERED:
                self._by_rights.clear()
            rules = (
                self.rules[index] if surely else replace(self.rules[index], doubtful=True)
                for index, surely in concerning
            )
            grant = self._by_rights[key] = Grant(
                rules, closed=self.default == "deny", scopes=scopes, max_length=self._max_length
            )
        return grant
