"""Which calls of the program's tools a person must approve, and the decisions of the user's hooks before a call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    ToolPermissionContext,
)

from agentops.durable.answers import Effect

#: Tools of the program whose work is calls of other tools. Those calls are decided about, but are no steps.
DELEGATES = frozenset({"Agent", "Task", "Skill"})
#: Tools of the program that need no approval: by themselves, they change nothing outside of the session.
READS = DELEGATES | frozenset(
    {
        *("Read", "Glob", "Grep", "LS", "NotebookRead", "BashOutput", "TaskOutput", "ToolSearch", "StructuredOutput"),
        *("TodoWrite", "TaskCreate", "TaskGet", "TaskList", "TaskUpdate", "EnterPlanMode"),
    }
)
#: Tools of the program that its mode `acceptEdits` allows.
EDITS = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"})
#: Modes in which the program allows or denies each call itself.
SILENT_MODES = frozenset({"bypassPermissions", "dontAsk", "plan", "auto"})


@dataclass(frozen=True)
class ToolPermission:
    """The decision about a call before its step begins."""

    arguments: Mapping[str, Any]
    #: Why the call is denied; empty if it is not.
    denied: str = ""
    #: Whether a person must approve it.
    needs_approval: bool = False
    #: Whether it is allowed without the program's own rules.
    is_allowed: bool = False
    #: Further output of the user's hooks, for the program.
    output: Mapping[str, Any] = field(default_factory=dict)


class ToolPermissions:
    """The rules, the hooks and the callback of the options."""

    def __init__(self, options: ClaudeAgentOptions, own_effects: Mapping[str, Effect]) -> None:
        """Read the options. `own_effects`: of the tools of in-process servers, by name."""
        self._options = options
        self._own_effects = own_effects
        self._hooks: list[HookMatcher] = list((options.hooks or {}).get("PreToolUse", ()))

    async def of(self, tool: str, facts: Mapping[str, Any], call_id: str) -> ToolPermission:
        """Return the permission of a call. `facts`: the input of a hook before the call."""
        decision = await self._ask_hooks(tool, dict(facts), call_id)
        if decision.denied or decision.is_allowed:
            return decision
        if not decision.needs_approval and not self._program_asks(tool):
            return decision
        if self._options.can_use_tool is None:
            return ToolPermission(decision.arguments, needs_approval=True, output=decision.output)
        return await self._ask_callback(tool, decision, call_id)

    async def of_subagent(self, tool: str, facts: Mapping[str, Any], call_id: str) -> ToolPermission:
        """Return the permission of a call of a sub-agent, which cannot wait for a person."""
        permission = await self.of(tool, facts, call_id)
        if not permission.needs_approval:
            return permission
        return ToolPermission(
            permission.arguments, denied=f"Sub-agents cannot use {tool}: a person would have to approve it"
        )

    def names(self, tool: str) -> bool:
        """Return whether a rule of `allowed_tools` names a tool, or some of its calls."""
        return any(_names(rule.partition("(")[0], tool) for rule in self._options.allowed_tools)

    def _program_asks(self, tool: str) -> bool:
        """Return whether the program would ask for a permission. Rules with patterns are left to the program."""
        mode = self._options.permission_mode
        is_edit = mode == "acceptEdits" and tool in EDITS
        is_read = tool in READS or self._own_effects.get(tool) == "read"
        return not (mode in SILENT_MODES or is_edit or is_read or self.names(tool))

    async def _ask_hooks(self, tool: str, facts: dict[str, Any], call_id: str) -> ToolPermission:
        """Call the hooks before a call in order. The strictest decision counts."""
        arguments, decisions, output = dict(facts.get("tool_input") or {}), {""}, {}
        for matcher in self._hooks:
            if not _matches(matcher.matcher, tool):
                continue
            for hook in matcher.hooks:
                given: Any = {**facts, "tool_input": arguments}
                answer: Mapping[str, Any] = await hook(given, call_id, {"signal": None}) or {}
                specific = answer.get("hookSpecificOutput") or {}
                decision = _decision(answer, specific)
                if decision == "deny":
                    reason = (
                        specific.get("permissionDecisionReason") or answer.get("reason") or answer.get("stopReason")
                    )
                    return ToolPermission(arguments, denied=str(reason or "A hook denied the call"))
                decisions.add(decision)
                arguments = dict(specific.get("updatedInput") or arguments)
                if context := specific.get("additionalContext"):
                    output["additionalContext"] = context
        asks = "ask" in decisions or "defer" in decisions
        return ToolPermission(
            arguments, needs_approval=asks, is_allowed="allow" in decisions and not asks, output=output
        )

    async def _ask_callback(self, tool: str, decision: ToolPermission, call_id: str) -> ToolPermission:
        callback = self._options.can_use_tool
        assert callback is not None
        answer = await callback(tool, dict(decision.arguments), ToolPermissionContext(tool_use_id=call_id))
        if isinstance(answer, PermissionResultDeny):
            return ToolPermission(decision.arguments, denied=answer.message or "can_use_tool denied the call")
        if not isinstance(answer, PermissionResultAllow):
            raise TypeError(f"can_use_tool returned a {type(answer).__name__}: return a PermissionResult")
        return ToolPermission(answer.updated_input or decision.arguments, is_allowed=True, output=decision.output)


def _decision(answer: Mapping[str, Any], specific: Mapping[str, Any]) -> str:
    if answer.get("decision") == "block" or answer.get("continue_", answer.get("continue")) is False:
        return "deny"
    return str(specific.get("permissionDecision") or "")


def _names(rule: str, tool: str) -> bool:
    """Return whether a rule names a tool, or its MCP server."""
    return rule == tool or tool.startswith(f"{rule.removesuffix('*').removesuffix('__')}__")


def _matches(matcher: str | None, tool: str) -> bool:
    """Return whether the matcher of a hook fits a tool: a name, names with bars, or a regular expression."""
    if matcher in (None, "", "*"):
        return True
    try:
        return re.fullmatch(str(matcher), tool) is not None
    except re.error:
        return matcher == tool
