"""The public imports for modules with custom hooks; see docs/guides/hooks.md.

from agentops.hooks import Hook, HookContext, HookEvent, Verdict

class NoDrops(Hook):
    name, guard, events = "no_drops", True, frozenset({HookEvent.PRE_TOOL_USE})
"""

from __future__ import annotations

from runs.hooks.base import Hook, HookContext, HookEvent, Verdict, VerdictKind

__all__ = ["Hook", "HookContext", "HookEvent", "Verdict", "VerdictKind"]
