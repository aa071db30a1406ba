"""Payloads of decisions of hooks, safety rules and approvers about tool calls."""

from __future__ import annotations

from pydantic import JsonValue

from timeline.events.base import EventKind, Family, Millis, Payload, Show, because, by, sentence
from timeline.events.vocabulary import EventType

HOOK = Family("hook", "Hooks", icon="hook", show=Show.TOOLS)
SAFETY = Family("safety", "Safety rules", icon="denied", show=Show.TOOLS)
APPROVAL = Family("approval", "Approvals", icon="hook", show=Show.TOOLS)

_VERDICTS = {
    "deny": "denied the call",
    "ask": "asked for an approval",
    "modify_args": "changed the arguments",
    "allow": "allowed the call",
    "stop": "stopped the run",
    "system_message": "sent a system message",
    "append_context": "added to the conversation",
    "continue": "had no objection",
}
_REQUESTED_BY = {"rule": "by an approval rule", "tool": "by the tool itself"}


@EventKind(EventType.HOOK_DECIDED, HOOK, is_reserved=True, is_outcome=True, denies_if={"verdict": ("deny",)})
class HookDecided(Payload):
    """A hook allowed, denied or changed a call. `diff` contains its changes to the arguments."""

    hook: str | None = None
    event: str | None = None
    verdict: str | None = None
    reason: str | None = None
    duration_ms: Millis | None = None
    diff: JsonValue = None
    call_id: str | None = None
    tool_name: str | None = None
    #: The hook failed, and the verdict follows from its kind.
    failed: bool = False

    def describe(self) -> str:
        act = _VERDICTS.get(self.verdict or "", f"decided: {self.verdict}" if self.verdict else "gave no verdict")
        return sentence(f"Hook {self.hook or 'unnamed'} {act}", because(self.reason))


@EventKind(EventType.SAFETY_BLOCK, SAFETY, is_failure=True, is_warning=True)
class SafetyBlock(Payload):
    """A safety rule blocked a call."""

    code: str | None = None
    reason: str | None = None
    call_id: str | None = None
    tool_name: str | None = None

    def describe(self) -> str:
        return sentence("Blocked", self.tool_name or "a call", because(self.reason or self.code))


class _Approval(Payload):
    """`arguments` are the exact arguments of the call, as displayed to the approver."""

    call_id: str | None = None
    tool_name: str | None = None
    decision: str | None = None
    by: str | None = None
    reason: str | None = None
    arguments: JsonValue = None


@EventKind(EventType.APPROVAL_REQUESTED, APPROVAL, is_wait=True)
class ApprovalRequested(_Approval):
    """A call waits for approval."""

    def describe(self) -> str:
        asked_by = self.by or ""
        named = f"by the hook {asked_by.removeprefix('hook:')}" if asked_by.startswith("hook:") else by(self.by)
        return sentence(
            "Approval requested",
            self.tool_name and f"for {self.tool_name}",
            _REQUESTED_BY.get(asked_by, named),
            because(self.reason),
        )


@EventKind(
    EventType.APPROVAL_RESOLVED, APPROVAL, updates_call=True, denies_if={"decision": ("denied", "expired", "cancelled")}
)
class ApprovalResolved(_Approval):
    """A call was approved or denied, or its approval expired or was cancelled.

    `diff` contains the changes of the approver to the arguments. `always`: the approval holds for all later calls of
    the tool in the run.
    """

    diff: JsonValue = None
    always: bool = False

    def describe(self) -> str:
        tool = self.tool_name or "a call"
        if self.decision == "expired":
            return f"Approval of {tool} expired without a decision"
        if self.decision == "cancelled":
            return f"Approval of {tool} cancelled: the run was paused or stopped"
        return sentence(self.tool_name or "Call", self.decision or "decided", by(self.by), because(self.reason))
