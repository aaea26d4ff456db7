"""Rules about who may do what, as the file has them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gateway.config.approvals import Approver
from gateway.config.section import Section, fault, not_boolean
from registry.errors import SchemaRejected
from registry.policy.conditions import check_pattern

RuleKind = Literal["tools", "prompts", "resources", "completions"]
EFFECTS: Final = ("allow", "deny", "ask")
_SCALARS: Final = (str, int, float, bool)


def _names(value: object) -> object:
    """Read true or patterns."""
    if value is True or (isinstance(value, list) and all(isinstance(pattern, str) for pattern in value)):
        return value
    raise fault("is neither true nor a list of patterns", 'true, or patterns as ["*__delete_*"]')


_Patterns = Annotated[Literal[True] | list[str], BeforeValidator(_names)]


class ArgumentConditionConfig(Section):
    """What a rule asks of one argument. Each test that is given has to hold; of a list, its items are tested."""

    equals: Any = None
    """The value that is meant."""
    one_of: list[Any] | None = Field(default=None, min_length=1)
    """The values that are meant."""
    none_of: list[Any] | None = Field(default=None, min_length=1)
    """Values that are not meant."""
    pattern: str | None = Field(default=None, min_length=1)
    """A regular expression that is found in the text; `^` and `$` tie it to the ends. No look-around, no back
    references."""
    present: bool | None = None
    """Whether the argument is sent at all."""
    above: Annotated[float, BeforeValidator(not_boolean)] | None = None
    """The number is greater than this."""
    below: Annotated[float, BeforeValidator(not_boolean)] | None = None
    """The number is less than this."""

    @model_validator(mode="before")
    @classmethod
    def _in_short(cls, data: Any) -> Any:
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
                what = f"is no pattern that can be run ({error.detail})"
                raise fault(what, "a regular expression without look-around and back references") from None
        return pattern

    @model_validator(mode="after")
    def _tests_something(self) -> ArgumentConditionConfig:
        if not self.model_fields_set:
            raise fault("tests nothing", "one of equals, oneOf, noneOf, pattern, present, above, below")
        return self


class WhenConfig(Section):
    """When a rule applies. Each condition that is given has to hold."""

    read_only: bool | None = None
    """The tool is marked as changing nothing, or as not doing so; a tool without that mark changes something."""
    destructive: bool | None = None
    """The tool may destroy something; it is meant to unless it is marked otherwise, or as changing nothing."""
    idempotent: bool | None = None
    """Calling the tool twice does no more than calling it once; only if it is marked so."""
    open_world: bool | None = None
    """The tool reaches what lies beyond its server; it is meant to unless it is marked otherwise."""
    arguments: dict[str, ArgumentConditionConfig] = Field(default_factory=dict)
    """Conditions on arguments by name, members inside them joined by dots; a plain value stands for `equals`, a list
    for `oneOf`. A rule that denies or asks applies where one value fits or may fit; one that allows, where all fit."""

    @model_validator(mode="after")
    def _says_something(self) -> WhenConfig:
        if not self.model_fields_set:
            raise fault("says nothing", "readOnly, destructive, idempotent, openWorld or arguments")
        return self


class AskConfig(Section):
    """When a person is asked; `gateway.approvals` says for how long the call waits. `true`, or a list of tools, stands
    for it in short."""

    tools: list[str] | None = Field(default=None, min_length=1)
    """Patterns for tools, as `wrappers` of the rule."""
    when: WhenConfig | None = None
    """When a person is asked; calls that this is not about go through. Absent means always."""
    by: Approver | None = None
    """Who decides: `host` or `administrator`. Absent means as `gateway.approvals.by` says."""

    @model_validator(mode="before")
    @classmethod
    def _in_short(cls, data: Any) -> Any:
        if data is True:
            return {}
        return {"tools": data} if isinstance(data, list) else data


class RuleConfig(Section):
    """One rule: for whom, about what, and one of allow, deny and ask."""

    name: str = Field(min_length=1, max_length=100)
    """What refusals, the record and metrics call it."""
    principals: list[str] | None = None
    """Patterns for callers: names of API keys, SUBJECT@ISSUER for tokens, `local` where nobody is told apart. Absent
    means everybody."""
    groups: list[str] | None = None
    """Patterns for groups of callers."""
    scopes: list[str] | None = None
    """Patterns for scopes of keys and tokens."""
    claims: dict[str, list[str]] = Field(default_factory=dict)
    """Patterns for claims of tokens, by the name of the claim."""
    servers: list[str] | None = None
    """Patterns for aliases of servers."""
    wrappers: list[str] | None = None
    """Patterns for tools, as bank__wire_*: with `__` the server and the tool each match their own side."""
    tags: list[str] | None = None
    """Patterns for tags of servers."""
    kinds: list[RuleKind] | None = Field(default=None, min_length=1)
    """Which of tools, prompts, resources and completions; absent means all."""
    when: WhenConfig | None = None
    """When the rule applies at all. With conditions on arguments it is about tools only."""
    allow: _Patterns | None = None
    """What may be used: true, or patterns for names and URIs. A caller whom any such rule concerns may use what these
    rules allow, and nothing else."""
    deny: _Patterns | None = None
    """What is not there: true, or patterns. It has precedence over all else."""
    ask: AskConfig | None = None
    """For which calls of tools a person is asked: true, patterns, or when."""

    @property
    def effect(self) -> Literal["allow", "deny", "ask"]:
        """What the rule does."""
        return "allow" if self.allow is not None else "deny" if self.deny is not None else "ask"

    @property
    def patterns(self) -> list[str] | None:
        """What it is about; None for everything that the other keys leave."""
        given = self.ask.tools if self.ask is not None else self.allow or self.deny
        return given if isinstance(given, list) else None

    @field_validator("claims", mode="before")
    @classmethod
    def _one_or_more(cls, claims: Any) -> Any:
        if not isinstance(claims, dict):
            return claims
        return {name: [value] if isinstance(value, str) else value for name, value in claims.items()}

    @model_validator(mode="after")
    def _is_sound(self) -> RuleConfig:
        effects = [effect for effect in EFFECTS if getattr(self, effect) is not None]
        if len(effects) != 1:
            what = "does nothing" if not effects else f"has {' and '.join(effects)}"
            raise fault(what, "one of allow, deny and ask")
        for key in ("principals", "groups", "scopes", "servers", "wrappers", "tags", "allow", "deny"):
            if getattr(self, key) == []:
                raise fault("is empty, so that the rule can never apply", "a pattern, as *", key=key)
        asked = self.ask.when if self.ask is not None else None
        by_arguments = self.ask is not None or (self.when is not None and bool(self.when.arguments))
        if by_arguments and self.kinds is not None and self.kinds != ["tools"]:
            what = "has kinds of requests that have no arguments to look at, and that nobody can be asked about"
            raise fault(what, "[tools]", key="kinds")
        if self.wrappers is not None and self.kinds is not None and self.kinds != ["tools"]:
            raise fault("stands beside wrappers, which are tools", "[tools]", key="kinds")
        if asked is not None and self.when is not None and asked == self.when:
            raise fault("repeats `when` of the rule", "conditions in one of the two places", key="ask.when")
        return self


class PolicyConfig(Section):
    """Who may do what. Without rules every caller may use everything that its profile, key and scopes leave."""

    default: Literal["allow", "deny"] = "allow"
    """What holds for callers whom no rule that allows something concerns: `deny` for what no rule allows is not
    there."""
    rules: list[RuleConfig] = Field(default_factory=list, max_length=10_000)
    """The rules. Their order makes no difference: what one denies is denied."""

    @field_validator("rules")
    @classmethod
    def _no_two_alike(cls, rules: list[RuleConfig]) -> list[RuleConfig]:
        seen: set[str] = set()
        for place, rule in enumerate(rules):
            if rule.name in seen:
                raise fault(
                    f"gives one name to two rules ({rule.name})", "a name of its own for each", key=f"[{place}].name"
                )
            seen.add(rule.name)
        return rules
