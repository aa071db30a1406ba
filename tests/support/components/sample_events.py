"""Events of a run, of every family and in every state that the timeline shows, filled with content."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from runs.statuses import ToolStatus, WaitReason
from tests.support.components.sample_content import SampleContent
from tests.support.components.sample_rows import BEGIN, MODEL, sample_id
from timeline.events import EventType as E

#: The call ID of the tool call of unknown outcome, and the position of the rolled-back message.
LOST_CALL, ROLLED_BACK = "lost", 4
_LATER = BEGIN.isoformat()


class SampleEvent(NamedTuple):
    """The fields that differ between sample events."""

    type: str
    payload: dict[str, Any]
    step: int | None = None
    late: bool = False
    #: Whether the event is about the tool call of unknown outcome.
    is_of_lost_call: bool = False


def message_events(content: SampleContent) -> Iterator[SampleEvent]:
    """Yield messages, and model calls: answered, empty, rolled back, abandoned and streaming."""
    yield SampleEvent(E.MESSAGE_ADDED, {"role": "system", "content": content.text})
    yield SampleEvent(E.MESSAGE_ADDED, {"role": "user", "content": content.text})
    yield SampleEvent(E.LLM_TURN_START, {"model": MODEL}, 1)
    yield SampleEvent(E.LLM_TURN_END, _answer(content), 1)
    yield SampleEvent(E.LLM_TURN_START, {"model": content.name}, 2)
    yield SampleEvent(E.MESSAGE_ADDED, {"role": "assistant", "content": content.markdown}, 2)
    yield SampleEvent(E.RUN_ROLLED_BACK, {"reason": "crash", "positions": [ROLLED_BACK]}, 2)
    yield SampleEvent(E.LLM_TURN_START, {"model": MODEL}, 3)
    yield SampleEvent(E.LLM_TEXT_DELTA, {"text": content.text}, 3)
    yield SampleEvent(E.LLM_TURN_ABANDONED, {"reason": "overloaded"}, 3)
    yield SampleEvent(E.LLM_TURN_START, {"model": MODEL, "attempt": 1}, 3)
    yield SampleEvent(E.LLM_TURN_END, {"attempt": 1, "text": ""}, 3)
    yield SampleEvent(E.LLM_TURN_START, {"model": MODEL}, 4)
    yield SampleEvent(E.LLM_THINKING_DELTA, {"text": content.thinking}, 4)
    yield SampleEvent(E.LLM_TEXT_DELTA, {"text": content.markdown}, 4)
    yield SampleEvent(E.LLM_THINKING, {"text": content.thinking})
    yield SampleEvent(E.MESSAGE_ADDED, {"role": "tool_result", "content": content.output})
    yield SampleEvent(E.MESSAGE_ADDED, {"role": "user", "content": content.text}, late=True)


def call_events(content: SampleContent) -> Iterator[SampleEvent]:
    """Yield a tool call of each status, one with streamed output, and calls of an edit, a command and a file."""
    for number, status in enumerate(ToolStatus, 11):
        if status is not ToolStatus.PLANNED:
            yield from _call(content, number, status)
    yield SampleEvent(E.TOOL_START, {"call_id": LOST_CALL}, 20, is_of_lost_call=True)
    yield SampleEvent(E.RUN_WAITING, {"reason": WaitReason.UNKNOWN_TOOL}, 20, is_of_lost_call=True)
    yield from _done(content, 21, {"command": content.output, "description": content.title})
    yield from _done(content, 22, {"path": "main.go", "content": content.code})
    yield from _done(content, 23, {"patch": content.patch})


def other_events(content: SampleContent) -> Iterator[SampleEvent]:
    """Yield an event of each family without a card, and in each of its forms."""
    name, text, error = content.name, content.title, content.error
    call: dict[str, Any] = {"call_id": "call", "tool_name": name}
    change = {"from": content.arguments, "to": content.payload}
    child = str(sample_id(2))
    yield SampleEvent(E.RUN_CREATED, {"agent": name, "by": name})
    yield SampleEvent(E.RUN_STARTED, {"worker": name})
    yield SampleEvent(E.RUN_WAITING, {"reason": WaitReason.COOLDOWN, "until": _LATER})
    yield SampleEvent(E.RUN_WAITING, {"reason": WaitReason.INPUT, "question": text, "choices": [name, name]})
    yield SampleEvent(E.RUN_PAUSED, {"reason": "operator", "by": name, "detail": text})
    yield SampleEvent(E.RUN_RECOVERED, {"cause": "lease_expired", "last_event_at": _LATER})
    yield SampleEvent(E.RUN_RESUMED, {"run_id": child, "by": name})
    yield SampleEvent(E.RUN_FAILED, {"error_type": "server_error", "error": error})
    yield SampleEvent(E.RUN_STOPPED, {"by": name, "reason": text})
    yield SampleEvent(E.RUN_COMPLETED, {"summary": content.text, "structured_output": content.payload})
    yield SampleEvent(E.RETRY_SCHEDULED, {
        "what": "llm", "attempt": 1, "max_attempts": 4, "delay_ms": 8000, "error_type": "overloaded", "error": error,
        "details": content.output, "until": _LATER,
    })  # fmt: skip
    yield SampleEvent(E.LLM_USAGE, {"model": name, "input_tokens": content.number})
    yield SampleEvent(E.LLM_USAGE_MOVED, {"run_id": child, "calls": content.number, "counted": "there"})
    for verdict in ("allow", "deny", "modify_args"):
        diff = {"diff": {name: change}} if verdict == "modify_args" else {}
        yield SampleEvent(E.HOOK_DECIDED, {**call, "hook": name, "verdict": verdict, "reason": text, **diff})
    yield SampleEvent(E.SAFETY_BLOCK, {**call, "code": name, "reason": text})
    yield SampleEvent(E.APPROVAL_REQUESTED, {**call, "by": "rule", "reason": text, "arguments": content.arguments})
    yield SampleEvent(E.APPROVAL_RESOLVED, {**call, "by": name, "decision": "approved", "always": True})
    yield SampleEvent(E.APPROVAL_RESOLVED, {**call, "by": name, "decision": "denied", "diff": {name: change}})
    yield SampleEvent(E.TOOL_OUTCOME_RESOLVED, {**call, "decision": "done", "by": name})
    yield SampleEvent(E.COMMAND_RECEIVED, {"type": "send", "by": name, "payload": content.payload, "refused": "late"})
    yield SampleEvent(E.POLICY_APPLIED, {
        "trigger": "on_error", "action": "resume", "attempt": 1, "attempts": 3, "gate": name, "output": content.output,
    })  # fmt: skip
    yield SampleEvent(E.FILE_CHANGED, {"path": name, "additions": 2, "deletions": 1, "diff": content.patch})
    yield SampleEvent(E.GIT_COMMIT, {"sha": "394f81fab8", "branch": name, "subject": text, "url": name})
    yield SampleEvent(E.DEPLOY_STATUS, {"status": "failed", "service": name, "error": error})
    yield SampleEvent(E.HANDOFF, {"from_agent": name, "to_agent": name, "run_id": child, "prompt": content.text})
    yield SampleEvent(E.CHILD_RUN_COMPLETED, {"run_id": child, "agent": name, "status": "failed", "error": error})
    yield SampleEvent(E.FLOW_STARTED, {"flow": name, "inputs": content.payload})
    yield SampleEvent(E.NODE_COMPLETED, {"node": name, "run_id": child, "output": content.payload})
    yield SampleEvent(E.ERROR, {"error_type": "tool_error", "error": error, "context": name, "details": content.output})
    yield SampleEvent(E.BUDGET_WARNING, {"budget": name, "used": "4.10", "limit": "5.00"})
    yield SampleEvent(E.MESSAGE_ADDED, {"role": "narrator", "content": content.text})
    yield SampleEvent("x.sample", {"message": text, "data": content.payload})


def _answer(content: SampleContent) -> dict[str, Any]:
    calls = [{"id": f"call-{at}", "name": content.name or "tool"} for at in content.entries]
    return {
        "model": MODEL, "text": content.markdown, "thinking": content.thinking, "tool_calls": calls,
        "input_tokens": content.number, "output_tokens": content.number // 90, "duration_ms": 6111,
        "cost_usd": "0.2307", "finish_reason": content.name,
    }  # fmt: skip


def _call(content: SampleContent, step: int, status: ToolStatus) -> Iterator[SampleEvent]:
    call: dict[str, Any] = {"call_id": f"call-{step}", "tool_name": content.name or "tool"}
    yield SampleEvent(E.TOOL_START, {**call, "arguments": content.arguments, "effect": "at_most_once"}, step)
    yield SampleEvent(E.TOOL_OUTPUT, {**call, "text": content.output}, step)
    if status is not ToolStatus.RUNNING:
        failed = {"error": content.error} if status is ToolStatus.ERROR else {"output": content.output}
        yield SampleEvent(E.TOOL_END, {**call, "status": status.value, "duration_ms": 2250, **failed}, step)


def _done(content: SampleContent, step: int, arguments: dict[str, Any]) -> Iterator[SampleEvent]:
    call: dict[str, Any] = {"call_id": f"call-{step}", "tool_name": content.name or "tool"}
    yield SampleEvent(E.TOOL_START, {**call, "arguments": arguments}, step)
    yield SampleEvent(E.TOOL_END, {**call, "status": "completed", "output": content.patch, "duration_ms": 40}, step)
