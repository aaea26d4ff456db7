"""`Hook`: what may look at a call, change it, answer it or block it. Its docstrings are the manual."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gateway.hooks.payloads import copied

Kind = Literal["tool", "prompt", "resource"]
Via = Literal["wrapper", "invoke_tool"]
Mode = Literal["transform", "validate", "audit", "concurrent"]
BLOCK_CODE = -32000
"""The JSON-RPC code of a block that says none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What is known of a call beside its arguments; nothing of it ever stands among them.

    Attributes:
        kind: Whether a tool is called, a prompt got or a resource read.
        wrapper: The name that callers know: `server__tool`, a prompt's exposed name, a resource's exposed URI.
        server: The alias of the upstream.
        tool: The name that the upstream knows: of the tool, of the prompt, or the URI.
        principal: Who calls.
        session: The caller's handshake-era session; None in the modern era, which has none.
        request_id: The JSON-RPC id that the caller gave; not unique beyond its connection.
        call_id: Ours, unique to this call.
        via: `wrapper` or `invoke_tool`: the route a call came by.
        tags: Of the server.
        profile: The caller's.
        digest: Of the tool's definition; another one after it has changed.
        read_only: The tool says that it changes nothing (`readOnlyHint`).
        elapsed_ms: For audit hooks after a call: what it took, hooks included.
        blocked_by: For audit hooks after a blocked call: who blocked it.
    """

    kind: Kind
    wrapper: str
    server: str
    tool: str
    principal: str
    session: str | None
    request_id: str | int | float | None
    call_id: str
    via: Via
    tags: tuple[str, ...]
    profile: str
    digest: str = ""
    read_only: bool = False
    elapsed_ms: float | None = None
    blocked_by: str | None = None


class Call:
    """One call on its way to an upstream; nothing of it can be set.

    The arguments are this hook's own copy, made when it first looks at them: what it does to them in place changes
    nothing, for anybody.
    """

    __slots__ = ("_args", "_definition", "_memo", "_metadata", "_name", "_own")

    def __init__(
        self,
        *,
        name: str,
        args: dict[str, Any],
        metadata: Metadata | Callable[[], Metadata],
        memo: dict[str, Any] | None = None,
        definition: Mapping[str, Any] | None = None,
    ) -> None:
        self._name = name
        self._args = args
        self._metadata = metadata
        self._memo = memo
        self._definition = definition
        self._own: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """What is called, as the upstream names it; through `invoke_tool` it is the inner name."""
        return self._name

    @property
    def args(self) -> dict[str, Any]:
        """The arguments: repaired, with defaults, checked; `{}` where the caller sent none.

        For a prompt its arguments, for a resource `{"uri": …}`.
        """
        if self._own is None:
            self._own = copied(self._args)
        return self._own

    @property
    def metadata(self) -> Metadata:
        """Everything else."""
        if not isinstance(self._metadata, Metadata):
            self._metadata = self._metadata()
        return self._metadata

    @property
    def memo(self) -> dict[str, Any]:
        """This hook's own notes on this call: what it puts in before, it finds there after. Nobody else sees it."""
        if self._memo is None:
            self._memo = {}
        return self._memo

    @property
    def definition(self) -> dict[str, Any]:
        """The tool's definition, a copy; `{}` for prompts and resources."""
        return copied(dict(self._definition or {}))

    def with_args(self, args: dict[str, Any]) -> Call:
        """This call with other arguments: what a transforming hook returns."""
        return Call(
            name=self._name, args=args, metadata=self._metadata, memo=self.memo, definition=self._definition
        )  # fmt: skip

    def handed_back(self) -> Any:
        """The arguments as the hook has left them, whatever they are; for the gateway, which copies and checks."""
        return self._args if self._own is None else self._own

    def __repr__(self) -> str:
        return f"Call(name={self._name!r})"


class Result:
    """What an upstream answered, whole: every content item, `structuredContent`, `isError`, `_meta`.

    Of a tool it has `content`, of a prompt `messages`, of a resource `contents`.
    """

    __slots__ = ("_own", "_value")

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value
        self._own: dict[str, Any] | None = None

    @property
    def value(self) -> dict[str, Any]:
        """The result object; this hook's own copy, made when it first looks at it."""
        if self._own is None:
            self._own = copied(self._value)
        return self._own

    @property
    def content(self) -> list[Any]:
        """All items: of a tool's content, a prompt's messages, a resource's contents."""
        found = next((self.value[key] for key in ("content", "messages", "contents") if key in self.value), None)
        return found if isinstance(found, list) else []

    @property
    def structured_content(self) -> Any:
        """The structured form; None where there is none."""
        return self.value.get("structuredContent")

    @property
    def is_error(self) -> bool:
        """Whether the tool says that it failed."""
        return self._value.get("isError") is True

    def with_value(self, value: dict[str, Any]) -> Result:
        """Another result: what a transforming hook returns."""
        return Result(value)

    def handed_back(self) -> Any:
        """The result as the hook has left it, whatever it is; for the gateway, which copies and checks."""
        return self._value if self._own is None else self._own


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Returned to stop a call, or to withhold its result.

    Attributes:
        reason: A short text for the caller.
        description: More of it.
        code: The JSON-RPC code where blocks are answered as protocol errors (`blockAs: error`).
    """

    reason: str
    description: str = ""
    code: int = BLOCK_CODE


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Returned before a call to answer it in the upstream's place; hooks that come later do not see the call."""

    value: dict[str, Any]


class HookFailed(Exception):
    """A hook did not do its work; the text completes a sentence that begins with its name."""


Before = Call | Block | Answer | None
After = Result | Block | None


class Hook:
    """Looks at calls. Override the phases that you want; a phase that is not overridden costs nothing.

    One object serves every call, for as long as its entry in the configuration stays as it is.

    **When.** A call is routed, allowed, repaired, given its defaults and checked; then the `before` phase runs.
    If a hook has changed the arguments they are checked against the schema again. After the upstream has answered,
    the `after` phase runs, in reverse order; then the gateway adds its advice. A call through `invoke_tool` runs
    once, under the inner name. Hooks do not see bad arguments: those are refused first.

    **What may be returned.** Nothing, to leave everything as it is; `call.with_args(...)` or
    `result.with_value(...)`, to change it; a `Block`, to stop it; before a call also an `Answer`. Anything else,
    an exception and a time-out are failures of the hook: the call fails, unless the entry says `onError: ignore`.

    **Modes**, as `mode` here or in the configuration says:

    - `transform` may do all of it. Transforming and validating hooks run one after the other, by priority.
    - `validate` may block, and not change anything.
    - `concurrent` is `validate`, all such hooks together, after those that run in turn.
    - `audit` gets copies, later, one at a time and in order; nothing waits for it and nothing that it does has an
      effect. It hears of the arguments as they were sent and of the result as it was answered, of blocked calls too
      (`metadata.blocked_by`). What does not fit into its queue is counted as dropped, and said in the log.

    **`async def` or `def`.** An `async def` phase runs on the event loop and must not block it. A plain `def` phase
    runs in a thread of its own, of which each hook has eight; while all of them hang, further calls wait for one, no
    longer than their time-out.

    A hook that fails five times in a row for one principal is passed over for some seconds, for its calls: with
    `onError: ignore` they pass, with `fail` they fail at once, and both are counted.
    """

    mode: ClassVar[Mode] = "transform"
    """The mode where the configuration does not say one."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Take the `config` object of the entry.

        Raises:
            ValueError: The configuration cannot be used; the text says what was expected.
        """
        self.config = config

    def offers(self, phase: str) -> bool:
        """Whether it has something to say in a phase: by default, whether that method is overridden."""
        return getattr(type(self), phase, None) is not getattr(Hook, phase)

    async def start(self) -> None:
        """Called once before the first call, within ten seconds."""

    async def close(self) -> None:
        """Called once after the last call, within two seconds."""

    def before_call(self, call: Call) -> Before | Awaitable[Before]:
        """Called before a tool is called."""
        return None

    def after_call(self, call: Call, result: Result) -> After | Awaitable[After]:
        """Called with a tool's result; `call` has the arguments as they were sent."""
        return None

    def before_prompt(self, call: Call) -> Before | Awaitable[Before]:
        """Called before a prompt is asked for."""
        return None

    def after_prompt(self, call: Call, result: Result) -> After | Awaitable[After]:
        """Called with a prompt's messages."""
        return None

    def before_resource(self, call: Call) -> Before | Awaitable[Before]:
        """Called before a resource is read; `call.args` is `{"uri": …}`."""
        return None

    def after_resource(self, call: Call, result: Result) -> After | Awaitable[After]:
        """Called with a resource's contents."""
        return None


PHASES: Mapping[str, str] = {
    "beforeCall": "before_call",
    "afterCall": "after_call",
    "beforePrompt": "before_prompt",
    "afterPrompt": "after_prompt",
    "beforeResource": "before_resource",
    "afterResource": "after_resource",
}
"""Phases as the configuration spells them, and the methods they are."""
