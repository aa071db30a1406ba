"""Payloads of tool calls: start, output, end, unknown outcome, and decisions of hooks, safety rules and approvers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from logging import DEBUG
from typing import cast

from pydantic import JsonValue

from timeline.display import preview
from timeline.events.base import (
    Count,
    EventKind,
    EventType,
    Family,
    Millis,
    Moment,
    Name,
    Payload,
    Show,
    because,
    by,
    seconds,
    sentence,
)

TOOL = Family("tool", "Tool calls", icon="tool", show=Show.TOOLS)

#: Maximum bytes of the arguments in the summary of a call.
SUMMARY_BYTES = 120


@EventKind(EventType.TOOL_START, TOOL, opens_card=True, log_level=DEBUG)
class ToolStart(Payload):
    """A tool call started. `arguments` is a preview from the engine, and complete from external runners.

    A runner may omit `tool_name` if an answer has requested the call. Without `call_id`, the event belongs to the
    oldest requested call of the tool that has not started, or else to a new call; the stored event then has an ID, and
    `inferred` is set.
    """

    call_id: str = ""
    inferred: bool = False
    tool_name: Name | None = None
    attempt: Count | None = None
    effect: str | None = None
    arguments: JsonValue = None
    #: The beginning of the arguments, from runners that do not send all of them.
    args_summary: str | None = None

    def describe(self) -> str:
        return sentence(
            f"Started {self.tool_name or 'a tool'}", f"(attempt {self.attempt + 1})" if self.attempt else None
        )


@EventKind(EventType.TOOL_OUTPUT, TOOL, is_chunk=True)
class ToolOutput(Payload):
    """Output of a running tool. If `late` is set, another worker has taken over the run and the output is discarded.

    Without `call_id`, the event belongs to the oldest open call of the tool, and `inferred` is set.
    """

    call_id: str | None = None
    inferred: bool = False
    tool_name: str | None = None
    stream: str | None = None
    text: str | None = None
    late: bool = False

    def describe(self) -> str:
        return sentence("Late tool output" if self.late else "Tool output", self.stream and f"on {self.stream}")


@EventKind(EventType.TOOL_END, TOOL, ends_card=True, is_outcome=True, log_level=DEBUG)
class ToolEnd(Payload):
    """A tool call ended.

    The engine sends a `preview` of the output; external runners send the full `output`. Without `call_id`, the event
    belongs to the oldest open call of the tool, or to a new call if none is open; the stored event then has an ID, and
    `inferred` is set.
    """

    call_id: str = ""
    inferred: bool = False
    tool_name: str | None = None
    status: str | None = None
    duration_ms: Millis | None = None
    preview: str | None = None
    truncated: bool = False
    bytes: Count | None = None
    error: str | None = None
    output: JsonValue = None
    #: The beginning of the call's arguments, so that a list needs no start event to show them.
    args_summary: str | None = None

    def describe(self) -> str:
        outcome = "failed" if self.error else self.status or "ended"
        return sentence(self.tool_name or "Tool", outcome, seconds(self.duration_ms))


_RESOLUTIONS = {"done": "marked as done", "failed": "marked as failed", "retry": "scheduled to run again"}


@EventKind(EventType.TOOL_OUTCOME_RESOLVED, TOOL, is_reserved=True, updates_call=True)
class ToolOutcomeResolved(Payload):
    """A user or a program resolved the unknown outcome of a call: `done`, `failed`, or `retry` to run it again."""

    call_id: Name
    tool_name: str | None = None
    decision: Name
    by: str | None = None
    at: Moment | None = None

    def describe(self) -> str:
        resolution = _RESOLUTIONS.get(self.decision, self.decision)
        note = "" if self.decision == "retry" else ", not observed"
        return f"{sentence(self.tool_name or 'Tool call', resolution, by(self.by))}{note}"


def args_summary(arguments: object) -> str:
    """Return the beginning of a call's arguments as text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return preview(text, SUMMARY_BYTES)[0]


def summary(payload: Mapping[str, object]) -> dict[str, JsonValue]:
    """Return the summary of a call for lists, from the payload of its start or end."""
    arguments = payload.get("args_summary", payload.get("arguments"))
    return {
        "tool": cast("JsonValue", payload.get("tool_name")),
        "argsSummary": None if arguments is None else args_summary(arguments),
        "durationMs": cast("JsonValue", payload.get("duration_ms")),
    }


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
    #: Whether the hook failed. The verdict then depends on the kind of hook.
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
        requester = self.by or ""
        named = f"by the hook {requester.removeprefix('hook:')}" if requester.startswith("hook:") else by(self.by)
        return sentence(
            "Approval requested",
            self.tool_name and f"for {self.tool_name}",
            _REQUESTED_BY.get(requester, named),
            because(self.reason),
        )


@EventKind(
    EventType.APPROVAL_RESOLVED, APPROVAL, updates_call=True, denies_if={"decision": ("denied", "expired", "cancelled")}
)
class ApprovalResolved(_Approval):
    """A call was approved or denied, or its approval expired or was cancelled.

    `diff` contains the approver's changes to the arguments. `always`: the approval also applies to all later calls of
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
