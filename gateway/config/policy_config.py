"""Configure access rules: they allow or deny requests, or ask a person for approval."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gateway.config.operation_config import Approver
from gateway.config.section import Section, fault, not_boolean
from registry.errors import SchemaRejected
from registry.policy.rules import check_pattern

RuleKind = Literal["tools", "prompts", "resources", "completions"]
EFFECTS: Final = ("allow", "deny", "ask")
_SCALARS: Final = (str, int, float, bool)


def _true_or_patterns(value: object) -> object:
    """Accept true or a list of patterns."""
    if value is True or (isinstance(value, list) and all(isinstance(pattern, str) for pattern in value)):
        return value
    raise fault("is neither true nor a list of patterns", 'true, or patterns such as ["*__delete_*"]')


_Patterns = Annotated[Literal[True] | list[str], BeforeValidator(_true_or_patterns)]


class ArgumentConditionConfig(Section):
    """A condition on one argument. All given tests have to hold. If the argument is a list, its items are tested."""

    equals: Any = None
    """The argument equals this value."""
    one_of: list[Any] | None = Field(default=None, min_length=1)
    """The argument equals one of these values."""
    none_of: list[Any] | None = Field(default=None, min_length=1)
    """The argument equals none of these values."""
    pattern: str | None = Field(default=None, min_length=1)
    """The text contains a match of this regular expression; use `^` and `$` to match all of it. Look-around and back
    references are not supported."""
    present: bool | None = None
    """true: the argument is given. false: it is not."""
    above: Annotated[float, BeforeValidator(not_boolean)] | None = None
    """The number is greater than this."""
    below: Annotated[float, BeforeValidator(not_boolean)] | None = None
    """The number is less than this."""

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, data: Any) -> Any:
        if isinstance(data, list):
            return {"oneOf": data}
        return {"equals": data} if isinstance(data, _SCALARS) else data

    @field_validator("pattern")
    @classmethod
    def _can_be_run(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                check_pattern(pattern)
            except SchemaRejected as error:
                what = f"is not a supported pattern ({error.detail})"
                raise fault(what, "a regular expression without look-around and back references") from None
        return pattern

    @model_validator(mode="after")
    def _tests_something(self) -> ArgumentConditionConfig:
        if not self.model_fields_set:
            raise fault("tests nothing", "one of equals, oneOf, noneOf, pattern, present, above, below")
        return self


class WhenConfig(Section):
    """When a rule applies. All given conditions have to hold."""

    read_only: bool | None = None
    """Whether the tool is read-only. A tool without `readOnlyHint` is not read-only."""
    destructive: bool | None = None
    """Whether the tool may be destructive. This applies to all tools except those with `destructiveHint: false` or
    `readOnlyHint: true`."""
    idempotent: bool | None = None
    """Whether repeating a call has no further effect. A tool without `idempotentHint` is not idempotent."""
    open_world: bool | None = None
    """Whether the tool interacts with systems beyond its server. This applies to all tools except those with
    `openWorldHint: false`."""
    arguments: dict[str, ArgumentConditionConfig] = Field(default_factory=dict)
    """Conditions on arguments, by name; nested members are joined by dots. A plain value is short for `equals`, a list
    for `oneOf`. Rules that deny or ask apply if any value matches or may match; rules that allow apply if all values
    match."""

    @model_validator(mode="after")
    def _has_condition(self) -> WhenConfig:
        if not self.model_fields_set:
            raise fault("says nothing", "readOnly, destructive, idempotent, openWorld or arguments")
        return self


class AskConfig(Section):
    """Calls that need approval by a person. `true` and a list of tools are short forms; `gateway.approvals` sets how
    long a call waits."""

    tools: list[str] | None = Field(default=None, min_length=1)
    """Patterns of tools, in the same form as `wrappers` of the rule."""
    when: WhenConfig | None = None
    """Conditions under which a call needs approval. By default, every call needs it."""
    by: Approver | None = None
    """Who decides: `host` or `administrator`. By default as set by `gateway.approvals.by`."""

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, data: Any) -> Any:
        if data is True:
            return {}
        return {"tools": data} if isinstance(data, list) else data


class RuleConfig(Section):
    """A rule names the callers and requests that it concerns, and has one of `allow`, `deny` and `ask`."""

    name: str = Field(min_length=1, max_length=100)
    """Unique name of the rule in refusals, audit entries and metrics."""
    principals: list[str] | None = None
    """Patterns of callers: names of API keys, SUBJECT@ISSUER for tokens, or `local` if callers do not authenticate. By
    default all callers."""
    groups: list[str] | None = None
    """Patterns of caller groups."""
    scopes: list[str] | None = None
    """Patterns of scopes of keys and tokens."""
    claims: dict[str, list[str]] = Field(default_factory=dict)
    """Patterns of token claims, by claim name, as in `{department: [finance]}`."""
    servers: list[str] | None = None
    """Patterns of server aliases."""
    wrappers: list[str] | None = None
    """Patterns of tools, such as bank__wire_*. If a pattern contains `__`, the part before it is matched against the
    server and the part after it against the tool."""
    tags: list[str] | None = None
    """Patterns of server tags."""
    kinds: list[RuleKind] | None = Field(default=None, min_length=1)
    """Kinds of requests that the rule covers: any of tools, prompts, resources and completions. By default all."""
    when: WhenConfig | None = None
    """Conditions under which the rule applies. With conditions on arguments, it covers tools only."""
    allow: _Patterns | None = None
    """Items that may be used: true for all, or patterns of names and URIs. A caller matched by any allow rule may use
    only what allow rules grant."""
    deny: _Patterns | None = None
    """Items that the caller may not see: true for all, or patterns of names and URIs. Deny rules always win."""
    ask: AskConfig | None = None
    """Tool calls that need approval by a person: true, patterns, or an object with `tools`, `when` and `by`."""

    @property
    def effect(self) -> Literal["allow", "deny", "ask"]:
        """The effect of the rule."""
        return "allow" if self.allow is not None else "deny" if self.deny is not None else "ask"

    @property
    def patterns(self) -> list[str] | None:
        """The patterns of names and URIs; None if the rule covers everything that the other keys match."""
        patterns = self.ask.tools if self.ask is not None else self.allow or self.deny
        return patterns if isinstance(patterns, list) else None

    @field_validator("claims", mode="before")
    @classmethod
    def _claims_as_lists(cls, claims: Any) -> Any:
        if not isinstance(claims, dict):
            return claims
        return {name: [value] if isinstance(value, str) else value for name, value in claims.items()}

    @model_validator(mode="after")
    def _is_consistent(self) -> RuleConfig:
        effects = [effect for effect in EFFECTS if getattr(self, effect) is not None]
        if len(effects) != 1:
            what = "does nothing" if not effects else f"has {' and '.join(effects)}"
            raise fault(what, "one of allow, deny and ask")
        for key in ("principals", "groups", "scopes", "servers", "wrappers", "tags", "allow", "deny"):
            if getattr(self, key) == []:
                raise fault("is empty, so that the rule can never apply", "a pattern such as *", key=key)
        ask_when = self.ask.when if self.ask is not None else None
        by_arguments = self.ask is not None or (self.when is not None and bool(self.when.arguments))
        if by_arguments and self.kinds is not None and self.kinds != ["tools"]:
            what = "includes requests that have no arguments and cannot be approved"
            raise fault(what, "[tools]", key="kinds")
        if self.wrappers is not None and self.kinds is not None and self.kinds != ["tools"]:
            raise fault("cannot be combined with wrappers, which are tools", "[tools]", key="kinds")
        if ask_when is not None and self.when is not None and ask_when == self.when:
            raise fault("repeats `when` of the rule", "the conditions in one of the two places", key="ask.when")
        return self


class PolicyConfig(Section):
    """Access rules. Without rules, every caller may use everything that its profile, key and scopes permit."""

    default: Literal["allow", "deny"] = "allow"
    """Default for callers that no allow rule matches. allow: they may use everything that no rule denies. deny: they
    may use nothing."""
    rules: list[RuleConfig] = Field(default_factory=list, max_length=10_000)
    """The rules, in any order: a deny rule wins over every other rule."""

    @field_validator("rules")
    @classmethod
    def _rule_names_are_unique(cls, rules: list[RuleConfig]) -> list[RuleConfig]:
        seen: set[str] = set()
        for place, rule in enumerate(rules):
            if rule.name in seen:
                raise fault(
                    f"gives one name to two rules ({rule.name})", "a unique name for each rule", key=f"[{place}].name"
                )
            seen.add(rule.name)
        return rules
