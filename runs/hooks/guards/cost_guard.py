"""`cost_guard`: asks a person, or denies calls, when a run has become expensive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runs.hooks.base import Hook, HookContext, HookEvent, Verdict
from runs.hooks.guards import guard_options as option


class CostGuard(Hook):
    """Asks before each call once the run has cost `ask_above_usd`, and denies calls from `deny_above_usd` on.

    Calls of tools that only read pass. Unlike a budget, which pauses the run, the run can still finish.
    """

    name = "cost_guard"
    events = frozenset({HookEvent.PRE_TOOL_USE})
    guard = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        option.refuse_unknown(options, "ask_above_usd", "deny_above_usd")
        self._ask, self._deny = option.dollars(options, "ask_above_usd"), option.dollars(options, "deny_above_usd")
        if self._ask is None and self._deny is None:
            raise ValueError("set ask_above_usd, deny_above_usd or both")

    def decide(self, context: HookContext) -> Verdict | None:
        if context.effect == "read":
            return None
        if self._deny is not None and context.cost_usd >= self._deny:
            return Verdict.deny(f"the run has cost {context.cost_usd:.2f} US dollars; the limit is {self._deny}")
        if self._ask is not None and context.cost_usd >= self._ask:
            return Verdict.ask(f"the run has cost {context.cost_usd:.2f} US dollars")
        return None
