"""Applies events to the rows of an external run: status events here, messages and tool calls in their modules.

The handler of a type changes the projection, and returns the sequence number of the event. An event of a type without
a handler is only logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.conversation import transcript
from runs.conversation.writes import TOKENS
from runs.external import message_events, tool_events
from runs.external.event_input import IncomingEvent, RejectedEvent
from runs.external.foreign_payloads import read_cost, read_usage
from runs.external.message_events import as_note
from runs.external.projection import Projection
from runs.external.streamed_texts import DELTA_TYPES
from runs.lifecycle import reported_runs
from runs.lifecycle.moves import PHASES
from runs.models import AgentRun, RunError
from runs.models.external import references
from runs.providers.messages import canonical
from runs.statuses import STATUSES, RunStatus
from timeline.events import EventType
from timeline.events.notice import Error
from timeline.events.run import RunCompleted, RunFailed, RunPaused, RunPhase, RunStarted, RunStopped, RunWaiting
from timeline.events.work import ChildRunStarted
from timeline.reasons import REOPENED

#: Statuses that a runner may report with `run.phase`; the others have separate event types.
_PHASE_STATUSES = frozenset({RunStatus.QUEUED, RunStatus.RUNNING})


def _apply_started(projection: Projection, event: IncomingEvent, payload: RunStarted) -> int:
    """Set the run to running. Its first title and model are kept; the first prompt becomes its first message."""
    run = projection.run
    changes: dict[str, Any] = {}
    if payload.session_id:
        changes["session_id"] = REDACTOR.clean_text(payload.session_id)[0][:128]
    if payload.title and not run.title:
        changes["title"] = REDACTOR.clean_text(payload.title)[0][:200]
    if payload.model and not run.agent_config.get("model"):
        changes["agent_config"] = {**run.agent_config, "model": REDACTOR.clean_text(payload.model)[0][:200]}
    seq = _report(projection, event, RunStatus.RUNNING, **changes)
    if payload.prompt and not projection.position:
        message_events.add_prompt(projection, payload.prompt, event)
    return seq


def _reopen(projection: Projection, event: IncomingEvent) -> int:
    """Set an abandoned run to running, because a further event has arrived."""
    payload = RunPhase(status=RunStatus.RUNNING, reason=REOPENED)
    reopening = IncomingEvent.of(event.run_ref, payload, ts=event.ts)
    return _report(projection, reopening, RunStatus.RUNNING, completed_at=None)


def _apply_phase(projection: Projection, event: IncomingEvent, payload: RunPhase) -> int:
    """Set the run to queued or running. An unknown status is a phase name of the runner: then the run is running."""
    status = payload.status or RunStatus.RUNNING.value
    if status in STATUSES and status not in _PHASE_STATUSES:
        allowed = ", ".join(sorted(_PHASE_STATUSES))
        text = f"run.phase reports {allowed}; send run.{status} for other statuses"
        raise RejectedEvent("invalid_value", text, "/payload/status")
    if status not in _PHASE_STATUSES:
        payload = payload.model_copy(update={"phase": payload.phase or status})
        status = RunStatus.RUNNING.value
    event = replace(event, payload=payload.model_copy(update={"status": status}))
    reason = payload.reason or "" if status == RunStatus.QUEUED else ""
    return _report(projection, event, RunStatus(status), reason=reason)


def _apply_waiting(projection: Projection, event: IncomingEvent, payload: RunWaiting) -> int:
    cost, cost_columns = _reported_cost(payload.cost_usd)
    event = replace(event, payload=payload.model_copy(update={"cost_usd": cost}))
    changes = {**_results(payload), **cost_columns}
    return _report(projection, event, RunStatus.WAITING, reason=payload.reason, **changes)


def _apply_paused(projection: Projection, event: IncomingEvent, payload: RunPaused) -> int:
    return _report(projection, event, RunStatus.PAUSED, reason=payload.reason)


def _apply_completed(projection: Projection, event: IncomingEvent, payload: RunCompleted) -> int:
    changes = _results(payload)
    if payload.summary:
        changes["summary"] = REDACTOR.clean_text(payload.summary)[0]
    return _end(projection, event, payload, RunStatus.COMPLETED, **changes)


def _apply_failed(projection: Projection, event: IncomingEvent, payload: RunFailed) -> int:
    message = REDACTOR.clean_text(payload.error or "")[0]
    error_type = REDACTOR.clean_text(payload.error_type)[0][:64]
    changes = {"error_type": error_type, "error_message": message}
    return _end(projection, event, payload, RunStatus.FAILED, reason=error_type, **changes)


def _apply_stopped(projection: Projection, event: IncomingEvent, payload: RunStopped) -> int:
    return _end(projection, event, payload, RunStatus.STOPPED, reason=payload.reason or "")


def _results(payload: RunCompleted | RunWaiting) -> dict[str, Any]:
    """Return the columns of a run for the result in an event."""
    columns: dict[str, Any] = {}
    if payload.result is not None:
        result = payload.result if isinstance(payload.result, str) else canonical(payload.result)
        columns["result"] = REDACTOR.clean_text(result)[0]
    if payload.structured_output is not None:
        columns["structured_output"] = REDACTOR.clean(payload.structured_output)[0]
    return columns


def _end(
    projection: Projection,
    event: IncomingEvent,
    payload: RunCompleted | RunFailed | RunStopped,
    to: RunStatus,
    *,
    reason: str = "",
    **changes: Any,
) -> int:
    """Report a final status, with the totals of the run. Its reported tokens count only if no answer has tokens."""
    run = projection.run
    has_tokens = any(getattr(run, name) for name in TOKENS)
    totals = {} if has_tokens else _total_usage(payload.usage or {})
    cost, cost_columns = _reported_cost(payload.cost_usd)
    usage = {name: count for name, count in totals.items() if count} or None
    event = replace(event, payload=payload.model_copy(update={"usage": usage, "cost_usd": cost}))
    return _report(projection, event, to, reason=reason, **totals, **cost_columns, **changes)


def _reported_cost(value: object) -> tuple[str | None, dict[str, Any]]:
    """Return the reported cost of a whole run, for its event and as columns; None and {} without one.

    It replaces the sum of the answers' costs.
    """
    cost = read_cost(value)
    if cost is None:
        return None, {}
    columns = {"cost_usd": cost, "cost_source": AgentRun.CostSource.REPORTED.value, "unpriced_calls": 0}
    return f"{cost:f}", columns


def _report(projection: Projection, event: IncomingEvent, to: RunStatus, *, reason: str = "", **changes: Any) -> int:
    """Set the status of the run, and append the event that reports it. Return the event's sequence number.

    Writes the collected rows first, except if nothing of the run changes. `changes`: further columns of the run.
    """
    run = projection.run
    if run.state is to and run.status_reason == reason and run.started_at is not None and not changes:
        return projection.append(projection.entry_of(event))
    if to.terminal:
        projection.close_answer(event.ts)
    projection.flush()
    run.status = run.status or RunStatus.QUEUED.value
    entry = projection.entry_of(event, phase=PHASES[to])
    results = reported_runs.report(run, to, entry, source=projection.source, reason=reason, at=event.ts, **changes)
    projection.last_seq = results[-1].seq
    if to.terminal:
        projection.position = transcript.last_position(run.pk)  # results of open calls were added
    return projection.last_seq


def _total_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reported tokens of a whole run, as columns."""
    counts = read_usage(usage)
    return {
        "input_tokens": counts.input_tokens,
        "output_tokens": counts.output_tokens,
        "cache_read_tokens": counts.cache_read_tokens,
        "cache_write_tokens": counts.cache_write_tokens,
        "cache_write_1h_tokens": counts.cache_write_1h_tokens,
        "reasoning_tokens": counts.output_reasoning_tokens,
    }


Handler = Callable[[Projection, IncomingEvent, Any], int]


def apply(projection: Projection, event: IncomingEvent) -> int:
    """Apply an event and the events derived from it. Return the sequence number of the event.

    Raises `RejectedEvent`, and then nothing has changed, except that an abandoned run is reopened. Events after the end
    of a run are stored as late, and change no row.
    """
    if projection.run.is_abandoned:
        _reopen(projection, event)
    if event.type in _OF_CALLS:
        event = tool_events.with_call(projection, event)
    elif event.type == EventType.RUN_CREATED:
        event = as_note(event)  # this log begins with its native event
    seq = _apply(projection, event)
    for following in event.following:
        _apply(projection, following)
    return seq


def _apply(projection: Projection, event: IncomingEvent) -> int:
    if projection.run.is_final:
        return _append_late(projection, event)
    handler = _HANDLERS.get(event.type, _only_log)
    return handler(projection, event, event.payload)


def _append_late(projection: Projection, event: IncomingEvent) -> int:
    """Append an event that came after the end of the run."""
    if event.type in DELTA_TYPES:
        return projection.append_delta(event, late=True)
    if event.type in _ENDS_OF_TEXTS:
        projection.end_texts(event.ts)
    return projection.append(projection.entry_of(event, late=True))


def _only_log(projection: Projection, event: IncomingEvent, payload: object) -> int:
    return projection.append(projection.entry_of(event))


def _apply_error(projection: Projection, event: IncomingEvent, payload: Error) -> int:
    """Add an error to the run."""
    details = payload.details if isinstance(payload.details, str) else canonical(payload.details or "")
    projection.add_error(
        RunError(
            run_id=projection.run.pk,
            step_number=projection.next_step,
            context=REDACTOR.clean_text(payload.context if isinstance(payload.context, str) else "runner")[0][:300],
            call_id=REDACTOR.clean_text(payload.call_id or "")[0][:300],
            error_type=REDACTOR.clean_text(payload.error_type or "error")[0][:64],
            message=REDACTOR.clean_text(payload.error or payload.message)[0],
            details=REDACTOR.clean_text(details)[0] if payload.details else "",
            attempt=min(payload.attempt or 0, 32_767),
            created_at=event.ts or database_clock.now(),
        )
    )
    return projection.append(projection.entry_of(event, step=event.step or projection.next_step))


def _other_run(projection: Projection, reference: str) -> UUID | None:
    """Return the ID of another run of the project with this reference: our ID, or the runner's ID."""
    runs = AgentRun.objects.filter(project=projection.run.project_id).exclude(pk=projection.run.pk)
    return runs.filter(references(reference)).values_list("pk", flat=True).first() if reference else None


def _apply_child(projection: Projection, event: IncomingEvent, payload: ChildRunStarted) -> int:
    """Link the child run to the call that the event names, unless the call has a child run."""
    child = _other_run(projection, payload.run_id or "")
    call = projection.find_call(payload.call_id) if payload.call_id else None
    if child is not None and call is not None and call.child_run_id is None:
        call.child_run_id = child
        projection.change_call(call)
    return projection.append(projection.entry_of(event, ref_id=child))


#: Late events that end the streamed texts.
_ENDS_OF_TEXTS = frozenset(
    {
        *(EventType.LLM_TURN_START, EventType.LLM_TURN_END, EventType.LLM_TEXT, EventType.LLM_THINKING),
        *(EventType.MESSAGE_ADDED, EventType.RUN_COMPLETED, EventType.RUN_FAILED, EventType.RUN_STOPPED),
    }
)
_OF_CALLS = frozenset({EventType.TOOL_START, EventType.TOOL_OUTPUT, EventType.TOOL_END})
_HANDLERS: dict[str, Handler] = {
    EventType.RUN_STARTED: _apply_started,
    EventType.RUN_PHASE: _apply_phase,
    EventType.RUN_WAITING: _apply_waiting,
    EventType.RUN_PAUSED: _apply_paused,
    EventType.RUN_COMPLETED: _apply_completed,
    EventType.RUN_FAILED: _apply_failed,
    EventType.RUN_STOPPED: _apply_stopped,
    EventType.MESSAGE_ADDED: message_events.apply_message,
    EventType.LLM_TURN_START: message_events.apply_turn_start,
    EventType.LLM_TEXT: message_events.apply_text,
    EventType.LLM_TEXT_DELTA: message_events.apply_delta,
    EventType.LLM_THINKING: message_events.apply_text,
    EventType.LLM_THINKING_DELTA: message_events.apply_delta,
    EventType.LLM_TURN_END: message_events.apply_turn_end,
    EventType.LLM_TURN_ABANDONED: message_events.apply_turn_abandoned,
    EventType.TOOL_START: tool_events.apply_tool_start,
    EventType.TOOL_OUTPUT: tool_events.apply_tool_output,
    EventType.TOOL_END: tool_events.apply_tool_end,
    EventType.ERROR: _apply_error,
    EventType.CHILD_RUN_STARTED: _apply_child,
    EventType.CHILD_RUN_PHASE: _apply_child,
    EventType.CHILD_RUN_COMPLETED: _apply_child,
}
