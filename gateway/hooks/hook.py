"""The interface for authors of hooks: `Hook` and what it receives and returns. These docstrings are the manual."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gateway.hooks.payloads import copied

Kind = Literal["tool", "prompt", "resource", "completion"]
# Whose result it is; see `Metadata.shared_within`.
Sharing = Literal["principal", "session", "request"]
CallRoute = Literal["wrapper", "invoke_tool"]
Mode = Literal["transform", "validate", "audit", "concurrent"]
# The first of the codes that JSON-RPC 2.0 leaves to servers.
BLOCK_CODE = -32000
"""The JSON-RPC code of a block that does not set one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What is known about a call apart from its arguments; it is never mixed with them.

    Attributes:
        kind: Whether a tool is called, a prompt fetched, a resource read, or an argument of either completed.
        wrapper: The name that callers know: `server__tool`, a prompt's exposed name, a resource's exposed URI.
        server: The alias of the upstream.
        tool: The name that the upstream knows: of the tool or prompt, or the URI.
        principal: Who calls.
        session: The caller's session id; None in modern protocol versions, which have no sessions.
        request_id: The JSON-RPC id of the request; unique only within its connection.
        call_id: The gateway's own id, unique to this call.
        via: The route of the call: `wrapper` or `invoke_tool`.
        tags: The tags of the server.
        profile: The caller's profile.
        digest: A digest of the tool's definition; it changes with the definition.
        read_only: The tool declares that it changes nothing (`readOnlyHint`).
        shared_within: How far the result may be given to a second equal call. `principal`: to any call of the same
            principal. `session`: only in this session, since the upstream tells sessions apart or may have asked its
            user. `request`: to none, since the upstream declares that its answers are private, or was given answers
            of a user.
        connection: The number of the upstream connection; another sign-in, and a reconnect, make another one.
        elapsed_ms: For audit hooks after a call: how long it took, hooks included.
        blocked_by: For audit hooks after a blocked call: the hook that blocked it.
    """

    kind: Kind
    wrapper: str
    server: str
    tool: str
    principal: str
    session: str | None
    request_id: str | int | float | None
    call_id: str
    via: CallRoute
    tags: tuple[str, ...]
    profile: str
    digest: str = ""
    read_only: bool = False
    shared_within: Sharing = "principal"
    connection: int = 0
    elapsed_ms: float | None = None
    blocked_by: str | None = None


class Call:
    """One call on its way to an upstream; its attributes cannot be set.

    The arguments are a copy for this hook alone, made on first access: changing them in place has no effect unless
    the call is returned.
    """

    __slots__ = ("_args", "_definition", "_memo", "_metadata", "_name", "_own")

    def __init__(
        self,
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
        """The name of the tool, prompt or resource at its upstream, on both routes."""
        return self._name

    @property
    def args(self) -> dict[str, Any]:
        """The arguments, repaired, with defaults and checked; `{}` if the caller sent none.

        For a prompt its arguments, for a resource `{"uri": …}`; for a completion `{"argument": {"name", "value"}}`,
        and `context` if the caller sent one.
        """
        # Copied on first access: a hook that looks only at metadata pays nothing.
        if self._own is None:
            self._own = copied(self._args)
        return self._own

    @property
    def metadata(self) -> Metadata:
        """What else is known about the call."""
        # A function until somebody asks: most hooks never do.
        if not isinstance(self._metadata, Metadata):
            self._metadata = self._metadata()
        return self._metadata

    @property
    def memo(self) -> dict[str, Any]:
        """A dictionary of this hook for this call: what it stores before the call, it finds there after it."""
        if self._memo is None:
            self._memo = {}
        return self._memo

    @property
    def definition(self) -> dict[str, Any]:
        """A copy of the tool's definition; `{}` for prompts and resources."""
        # The catalog's own object: a hook that changed it would change the tool for everybody.
        return copied(dict(self._definition or {}))

    def with_args(self, args: dict[str, Any]) -> Call:
        """Return this call with other arguments, for a transforming hook to return."""
        # `self.memo`, not `self._memo`: both calls have to share one dictionary, even if it is still to be made.
        return Call(
            name=self._name, args=args, metadata=self._metadata, memo=self.memo, definition=self._definition
        )  # fmt: skip

    def handed_back(self) -> Any:
        """The arguments as the hook left them, unchecked; for the gateway."""
        return self._args if self._own is None else self._own

    def is_untouched(self, args: dict[str, Any]) -> bool:
        """Whether it is about these very arguments, and the hook has no copy of them; for the gateway."""
        return self._own is None and self._args is args

    def __repr__(self) -> str:
        return f"Call(name={self._name!r})"


class Result:
    """The complete result of an upstream: every content item, `structuredContent`, `isError`, `_meta`.

    A tool's has `content`, a prompt's `messages`, a resource's `contents`, and that of a completion `completion`.
    """

    __slots__ = ("_own", "_value")

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value
        self._own: dict[str, Any] | None = None

    @property
    def value(self) -> dict[str, Any]:
        """The result object; a copy for this hook alone, made on first access."""
        if self._own is None:
            self._own = copied(self._value)
        return self._own

    @property
    def content(self) -> list[Any]:
        """All items of a tool's content, a prompt's messages or a resource's contents."""
        found = next((self.value[key] for key in ("content", "messages", "contents") if key in self.value), None)
        return found if isinstance(found, list) else []

    @property
    def structured_content(self) -> Any:
        """The structured form; None if there is none."""
        return self.value.get("structuredContent")

    @property
    def is_error(self) -> bool:
        """Whether the tool reports that it failed."""
        return self._value.get("isError") is True  # of the original: one member is read without a copy

    def with_value(self, value: dict[str, Any]) -> Result:
        """Return a result with another value, for a transforming hook to return."""
        return Result(value)

    def handed_back(self) -> Any:
        """The result as the hook left it, unchecked; for the gateway."""
        return self._value if self._own is None else self._own


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Returned to stop a call, or to withhold its result.

    Attributes:
        reason: A short text for the caller.
        description: Further details.
        code: The JSON-RPC code if blocks are answered as protocol errors (`blockAs: error`).
    """

    reason: str
    description: str = ""
    code: int = BLOCK_CODE


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Returned before a call to answer it in place of the upstream; later hooks do not see the call."""

    value: dict[str, Any]


class HookFailed(Exception):
    """A hook failed; the text completes a sentence that begins with its name."""


Before = Call | Block | Answer | None
After = Result | Block | None
HookReturn = Before | After


class Hook:
    """Base class of hooks. Override the phases that you need; a phase that is not overridden costs nothing.

    One object serves all calls until its entry in the configuration changes.

    **When.** A call is routed, allowed, repaired, given its defaults and checked; then the `before` phase runs.
    If a hook has changed the arguments they are checked against the schema again. After the upstream has answered,
    the `after` phase runs, in reverse order; then the gateway adds hints to error results. A call through
    `invoke_tool` runs once, as a call of the tool that it names. Hooks do not see arguments that are refused.

    **What may be returned.** `None`, to leave everything as it is; `call.with_args(...)` or
    `result.with_value(...)`, to change it; a `Block`, to stop it; before a call also an `Answer`. Anything else,
    an exception and a time-out are failures of the hook: the call fails, unless the entry says `onError: ignore`.

    **Modes**, set by `mode` here or in the configuration:

    - `transform` may change, answer and block calls. Hooks of this mode and the next run one after the other, by
      priority.
    - `validate` may only block.
    - `concurrent` is `validate` for hooks that all run at the same time, after the sequential ones.
    - `audit` receives copies, later, one at a time and in order; no call waits for it, and what it returns has no
      effect. It sees the arguments as they were sent and the result as it was answered, blocked calls included
      (`metadata.blocked_by`). Events that do not fit into its queue are counted as dropped, and logged.

    **`async def` or `def`.** An `async def` phase runs on the event loop and must not block it. A plain `def` phase
    runs in a thread; each hook has up to eight. While all of them are busy, further calls wait for one, no longer than
    their time-out.

    A hook that fails five times in a row for one principal is skipped for some seconds for calls of that principal:
    with `onError: ignore` they go on, with `fail` they fail at once; both are counted.
    """

    mode: ClassVar[Mode] = "transform"
    """The mode if the configuration sets none."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Store the `config` object of the entry.

        Raises:
            ValueError: The configuration is invalid; the text says what was expected.
        """
        self.config = config

    def offers(self, phase: str) -> bool:
        """Whether it runs in a phase; by default, whether that method is overridden."""
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
        """Called before a prompt is fetched."""
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

    def before_completion(self, call: Call) -> Before | Awaitable[Before]:
        """Called before values for an argument of a prompt or a template are asked for; `call.name` is of those."""
        return None

    def after_completion(self, call: Call, result: Result) -> After | Awaitable[After]:
        """Called with the values, which are `result.value["completion"]["values"]`."""
        return None


PHASES: Mapping[str, str] = {
    "beforeCall": "before_call",
    "afterCall": "after_call",
    "beforePrompt": "before_prompt",
    "afterPrompt": "after_prompt",
    "beforeResource": "before_resource",
    "afterResource": "after_resource",
    "beforeCompletion": "before_completion",
    "afterCompletion": "after_completion",
}
"""The phases as the configuration spells them, and their methods."""
