"""Applies each type of event to the rows of an external run. Types without a handler are only logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.external import inferred_calls, message_events, status_events, tool_events
from runs.external.copied_events import as_note
from runs.external.event_input import IncomingEvent
from runs.external.projection import Projection
from runs.external.streamed_texts import DELTA_TYPES
from runs.models import AgentRun, RunError
from runs.models.run_references import references
from runs.providers.messages import canonical
from timeline.events import EventType
from timeline.events.child import ChildRunStarted
from timeline.events.notice import Error

#: Returns the sequence number of the event.
Handler = Callable[[Projection, IncomingEvent, Any], int]


def apply(projection: Projection, event: IncomingEvent) -> int:
    """Project an event and the events derived from it. Return its sequence number.

    Raises `RejectedEvent`, and then nothing has changed. Events after the end of a run are stored as late and change no
    row. An abandoned run is reopened even by an event that is then rejected.
    """
    if projection.run.is_abandoned:
        status_events.reopened(projection, event)
    if event.type in _OF_CALLS:
        event = inferred_calls.with_call(projection, event)
    elif event.type == EventType.RUN_CREATED:
        event = as_note(event)  # this log begins with its native event
    seq = _apply(projection, event)
    for following in event.following:
        _apply(projection, following)
    return seq


def _apply(projection: Projection, event: IncomingEvent) -> int:
    if projection.run.is_final:
        return _late(projection, event)
    handler = _HANDLERS.get(event.type, _only_log)
    return handler(projection, event, event.payload)


def _late(projection: Projection, event: IncomingEvent) -> int:
    if event.type in DELTA_TYPES:
        return projection.append_delta(event, late=True)
    if event.type in _ENDS_OF_TEXTS:
        projection.end_texts(event.ts)
    return projection.append(projection.entry_of(event, late=True))


def _only_log(projection: Projection, event: IncomingEvent, payload: object) -> int:
    return projection.append(projection.entry_of(event))


def _error(projection: Projection, event: IncomingEvent, payload: Error) -> int:
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
    """Return the ID of another run of the project, from our ID or the runner's ID."""
    runs = AgentRun.objects.filter(project=projection.run.project_id).exclude(pk=projection.run.pk)
    return runs.filter(references(reference)).values_list("pk", flat=True).first() if reference else None


def _child(projection: Projection, event: IncomingEvent, payload: ChildRunStarted) -> int:
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
    EventType.RUN_STARTED: status_events.started,
    EventType.RUN_PHASE: status_events.phase,
    EventType.RUN_WAITING: status_events.waiting,
    EventType.RUN_PAUSED: status_events.paused,
    EventType.RUN_COMPLETED: status_events.completed,
    EventType.RUN_FAILED: status_events.failed,
    EventType.RUN_STOPPED: status_events.stopped,
    EventType.MESSAGE_ADDED: message_events.message,
    EventType.LLM_TURN_START: message_events.turn_start,
    EventType.LLM_TEXT: message_events.text,
    EventType.LLM_TEXT_DELTA: message_events.delta,
    EventType.LLM_THINKING: message_events.text,
    EventType.LLM_THINKING_DELTA: message_events.delta,
    EventType.LLM_TURN_END: message_events.turn_end,
    EventType.LLM_TURN_ABANDONED: message_events.turn_abandoned,
    EventType.TOOL_START: tool_events.tool_start,
    EventType.TOOL_OUTPUT: tool_events.tool_output,
    EventType.TOOL_END: tool_events.tool_end,
    EventType.ERROR: _error,
    EventType.CHILD_RUN_STARTED: _child,
    EventType.CHILD_RUN_PHASE: _child,
    EventType.CHILD_RUN_COMPLETED: _child,
}
