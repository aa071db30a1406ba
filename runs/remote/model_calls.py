"""Steps that are model calls: their start within the limits of the run, and the answer that the process reports."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, cast

from pydantic_ai.messages import ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.usage import RequestUsage

from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Invalid
from runs.agents.prices import readable_prices
from runs.conversation import call_ids, tool_starts, transcript, turn_usage, writes
from runs.conversation.writes import Commit
from runs.lifecycle.causes import LLM_STREAM
from runs.models import AgentRunMessage, RemoteStep, RunError, TurnUsage
from runs.models.run import CostSource
from runs.remote import calls, journal
from runs.remote.bodies import FailStep, FinishStep, ModelAnswer, StartStep
from runs.remote.holds import RemoteHold
from runs.remote.values import StoredValue
from timeline import log
from timeline.events.llm import LlmTurnAbandoned, LlmTurnEnd, LlmTurnStart
from timeline.log import Entry
from timeline.models import Source


def start(hold: RemoteHold, op: StartStep) -> dict[str, Any]:
    """Start a model call that is not in the journal of this run."""
    calls.add_step(hold, op)
    events = [_turn_start(hold, op.model or op.name, 0)]
    hold.write(Commit(run_id=hold.run.pk, epoch=hold.epoch, events=events))
    return {"state": "run", "attempt": 0}


def go_on(hold: RemoteHold, op: StartStep, step: RemoteStep) -> dict[str, Any]:
    """Start a model call again whose process died. A repeated request changes nothing."""
    if step.epoch != hold.epoch:
        journal.restart(step, hold.epoch)
        _append(hold, [_turn_start(hold, op.model or op.name, step.attempt)])
    return {"state": "run", "attempt": step.attempt}


def finish(hold: RemoteHold, op: FinishStep, step: RemoteStep, value: StoredValue) -> None:
    """Store the answer of a model as a message with its planned calls, its usage and its cost."""
    if op.answer is None:
        raise Invalid("a model call needs an answer", code="answer_missing", pointer="/answer")
    number = hold.run.step_count + 1
    response = _response(op.answer)
    call_ids.make_usable(response)
    row, message = transcript.new_row(
        hold.run.pk,
        hold.next_position(),
        response,
        role=AgentRunMessage.Role.ASSISTANT,
        step=number,
        epoch=hold.epoch,
        redacts_all=True,
    )
    requested = {call.id: call for call in op.answer.calls}
    planned = [
        tool_starts.planned_call(row, part, effect=_effect(requested, part))
        for part in cast("ModelResponse", message).tool_calls
    ]
    usage = _usage(hold, op, number, step.attempt, response)
    end = LlmTurnEnd(
        finish_reason=response.finish_reason,
        tool_calls=len(planned) or None,
        **turn_usage.event_fields(usage),
    )
    events = [
        transcript.message_event(row),
        Entry(end, step=number, ref_id=row.id, clean=True),
        *hold.spending.count(usage, number),
    ]
    checkpoint = None if planned else transcript.new_checkpoint(hold.run.pk, number, row.position, hold.epoch)
    if checkpoint is not None:
        hold.facts().checkpoint = number
    hold.write(
        Commit(
            run_id=hold.run.pk,
            epoch=hold.epoch,
            events=events,
            messages=[row],
            usage=usage,
            calls=planned,
            checkpoint=checkpoint,
        )
    )
    hold.opens(planned)
    hold.run.step_count = step.step_number = number
    journal.finish_unsaved(step, value)
    hold.add_outcome(step)


def fail(
    hold: RemoteHold, op: FailStep, step: RemoteStep, entries: list[Entry], *, event_id: str | None = None
) -> None:
    """Append the end of an attempt without an answer, and save its error. `entries` are appended after it.

    `event_id`: of the event of the end.
    """
    number = hold.run.step_count + 1
    abandoned = LlmTurnAbandoned(
        attempt=step.attempt or None, reason=op.error.type, usage="unknown", duration_ms=op.duration_ms
    )
    writes.count_abandoned(hold.run.pk, hold.epoch, [Entry(abandoned, step=number)])
    _append(hold, [Entry(abandoned, step=number, event_id=event_id), *entries])
    save_error(hold, op, step, context=LLM_STREAM, number=number)


def save_error(hold: RemoteHold, op: FailStep, step: RemoteStep, *, context: str, number: int) -> None:
    """Save the row of a failed attempt. `context`: the name of the tool, or a value of runs.lifecycle.causes."""
    RunError.objects.create(
        run=hold.run,
        step_number=number,
        context=context[:300],
        call_id=step.call.call_id if step.call is not None else "",
        error_type=REDACTOR.clean_text(op.error.type)[0],
        message=REDACTOR.clean_text(op.error.message)[0],
        details=REDACTOR.clean_text(op.error.details)[0],
        attempt=step.attempt,
        created_at=database_clock.now(),
    )


def _turn_start(hold: RemoteHold, model: str, attempt: int) -> Entry:
    number = hold.run.step_count + 1
    return Entry(LlmTurnStart(attempt=attempt or None, model=model, call=number), step=number)


def _append(hold: RemoteHold, entries: list[Entry]) -> None:
    log.append(hold.run.pk, entries, source=Source.WORKER, epoch=hold.epoch)


def _response(answer: ModelAnswer) -> ModelResponse:
    """Return the answer in the form of stored messages."""
    parts: list[ModelResponsePart] = []
    if answer.thinking:
        parts.append(ThinkingPart(answer.thinking))
    if answer.text or not answer.calls:
        parts.append(TextPart(answer.text))
    parts += [ToolCallPart(call.name, call.arguments, call.id) for call in answer.calls]
    used = answer.usage
    usage = RequestUsage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
        cache_write_1h_tokens=used.cache_write_1h_tokens,
        output_reasoning_tokens=used.reasoning_tokens,
    )
    return ModelResponse(
        parts=parts,
        usage=turn_usage.plausible(usage),
        model_name=answer.model or None,
        provider_name=answer.provider or None,
        provider_details={"service_tier": answer.tier} if answer.tier else None,
        finish_reason=answer.finish_reason,
    )


def _effect(requested: dict[str, Any], part: ToolCallPart) -> Any:
    call = requested.get(part.tool_call_id)
    return calls.EFFECTS[call.effect if call is not None else "once"]


def _usage(hold: RemoteHold, op: FinishStep, step: int, attempt: int, response: ModelResponse) -> TurnUsage:
    """Return the usage of the call with its cost: the project's price, or the reported cost, or the published price."""
    assert op.answer is not None
    prices, model = readable_prices(hold.run.project.settings), str(hold.config["model"])
    usage = turn_usage.usage_of(hold.run.pk, step, attempt, response, op.duration_ms, prices=prices, model=model)
    reported: Decimal | None = op.answer.cost_usd
    if reported is not None and usage.cost_source != CostSource.PROJECT:
        usage.cost_usd, usage.cost_source, usage.cost_note = reported, CostSource.REPORTED.value, ""
    return usage
