"""What the rest of the gateway and the hooks of a request know of each other."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from gateway.access.principal import Principal
from gateway.errors import RpcError
from registry.views.view import View


class HookRefusal(RpcError):
    """A hook blocked, and the caller is answered with a JSON-RPC error."""


class HookCaller(Protocol):
    """What hooks are told about the side that calls."""

    @property
    def principal(self) -> Principal: ...
    @property
    def view(self) -> View: ...
    @property
    def session_id(self) -> str | None: ...
    @property
    def request_id(self) -> str | int | float | None: ...
    @property
    def can_be_asked(self) -> bool: ...
    @property
    def answers(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why a request cannot be sent as hooks have left it.

    Attributes:
        text: What is wrong; a phrase where hooks are to blame, an answer for the caller otherwise.
        by_hooks: Whether it is what hooks have changed.
    """

    text: str
    by_hooks: bool


class HookedRequest(Protocol):
    """A request that is ready to be sent, as an invocation sees it."""

    async def revise(self, arguments: dict[str, Any], changed_by: tuple[str, ...]) -> Rejection | None:
        """Take the arguments as the hooks left them; return what is wrong with them now, or None."""

    def send(self) -> Awaitable[Any]:
        """Send it; returns the upstream's raw result."""


class Invocation:
    """The invocation of a call without hooks: nothing is looked at, nothing is changed.

    It has no state, so all such calls share `PASS_THROUGH`. `HookInvocation` overrides everything.

    Attributes:
        answer: What the caller gets in place of the upstream's answer: a block, or a hook's own answer.
        changed_by: The hooks that have changed the arguments.
        blocked_by: The hook that has blocked it.
    """

    __slots__ = ()

    answer: dict[str, Any] | None = None
    changed_by: tuple[str, ...] = ()
    blocked_by: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        return None

    def use_connection(self, number: int) -> None:
        """Tell hooks the number of the upstream connection."""

    def send(self, arguments: Any, request: HookedRequest) -> Awaitable[Any]:
        """Run the hooks before, send the request, run the hooks after; returns the result as they leave it.

        Raises:
            HookRefusal: A hook blocked, and is configured to answer with a protocol error.
        """
        # A plain function: the caller awaits the request itself, with no coroutine in between.
        return request.send()

    async def after(self, result: Any) -> Any:
        """Return a result as the hooks leave it; what is no result, or not yet one, is returned as it is.

        Raises:
            HookRefusal: As `send`.
        """
        return result

    async def after_earlier_call(self, result: Any) -> Any:
        """As `after`, for the result of a task: of the call that started it nothing else is known any more."""
        return result

    def note_error(self) -> None:
        """Count an error of the upstream for the hooks that have changed the arguments."""

    async def after_error(self, error: RpcError) -> dict[str, Any] | None:
        """Show the hooks an upstream's protocol error; returns a result if one of them has changed it.

        Raises:
            HookRefusal: As `send`.
        """
        return None


PASS_THROUGH: Final = Invocation()
