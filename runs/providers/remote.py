"""The providers of agents whose runs durable functions execute, which call any models themselves.

Of remote agents, a process elsewhere executes the runs over HTTP. Of agents of packages, workers of this site do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runs.providers.base import FollowUp, ModelCall, ProviderUnusable

#: The provider of remote agents, and of agents whose code is in an installed package.
NAME, PACKAGE = "remote", "package"
#: The providers whose runs durable functions execute.
DURABLE = frozenset({NAME, PACKAGE})
#: The setting with the version of the code that executes the agent's new runs.
CODE_VERSION = "code_version"
MAX_CODE_VERSION = 1_000_000_000


def code_version_of(config: Mapping[str, Any]) -> int | None:
    """Return the version of the code that a run with this frozen agent requires; None if it needs no such code."""
    if config.get("provider") not in DURABLE:
        return None
    return checked_code_version((config.get("settings") or {}).get(CODE_VERSION, 1))


def checked_code_version(value: Any) -> int:
    """Return the version if it is valid. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CODE_VERSION:
        raise ValueError(f"settings.{CODE_VERSION} must be a whole number from 1 to {MAX_CODE_VERSION}")
    return value


class RemoteProvider:
    """Accepts any model name, because the process that executes a run reports the models that it calls."""

    #: Who calls the models.
    executor = "a process elsewhere"

    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        try:
            checked_code_version(settings.get(CODE_VERSION, 1))
        except ValueError as error:
            raise ProviderUnusable(str(error)) from None

    def open(self, call: ModelCall) -> Any:
        """Raise `ProviderUnusable`: the step loop of workers does not call the model of such a run."""
        raise ProviderUnusable(f"{self.executor} executes the runs of this agent")

    def context_window(self, model: str) -> int | None:
        return None

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        return FollowUp()


class PackageProvider(RemoteProvider):
    """The same for agents whose code is in an installed package."""

    executor = "the code of an installed package"
