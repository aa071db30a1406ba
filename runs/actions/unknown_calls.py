"""Resolve the unknown outcome of a tool call: it succeeded, it failed, or it has to run again.

One transaction writes the call, its result, their events, and the move of the run back to the queue. A call that has to
run again stays `unknown` until it is started, because the outcome of its earlier start is still unknown. Unlike other
unknown calls it has no `finished_at`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import MODEL_INPUT
from agentops.base.refusals import Conflict, Invalid, NotFound
from runs import chaos
from runs.conversation import tool_results, transcript, writes
from runs.conversation.tool_results import CallResult
from runs.conversation.tool_starts import unresolved_calls
from runs.errors import MessageEmpty
from runs.lifecycle import inbox, moves, transitions
from runs.models import AgentRun, AgentRunToolCall
from runs.statuses import RunStatus, ToolStatus, WaitReason
from runs.tools.output import MODEL_LIMIT
from timeline import log
from timeline.events import EventType
from timeline.events.run import RunPhase, RunWaiting
from timeline.events.tool import ToolOutcomeResolved
from timeline.log import Entry
from timeline.models import Source

#: The types of the event of a resolved outcome. Older logs contain the second type.
RESOLUTION_EVENTS = (EventType.TOOL_OUTCOME_RESOLVED, EventType.APPROVAL_RESOLVED)
#: Status reason of a run that returns to the queue after a resolved outcome.
REASON = "outcome_resolved"


class OutcomeChoice(enum.StrEnum):
    RETRY = "retry"  # run it again
    DONE = "done"  # it succeeded, with this output
    FAILED = "failed"  # it failed


#: The default result for the model, if the request has no text.
_DEFAULT_TEXTS = {
    OutcomeChoice.DONE: "The call succeeded. Its output is not known.",
    OutcomeChoice.FAILED: "The call failed. Its error is not known.",
}
_STATUSES = {OutcomeChoice.DONE: ToolStatus.COMPLETED, OutcomeChoice.FAILED: ToolStatus.ERROR}


@dataclass(frozen=True)
class Resolution:
    """The result of resolving a call."""

    run: AgentRun
    call: AgentRunToolCall
    #: The status of the run before.
    status_before: RunStatus
    #: Whether this request resolved the call, and did not repeat an earlier one.
    is_new: bool = True


def unresolved(run: AgentRun) -> QuerySet[AgentRunToolCall]:
    """Return the calls of a run whose unknown outcome has to be resolved, in the order of the model's requests."""
    return unresolved_calls().filter(run=run).order_by("step_number", "id")


def resolve(run_id: UUID, call_id: UUID, choice: OutcomeChoice, *, by: str, text: str | None = None) -> Resolution:
    """Resolve the unknown outcome of a call. `text` is its output, or the error.

    The first of several concurrent requests counts. Raises `Conflict` with the code `call_not_unknown` and the recorded
    choice for the others, unless they repeat the first: same person, choice and text. Also raises `RunNotFound`,
    `NotFound`, `MessageEmpty` and `Invalid`.

    When no call is left to resolve, the run returns to the queue. Otherwise an event names the next call that the run
    waits for.
    """
    text = _check_text(choice, text)
    with transaction.atomic():
        run = inbox.lock_run(run_id)
        call = AgentRunToolCall.objects.select_related("result_message").filter(run=run, pk=call_id).first()
        if call is None:
            raise NotFound("no such tool call in this run", code="tool_call_not_found")
        status_before = run.state
        if not _is_unresolved(run, call):
            return _answer_late_request(run, call, choice, text, by)
        call.resolved_by, call.resolved_at = by, database_clock.now()
        payload = ToolOutcomeResolved(
            call_id=call.call_id, tool_name=call.tool_name, decision=choice, by=by or None, at=call.resolved_at
        )
        entry = Entry(payload, step=call.step_number, ref_id=call.pk)
        if choice is OutcomeChoice.RETRY:
            _let_run_again(call, entry)
        else:
            _close(run, call, _STATUSES[choice], text, entry)
        _queue_or_wait(run)
        chaos.point("command.in_transaction")
    return Resolution(run, call, status_before)


def _queue_or_wait(run: AgentRun) -> None:
    """Queue the run, or append the event that it waits for the outcome of its next unresolved call."""
    next_call = unresolved(run).first()
    if next_call is None:
        queued = RunPhase(status=RunStatus.QUEUED, reason=REASON)
        transitions.move(run, RunStatus.QUEUED, queued, source=Source.WEB, reason=REASON)
        return
    waiting = RunWaiting(reason=WaitReason.UNKNOWN_TOOL)
    entry = Entry(waiting, ref_id=next_call.pk, phase=moves.PHASES[run.state])
    log.append(run.pk, [entry], source=Source.WEB)


def _check_text(choice: OutcomeChoice, text: str | None) -> str:
    """Return the text to store; empty for a retry. Raises `Invalid` or `MessageEmpty`."""
    if choice is OutcomeChoice.RETRY:
        if text is not None:
            raise Invalid("retry accepts neither output nor message", pointer="/choice")
        return ""
    if text is None:
        return _DEFAULT_TEXTS[choice]
    pointer = "/output" if choice is OutcomeChoice.DONE else "/message"
    if choice is OutcomeChoice.FAILED and not text.strip():
        raise MessageEmpty("the error must not be empty: omit it if it is not known", pointer=pointer)
    if len(text) > inbox.MAX_MESSAGE:
        raise Invalid(f"the text must have at most {inbox.MAX_MESSAGE} characters", pointer=pointer)
    return text


def _is_unresolved(run: AgentRun, call: AgentRunToolCall) -> bool:
    """Whether the run waits for a person to resolve the outcome of this call."""
    waits = run.state is RunStatus.WAITING and run.status_reason == WaitReason.UNKNOWN_TOOL
    is_open = call.status == ToolStatus.UNKNOWN and call.result_message_id is None
    return waits and is_open and call.finished_at is not None


def _let_run_again(call: AgentRunToolCall, entry: Entry) -> None:
    """Mark the call to be run again, and append the event."""
    call.finished_at = None
    call.save(update_fields=["finished_at"])
    log.append(call.run_id, [entry], source=Source.WEB)


def _close(run: AgentRun, call: AgentRunToolCall, status: ToolStatus, text: str, entry: Entry) -> None:
    """Close the call with the result that a person has chosen."""
    limit = (run.agent_config.get("settings") or {}).get("tool_output_limit", MODEL_LIMIT)
    result = CallResult(status, text, attempts=max(call.attempts, 1), duration_ms=call.duration_ms)
    position = transcript.last_position(run.pk) + 1
    closed = tool_results.close(
        call, result, position=position, epoch=None, source=Source.WEB, limit=limit, before=[entry]
    )
    writes.write(closed.commit)
    call.save(update_fields=["resolved_by", "resolved_at"])


def _answer_late_request(
    run: AgentRun, call: AgentRunToolCall, choice: OutcomeChoice, text: str, by: str
) -> Resolution:
    """Return the result of a request that repeats the earlier one. Raises `Conflict` for any other request."""
    resolutions = log.events_of(run.pk).filter(
        type__in=RESOLUTION_EVENTS, ref_id=call.pk, payload__decision__in=list(OutcomeChoice)
    )
    last = resolutions.order_by("-seq").first()
    chosen = last.payload if last is not None else {}
    # Compared as in the log, which redacts a name that looks like a secret, such as that of an API key.
    is_same = (chosen.get("decision"), chosen.get("by")) == (choice, REDACTOR.clean_text(by)[0] or None)
    if is_same and (choice is OutcomeChoice.RETRY or call.output == MODEL_INPUT.clean(text)[0]):
        return Resolution(run, call, run.state, is_new=False)
    facts: dict[str, Any] = {"call_status": call.status, "run_status": run.status, "chosen": chosen.get("decision")}
    if chosen:
        raise Conflict(
            f"{chosen.get('by') or 'another person'} already resolved this call as {chosen['decision']}",
            code="call_not_unknown",
            **facts,
        )
    if call.status == ToolStatus.UNKNOWN:
        raise Conflict(
            f"the run is {run.status}, so the outcome of this call stays unknown", code="call_not_unknown", **facts
        )
    raise Conflict(f"this call is {call.status}, so it has no outcome to resolve", code="call_not_unknown", **facts)
