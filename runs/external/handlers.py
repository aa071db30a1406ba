"""What each type of event does to the rows of an external run. Types without a handler only go into the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from django.utils import timezone
from pydantic_ai.messages import (
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    UserPromptPart,
)

from runs.conversation import tool_results, tool_starts, transcript
from runs.conversation.message_text import text_of
from runs.conversation.tool_results import CallResult
from runs.external import contents
from runs.external.event_input import IncomingEvent, RejectedEvent
from runs.external.projection import Projection
from runs.external.reported_usage import read_cost, read_usage
from runs.lifecycle import reported_runs
from runs.lifecycle.transitions import PHASES
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunError
from runs.providers.messages import canonical, request
from runs.statuses import RESOLVED, RunStatus, ToolStatus
from timeline.events import EventType, Payload
from timeline.events.child import ChildRunStarted
from timeline.events.llm import LlmTurnEnd, LlmTurnStart
from timeline.events.message import MessageAdded
from timeline.events.notice import Error
from timeline.events.run import RunCompleted, RunFailed, RunPaused, RunPhase, RunStarted, RunStopped, RunWaiting
from timeline.events.tool import ToolEnd, ToolOutput, ToolStart
from timeline.log import Entry
from timeline.redaction.redact import DEFAULT as REDACTOR

Role = AgentRunMessage.Role
#: Returns the sequence number of the event.
Handler = Callable[[Projection, IncomingEvent, Any], int]
#: Statuses that a runner may report by `run.phase`; the others have event types of their own.
_PHASE_STATUSES = frozenset({RunStatus.QUEUED, RunStatus.RUNNING})
_UNKNOWN_TOOL = "tool"
#: The largest duration that its column holds.
MAX_MILLISECONDS = 2**31 - 1
#: Statuses of an ended call, by the words that runners use.
_CALL_STATUSES = {
    "completed": ToolStatus.COMPLETED,
    "success": ToolStatus.COMPLETED,
    "ok": ToolStatus.COMPLETED,
    "error": ToolStatus.ERROR,
    "failed": ToolStatus.ERROR,
    "denied": ToolStatus.DENIED,
    "unknown": ToolStatus.UNKNOWN,
}


def apply(projection: Projection, event: IncomingEvent) -> int:
    """Project an event, and return its sequence number. Raises `RejectedEvent`, with nothing changed.

    After the end of a run, events are stored as late, and change no row.
    """
    if projection.run.state.terminal:
        return projection.append(projection.entry_of(event, late=True))
    handler = _HANDLERS.get(event.type, _only_log)
    return handler(projection, event, event.payload)


def _only_log(projection: Projection, event: IncomingEvent, payload: object) -> int:
    return projection.append(projection.entry_of(event))


# --- Status ---------------------------------------------------------------------------------------------------------


def _started(projection: Projection, event: IncomingEvent, payload: RunStarted) -> int:
    run = projection.run
    changes: dict[str, Any] = {}
    if payload.session_id:
        changes["session_id"] = payload.session_id[:128]
    if payload.title and not run.title:
        changes["title"] = REDACTOR.clean_text(payload.title)[0][:200]
    if payload.model and not run.agent_config.get("model"):
        changes["agent_config"] = {**run.agent_config, "model": payload.model[:200]}
    seq = _report(projection, event, RunStatus.RUNNING, **changes)
    if payload.prompt and not projection.position:
        _add_request(projection, Role.USER, payload.prompt, event)
    return seq


def _phase(projection: Projection, event: IncomingEvent, payload: RunPhase) -> int:
    if payload.status not in _PHASE_STATUSES:
        allowed = ", ".join(sorted(_PHASE_STATUSES))
        text = f"run.phase reports {allowed}; send run.{payload.status[:64]} for other statuses"
        raise RejectedEvent("invalid_value", text, "/payload/status")
    reason = payload.reason or "" if payload.status == RunStatus.QUEUED else ""
    return _report(projection, event, RunStatus(payload.status), reason=reason)


def _waiting(projection: Projection, event: IncomingEvent, payload: RunWaiting) -> int:
    return _report(projection, event, RunStatus.WAITING, reason=payload.reason)


def _paused(projection: Projection, event: IncomingEvent, payload: RunPaused) -> int:
    return _report(projection, event, RunStatus.PAUSED, reason=payload.reason)


def _completed(projection: Projection, event: IncomingEvent, payload: RunCompleted) -> int:
    changes: dict[str, Any] = {}
    if payload.result is not None:
        result = payload.result if isinstance(payload.result, str) else canonical(payload.result)
        changes["result"] = REDACTOR.clean_text(result)[0]
    if payload.structured_output is not None:
        changes["structured_output"] = REDACTOR.clean(payload.structured_output)[0]
    if payload.summary:
        changes["summary"] = REDACTOR.clean_text(payload.summary)[0]
    run = projection.run
    totals: dict[str, Any] = _total_usage(payload.usage or {}) if not (run.input_tokens or run.output_tokens) else {}
    cost = read_cost(payload.cost_usd)
    if cost is not None:
        changes |= {"cost_usd": cost, "cost_source": AgentRun.CostSource.REPORTED.value}
    stored = payload.model_copy(
        update={
            "usage": {name: count for name, count in totals.items() if count} or None,
            "cost_usd": None if cost is None else f"{cost:f}",
        }
    )
    event = replace(event, payload=stored)
    return _report(projection, event, RunStatus.COMPLETED, **totals, **changes)


def _failed(projection: Projection, event: IncomingEvent, payload: RunFailed) -> int:
    message = REDACTOR.clean_text(payload.error or "")[0]
    error_type = payload.error_type[:64]
    return _report(projection, event, RunStatus.FAILED, reason=error_type, error_type=error_type, error_message=message)


def _stopped(projection: Projection, event: IncomingEvent, payload: RunStopped) -> int:
    return _report(projection, event, RunStatus.STOPPED, reason=payload.reason or "")


def _report(projection: Projection, event: IncomingEvent, to: RunStatus, *, reason: str = "", **changes: Any) -> int:
    """Write what was collected, then the status together with its event."""
    if to.terminal:
        projection.close_answer(event.ts)
    projection.flush()
    projection.run.status = projection.run.status or RunStatus.QUEUED.value
    entry = projection.entry_of(event, phase=PHASES[to])
    results = reported_runs.report(
        projection.run, to, entry, source=projection.source, reason=reason, at=event.ts, **changes
    )
    projection.last_seq = results[-1].seq
    projection.position = transcript.last_position(projection.run.pk) if to.terminal else projection.position
    return projection.last_seq


def _total_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    counts = read_usage(usage)
    return {
        "input_tokens": counts.input_tokens,
        "output_tokens": counts.output_tokens,
        "cache_read_tokens": counts.cache_read_tokens,
        "cache_write_tokens": counts.cache_write_tokens,
        "reasoning_tokens": counts.output_reasoning_tokens,
    }


# --- Messages -------------------------------------------------------------------------------------------------------


def _message(projection: Projection, event: IncomingEvent, payload: MessageAdded) -> int:
    if payload.role == "tool_result":
        return _tool_result(projection, event, payload)
    projection.close_answer(event.ts)
    if payload.role == "assistant":
        response = _response(event, contents.response_parts(payload.content or payload.preview), projection.model)
        return projection.add_answer_without_turn(response, at=event.ts, event=event)
    return _add_request(projection, payload.role, payload.content, event, is_own=True)


def _add_request(
    projection: Projection, role: str, content: object, event: IncomingEvent, *, is_own: bool = False
) -> int:
    """Add a system or user message. `is_own`: `event` is its `message.added`; otherwise, one is derived."""
    at = event.ts or timezone.now()
    message = event.message
    if message is not None:
        pass
    elif role == Role.SYSTEM:
        message = request(SystemPromptPart(contents.text_content(content), timestamp=at))
    else:
        message = request(UserPromptPart(contents.user_content(content), timestamp=at))
    row = projection.add_message(role, message, step=projection.next_step, at=event.ts)
    if role == Role.USER and projection.run.prompt is None:
        turn = row.content["parts"][0]["content"]
        lines = text_of(row.content).strip().splitlines()
        title = {} if projection.run.title or not lines else {"title": lines[0][:200]}
        projection.set_run(prompt=turn, **title)
    return projection.append_message_event(row, event if is_own else None)


def _tool_result(projection: Projection, event: IncomingEvent, payload: MessageAdded) -> int:
    call = projection.find_call(contents.call_id_of(payload.content))
    if call is None or _is_closed(call):
        text = "a tool result must name an open call in its content, as call_id; or send tool.end"
        raise RejectedEvent("unknown_call", text, "/payload/content")
    output = contents.user_content(payload.content)
    return _close_call(projection, call, CallResult(ToolStatus.COMPLETED, cast("Any", output)), event, own="message")


# --- Model calls ----------------------------------------------------------------------------------------------------


def _turn_start(projection: Projection, event: IncomingEvent, payload: LlmTurnStart) -> int:
    projection.close_answer(event.ts)
    projection.begin_answer()
    return projection.append(projection.entry_of(event, step=projection.next_step))


def _text(projection: Projection, event: IncomingEvent, payload: Payload) -> int:
    projection.begin_answer()
    return projection.append(projection.entry_of(event, step=projection.next_step))


def _turn_end(projection: Projection, event: IncomingEvent, payload: LlmTurnEnd) -> int:
    calls = payload.tool_calls if isinstance(payload.tool_calls, list) else []
    parts: list[ModelResponsePart] = [ThinkingPart(payload.thinking)] if payload.thinking else []
    parts += [TextPart(payload.text)] if payload.text else []
    parts = parts or projection.received_parts()
    parts += [contents.call_part(call.id, call.name, call.arguments) for call in _unique(calls)]
    response = _response(event, parts, payload.model or projection.model)
    if event.message is None:
        response.usage = read_usage({**(payload.usage or {}), **payload.model_dump(exclude_none=True)})
    step = projection.next_step
    row = projection.add_answer(response, at=event.ts)
    used = projection.add_usage(
        response, step=step, cost=read_cost(payload.cost_usd), duration_ms=_whole(payload.duration_ms)
    )
    counts = {name: getattr(used, name) or None for name in _COUNTS}
    stored = payload.model_copy(
        update={
            **dict.fromkeys(("text", "thinking", "usage")),
            **counts,
            "tool_calls": len(response.tool_calls) or None,
            "model": used.model or None,
            "cost_usd": str(used.cost_usd) if used.cost_usd is not None else None,
        }
    )
    return projection.append(projection.entry_of(event, stored, step=step, ref_id=row.id))


def _response(event: IncomingEvent, parts: list[ModelResponsePart], model: str) -> ModelResponse:
    """Return the answer of an event: the exact one of an import, or one of these parts."""
    if isinstance(event.message, ModelResponse):
        return event.message
    return ModelResponse(parts=parts, model_name=model or None, timestamp=event.ts or timezone.now())


_COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")


def _unique(calls: list[Any]) -> list[Any]:
    """Return the calls without those whose ID another call of the answer has."""
    return list({call.id: call for call in reversed(calls)}.values())[::-1]


# --- Tools ----------------------------------------------------------------------------------------------------------


def _tool_start(projection: Projection, event: IncomingEvent, payload: ToolStart) -> int:
    call = projection.find_call(payload.call_id)
    if call is None or _is_closed(call):
        call = _request_call(projection, event, payload.call_id, payload.tool_name, payload.arguments)
    if call.starts:
        # A runner's retry is the same call: whether its tool may run twice is not decided here.
        return projection.append(projection.entry_of(event, step=call.step_number))
    entry = _start(projection, call, event.ts, is_own=True)
    started = cast("ToolStart", entry.payload)
    stored = started.model_copy(update={"attempt": payload.attempt, "message": payload.message})
    return projection.append(projection.entry_of(event, stored, step=entry.step, ref_id=entry.ref_id))


def _start(projection: Projection, call: AgentRunToolCall, at: datetime | None, *, is_own: bool = False) -> Entry:
    """Mark a call running, and return its `tool.start`, which is appended unless it was received."""
    entry = tool_starts.start_call(call, attempt=0)
    # What its tool may be repeated for is not known here.
    entry = replace(entry, payload=cast("ToolStart", entry.payload).model_copy(update={"effect": None}))
    call.started_at = at or call.started_at
    projection.change_call(call)
    if not is_own:
        projection.append(projection.derived(entry, at))
    return entry


def _tool_output(projection: Projection, event: IncomingEvent, payload: ToolOutput) -> int:
    call = projection.find_call(payload.call_id) if payload.call_id else None
    columns: dict[str, Any] = {"step": call.step_number, "ref_id": call.pk} if call is not None else {}
    return projection.append(projection.entry_of(event, **columns))


def _tool_end(projection: Projection, event: IncomingEvent, payload: ToolEnd) -> int:
    call = projection.find_call(payload.call_id)
    if call is None:
        if not payload.tool_name:
            text = f"no call {payload.call_id[:64]!r} is known; tool_name is required to record it"
            raise RejectedEvent("unknown_call", text, "/payload/callId")
        call = _request_call(projection, event, payload.call_id, payload.tool_name, None)
    if _is_closed(call):
        return projection.append(projection.entry_of(event, step=call.step_number))
    status = _CALL_STATUSES.get(payload.status or "", ToolStatus.ERROR if payload.error else ToolStatus.COMPLETED)
    result = CallResult(status, _output(event, payload), duration_ms=_whole(payload.duration_ms))
    return _close_call(projection, call, result, event, own="end")


def _output(event: IncomingEvent, payload: ToolEnd) -> Any:
    """Return the whole output of a call, or its error."""
    if event.message is not None:
        return event.message.parts[0].content  # type: ignore[union-attr]
    value = next((v for v in (payload.output, payload.error, payload.preview) if v is not None), "")
    return contents.user_content(value)


def _request_call(
    projection: Projection, event: IncomingEvent, call_id: str, name: str, arguments: object
) -> AgentRunToolCall:
    """Return a new call that no answer has requested: it gets an answer of its own, with the texts before it."""
    projection.close_answer(event.ts, contents.call_part(call_id, name or _UNKNOWN_TOOL, arguments))
    call = projection.find_call(call_id)
    assert call is not None
    return call


def _close_call(
    projection: Projection, call: AgentRunToolCall, result: CallResult, event: IncomingEvent, *, own: str
) -> int:
    """Close a call, with its result message. `own` says which of the two events is the received one."""
    if call.starts == 0 and result.status is not ToolStatus.DENIED:
        # The runner reported no start.
        _start(projection, call, event.ts)
    closed = tool_results.close(call, result, position=projection.position + 1, epoch=None, source=projection.source)
    if event.ts is not None:
        call.finished_at = max(event.ts, call.started_at or event.ts)
        closed.row.created_at = event.ts
    projection.add_row(closed.row)
    projection.change_call(call)
    seq = 0
    for kind, entry in zip(("end", "message"), closed.commit.events, strict=False):
        if kind == own:
            seq = projection.append(
                projection.entry_of(event, cast("Payload", entry.payload), step=entry.step, ref_id=entry.ref_id)
            )
        else:
            projection.append(projection.derived(entry, event.ts))
    return seq


def _is_closed(call: AgentRunToolCall) -> bool:
    """Whether a call has its result. One of unknown outcome, at the end of a file that grows, may still get it."""
    return call.status in RESOLVED and call.result_message_id is not None


def _whole(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else min(round(milliseconds), MAX_MILLISECONDS)


# --- Errors and children --------------------------------------------------------------------------------------------


def _error(projection: Projection, event: IncomingEvent, payload: Error) -> int:
    details = payload.details if isinstance(payload.details, str) else canonical(payload.details or "")
    projection.add_error(
        RunError(
            run_id=projection.run.pk,
            step_number=projection.next_step,
            context=(payload.context if isinstance(payload.context, str) else "runner")[:300],
            error_type=(payload.error_type or "error")[:64],
            message=REDACTOR.clean_text(payload.error or payload.message)[0],
            details=REDACTOR.clean_text(details)[0] if payload.details else "",
            attempt=min(payload.attempt or 0, 32_767),
            created_at=event.ts or timezone.now(),
        )
    )
    return projection.append(projection.entry_of(event, step=event.step or projection.next_step))


def _child_started(projection: Projection, event: IncomingEvent, payload: ChildRunStarted) -> int:
    child = projection.find_run(payload.run_id or "")
    call = projection.find_call(payload.call_id) if payload.call_id else None
    if child is not None and call is not None:
        call.child_run_id = child
        projection.change_call(call)
    return projection.append(projection.entry_of(event, ref_id=child))


_HANDLERS: dict[str, Handler] = {
    EventType.RUN_STARTED: _started,
    EventType.RUN_PHASE: _phase,
    EventType.RUN_WAITING: _waiting,
    EventType.RUN_PAUSED: _paused,
    EventType.RUN_COMPLETED: _completed,
    EventType.RUN_FAILED: _failed,
    EventType.RUN_STOPPED: _stopped,
    EventType.MESSAGE_ADDED: _message,
    EventType.LLM_TURN_START: _turn_start,
    EventType.LLM_TEXT: _text,
    EventType.LLM_TEXT_DELTA: _text,
    EventType.LLM_THINKING: _text,
    EventType.LLM_THINKING_DELTA: _text,
    EventType.LLM_TURN_END: _turn_end,
    EventType.TOOL_START: _tool_start,
    EventType.TOOL_OUTPUT: _tool_output,
    EventType.TOOL_END: _tool_end,
    EventType.ERROR: _error,
    EventType.CHILD_RUN_STARTED: _child_started,
}
