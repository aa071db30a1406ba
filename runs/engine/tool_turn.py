"""The tools of a turn: each is marked running, run, and its result committed, in the order of the answer.

No transaction is open while a tool runs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.utils import timezone
from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturnPart

from runs import chaos
from runs.conversation import repeats, transcript, writes
from runs.engine import late_results
from runs.engine.drive import STOP_LOOK_S, Drive, StopAsked
from runs.engine.safe_commit import durably, nothing
from runs.fixtures.format import UNKNOWN_OUTCOME
from runs.lifecycle import inbox
from runs.models import AgentRunToolCall, Checkpoint, RunError
from runs.providers.messages import content_of
from runs.providers.retries import HOLD_WORKER_S
from runs.providers.retry_limits import retry_limits
from runs.statuses import ToolStatus
from runs.tools.base import Effect, OutcomeUnknown, Tool, ToolContext, ToolDenied, ToolFailed, ToolResult
from runs.tools.output import MODEL_LIMIT, cut_for_model
from runs.tools.speaking import Question, asked_by
from runs.tools.timed_call import run_with_deadline
from timeline import log
from timeline.errors import LeaseLost
from timeline.events.hook import HookDecided, SafetyBlock
from timeline.events.notice import Error
from timeline.events.retry import RetryScheduled
from timeline.log import Entry
from timeline.preview import preview
from timeline.redaction.redact import DEFAULT as REDACTOR
from timeline.redaction.windows import mask

#: What the retry of a call says of an answer that is an error.
SOFT_ERROR = "tool_error"
#: More calls than this in one answer are a runaway model: the rest is answered with an error, not run.
MAX_CALLS = 64


@dataclass(frozen=True)
class CallResult:
    """What a call came to, before it is committed."""

    status: ToolStatus
    output: str | list[Any]
    #: pydantic-ai's word, by which adapters tell the provider of an error.
    outcome: str
    attempts: int
    duration_ms: int | None
    events: Sequence[Entry] = ()


#: What is committed with the last result of a turn: its checkpoint, and the start of the next turn if one follows.
Closing = Callable[[], tuple[Checkpoint, Entry | None]]


def finish(drive: Drive, closing: Closing) -> None:
    """Run what the last answer asked for and has no result yet. The last result brings `closing()` along.

    Returns before the end where a stop was asked for, and at a call whose outcome is unknown where the agent's
    policy is to wait for someone who knows. Nor does it pass a call that asks a person.
    """
    while drive.open_calls:
        call = drive.open_calls[0]
        if drive.streak(call) >= repeats.STOP_AT:
            return  # the decision that follows stops the run
        if call.pk not in drive.dispatchable and "stop" in inbox.waiting(drive.run.pk):
            return  # the decision that follows stops the run, which closes what is open
        if asked(drive) is not None:
            return  # the decision that follows waits for an answer
        chaos.point("hooks.before")
        try:
            outcome = _outcome(drive, call)
        except StopAsked:
            return
        if outcome.status is ToolStatus.UNKNOWN and not _tell_model(drive):
            drive.unknown_call = call
            return
        last = len(drive.open_calls) == 1
        try:
            _commit(drive, call, outcome, *(closing() if last else (None, None)))
        except LeaseLost:
            if outcome.duration_ms is not None:  # the tool has run, and whoever has the run now does not know
                late_results.keep(call, outcome.output)
            raise
        drive.open_calls.pop(0)
        chaos.point("result.committed")
        if not last:
            chaos.point("tool.next")
        drive.check()


def asked(drive: Drive) -> Question | None:
    """What the next call asks a person; None where it is another one."""
    if not drive.open_calls:
        return None
    call = drive.open_calls[0]
    tool = drive.toolset.get(call.tool_name)
    if tool is None or not tool.asks or _index(drive, call) >= MAX_CALLS:
        return None
    return asked_by(tool, _context(drive, call, 0), _arguments(drive, call))


def _outcome(drive: Drive, call: AgentRunToolCall) -> CallResult:
    """Decide by the row's status what may be done, and do it."""
    tool = drive.toolset.get(call.tool_name)
    if call.status == ToolStatus.UNKNOWN and call.finished_at is not None:
        return _unknown(call)  # without that time somebody wants it run again: see engine.outcomes
    lost = call.status == ToolStatus.RUNNING and call.pk not in drive.dispatchable
    if lost and (tool is None or tool.effect is Effect.AT_MOST_ONCE):
        # Marked running by a worker that died: whether it took effect, nobody knows.
        return _unknown(call)
    if tool is None:
        return _refused(f"There is no tool named {call.tool_name!r}.")
    if _index(drive, call) >= MAX_CALLS:
        return _refused(f"Not run: more than {MAX_CALLS} calls in one answer.")
    return _run(drive, call, tool)


def _run(drive: Drive, call: AgentRunToolCall, tool: Tool) -> CallResult:
    """Start and run the tool, again after an error where it may be repeated. The last attempt's result counts."""
    attempt = 0
    while True:
        if call.pk not in drive.dispatchable:
            _commit_start(drive, call, attempt)
        drive.dispatchable.discard(call.pk)
        outcome, failed = _attempt(drive, call, tool, attempt)
        pause_s = _pause_s(drive, tool, failed, attempt)
        retry = [] if pause_s is None or failed is None else [_retry(drive, call, failed, attempt, pause_s)]
        if failed is not None and failed.error is not None:
            _note_failure(drive, call, failed.error, attempt, *retry)
        elif retry:
            drive.note(*retry)
        if pause_s is None:
            return outcome
        attempt += 1
        try:
            _wait(drive, pause_s)
        except StopAsked:
            return outcome  # what the call came to is known: the stop that follows need not call it unknown


@dataclass(frozen=True)
class _Failed:
    """Why an attempt did not succeed."""

    error_type: str
    text: str
    #: Whether the same call may end otherwise.
    retryable: bool
    #: None for a soft error, which is part of the tool's answer and is not recorded.
    error: ToolFailed | None = None


def _attempt(drive: Drive, call: AgentRunToolCall, tool: Tool, attempt: int) -> tuple[CallResult, _Failed | None]:
    """Run the tool once: what the call came to if this attempt is the last, and why it failed if it did."""
    chaos.point("tool.marked_running")
    log.require_epoch(drive.run.pk, drive.epoch)
    began = time.perf_counter()
    try:
        chaos.point("tool.running")
        result = run_with_deadline(
            tool, _context(drive, call, attempt), _arguments(drive, call), drive.check_for_stop,
            partial(late_results.keep_and_close, call),
        )  # fmt: skip
    except OutcomeUnknown:
        return _unknown(call, attempt + 1), None
    except ToolDenied as error:
        block = SafetyBlock(code=error.code, reason=error.message, call_id=call.call_id, tool_name=tool.name)
        event = Entry(block, step=call.step_number, ref_id=call.pk)
        return CallResult(ToolStatus.ERROR, str(error), "failed", attempt + 1, _since(began), [event]), None
    except ToolFailed as error:
        if error.error_type == "timeout" and tool.effect is Effect.AT_MOST_ONCE:
            # Its thread may still be at work: that it did not answer does not say that it did nothing.
            return _unknown(call, attempt + 1), _Failed(error.error_type, error.message, False, error)
        outcome = CallResult(ToolStatus.ERROR, str(error), "failed", attempt + 1, _since(began))
        return outcome, _Failed(error.error_type, error.message, error.retryable, error)
    chaos.point("tool.returned")
    outcome = _answered(result, attempt + 1, _since(began))
    if not result.is_error:
        return outcome, None
    text = result.output if isinstance(result.output, str) else ""
    return outcome, _Failed(SOFT_ERROR, text, result.retryable)


def _pause_s(drive: Drive, tool: Tool, failed: _Failed | None, attempt: int) -> float | None:
    """The seconds until the next attempt: twice as long each time, as for a model call; None where none follows."""
    limits = retry_limits(drive.settings)
    if failed is None or not (failed.retryable and tool.may_repeat and attempt < limits.tool_max_retries):
        return None
    jitter = 1 + random.random() / 4  # noqa: S311 - spreads load, guards nothing
    return min(limits.base_delay_s * float(2**attempt) * jitter, HOLD_WORKER_S)


def _wait(drive: Drive, pause_s: float) -> None:
    """Sleep until the next attempt; raises as soon as the run has to be let go, or stopped."""
    until = time.monotonic() + pause_s
    while (left_s := until - time.monotonic()) > 0:
        drive.stopping.asked.wait(min(left_s, STOP_LOOK_S))
        drive.check_for_stop()
        if drive.stopping.asked.is_set():
            break
    drive.check()


def _answered(result: ToolResult, attempts: int, took_ms: int) -> CallResult:
    status = ToolStatus.ERROR if result.is_error else ToolStatus.COMPLETED
    duration = took_ms if result.duration_ms is None else result.duration_ms
    # Before it is cut for the model: half a secret is none that anybody recognises.
    output, _ = REDACTOR.clean(result.output)
    return CallResult(status, output, "failed" if result.is_error else "success", attempts, duration)  # type: ignore[arg-type]


def _refused(why: str) -> CallResult:
    return CallResult(ToolStatus.ERROR, why, "failed", 0, None)


def _unknown(call: AgentRunToolCall, attempts: int = 1) -> CallResult:
    return CallResult(
        ToolStatus.UNKNOWN, UNKNOWN_OUTCOME, "interrupted", max(attempts, call.attempts), call.duration_ms
    )


def _tell_model(drive: Drive) -> bool:
    policy = drive.settings.get("on_unknown_tool") or (drive.config.get("policies") or {}).get("on_unknown_tool")
    return policy == "tell_model"


def _commit_start(drive: Drive, call: AgentRunToolCall, attempt: int) -> None:
    chaos.point("hooks.decided")
    chaos.point("tool.before_start")
    believed = call.status
    entry = transcript.start_call(call, attempt=attempt)
    durably(
        partial(transcript.commit_start, call, entry, drive.epoch, believed=believed),
        landed=lambda: AgentRunToolCall.objects.filter(pk=call.pk, starts=call.starts).exists(),
        found=nothing,
        lease=drive.lease,
    )


def _commit(
    drive: Drive, call: AgentRunToolCall, outcome: CallResult, checkpoint: Checkpoint | None, then: Entry | None
) -> None:
    believed, call.status = call.status, outcome.status.value
    call.attempts, call.duration_ms, call.finished_at = outcome.attempts, outcome.duration_ms, transcript.end_of(call)
    limit = drive.settings.get("tool_output_limit", MODEL_LIMIT)
    shown, cut = cut_for_model(outcome.output, limit)
    given, guarded = _with_warning(drive, call, shown)
    if cut or given is not shown:
        call.output = transcript.stored_output(outcome.output)
    part = ToolReturnPart(call.tool_name, content_of(given), call.call_id, outcome=outcome.outcome)  # type: ignore[arg-type]
    row, message = transcript.result_row(call, part, position=drive.conversation.position + 1, epoch=drive.epoch)
    commit = transcript.result(
        call, row, believed=believed, epoch=drive.epoch, checkpoint=checkpoint, more=[*outcome.events, *guarded],
        then=then,
    )  # fmt: skip
    drive.turn_started = durably(
        partial(writes.write, commit),
        landed=lambda: AgentRunToolCall.objects.filter(pk=call.pk, result_message=row.pk).exists(),
        found=lambda: then is not None and log.open_turn(drive.run.pk) is not None,
        lease=drive.lease,
    )
    drive.conversation.add(row, message)


def _with_warning(drive: Drive, call: AgentRunToolCall, shown: str | list[Any]) -> tuple[str | list[Any], list[Entry]]:
    """The output as the model gets it, and an event where the repeat guard begins to warn of this repeat."""
    length = drive.streak(call)
    if length < repeats.WARN_AT:
        return shown, []
    text = repeats.warning(length)
    why = f"{call.tool_name} was asked for {length} times in a row with the same arguments"
    warned = HookDecided(hook="repeat_guard", event="PostToolUse", verdict="append_context", reason=why)
    entries = [Entry(warned, step=call.step_number, ref_id=call.pk)] if length == repeats.WARN_AT else []
    return f"{shown}\n\n{text}" if isinstance(shown, str) else [*shown, text], entries


def _note_failure(drive: Drive, call: AgentRunToolCall, error: ToolFailed, attempt: int, *entries: Entry) -> None:
    row = RunError(
        run=drive.run, step_number=call.step_number, context=f"tool:{call.call_id}"[:300],
        error_type=error.error_type[:64], message=error.message, attempt=attempt, created_at=timezone.now(),
    )  # fmt: skip
    told = Error(error_type=row.error_type, error=error.message[:500], context=row.context, attempt=attempt)
    drive.note_failure(row, Entry(told, step=call.step_number, ref_id=call.pk), *entries)


def _retry(drive: Drive, call: AgentRunToolCall, failed: _Failed, attempt: int, pause_s: float) -> Entry:
    payload = RetryScheduled(
        what="tool", attempt=attempt + 1, max_attempts=retry_limits(drive.settings).tool_max_retries + 1,
        delay_ms=round(pause_s * 1000), error_type=failed.error_type[:64], error=preview(failed.text, 500)[0],
        call_id=call.call_id,
    )  # fmt: skip
    return Entry(payload, step=call.step_number, ref_id=call.pk)


def _context(drive: Drive, call: AgentRunToolCall, attempt: int) -> ToolContext:
    return ToolContext(
        run_id=str(drive.run.pk),
        call_id=call.call_id,
        tool_call_pk=str(call.pk),
        idempotency_key=call.idempotency_key or str(call.pk),
        attempt=attempt,
        epoch=drive.epoch,
        model_call=call.step_number,
        settings=drive.settings,
        cancelled=lambda: drive.lease.lost.is_set() or drive.stopping.over,
        mask=mask,
    )


def context_of_gate(drive: Drive, name: str) -> ToolContext:
    """For a tool that no model asked for: the same for every time that this gate is asked."""
    run = drive.run
    return ToolContext(
        run_id=str(run.pk),
        call_id=name,
        tool_call_pk=name,
        idempotency_key=f"{run.pk}:{name}",
        attempt=0,
        epoch=drive.epoch,
        model_call=run.step_count,
        settings=drive.settings,
        cancelled=lambda: drive.lease.lost.is_set() or drive.stopping.over,
        mask=mask,
    )


def _answer(drive: Drive) -> ModelResponse:
    """The model's last answer: open calls always belong to it."""
    return next(m for m in reversed(drive.conversation.history) if isinstance(m, ModelResponse))


def _part(drive: Drive, call: AgentRunToolCall) -> ToolCallPart:
    return next(part for part in _answer(drive).tool_calls if part.tool_call_id == call.call_id)


def _arguments(drive: Drive, call: AgentRunToolCall) -> Any:
    """From the message, which is never redacted: the row's `input` is for people."""
    return _part(drive, call).args or {}


def _index(drive: Drive, call: AgentRunToolCall) -> int:
    return [part.tool_call_id for part in _answer(drive).tool_calls].index(call.call_id)


def _since(began: float) -> int:
    return round((time.perf_counter() - began) * 1000)
