"""One tool call: mark it running, run it, commit its result. No transaction is open while a tool runs."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from agentops.base import database_clock
from agentops.base.redaction.redact import MODEL_INPUT
from runs import chaos
from runs.conversation import repeats, tool_results, transcript, writes
from runs.conversation.tool_results import CallResult, unknown_result
from runs.engine import views
from runs.engine.decisions import Next, next_action
from runs.engine.drive import STOP_CHECK_S, Drive
from runs.engine.results import ApprovalNeeded, CallClosed, CallUnknown, SpawnPermitted, StopPending
from runs.engine.safe_commit import commit_safely, do_nothing, note, note_failure
from runs.engine.sessions import session_calls
from runs.engine.turns import hook_events, open_call, running_calls, subagents
from runs.engine.turns.model_turn import turn_start
from runs.engine.turns.open_call import CallPermit
from runs.engine.turns.running_calls import CallAhead, LiveOutput
from runs.hooks.base import HookEvent
from runs.models import AgentRunToolCall, Checkpoint, RunError
from runs.providers.retries import HOLD_WORKER_S
from runs.statuses import ToolStatus
from runs.tools.base import Effect, OutcomeUnknown, Tool, ToolDenied, ToolFailed, ToolResult
from runs.tools.call_limits import StartedTool, parallel_limit, run_with_deadline
from runs.tools.output import MODEL_LIMIT, Output
from timeline import log
from timeline.display import preview
from timeline.events.notice import Error, RetryScheduled
from timeline.events.tool import HookDecided, SafetyBlock
from timeline.log import Entry
from timeline.models import LeaseLost

#: Statuses of calls that may be started ahead. A lost call is run again.
STARTABLE = (ToolStatus.PLANNED, ToolStatus.RUNNING)
#: The error type of a retry after a result that the tool itself calls an error.
SOFT_ERROR = "tool_error"


@dataclass(frozen=True)
class _FailedCall:
    """The reason why an attempt of a call failed."""

    error_type: str
    text: str
    #: Whether a retry may succeed.
    retryable: bool
    #: None for a soft error: it is part of the tool's result, and is not saved as an error.
    error: ToolFailed | None = None


def run_next(drive: Drive, *, started: bool) -> CallClosed | CallUnknown | ApprovalNeeded | SpawnPermitted:
    """Run the next open call and commit its result.

    The last result of a turn is committed with the turn's checkpoint, and with the start of the next turn if one
    follows. `started`: the last commit has marked the call running, so it cannot have had an effect yet. Raises
    `StopPending` or `ShutdownDue` if interrupted; the call then stays `running`.
    """
    call = drive.open_calls[0]
    chaos.point("hooks.before")
    _start_ahead(drive)
    result = _result(drive, call, started=started)
    if isinstance(result, ApprovalNeeded | SpawnPermitted):
        return result
    if result.status is ToolStatus.UNKNOWN and not _continues_after_unknown(drive):
        return CallUnknown(call)
    try:
        session_calls.end_subagent(drive, call, result)
        closed = _close(drive, call, result)
        session_calls.send_denial(drive, call, result)
        return closed
    except LeaseLost:
        if result.duration_ms is not None:  # the tool has run, and the worker that took the run over does not know
            running_calls.log_late_output(call, result.output)
        raise


def _start_ahead(drive: Drive) -> None:
    """Start the tools of the calls that may run at the same time as the next open call.

    These are the calls after the next open call, up to the first that must not overlap with others, if the next open
    call may overlap too.
    """
    limit = parallel_limit(drive.settings)
    for call in drive.open_calls[:limit]:
        tool = drive.toolset.get(call.tool_name)
        if tool is None or not drive.may_start_ahead(tool) or call.status not in STARTABLE:
            return
        if call is drive.open_calls[0] or call.pk in drive.ahead:
            continue
        if open_call.why_not_run(drive, call) or drive.streak(call) >= repeats.STOP_AT:
            return
        session_calls.commit_start(drive, call, 0, ())
        drive.ahead.add(call.pk, _start(drive, call, tool))


def _start(drive: Drive, call: AgentRunToolCall, tool: Tool) -> CallAhead:
    """Start the tool of a call that is already stored as running."""
    output = LiveOutput(call)
    context = open_call.context(drive, call, attempt=0, output=output)
    return CallAhead(StartedTool(tool, context, open_call.arguments_of(drive, call)), output)


def _result(drive: Drive, call: AgentRunToolCall, *, started: bool) -> CallResult | ApprovalNeeded | SpawnPermitted:
    """Review and run a call, as its status demands, and return the result. Does not run a call that is blocked."""
    tool = drive.toolset.get(call.tool_name)
    if call.status == ToolStatus.UNKNOWN and call.finished_at is not None:
        return unknown_result(call, attempts=1)  # without that time it is run again: see runs.actions.unknown_calls
    started = started or session_calls.is_running(drive, call)
    not_run = open_call.why_not_run(drive, call)
    if tool is not None and tool.spawns and not not_run:
        return _result_of_children(drive, call, tool)
    is_lost = call.status == ToolStatus.RUNNING and not started
    if is_lost and (tool is None or tool.effect is Effect.AT_MOST_ONCE):
        # Started by a worker that died, so it may have taken effect.
        return unknown_result(call, attempts=1)
    if tool is None:
        return CallResult(ToolStatus.ERROR, open_call.unknown_tool(drive, call))
    if not_run:
        return CallResult(ToolStatus.ERROR, not_run)
    # A call that was started before was permitted then, with the stored arguments.
    denied = drive.denied_ahead.pop(call.pk, None)
    permit = denied or (CallPermit() if call.starts else open_call.review(drive, call, tool))
    if not isinstance(permit, CallPermit):
        return permit
    permit.apply_to(call)
    if (refused := session_calls.keep_verdict(drive, call, permit)) is not None:
        return refused
    result = _run(drive, call, tool, started=started, before=permit.events)
    return _with_hooks(drive, call, tool, result)


def _result_of_children(
    drive: Drive, call: AgentRunToolCall, tool: Tool
) -> CallResult | ApprovalNeeded | SpawnPermitted:
    """Return the result of a call that spawns child runs, or the permission to open them."""
    is_permitted = drive.spawn_permit is not None and drive.spawn_permit[0] == call.pk
    if call.status == ToolStatus.PLANNED and drive.may_be_blocked(tool) and not is_permitted:
        permit = open_call.review(drive, call, tool)
        if not isinstance(permit, CallPermit):
            return permit
        permit.apply_to(call)
        return SpawnPermitted(call, permit.events)
    return subagents.result(drive, call, tool)


def _with_hooks(drive: Drive, call: AgentRunToolCall, tool: Tool, result: CallResult) -> CallResult:
    """Call the hooks of a call that has run, and return the result with their events and commands."""
    events = {ToolStatus.COMPLETED: HookEvent.POST_TOOL_USE, ToolStatus.ERROR: HookEvent.POST_TOOL_USE_FAILURE}
    event = events.get(result.status)
    if event is None or not any(hook.applies_to(event, tool.name) for hook in drive.hooks):
        return result
    context = hook_events.call_context(
        drive,
        event,
        call.step_number,
        tool,
        call_id=call.call_id,
        arguments=open_call.given_arguments(drive, call),
        output=result.output,
    )
    outcome = hook_events.outcome_of(drive, context, call)
    return replace(result, events=[*result.events, *outcome.events], commands=outcome.commands)


def _run(
    drive: Drive, call: AgentRunToolCall, tool: Tool, *, started: bool, before: Sequence[Entry] = ()
) -> CallResult:
    """Run the tool, with retries if its effect and the settings allow them, and return the last attempt's result.

    `started`: this worker has already stored the start of the first attempt. `before`: the events to append before
    that start.
    """
    attempt = 0
    while True:
        if attempt or not (started or call.pk in drive.ahead):
            session_calls.commit_start(drive, call, attempt, () if attempt else before)
        result, failed = _attempt(drive, call, tool, attempt)
        pause_s = _pause_s(drive, tool, failed, attempt)
        retry = [] if pause_s is None or failed is None else [_retry_event(drive, call, failed, attempt, pause_s)]
        if failed is not None and failed.error is not None:
            _note_failure(drive, call, failed.error, attempt, *retry)
        elif retry:
            note(drive.lease, *retry)
        if pause_s is None:
            return result
        attempt += 1
        try:
            _wait(drive, pause_s)
        except StopPending:
            return result  # commit the known result: otherwise the stop would close the call as unknown


def _attempt(drive: Drive, call: AgentRunToolCall, tool: Tool, attempt: int) -> tuple[CallResult, _FailedCall | None]:
    """Run the tool once. Returns its result, and the reason if it failed."""
    chaos.point("tool.marked_running")
    # Retried during an outage of the database: if the run were loaded again, the call would count as unknown.
    commit_safely(drive.lease.prove, is_committed=lambda: False, read_result=do_nothing, lease=drive.lease)
    began = time.perf_counter() - drive.ahead.elapsed_s(call.pk)
    try:
        chaos.point("tool.running")
        result = _run_once(drive, call, tool, attempt)
    except OutcomeUnknown:
        return unknown_result(call, attempts=attempt + 1), None
    except ToolDenied as error:
        block = SafetyBlock(code=error.code, reason=error.message, call_id=call.call_id, tool_name=tool.name)
        event = Entry(block, step=call.step_number, ref_id=call.pk)
        return CallResult(ToolStatus.ERROR, str(error), attempt + 1, _elapsed_ms(began), [event]), None
    except ToolFailed as error:
        failed = _FailedCall(error.error_type, error.message, error.retryable, error)
        if error.error_type == "timeout" and tool.effect is Effect.AT_MOST_ONCE:
            # The tool's thread may still be running, and may have had an effect.
            return unknown_result(call, attempts=attempt + 1), replace(failed, retryable=False)
        return CallResult(ToolStatus.ERROR, str(error), attempt + 1, _elapsed_ms(began)), failed
    chaos.point("tool.returned")
    outcome = _tool_result(call, result, attempt + 1, _elapsed_ms(began))
    if not result.is_error:
        return outcome, None
    text = result.output if isinstance(result.output, str) else ""
    return outcome, _FailedCall(SOFT_ERROR, text, result.retryable)


def _run_once(drive: Drive, call: AgentRunToolCall, tool: Tool, attempt: int) -> ToolResult:
    """Run the tool, or wait for it if it was started ahead, and log its output while it runs."""
    late = partial(running_calls.log_late_result, call)
    ahead = drive.ahead.pop(call.pk) if attempt == 0 else None
    output = ahead.output if ahead is not None else LiveOutput(call)

    def watch() -> None:
        drive.check_for_stop()
        session_calls.attend(drive)
        if entries := [*output.take(), *drive.ahead.output()]:
            note(drive.lease, *entries)

    try:
        if ahead is not None:
            return ahead.tool.wait(watch, late)
        context = open_call.context(drive, call, attempt=attempt, output=output)
        return run_with_deadline(tool, context, open_call.arguments_of(drive, call), watch, late)
    finally:
        if rest := output.close():
            # The next commit detects a lost lease.
            with suppress(LeaseLost):
                note(drive.lease, *rest)


def _pause_s(drive: Drive, tool: Tool, failed: _FailedCall | None, attempt: int) -> float | None:
    """Return the seconds until the next attempt, which double with each attempt; None for no further attempt."""
    limits = drive.retry_limits
    if failed is None or not (failed.retryable and tool.may_repeat and attempt < limits.tool_max_retries):
        return None
    jitter = 1 + random.random() / 4  # noqa: S311 - spreads load, guards nothing
    return min(limits.base_delay_s * float(2**attempt) * jitter, HOLD_WORKER_S)


def _wait(drive: Drive, pause_s: float) -> None:
    """Wait before the next attempt. Raises `StopPending`, and `ShutdownDue` when the grace period of a shutdown ends.

    A shutdown that is only requested ends the wait, so that the next attempt is made within the grace period.
    """
    until = time.monotonic() + pause_s
    while (left_s := until - time.monotonic()) > 0:
        drive.shutdown.requested.wait(min(left_s, STOP_CHECK_S))
        drive.check_for_stop()
        if drive.shutdown.requested.is_set():
            break
    drive.check()


def _tool_result(call: AgentRunToolCall, result: ToolResult, attempts: int, took_ms: int) -> CallResult:
    """Return the output of the tool as the result of its call, redacted for the model."""
    status = ToolStatus.ERROR if result.is_error else ToolStatus.COMPLETED
    duration = took_ms if result.duration_ms is None else result.duration_ms
    # Redacted before the output is cut for the model: half a secret would not be recognised.
    output = cast("Output", MODEL_INPUT.clean(result.output)[0])
    events = [Entry(payload, step=call.step_number, ref_id=call.pk) for payload in result.events]
    return CallResult(status, output, attempts, duration, events)


def _continues_after_unknown(drive: Drive) -> bool:
    """Whether an unknown outcome is reported to the model, instead of waiting for a person to resolve it."""
    if drive.session is not None:
        return True  # the program knows more about the call, and continues with its transcript
    policy = drive.settings.get("on_unknown_tool") or (drive.config.get("policies") or {}).get("on_unknown_tool")
    return policy == "tell_model"


def _close(drive: Drive, call: AgentRunToolCall, result: CallResult) -> CallClosed:
    """Commit the result of the call, with its checkpoint and the start of the next turn if it is the turn's last."""
    warning, warning_events = _repeat_warning(drive, call)
    is_last = len(drive.open_calls) == 1
    checkpoint, next_turn_start = _end_of_turn(drive) if is_last else (None, None)
    closed = tool_results.close(
        call,
        replace(result, events=[*result.events, *warning_events]),
        position=drive.conversation.position + 1,
        epoch=drive.epoch,
        warning=warning,
        limit=drive.settings.get("tool_output_limit", MODEL_LIMIT),
        checkpoint=checkpoint,
        next_turn_start=next_turn_start,
    )
    is_turn_started = commit_safely(
        partial(writes.write, closed.commit),
        is_committed=lambda: AgentRunToolCall.objects.filter(pk=call.pk, result_message=closed.row.pk).exists(),
        read_result=lambda: next_turn_start is not None and log.open_turn(drive.run.pk) is not None,
        lease=drive.lease,
    )
    return CallClosed(closed.row, closed.message, is_last=is_last, is_turn_started=is_turn_started)


def _end_of_turn(drive: Drive) -> tuple[Checkpoint, Entry | None]:
    """Return the records to commit with the last result of a turn: its checkpoint, and the start of the next turn.

    The next turn is only started here if the model call follows directly. The commit itself checks that the inbox is
    empty.
    """
    chaos.point("checkpoint.before")
    position = drive.conversation.position + 1
    checkpoint = transcript.new_checkpoint(drive.run.pk, drive.run.step_count, position, drive.epoch)
    asks_model = next_action(views.view_after_calls(drive)) is Next.ASK_MODEL and not drive.has_ending_call()
    return checkpoint, turn_start(drive, 0) if asks_model else None


def _repeat_warning(drive: Drive, call: AgentRunToolCall) -> tuple[str, list[Entry]]:
    """Return the warning for the model about a repeated call, or "", and an event for the first warning."""
    length = drive.streak(call)
    if length < repeats.WARN_AT:
        return "", []
    reason = f"{call.tool_name} was requested {length} times in a row with the same arguments"
    payload = HookDecided(hook="repeat_guard", event="PostToolUse", verdict="append_context", reason=reason)
    entries = [Entry(payload, step=call.step_number, ref_id=call.pk)] if length == repeats.WARN_AT else []
    return repeats.warning(length), entries


def _note_failure(drive: Drive, call: AgentRunToolCall, error: ToolFailed, attempt: int, *entries: Entry) -> None:
    """Save the error of an attempt with its event, and append `entries` after the event."""
    row = RunError(
        run=drive.run,
        step_number=call.step_number,
        context=call.tool_name[:300],
        call_id=call.call_id[:300],
        error_type=error.error_type[:64],
        message=error.message,
        attempt=attempt,
        created_at=database_clock.now(),
    )
    payload = Error(
        error_type=row.error_type, error=error.message[:500], context=row.context, call_id=call.call_id, attempt=attempt
    )
    note_failure(drive.lease, row, Entry(payload, step=call.step_number, ref_id=call.pk), *entries)


def _retry_event(drive: Drive, call: AgentRunToolCall, failed: _FailedCall, attempt: int, pause_s: float) -> Entry:
    payload = RetryScheduled(
        what="tool",
        attempt=attempt + 1,
        max_attempts=drive.retry_limits.tool_max_retries + 1,
        delay_ms=round(pause_s * 1000),
        error_type=failed.error_type[:64],
        error=preview(failed.text, 500)[0],
        call_id=call.call_id,
    )
    return Entry(payload, step=call.step_number, ref_id=call.pk)


def _elapsed_ms(began: float) -> int:
    return round((time.perf_counter() - began) * 1000)
