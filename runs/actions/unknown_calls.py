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
from runs.conversation.open_calls import unresolved_calls
from runs.conversation.tool_results import CallResult
from runs.errors import MessageEmpty, RunNotFound
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

#: Events of a resolved outcome; older logs contain the second type.
RESOLUTION_EVENTS = (EventType.TOOL_OUTCOME_RESOLVED, EventType.APPROVAL_RESOLVED)
#: Status reason of a run that returns to the queue.
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
    """The result of resolving a call. `new`: whether this request resolved it."""

    run: AgentRun
    call: AgentRunToolCall
    status_before: RunStatus
    is_new: bool = True


def unresolved(run: AgentRun) -> QuerySet[AgentRunToolCall]:
    """Return the calls of a run whose outcome has to be resolved, in the order in which the model requested them."""
    return unresolved_calls().filter(run=run).order_by("step_number", "id")


def resolve(run_id: UUID, call_id: UUID, choice: OutcomeChoice, *, by: str, text: str | None = None) -> Resolution:
    """Resolve the outcome of a call. `text` is its output, or the error.

    Of several concurrent requests the first counts; the others raise `call_not_unknown`, which names the recorded
    choice. A repetition by the same person with the same choice and text succeeds. When no call is left to resolve,
    the run returns to the queue; otherwise the log names the next call that it waits for.
    """
    text = _check_text(choice, text)
    with transaction.atomic():
        # NO KEY, as for a command: see runs.lifecycle.inbox.
        run = AgentRun.objects.select_for_update(no_key=True, of=("self",)).filter(pk=run_id).first()
        if run is None:
            raise RunNotFound(f"no run {run_id}")
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
        _go_on(run)
        chaos.point("command.in_transaction")
    return Resolution(run, call, status_before)


def _go_on(run: AgentRun) -> None:
    following = unresolved(run).first()
    if following is None:
        queued = RunPhase(status=RunStatus.QUEUED, reason=REASON)
        transitions.move(run, RunStatus.QUEUED, queued, source=Source.WEB, reason=REASON)
        return
    waiting = RunWaiting(reason=WaitReason.UNKNOWN_TOOL)
    entry = Entry(waiting, ref_id=following.pk, phase=moves.PHASES[run.state])
    log.append(run.pk, [entry], source=Source.WEB)


def _check_text(choice: OutcomeChoice, text: str | None) -> str:
    """Return the text to store; empty for a retry, which has no text."""
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
    waits = run.state is RunStatus.WAITING and run.status_reason == WaitReason.UNKNOWN_TOOL
    is_open = call.status == ToolStatus.UNKNOWN and call.result_message_id is None
    return waits and is_open and call.finished_at is not None


def _let_run_again(call: AgentRunToolCall, entry: Entry) -> None:
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
    """Answer a request that comes too late: a repetition succeeds, any other raises `call_not_unknown`."""
    resolutions = log.events_of(run.pk).filter(
        type__in=RESOLUTION_EVENTS, ref_id=call.pk, payload__decision__in=list(OutcomeChoice)
    )
    last = resolutions.order_by("-seq").first()
    chosen = last.payload if last is not None else {}
    # As in the log, where the name of an API key was redacted because it looks like a secret.
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
