"""The `error` event of a run that fails, or that stops or pauses because of an error.

The context of an error is the name of a called tool, or a value of this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.models import AgentRun, RunError
from runs.statuses import PauseReason, RunStatus
from timeline import log
from timeline.agent_dialect_output import is_of_tool
from timeline.display import preview
from timeline.events import EventType, Payload
from timeline.events.notice import Error
from timeline.events.run import RunFailed
from timeline.log import Entry

#: A model call that failed before its answer was complete.
LLM_STREAM = "llm_stream"
#: A complete answer that cannot be used.
LLM_COMPLETE = "llm_complete"
#: A run at its step limit.
STEP_LIMIT = "max_turns"
#: A step interrupted by an error inside agentops.
STEP = "step"
#: Contexts of errors that have no row of a failed attempt: the row is saved with the move that the error causes.
OF_MOVES = frozenset({LLM_COMPLETE, STEP_LIMIT})

#: The error type of a run at its step limit, as named by agent SDKs.
MAX_TURNS = "error_max_turns"
#: The status reason of a run that the repeat guard has stopped.
REPEATED_CALLS = "repeated_calls"
#: Pauses by a person, or by a limit other than the run's steps.
_NO_ERROR = frozenset({PauseReason.OPERATOR, PauseReason.ESCALATED, PauseReason.BUDGET, PauseReason.LOG_LIMIT})
#: Maximum bytes of an error's text in its event.
TEXT_BYTES = 500


def error_events(
    run: AgentRun,
    to: RunStatus,
    payload: Payload,
    *,
    reason: str,
    events_before: Sequence[Entry],
    changes: Mapping[str, Any],
) -> list[Entry]:
    """Return the `error` event to append before the move; empty without an error, or if `events_before` has one."""
    if any(isinstance(entry.payload, Error) for entry in events_before):
        return []
    if to is RunStatus.FAILED:
        failed = payload if isinstance(payload, RunFailed) else None
        return error_event(run, failed.error_type if failed else reason, (failed and failed.error) or "")
    if to is RunStatus.STOPPED and reason == REPEATED_CALLS:
        return error_event(run, REPEATED_CALLS, payload.message or "")
    if to is RunStatus.PAUSED and reason not in _NO_ERROR:
        error_type = changes.get("error_type") or run.error_type or reason
        error_type = MAX_TURNS if reason == PauseReason.MAX_STEPS else error_type
        return error_event(run, error_type, changes.get("error_message") or getattr(payload, "detail", None) or "")
    return []


def error_event(run: AgentRun, error_type: str, text: str, *, context: str | None = None) -> list[Entry]:
    """Return the event of an error that ends or pauses `run`; empty if the last error in the log is the same.

    `context`: a constant of this module. By default, only an error at the step limit has one.
    """
    last = log.events_of(run.pk).filter(type=EventType.ERROR).order_by("-seq").first()
    # A complete answer belongs to the last step, anything else to the next one.
    step = run.step_count if context == LLM_COMPLETE else run.step_count + 1
    # An error of a tool is a different error, even with the same type.
    if last is not None and not is_of_tool(last) and (last.step, last.payload.get("error_type")) == (step, error_type):
        return []
    short, _ = preview(text, TEXT_BYTES)
    context = STEP_LIMIT if error_type == MAX_TURNS else context
    return [Entry(Error(error_type=error_type[:64], error=short or None, context=context), step=step)]


def save_errors(run: AgentRun, entries: Sequence[Entry]) -> None:
    """Save the rows of errors that cause a move, in its transaction. Errors of failed attempts already have rows."""
    for entry in entries:
        payload = entry.payload
        if isinstance(payload, Error) and payload.context in OF_MOVES:
            RunError.objects.create(
                run=run,
                step_number=run.step_count + 1 if entry.step is None else entry.step,
                context=str(payload.context),
                error_type=str(payload.error_type),
                message=REDACTOR.clean_text(payload.error or "")[0],
                details=REDACTOR.clean_text(str(payload.details or ""))[0],
                created_at=database_clock.now(),
            )
