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
from runs.conversation import checkpoints, repeats, tool_results, writes
from runs.conversation.tool_results import CallResult
from runs.engine import views
from runs.engine.decisions import Next, next_action
from runs.engine.drive import STOP_CHECK_S, Drive
from runs.engine.notes import note, note_failure
from runs.engine.results import ApprovalNeeded, CallClosed, CallUnknown, SpawnPermitted
from runs.engine.safe_commit import commit_safely, do_nothing
from runs.engine.sessions import session_calls
from runs.engine.shutdown import StopPending
from runs.engine.turns import call_gate, hook_events, late_results, open_call, subagents
from runs.engine.turns.call_gate import CallPermit
from runs.engine.turns.calls_ahead import CallAhead
from runs.engine.turns.live_output import LiveOutput
from runs.engine.turns.model_turn import turn_start
from runs.hooks.base import HookEvent
from runs.models import AgentRunToolCall, Checkpoint, RunError
from runs.providers.retries import HOLD_WORKER_S
from runs.providers.retry_limits import retry_limits
from runs.statuses import ToolStatus
from runs.tools.base import Effect, OutcomeUnknown, Tool, ToolDenied, ToolFailed, ToolResult
from runs.tools.output import MODEL_LIMIT, Output
from runs.tools.parallel import parallel_limit
from runs.tools.timed_call import StartedTool, run_with_deadline
from timeline import log
from timeline.errors import LeaseLost
from timeline.events.hook import HookDecided, SafetyBlock
from timeline.events.notice import Error
from timeline.events.retry import RetryScheduled
from timeline.log import Entry
from timeline.preview import preview

#: Statuses of calls that may be started ahead. A lost call is run again.
STARTABLE = (ToolStatus.PLANNED, ToolStatus.RUNNING)
#: The error type of a retry after a result that the tool itself calls an error.
SOFT_ERROR = "tool_error"


@dataclass(frozen=True)
class _FailedCall:
    """The reason why an attempt failed."""

    error_type: str
    text: str
    #: Whether a retry may succeed.
    retryable: bool
    #: None for a soft error: it is part of the tool's result, and is not saved as an error.
    error: ToolFailed | None = None


def run_next(drive: Drive, *, started: bool) -> CallClosed | CallUnknown | ApprovalNeeded | SpawnPermitted:
    """Run the next open call and commit its result.

    The last result of a turn is committed with the turn's checkpoint, and with the start of the next turn if one
    follows. `started` says whether the last commit has marked the call as running, so that it cannot have had an
    effect yet. Raises `StopPending` and `ShutdownDue` if interrupted; the call stays `running` then.
    """
    call = drive.open_calls[0]
    chaos.point("hooks.before")
    _start_ahead(drive)
    result = _result(drive, call, started=started)
    if isinstance(result, ApprovalNeeded | SpawnPermitted):
        return result
    if result.status is ToolStatus.UNKNOWN and not _tells_model(drive):
        return CallUnknown(call)
    try:
        session_calls.end_subagent(drive, call, result)
        closed = _close(drive, call, result)
        session_calls.tell_result(drive, call, result)
        return closed
    except LeaseLost:
        if result.duration_ms is not None:  # the tool has run, and the worker that took the run over does not know
            late_results.keep(call, result.output)
        raise


def _start_ahead(drive: Drive) -> None:
    """Start the tools of the calls that may run at the same time as the next open call.

    These are the calls after it, up to the first one that must not overlap with others.
    """
    limit = parallel_limit(drive.settings)
    for call in drive.open_calls[:limit]:
        tool = drive.toolset.get(call.tool_name)
        if tool is None or not drive.may_start_ahead(tool) or call.status not in STARTABLE:
            return
        if call is drive.open_calls[0] or call.pk in drive.ahead:
            continue
        if open_call.is_too_many(drive, call) or drive.streak(call) >= repeats.STOP_AT:
            return
        session_calls.commit_start(drive, call, 0, ())
        drive.ahead.add(call.pk, _start(drive, call, tool))


def _start(drive: Drive, call: AgentRunToolCall, tool: Tool) -> CallAhead:
    """Start the tool of a call that is marked running."""
    output = LiveOutput(call)
    context = open_call.context(drive, call, attempt=0, output=output)
    return CallAhead(StartedTool(tool, context, open_call.arguments(drive, call)), output)


def _result(drive: Drive, call: AgentRunToolCall, *, started: bool) -> CallResult | ApprovalNeeded | SpawnPermitted:
    """Act on a call by the status of its row, and return the result."""
    tool = drive.toolset.get(call.tool_name)
    if call.status == ToolStatus.UNKNOWN and call.finished_at is not None:
        return _unknown_result(call)  # without that time it is run again: see runs.actions.unknown_calls
    started = started or session_calls.is_running(drive, call)
    if tool is not None and tool.spawns and not open_call.is_too_many(drive, call):
        return _result_of_children(drive, call, tool)
    is_lost = call.status == ToolStatus.RUNNING and not started
    if is_lost and (tool is None or tool.effect is Effect.AT_MOST_ONCE):
        # Started by a worker that died, so it may have taken effect.
        return _unknown_result(call)
    if tool is None:
        return _refusal(open_call.unknown_tool(drive, call))
    if open_call.is_too_many(drive, call):
        return _refusal(f"Not run: more than {open_call.MAX_CALLS} calls in one answer.")
    # A call that was started before had permission then, with the stored arguments.
    denied = drive.denied_ahead.pop(call.pk, None)
    permit = denied or (CallPermit() if call.starts else call_gate.review(drive, call, tool))
    if not isinstance(permit, CallPermit):
        return permit
    if permit.changed_arguments is not None:
        call.changed_arguments = dict(permit.changed_arguments)
    if (closed := session_calls.prepare(drive, call, permit)) is not None:
        return closed
    result = _run(drive, call, tool, started=started, before=permit.events)
    return _with_reviews(drive, call, tool, result)


def _result_of_children(
    drive: Drive, call: AgentRunToolCall, tool: Tool
) -> CallResult | ApprovalNeeded | SpawnPermitted:
    """Return the results of the children of a call, or the permission to open them."""
    is_permitted = drive.spawn_permit is not None and drive.spawn_permit[0] == call.pk
    if call.status == ToolStatus.PLANNED and drive.stands_before(tool) and not is_permitted:
        permit = call_gate.review(drive, call, tool)
        if not isinstance(permit, CallPermit):
            return permit
        if permit.changed_arguments is not None:
            call.changed_arguments = dict(permit.changed_arguments)
        return SpawnPermitted(call, permit.events)
    return subagents.result(drive, call, tool)


def _with_reviews(drive: Drive, call: AgentRunToolCall, tool: Tool, result: CallResult) -> CallResult:
    """Call the hooks about a call that has run, once, after its last attempt."""
    events = {ToolStatus.COMPLETED: HookEvent.POST_TOOL_USE, ToolStatus.ERROR: HookEvent.POST_TOOL_USE_FAILURE}
    event = events.get(result.status)
    if event is None or not any(hook.is_about(event, tool.name) for hook in drive.hooks):
        return result
    context = hook_events.context(
        drive, event, call.step_number, tool_name=tool.name, effect=tool.effect.value, call_id=call.call_id,
        arguments=call_gate.given_arguments(drive, call), output=result.output,
    )  # fmt: skip
    outcome = hook_events.outcome(drive, context, call)
    return replace(result, events=[*result.events, *outcome.events], commands=outcome.commands)


def _run(
    drive: Drive, call: AgentRunToolCall, tool: Tool, *, started: bool, before: Sequence[Entry] = ()
) -> CallResult:
    """Run the tool, with retries if its effect and its settings allow them. The last attempt counts."""
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
            return result  # the result is known, so the following stop must not close the call as unknown


def _attempt(drive: Drive, call: AgentRunToolCall, tool: Tool, attempt: int) -> tuple[CallResult, _FailedCall | None]:
    """Run the tool once. Returns its result, and why it failed if it did."""
    chaos.point("tool.marked_running")
    # Repeated, because the outcome would count as unknown if the run had to be loaded again.
    commit_safely(drive.lease.prove, is_committed=lambda: False, read_result=do_nothing, lease=drive.lease)
    began = time.perf_counter() - drive.ahead.elapsed_s(call.pk)
    try:
        chaos.point("tool.running")
        result = _run_once(drive, call, tool, attempt)
    except OutcomeUnknown:
        return _unknown_result(call, attempts=attempt + 1), None
    except ToolDenied as error:
        block = SafetyBlock(code=error.code, reason=error.message, call_id=call.call_id, tool_name=tool.name)
        event = Entry(block, step=call.step_number, ref_id=call.pk)
        return CallResult(ToolStatus.ERROR, str(error), attempt + 1, _elapsed_ms(began), [event]), None
    except ToolFailed as error:
        if error.error_type == "timeout" and tool.effect is Effect.AT_MOST_ONCE:
            # Its thread may still be running, and may have had an effect.
            return _unknown_result(call, attempts=attempt + 1), _FailedCall(
                error.error_type, error.message, False, error
            )
        outcome = CallResult(ToolStatus.ERROR, str(error), attempt + 1, _elapsed_ms(began))
        return outcome, _FailedCall(error.error_type, error.message, error.retryable, error)
    chaos.point("tool.returned")
    outcome = _tool_result(call, result, attempt + 1, _elapsed_ms(began))
    if not result.is_error:
        return outcome, None
    text = result.output if isinstance(result.output, str) else ""
    return outcome, _FailedCall(SOFT_ERROR, text, result.retryable)


def _run_once(drive: Drive, call: AgentRunToolCall, tool: Tool, attempt: int) -> ToolResult:
    """Run the tool, or wait for it if it already runs, and log its output during that time."""
    late = partial(late_results.keep_and_close, call)
    ahead = drive.ahead.pop(call.pk) if attempt == 0 else None
    output = ahead.output if ahead is not None else LiveOutput(call)

    def watch() -> None:
        _watch(drive)
        if entries := [*output.take(), *drive.ahead.output()]:
            note(drive.lease, *entries)

    try:
        if ahead is not None:
            return ahead.tool.wait(watch, late)
        context = open_call.context(drive, call, attempt=attempt, output=output)
        return run_with_deadline(tool, context, open_call.arguments(drive, call), watch, late)
    finally:
        if rest := output.close():
            # The next commit detects a lost lease.
            with suppress(LeaseLost):
                note(drive.lease, *rest)


def _watch(drive: Drive) -> None:
    """Check the run while a tool runs."""
    drive.check_for_stop()
    session_calls.attend(drive)


def _pause_s(drive: Drive, tool: Tool, failed: _FailedCall | None, attempt: int) -> float | None:
    """Return the seconds until the next attempt, doubled each time; None for no further attempt."""
    limits = retry_limits(drive.settings)
    if failed is None or not (failed.retryable and tool.may_repeat and attempt < limits.tool_max_retries):
        return None
    jitter = 1 + random.random() / 4  # noqa: S311 - spreads load, guards nothing
    return min(limits.base_delay_s * float(2**attempt) * jitter, HOLD_WORKER_S)


def _wait(drive: Drive, pause_s: float) -> None:
    """Sleep until the next attempt. Raises as soon as the run must be released or stopped."""
    until = time.monotonic() + pause_s
    while (left_s := until - time.monotonic()) > 0:
        drive.shutdown.requested.wait(min(left_s, STOP_CHECK_S))
        drive.check_for_stop()
        if drive.shutdown.requested.is_set():
            break
    drive.check()


def _tool_result(call: AgentRunToolCall, result: ToolResult, attempts: int, took_ms: int) -> CallResult:
    status = ToolStatus.ERROR if result.is_error else ToolStatus.COMPLETED
    duration = took_ms if result.duration_ms is None else result.duration_ms
    # Before the output is cut for the model: half a secret is not recognised.
    output = cast("Output", MODEL_INPUT.clean(result.output)[0])
    events = [Entry(payload, step=call.step_number, ref_id=call.pk) for payload in result.events]
    return CallResult(status, output, attempts, duration, events)


def _refusal(why: str) -> CallResult:
    return CallResult(ToolStatus.ERROR, why)


def _unknown_result(call: AgentRunToolCall, *, attempts: int = 1) -> CallResult:
    return tool_results.unknown_result(call, attempts=attempts)


def _tells_model(drive: Drive) -> bool:
    if drive.session is not None:
        return True  # the program knows more about the call, and continues with its transcript
    policy = drive.settings.get("on_unknown_tool") or (drive.config.get("policies") or {}).get("on_unknown_tool")
    return policy == "tell_model"


def _close(drive: Drive, call: AgentRunToolCall, result: CallResult) -> CallClosed:
    """Commit the result of the call."""
    warning, warning_events = _repeat_warning(drive, call)
    is_last = len(drive.open_calls) == 1
    checkpoint, next_turn_start = _end_of_turn(drive) if is_last else (None, None)
    closed = tool_results.close(
        call, replace(result, events=[*result.events, *warning_events]),
        position=drive.conversation.position + 1, epoch=drive.epoch, warning=warning,
        limit=drive.settings.get("tool_output_limit", MODEL_LIMIT), checkpoint=checkpoint,
        next_turn_start=next_turn_start,
    )  # fmt: skip
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
    checkpoint = checkpoints.new_checkpoint(drive.run.pk, drive.run.step_count, position, drive.epoch)
    asks_model = next_action(views.view_after_calls(drive)) is Next.ASK_MODEL and not drive.has_ending_call()
    return checkpoint, turn_start(drive, 0) if asks_model else None


def _repeat_warning(drive: Drive, call: AgentRunToolCall) -> tuple[str, list[Entry]]:
    """Return the warning for the model about a repeated call, and an event for the first warning."""
    length = drive.streak(call)
    if length < repeats.WARN_AT:
        return "", []
    why = f"{call.tool_name} was requested {length} times in a row with the same arguments"
    payload = HookDecided(hook="repeat_guard", event="PostToolUse", verdict="append_context", reason=why)
    entries = [Entry(payload, step=call.step_number, ref_id=call.pk)] if length == repeats.WARN_AT else []
    return repeats.warning(length), entries


def _note_failure(drive: Drive, call: AgentRunToolCall, error: ToolFailed, attempt: int, *entries: Entry) -> None:
    row = RunError(
        run=drive.run, step_number=call.step_number, context=call.tool_name[:300], call_id=call.call_id[:300],
        error_type=error.error_type[:64], message=error.message, attempt=attempt, created_at=database_clock.now(),
    )  # fmt: skip
    payload = Error(
        error_type=row.error_type, error=error.message[:500], context=row.context, call_id=call.call_id, attempt=attempt
    )
    note_failure(drive.lease, row, Entry(payload, step=call.step_number, ref_id=call.pk), *entries)


def _retry_event(drive: Drive, call: AgentRunToolCall, failed: _FailedCall, attempt: int, pause_s: float) -> Entry:
    payload = RetryScheduled(
        what="tool", attempt=attempt + 1, max_attempts=retry_limits(drive.settings).tool_max_retries + 1,
        delay_ms=round(pause_s * 1000), error_type=failed.error_type[:64], error=preview(failed.text, 500)[0],
        call_id=call.call_id,
    )  # fmt: skip
    return Entry(payload, step=call.step_number, ref_id=call.pk)


def _elapsed_ms(began: float) -> int:
    return round((time.perf_counter() - began) * 1000)
