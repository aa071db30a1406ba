"""Receives hook calls of agent programs: a session works, waits for its user, or starts a sub-agent.

The session's content comes from its file, which `agentops watch` follows. A hook never opens a run: a hook call for an
unknown session is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runs.external.event_input import MAX_RUN_REFERENCE
from runs.external.ingest import Sender, record
from runs.models import AgentRun
from runs.statuses import RunStatus, WaitReason
from timeline.events import EventType

#: Hooks of Claude Code that report that the session is working.
_AT_WORK = ("UserPromptSubmit", "PreToolUse", "PostToolUse")
#: Tools that start a sub-agent, by their older and newer names.
_SUB_AGENT_TOOLS = ("Task", "Agent")
_MAX_TEXT = 500


def record_claude_code(sender: Sender, document: Mapping[str, Any]) -> bool:
    """Store the input of a Claude Code hook. Return whether it changed or added anything."""
    reference = f"claude-code:{_text(document, 'session_id')}"
    if len(reference) > MAX_RUN_REFERENCE or not reference.isprintable():
        return False
    runs = AgentRun.objects.filter(project=sender.project, external_id=reference)
    run = runs.values_list("status", "status_reason").first()
    if run is None:
        return False
    status = _status_event(document, RunStatus(run[0]), run[1])
    events = [{"runId": reference, **event} for event in (status, _sub_agent_event(document)) if event is not None]
    return any(result.error is None for result in record(sender, events)) if events else False


def _status_event(document: Mapping[str, Any], status: RunStatus, reason: str) -> dict[str, Any] | None:
    """Return the event that sets the status reported by the hook; None if the run already has this status."""
    name = document.get("hook_event_name")
    if name in _AT_WORK:
        is_running = status is RunStatus.RUNNING
        return None if is_running else {"type": EventType.RUN_PHASE, "payload": {"status": "running"}}
    waits_for = WaitReason.INPUT if name == "Stop" else _notified(document) if name == "Notification" else None
    if waits_for is None or (status is RunStatus.WAITING and reason == waits_for):
        return None
    message = _text(document, "message")[:_MAX_TEXT]
    return {
        "type": EventType.RUN_WAITING,
        "payload": {"reason": waits_for, **({"message": message} if message else {})},
    }


def _notified(document: Mapping[str, Any]) -> WaitReason | None:
    """Return the wait reason that a notification reports. Older versions report it only in the message."""
    kind, message = _text(document, "notification_type"), _text(document, "message").lower()
    if kind == "permission_prompt" or (not kind and "permission" in message):
        return WaitReason.APPROVAL
    if kind in ("idle_prompt", "elicitation_dialog") or (not kind and "waiting for your input" in message):
        return WaitReason.INPUT
    return None


def _sub_agent_event(document: Mapping[str, Any]) -> dict[str, Any] | None:
    name, arguments = document.get("hook_event_name"), document.get("tool_input")
    if name == "PreToolUse" and document.get("tool_name") in _SUB_AGENT_TOOLS:
        fields = arguments if isinstance(arguments, Mapping) else {}
        return _noted("x.sub_agent.started", _text(fields, "subagent_type"), _text(fields, "description"))
    if name == "SubagentStop":
        return _noted("x.sub_agent.stopped", _text(document, "agent_type"), "")
    return None


def _noted(type_: str, agent: str, what: str) -> dict[str, Any]:
    verb = type_.rpartition(".")[2]
    text = f"Sub-agent {verb}{f': {agent}' if agent else ''}{f' ({what})' if what else ''}"
    return {"type": type_, "payload": {"message": text[:_MAX_TEXT]}}


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
