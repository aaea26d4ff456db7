"""The interface for hook authors. The docstrings in this module are the manual."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gateway.hooks.payloads import deep_copy

Kind = Literal["tool", "prompt", "resource", "completion"]
# Which later calls may get the same result; see `Metadata.shared_within`.
Sharing = Literal["principal", "session", "request"]
CallRoute = Literal["wrapper", "invoke_tool"]
Mode = Literal["transform", "validate", "audit", "concurrent"]
# The first code of the range that JSON-RPC 2.0 reserves for server errors.
BLOCK_CODE = -32000
"""The JSON-RPC error code of a `Block` that does not set a code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Information about a call, in addition to its arguments.

    Attributes:
        kind: `tool` for a tool call, `prompt` for fetching a prompt, `resource` for reading a resource, `completion`
            for completing an argument of a prompt or a resource template.
        wrapper: The name that callers use: `server__tool`, or the exposed name of a prompt, or the URI of a resource.
        server: The alias of the upstream.
        tool: The name of the tool or prompt on the upstream, or the URI of the resource there.
        principal: The authenticated caller.
        session: The caller's session id; None in modern protocol versions, which do not have sessions.
        request_id: The JSON-RPC id of the request, unique only within its connection.
        call_id: The gateway's id of this call, globally unique.
        via: How the caller called the tool: by its own name (`wrapper`), or with `invoke_tool`.
        tags: The tags of the server.
        profile: The caller's profile.
        digest: A digest of the tool's definition, which changes when the definition changes.
        read_only: Whether the tool declares that it does not modify anything (`readOnlyHint`).
        shared_within: Which later calls with equal arguments may get this result. `principal`: all calls of the same
            principal. `session`: only calls in this session, because the upstream distinguishes sessions or may have
            asked this session's user for input. `request`: no other call, because the upstream declares its results
            as private or has received input from a user.
        connection: The number of the upstream connection, which changes after a reconnect or a new sign-in.
        elapsed_ms: The duration of the call, including its hooks. Set only for audit hooks after a call.
        blocked_by: The hook that blocked the call. Set only for audit hooks after a blocked call.
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
    """One call on its way to an upstream. Its attributes are read-only.

    Each hook gets its own copy of the arguments, made on first access. Changing that copy has no effect unless the hook
    returns the call.
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
        """The name of the tool or prompt on the upstream, or the URI of the resource, even with `invoke_tool`."""
        return self._name

    @property
    def args(self) -> dict[str, Any]:
        """The arguments after repair, defaults and validation; `{}` if the caller sent none.

        For a resource, they are `{"uri": …}`. For a completion, they are `{"argument": {"name", "value"}}`, with
        `context` if the caller sent it.
        """
        # Copied on first access, because many hooks read only metadata.
        if self._own is None:
            self._own = deep_copy(self._args)
        return self._own

    @property
    def metadata(self) -> Metadata:
        """Further information about the call."""
        # Built on first access, because most hooks do not read metadata.
        if not isinstance(self._metadata, Metadata):
            self._metadata = self._metadata()
        return self._metadata

    @property
    def memo(self) -> dict[str, Any]:
        """A dictionary for this hook and this call: entries stored before the call are available after the call."""
        if self._memo is None:
            self._memo = {}
        return self._memo

    @property
    def definition(self) -> dict[str, Any]:
        """A copy of the tool's definition; `{}` for prompts and resources."""
        # Copied, because a change to the definition in the catalog would affect all callers.
        return deep_copy(dict(self._definition or {}))

    def with_args(self, args: dict[str, Any]) -> Call:
        """Return this call with different arguments, for a `transform` hook to return."""
        # `self.memo` (unlike `self._memo`) creates the dictionary if necessary: both `Call` objects must share it.
        return Call(name=self._name, args=args, metadata=self._metadata, memo=self.memo, definition=self._definition)

    def unchecked(self) -> Any:
        """Return the arguments as the hook has left them, without checks. For internal use."""
        return self._args if self._own is None else self._own

    def is_untouched(self, args: dict[str, Any]) -> bool:
        """Return whether the call has these arguments, and the hook has not accessed them. For internal use."""
        return self._own is None and self._args is args

    def __repr__(self) -> str:
        return f"Call(name={self._name!r})"


class Result:
    """The complete result of an upstream: all content items, `structuredContent`, `isError` and `_meta`.

    Tool results have `content`, prompts `messages`, resources `contents` and completions `completion`.
    """

    __slots__ = ("_own", "_value")

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value
        self._own: dict[str, Any] | None = None

    @property
    def value(self) -> dict[str, Any]:
        """The result object. Each hook gets its own copy, made on first access."""
        if self._own is None:
            self._own = deep_copy(self._value)
        return self._own

    @property
    def content(self) -> list[Any]:
        """The content items of a tool result, the messages of a prompt, or the contents of a resource."""
        items = next((self.value[key] for key in ("content", "messages", "contents") if key in self.value), None)
        return items if isinstance(items, list) else []

    @property
    def structured_content(self) -> Any:
        """The structured content, or None."""
        return self.value.get("structuredContent")

    @property
    def is_error(self) -> bool:
        """Whether the tool reports a failure."""
        return self._value.get("isError") is True  # avoids copying the result for one member

    def with_value(self, value: dict[str, Any]) -> Result:
        """Return a result with a different value, for a `transform` hook to return."""
        return Result(value)

    def unchecked(self) -> Any:
        """Return the result as the hook has left it, without checks. For internal use."""
        return self._value if self._own is None else self._own


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Returned by a hook to stop a call or to withhold its result.

    Attributes:
        reason: A short text for the caller.
        description: Further details.
        code: The JSON-RPC error code, used if a block is sent as a protocol error (`blockAs: error`).
    """

    reason: str
    description: str = ""
    code: int = BLOCK_CODE


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Returned by a hook before a call to answer the call instead of the upstream. Later hooks do not see the call."""

    value: dict[str, Any]


class HookFailed(Exception):
    """A hook failed. The text continues a sentence that starts with the hook's name, such as `raised ValueError`."""


Before = Call | Block | Answer | None
After = Result | Block | None
HookReturn = Before | After


class Hook:
    """Base class of hooks. Each method named `before_…` or `after_…` is a phase: override the phases that you need.

    Phases that are not overridden cost nothing.

    One instance serves all calls until its entry in the configuration changes.

    **Order.** The gateway routes a call, checks permissions, repairs the arguments, adds defaults and validates them;
    then it runs the `before` phase. If a hook changes the arguments, they are validated again. After the upstream has
    answered, the `after` phase runs in reverse order, and then the gateway adds hints to error results. For a call
    through `invoke_tool`, only the hooks of the called tool run. Hooks do not see calls with invalid arguments.

    **Return values.** Return `None` to change nothing, `call.with_args(...)` or `result.with_value(...)` to change the
    arguments or the result, a `Block` to stop the call, or, before a call, an `Answer`. Any other return value, an
    exception or a timeout is a failure of the hook: the call fails, unless the hook's entry says `onError: ignore`.

    **Modes**, set by `mode` in the class or in the configuration:

    - `transform` may change, answer and block calls. Hooks with mode `transform` or `validate` run sequentially, by
      priority.
    - `validate` may only block.
    - `concurrent` may only block; these hooks run concurrently, after the sequential ones.
    - `audit` hooks receive copies through a queue, one at a time and in order. No call waits for an audit hook, and the
      hook's return value has no effect. The hook sees the arguments that were sent and the result that was returned,
      also for blocked calls (`metadata.blocked_by`). Events that do not fit into the queue are dropped and counted, and
      the first dropped event is logged.

    **`async def` or `def`.** An `async def` phase runs on the event loop and must not block it. A `def` phase runs in a
    thread. Each hook has up to eight threads; while all of them are busy, further calls wait for a thread until their
    timeout expires.

    A hook that fails five times in a row for one principal is skipped for several seconds for that principal. A call
    that skips the hook continues with `onError: ignore` and fails with `onError: fail`; it is counted in both cases.
    """

    mode: ClassVar[Mode] = "transform"
    """The mode to use if the configuration does not set one."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Store the `config` object of the hook's entry.

        Raises:
            ValueError: The configuration is invalid; the text says what was expected.
        """
        self.config = config

    def offers(self, phase: str) -> bool:
        """Return whether the hook runs in a phase. By default, it does if the method is overridden."""
        return getattr(type(self), phase, None) is not getattr(Hook, phase)

    async def start(self) -> None:
        """Prepare the hook. Called once before the first call, with a limit of ten seconds."""

    async def close(self) -> None:
        """Release resources. Called once after the last call, with a limit of two seconds."""

    def before_call(self, call: Call) -> Before | Awaitable[Before]:
        """Inspect or change a tool call before it is sent."""
        return None

    def after_call(self, call: Call, result: Result) -> After | Awaitable[After]:
        """Inspect or change a tool's result. `call.args` are the arguments that were sent."""
        return None

    def before_prompt(self, call: Call) -> Before | Awaitable[Before]:
        """Inspect or change a request for a prompt before it is sent."""
        return None

    def after_prompt(self, call: Call, result: Result) -> After | Awaitable[After]:
        """Inspect or change a prompt's messages."""
        return None

    def before_resource(self, call: Call) -> Before | Awaitable[Before]:
        """Inspect or change a request for a resource before it is sent. `call.args` is `{"uri": …}`."""
        return None

    def after_resource(self, call: Call, result: Result) -> After | Awaitable[After]:
        """Inspect or change a resource's contents."""
        return None

    def before_completion(self, call: Call) -> Before | Awaitable[Before]:
        """Inspect or change a completion request. `call.name` names the prompt or the resource template."""
        return None

    def after_completion(self, call: Call, result: Result) -> After | Awaitable[After]:
        """Inspect or change the suggested values in `result.value["completion"]["values"]`."""
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
"""The method of each phase, by the name of the phase in the configuration."""
