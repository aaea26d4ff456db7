"""The configuration in effect, and the interface of the objects that depend on it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import anyio

from gateway.config.model import Config
from gateway.process.secrets import SECRETS, secrets_in

Apply = Callable[[], None]
"""A function that applies a validated configuration. It does not wait and does not raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """The change from one configuration to another.

    Attributes:
        is_reload: True if the new configuration was read from a file; no administrator is recorded for the change.
    """

    before: Config
    after: Config
    is_reload: bool = True

    @property
    def changes_rules(self) -> bool:
        """Return whether the rules of the policy, or the names that they refer to, may have changed."""
        before, after = self.before.gateway, self.after.gateway
        return before.policy != after.policy or before.names != after.names


class Reconfigurable(Protocol):
    """A part of a running gateway that depends on the configuration.

    Every part is registered with `ActiveConfig.add` where it is constructed, and validates and applies every later
    change. A part that reads `ActiveConfig.current` each time, and copies nothing from it, needs no registration.
    """

    @abstractmethod
    async def validate(self, change: ConfigChange) -> Apply:
        """Validate another configuration, and return the function that applies it.

        Nothing visible changes until the function is called. The function is not called if any part rejects the
        configuration.

        Raises:
            ConfigError: The part cannot use the configuration.
        """

    def close(self) -> None:
        """Release resources that no task owns, when the gateway ends. By default, do nothing."""
        return


PartT = TypeVar("PartT", bound=Reconfigurable)


class ActiveConfig:
    """The configuration in effect, and all parts that depend on it.

    Attributes:
        current: The configuration in effect.
        parts: The parts, in the order in which they validate and apply a change.
    """

    def __init__(self, config: Config) -> None:
        _hide_secrets(config)
        self.current = config
        self.parts: tuple[Reconfigurable, ...] = ()
        self._suspected = anyio.Event()

    def add(self, part: PartT) -> PartT:
        """Register a part for all later changes, and return it."""
        self.parts += (part,)
        return part

    async def change(self, config: Config, *, is_reload: bool = True) -> None:
        """Apply another configuration to all parts, or to none. Calls in flight continue with the old configuration.

        Args:
            is_reload: See `ConfigChange`.

        Raises:
            ConfigError: A part cannot use the configuration; nothing has changed.
        """
        _hide_secrets(config)
        change = ConfigChange(before=self.current, after=config, is_reload=is_reload)
        ready = [await part.validate(change) for part in self.parts]
        # Nothing is awaited from here on, so that no call sees a partly applied configuration.
        self.current = config
        for apply in ready:
            apply()

    def suspect(self) -> None:
        """Report that a file other than the main file may have changed, such as a file with a secret.

        Called when an upstream rejects the gateway's credentials.
        """
        self._suspected.set()

    async def wait_suspected(self) -> None:
        """Wait for the next call of `suspect`."""
        await self._suspected.wait()
        self._suspected = anyio.Event()

    def close(self) -> None:
        """Close all parts, the latest first."""
        for part in reversed(self.parts):
            part.close()


def _hide_secrets(config: Config) -> None:
    """Hide the secrets in the gateway's settings from all output. `gateway.fleet` hides the secrets of upstreams."""
    SECRETS.hide({*config.secrets, *secrets_in(config.gateway.model_dump(by_alias=True, exclude_unset=True))})
