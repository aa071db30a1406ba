"""Carry out the operations of one request, in one transaction. A release ends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

from django.db import transaction
from pydantic_ai.messages import UserPromptPart

from agentops.accounts.models import Project
from agentops.base.refusals import Conflict
from runs.conversation import transcript
from runs.conversation.tool_results import CallResult
from runs.hooks.deciding import CallDecision, decide_call
from runs.lifecycle import inbox
from runs.lifecycle.command_outcomes import mark_applied
from runs.models import AgentRunMessage, RemoteStep, RunCommand
from runs.providers.messages import content_of, request
from runs.remote import calls, graph_states, holds, journal, left_steps, model_calls, values, waits
from runs.remote.bodies import (
    AddText,
    FailStep,
    FinishStep,
    LogEvent,
    Operation,
    PutValues,
    ReceiveMessages,
    SendPiece,
    StartStep,
)
from runs.remote.calls import HooksNeeded
from runs.remote.holds import RemoteHold
from runs.statuses import ToolStatus
from timeline import log
from timeline.events.llm import LlmTextDelta
from timeline.events.notice import Error, RetryScheduled
from timeline.events.tool import ToolOutput
from timeline.log import Entry
from timeline.models import Source

Kind = RemoteStep.Kind
Type = inbox.Type
#: The kinds of steps for which a run waits without a process.
WAITING = frozenset({"approval", "question", "sleep", "signal", "child"})


def perform(
    project: Project, run_id: UUID, epoch: int, operations: Sequence[Operation], *, is_packaged: bool = False
) -> dict[str, Any]:
    """Carry out operations in order, and return the answer. Raises `LeaseLost`, `RunNotFound` and `Refusal`.

    Hooks decide outside of the transaction, which then begins again. `is_packaged`: see `holds.lock`.
    """
    decisions: dict[str, CallDecision] = {}
    while True:
        try:
            with transaction.atomic():
                hold = holds.lock(project, run_id, epoch, is_packaged=is_packaged)
                hold.decisions = decisions
                hold, answer = perform_on(hold, operations)
                hold.flush()
                return answer
        except HooksNeeded as needed:
            decisions[needed.key] = decide_call(needed.hooks, needed.context)


def perform_on(hold: RemoteHold, operations: Sequence[Operation]) -> tuple[RemoteHold, dict[str, Any]]:
    """Carry out operations in the transaction of the caller. Return the answer, and a hold that replaces the given one.

    The commit of the last operation is not written yet: call `flush` or `take`. Raises `HooksNeeded` for a call that is
    not in the decisions of the hold.
    """
    results: list[dict[str, Any]] = []
    for operation in operations:
        hold.flush()
        hold.defers = _is_frequent(operation)
        is_kept = isinstance(operation, StartStep | ReceiveMessages) and not operation.may_release
        if is_kept and not hold.is_shared:
            hold, result = _perform_held(hold, operation)
        else:
            result = _perform(hold, operation)
        if hold.is_released:
            results.append({"state": "released", **holds.facts_of_release(hold.run)})
            break
        if isinstance(operation, StartStep | FailStep | ReceiveMessages) and not _is_frequent(operation):
            hold.forget_facts()
        hold.known_calls = None
        results.append(result)
    return hold, {"results": results, "commands": sorted(named_commands(hold.pending))}


def _is_frequent(op: Operation) -> bool:
    """Return whether an operation writes all of its rows with one commit."""
    return isinstance(op, FinishStep) or (isinstance(op, StartStep) and op.kind not in WAITING)


def _perform_held(hold: RemoteHold, op: Operation) -> tuple[RemoteHold, dict[str, Any]]:
    """Carry out an operation unless it would release the run. Then its result is `blocked`, and nothing has changed."""
    savepoint = transaction.savepoint()
    result = _perform(hold, op)
    if not hold.is_released:
        hold.flush()
        transaction.savepoint_commit(savepoint)
        return hold, result
    transaction.savepoint_rollback(savepoint)
    fresh = holds.lock(hold.run.project, hold.run.pk, hold.epoch, is_packaged=hold.run.is_packaged)
    fresh.decisions = hold.decisions
    return fresh, {"state": "blocked"}


def named_commands(types: set[str]) -> set[str]:
    """Return the names of commands as processes know them: all texts are messages."""
    return {"message" if kind in (Type.SEND, Type.REPLY) else str(kind) for kind in types}


def _perform(hold: RemoteHold, operation: Operation) -> dict[str, Any]:
    match operation:
        case StartStep():
            return _start(hold, operation)
        case FinishStep():
            return _finish(hold, operation)
        case FailStep():
            return _fail(hold, operation)
        case SendPiece():
            step = journal.started(hold.run, operation.key)
            values.add_piece(step, operation.index, operation.data)
            return {}
        case AddText():
            return _add_text(hold, operation)
        case LogEvent():
            return _log_event(hold, operation)
        case ReceiveMessages():
            return _receive(hold, operation)
        case PutValues():
            graph_states.put(hold.run, operation.values)
            return {}


def _start(hold: RemoteHold, op: StartStep) -> dict[str, Any]:
    """Return the outcome of a step, or start it. A stop, a pause or a used-up limit releases the run instead."""
    found = _own(hold, op.key) or journal.inherited(hold.run, op.key)
    if found is not None:
        journal.require_same(found, op.kind, op.name)
        if found.is_final:
            return calls.outcome(found)
    if holds.follow_commands(hold):
        return {}
    if found is None or found.run_id != hold.run.pk:
        return _start_here(hold, op, left=found)
    if op.kind in WAITING:
        return waits.go_on(hold, op, found)
    return model_calls.go_on(hold, op, found) if op.kind == "model" else calls.go_on(hold, op, found)


def _start_here(hold: RemoteHold, op: StartStep, *, left: RemoteStep | None) -> dict[str, Any]:
    """Start a step in this run. `left`: the step as an earlier run of the lineage left it, without an outcome."""
    if left is not None and left_steps.is_decided(hold, left):
        return waits.settle(left)
    if holds.stop_at_limits(hold, calls_model=op.kind == "model"):
        return {}
    if op.kind in WAITING:
        return waits.start(hold, op, left)
    return model_calls.start(hold, op) if op.kind == "model" else calls.start(hold, op, left)


def _own(hold: RemoteHold, key: str) -> RemoteStep | None:
    """Return the step of the run itself with this key."""
    return hold.known_steps.pop(key) if key in hold.known_steps else journal.own(hold.run, key)


def _own_known(hold: RemoteHold, key: str) -> RemoteStep | None:
    """Return the step of the run itself with this key, and keep it for `_started`."""
    if hold.known_steps.get(key) is None:
        hold.known_steps[key] = journal.own(hold.run, key)
    return hold.known_steps[key]


def _started(hold: RemoteHold, key: str) -> RemoteStep:
    """Return a started step. Raises `Conflict` if it was not started under this epoch."""
    step = hold.known_steps.pop(key, None) or journal.started(hold.run, key)
    if step.epoch != hold.epoch:
        raise Conflict(f"the step {key!r} was not started by this process", code="step_not_started", key=key)
    return step


def _finish(hold: RemoteHold, op: FinishStep) -> dict[str, Any]:
    step = _started(hold, op.key)
    if step.is_final:
        return calls.outcome(step)  # the request is repeated, because its answer was lost
    if op.pieces is not None:
        value = values.in_pieces(step, op.pieces, op.sha256, op.codec)
    else:
        value = values.inline(op.value, op.codec)
    if step.kind == Kind.MODEL:
        model_calls.finish(hold, op, step, value)
    else:
        # As if the site had ended the sleep, which it does after a crash of the process.
        shown = waits.TIME_OVER if step.kind == Kind.SLEEP else values.shown(op.value, value, op.shown)
        _close(hold, step, CallResult(ToolStatus.COMPLETED, shown, duration_ms=op.duration_ms))
        journal.finish_unsaved(step, value)
        hold.add_outcome(step)
    return calls.outcome(step) if value.is_changed else {"state": "done"}


def _close(hold: RemoteHold, step: RemoteStep, result: CallResult) -> None:
    """Store the result of the call of a started step. Raises `Conflict` if the call does not run."""
    if step.call is None or step.call.status != ToolStatus.RUNNING:
        raise Conflict(f"the step {step.key!r} does not run", code="step_not_started", key=step.key)
    calls.close(hold, step.call, result)


def _fail(hold: RemoteHold, op: FailStep) -> dict[str, Any]:
    """Store the error of an attempt, and if it is final, the outcome of the step."""
    if op.final and _own_known(hold, op.key) is None and (call := calls.requested_call(hold, op)) is not None:
        return calls.reject(hold, op, call)
    step = _started(hold, op.key)
    if step.is_final:
        return calls.outcome(step)
    if op.id and log.has_event(hold.run.pk, _event_id(hold, op)):
        return {"state": "started"}  # the request is repeated, because its answer was lost
    if step.kind == Kind.MODEL:
        model_calls.fail(hold, op, step, _retry(hold, op, step), event_id=_event_id(hold, op))
    else:
        if not op.final:
            _note_attempt(hold, op, step)
        if op.retry_in_s is None and not _has_failed(step):
            text = f"{op.error.type}: {op.error.message}" if op.error.message else op.error.type
            _close(hold, step, CallResult(ToolStatus.ERROR, text, duration_ms=op.duration_ms))
            journal.note_failure(step, op.error.type, op.error.message)
    if op.final:
        journal.fail(step, op.error.type, op.error.message)
        return calls.outcome(step)
    return {"state": "started"}


def _event_id(hold: RemoteHold, op: FailStep | AddText | LogEvent) -> str | None:
    """Return the ID of the event of an operation, which is stored once; None without an ID of the process."""
    return f"~{hold.epoch}.{op.id}" if op.id else None


def _has_failed(step: RemoteStep) -> bool:
    """Return whether the call of a step without an outcome has failed, and is not tried again."""
    return step.call is not None and step.call.status == ToolStatus.ERROR


def _note_attempt(hold: RemoteHold, op: FailStep, step: RemoteStep) -> None:
    """Save the error of an attempt of a call."""
    number, call_id = hold.run.step_count, step.call.call_id if step.call is not None else None
    error = Error(
        error_type=op.error.type,
        error=op.error.message[:2000] or None,
        details=op.error.details[:1000] or None,
        context=step.name,
        call_id=call_id,
    )
    failed = Entry(error, step=number, event_id=_event_id(hold, op))
    log.append(hold.run.pk, [failed, *_retry(hold, op, step)], source=Source.WORKER, epoch=hold.epoch)
    model_calls.save_error(hold, op, step, context=step.name, number=number)


def _retry(hold: RemoteHold, op: FailStep, step: RemoteStep) -> list[Entry]:
    """Return the event of the next attempt; empty if this was the last one."""
    if op.retry_in_s is None:
        return []
    is_model = step.kind == Kind.MODEL
    payload = RetryScheduled(
        what="llm" if is_model else "tool",
        delay_ms=round(op.retry_in_s * 1000),
        error_type=op.error.type,
        error=op.error.message[:500] or None,
        details=op.error.details[:1000] or None,
        call_id=None if step.call is None else step.call.call_id,
    )
    return [Entry(payload, step=hold.run.step_count + is_model)]


def _add_text(hold: RemoteHold, op: AddText) -> dict[str, Any]:
    """Append a piece of streamed text of a model call, or of the output of another step."""
    step = _started(hold, op.key)
    if step.kind == Kind.MODEL:
        delta = LlmTextDelta(text=op.text, index=0)
        entry = Entry(delta, step=hold.run.step_count + 1, event_id=_event_id(hold, op))
    else:
        call = step.call
        assert call is not None
        output = ToolOutput(call_id=call.call_id, tool_name=call.tool_name, text=op.text)
        entry = Entry(output, step=call.step_number, ref_id=call.pk, event_id=_event_id(hold, op))
    log.append(hold.run.pk, [entry], source=Source.WORKER, epoch=hold.epoch)
    return {}


def _log_event(hold: RemoteHold, op: LogEvent) -> dict[str, Any]:
    entry = Entry(op.payload, type=op.type, step=hold.run.step_count, event_id=_event_id(hold, op))
    log.append(hold.run.pk, [entry], source=Source.WORKER, epoch=hold.epoch)
    return {}


def _receive(hold: RemoteHold, op: ReceiveMessages) -> dict[str, Any]:
    """Take the pending messages into the conversation, and store their texts as the outcome of the step."""
    step = journal.find(hold.run, op.key)
    if step is not None:
        journal.require_same(step, Kind.MESSAGES, "messages")
        if step.is_final:
            return calls.outcome(step)
    if holds.follow_commands(hold):
        return {}
    commands = [c for c in inbox.pending_commands(hold.run.pk) if c.type in (Type.SEND, Type.REPLY)]
    turns = [(AgentRunMessage.Role.USER, request(UserPromptPart(content_of(c.payload["message"])))) for c in commands]
    number = hold.run.step_count + 1
    rows = [
        transcript.new_row(hold.run.pk, hold.next_position(), turn, role=role, step=number, epoch=hold.epoch)[0]
        for role, turn in cast("Any", turns)
    ]
    AgentRunMessage.objects.bulk_create(rows)
    opening = _opening_texts(hold)  # before these commands count as applied
    mark_applied(commands)
    log.append(hold.run.pk, [transcript.message_event(row) for row in rows], source=Source.WORKER, epoch=hold.epoch)
    hold.pending.difference_update({Type.SEND, Type.REPLY})
    texts = [*opening, *(transcript.text_of(row.content) for row in rows)]
    step = journal.add(hold.run, hold.epoch, key=op.key, kind=Kind.MESSAGES, name="messages")
    journal.finish(step, values.inline(texts, ""))
    return calls.outcome(step)


def _opening_texts(hold: RemoteHold) -> list[str]:
    """Return the message with which a person has resumed or forked the run; empty if it was received before.

    It is in the conversation already, with a command that was applied when the run was created: before its first claim.
    """
    if RemoteStep.objects.filter(run=hold.run, kind=Kind.MESSAGES).exists():
        return []
    opening = RunCommand.objects.filter(run=hold.run, type=Type.SEND, received_at__lt=hold.run.started_at)
    return [str(command.payload["message"]) for command in opening.exclude(applied_at=None)]
