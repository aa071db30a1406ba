"""Hooks whose decisions and events a test defines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runs.hooks.base import Hook, HookContext, HookEvent
from runs.models import AgentRun

#: Name → the hook's decision function.
DECIDES: dict[str, Callable[[HookContext], Any]] = {}


class _Told(Hook):
    def __init__(self, options: Any) -> None:
        self._told, self.events = options["does"], frozenset(map(HookEvent, options["at"]))

    def decide(self, context: HookContext) -> Any:
        return DECIDES[self._told](context)


class Guard(_Told):
    """A guard."""

    name = "told_guard"
    guard = True


class Observer(_Told):
    """An observer."""

    name = "told_observer"


def use(does: str, *at: HookEvent, guard: bool = True, tools: str = ".*") -> dict[str, Any]:
    """Return a hook entry for an agent's definition."""
    name = Guard.name if guard else Observer.name
    return {"hook": name, "tools": tools, "options": {"does": does, "at": list(at or HookEvent)}}


def with_hooks(run: AgentRun, *hooks: dict[str, Any] | str, **policies: Any) -> AgentRun:
    """Add hooks to the run's saved agent configuration, as if the agent had them at the run's creation."""
    run.agent_config["policies"] = {**run.agent_config["policies"], "hooks": list(hooks), **policies}
    run.save(update_fields=["agent_config"])
    return run
