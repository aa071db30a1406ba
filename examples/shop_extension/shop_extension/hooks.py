"""A hook of a shop."""

from __future__ import annotations

from agentops.hooks import Hook, HookContext, HookEvent, Verdict


class RefundLimit(Hook):
    """Denies refunds above a limit."""

    name = "refund_limit"
    guard = True
    events = frozenset({HookEvent.PRE_TOOL_USE})

    def __init__(self, options: dict[str, int]) -> None:
        self.limit = options.get("cents", 1000)

    def decide(self, context: HookContext) -> Verdict | None:
        cents = context.arguments["cents"]
        if cents > self.limit:
            return Verdict.deny(f"{cents} cents are more than {self.limit}; a person has to do this")
        return None
