"""The ways in which a worker releases a run: completed, failed, stopped, paused, waiting, or back to the queue.

Each function makes one guarded move and returns RELEASED, or raises `DecideAgain`; see runs.engine.releases.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from datetime import datetime
from functools import partial
from typing import Any

from django.conf import settings

from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs import chaos
from runs.agents.output_schema import InvalidOutput, parse_output
from runs.conversation import checkpoints, tool_results, transcript
from runs.engine.drive import Drive
from runs.engine.leases import Lease
from runs.engine.notes import note
from runs.engine.releases import DecideAgain, HeldRun, UnloadedRun, release_run
from runs.engine.results import Progress
from runs.engine.safe_commit import do_nothing
from runs.engine.turns import recorded_calls
from runs.lifecycle import approval_rows, causes, command_outcomes, inbox, summaries
from runs.lifecycle.error_contexts import LLM_COMPLETE, LLM_STREAM
from runs.models import AgentRun, AgentRunToolCall, RunCommand
from runs.providers.base import FixtureExhausted
from runs.queries.durations import times_of
from runs.statuses import PauseReason, RunStatus, ToolStatus, WaitReason
from runs.tools.conversation_tools import Question
from timeline import log
from timeline.events.llm import LlmTurnAbandoned
from timeline.events.notice import Error
from timeline.events.run import RunCompleted, RunFailed, RunPaused, RunPhase, RunStopped, RunWaiting
from timeline.log import Entry
from timeline.preview import preview

Type = inbox.Type
#: Commands that are carried out before the end of a run, and before its next model call.
STOP_OR_PAUSE = frozenset({Type.STOP, Type.PAUSE})
STOP_OR_MESSAGE = frozenset({Type.STOP, Type.SEND, Type.REPLY})


def complete(drive: Drive, **move_options: Any) -> Progress:
    """Complete the run.

    `move_options` are further arguments of the move, where a policy completes the run.
    """
    chaos.point("end.before")
    run = drive.run
    # The message is not redacted; the copy on the run is.
    answer, summary = _result(drive)
    result, _ = REDACTOR.clean_text(answer)
    if drive.output_schema is not None:
        try:
            reported = drive.session.structured_output() if drive.session is not None else None
            value = parse_output(answer if reported is None else reported, drive.output_schema)
            move_options["structured_output"] = REDACTOR.clean(value)[0]
        except InvalidOutput as error:
            text = f"The result does not match the agent's output schema: {error}. Resume the run to ask again."
            return pause_error(drive, error.code, text, context=LLM_COMPLETE)
    summary = summaries.first_paragraph(summary or result)
    times = times_of(run, database_clock.now())
    worked_ms = round(times.worked_s * 1000) if times is not None else 0
    recorded_ms = recorded_calls.duration_ms(drive)
    payload = RunCompleted(
        summary=summary or None,
        steps=run.step_count - run.step_base,
        duration_ms=worked_ms if recorded_ms is None else recorded_ms,
    )
    # The move closes open calls; the checkpoint of their step is saved after it.
    then = partial(_checkpoint_last_step, drive) if drive.open_calls else None
    columns = {"result": result, "summary": summary} | move_options
    released = release_run(drive, RunStatus.COMPLETED, payload, unless=STOP_OR_MESSAGE, then=then, **columns)
    chaos.point("end.committed")
    return released


def _result(drive: Drive) -> tuple[str, str]:
    """Return the result and the summary of the call that ended the run, or else the last answer and no summary."""
    ending_call = drive.ending_call()
    if ending_call is None:
        return transcript.last_answer(drive.conversation), ""
    call = AgentRunToolCall.objects.get(
        run=drive.run, step_number=drive.run.step_count, call_id=ending_call, message__rolled_back_at=None
    )
    summary = call.input.get("summary") if isinstance(call.input, dict) else None
    return call.output if isinstance(call.output, str) else "", summary if isinstance(summary, str) else ""


def _checkpoint_last_step(drive: Drive) -> None:
    run = drive.run
    row = checkpoints.new_checkpoint(run.pk, run.step_count, transcript.last_position(run.pk), drive.epoch)
    checkpoints.add_checkpoint(row, drive.epoch)


def fail(held_run: HeldRun, error_type: str, error: str, **move_options: Any) -> Progress:
    """End the run as failed."""
    error, _ = REDACTOR.clean_text(error)
    error_type = error_type[:64]
    payload = RunFailed(error_type=error_type, error=error[:2000] or None)
    return release_run(
        held_run,
        RunStatus.FAILED,
        payload,
        reason=error_type,
        error_type=error_type,
        error_message=error,
        **move_options,
    )


def stop(drive: HeldRun) -> Progress:
    """Stop the run, as a pending command demands."""
    command = _command(drive, Type.STOP)
    reason = "hook" if command.created_by.startswith(inbox.HOOK) else "operator"
    payload = RunStopped(reason=reason, by=command.created_by)
    return release_run(drive, RunStatus.STOPPED, payload, reason=reason, applied=[command])


def stop_repeated(drive: Drive) -> Progress:
    """Stop the run at a call that the model has repeated too often, without running the call."""
    call = drive.open_calls[0]
    times = f"{drive.streak(call)} times in a row with the same arguments"
    payload = RunStopped(reason=causes.REPEATED_CALLS, message=f"Run stopped: {call.tool_name} was requested {times}")
    return release_run(drive, RunStatus.STOPPED, payload, reason=causes.REPEATED_CALLS, unless={Type.STOP})


def pause(drive: HeldRun) -> Progress:
    """Pause the run, as a pending command demands."""
    command = _command(drive, Type.PAUSE)
    payload = RunPaused(reason=PauseReason.OPERATOR, by=command.created_by)
    return release_run(
        drive, RunStatus.PAUSED, payload, reason=PauseReason.OPERATOR, applied=[command], unless={Type.STOP}
    )


def pause_max_steps(drive: Drive) -> Progress:
    """Pause the run at its step limit."""
    payload = RunPaused(reason=PauseReason.MAX_STEPS, detail=steps_used(drive.run))
    return release_run(drive, RunStatus.PAUSED, payload, reason=PauseReason.MAX_STEPS, unless=STOP_OR_PAUSE)


def steps_used(run: AgentRun) -> str:
    """Return how many of its steps the run has used, and how many its lineage has if it continues another run."""
    limit = run.step_limit(settings.AGENTOPS_MAX_TOTAL_STEPS)
    text = f"{run.step_count - run.step_base} of {limit - run.step_base} steps used"
    return f"{text}, {run.step_count} in the lineage" if run.step_base else text


def pause_error(
    held_run: HeldRun, error_type: str, error: str, *, details: str = "", context: str = LLM_STREAM
) -> Progress:
    """Pause the run after an error that a person has to fix."""
    error, _ = REDACTOR.clean_text(error)
    error_type = error_type[:64]
    event = Entry(Error(error_type=error_type, error=error[:2000], details=details[:1000] or None, context=context))
    payload = RunPaused(reason=PauseReason.ERROR, detail=error[:2000])
    return release_run(
        held_run, RunStatus.PAUSED, payload, reason=PauseReason.ERROR, unless=STOP_OR_PAUSE, events_before=[event],
        error_type=error_type, error_message=error,
    )  # fmt: skip


def pause_budget(drive: Drive) -> Progress:
    """Pause the run when a budget is used up.

    A resumed run starts with its budgets unused; only a project's daily budgets count across runs.
    """
    detail = drive.spending.used_up()
    if not detail:
        raise DecideAgain  # a daily budget was reset at midnight
    payload = RunPaused(reason=PauseReason.BUDGET, detail=detail)
    return release_run(drive, RunStatus.PAUSED, payload, reason=PauseReason.BUDGET, unless=STOP_OR_PAUSE)


def pause_exhausted(drive: Drive, error: str) -> Progress:
    """Pause the run when its recording has no more answers."""
    payload = RunPaused(reason=PauseReason.FIXTURE_EXHAUSTED, detail=error)
    return release_run(
        drive, RunStatus.PAUSED, payload, reason=PauseReason.FIXTURE_EXHAUSTED, unless=STOP_OR_PAUSE,
        error_type=FixtureExhausted.code, error_message=error,
    )  # fmt: skip


def pause_poisoned(run: AgentRun, lease: Lease, deaths: int) -> Progress:
    """Pause a run whose step crashes every process that runs it. The run is not loaded, because loading may crash too.

    Returns CONTINUE if a stop or a pause is pending, which has priority.
    """
    step = run.step_count + 1
    detail = f"Step {step} killed {deaths} processes that executed only this run."
    abandon_open_turn(lease)
    reason = PauseReason.POISON_STEP
    try:
        return release_run(
            UnloadedRun(run, lease), RunStatus.PAUSED, RunPaused(reason=reason, detail=detail), reason=reason,
            error_type=reason.value, error_message=detail, unless=STOP_OR_PAUSE,
        )  # fmt: skip
    except DecideAgain:
        return Progress.CONTINUE


def hand_back(drive: Drive, reason: str) -> Progress:
    """Return the run to the queue, behind the runs that wait there."""
    released = release_run(drive, RunStatus.QUEUED, RunPhase(status=RunStatus.QUEUED, reason=reason), reason=reason)
    chaos.point("end.hint_sent")
    return released


def cool_down(drive: Drive, until: datetime) -> Progress:
    """Move the run to waiting, without a worker, until the time of the next attempt."""
    payload = RunWaiting(reason=WaitReason.COOLDOWN, until=until)
    return release_run(
        drive, RunStatus.WAITING, payload, reason=WaitReason.COOLDOWN, not_before=until,
        unless=STOP_OR_PAUSE,
    )  # fmt: skip


def wait_for_answer(
    drive: Drive,
    question: Question,
    *,
    then: Callable[[], Any] = do_nothing,
    unless: Set[str] = STOP_OR_PAUSE,
    **move_options: Any,
) -> Progress:
    """Move the run to waiting for the answer to its question. A reply already in the inbox is the answer."""
    text, _ = preview(question.question)
    payload = RunWaiting(reason=WaitReason.INPUT, question=text, choices=question.choices or None)

    def and_then() -> None:
        then()
        inbox.answer_early(drive.run)

    return release_run(
        drive, RunStatus.WAITING, payload, reason=WaitReason.INPUT, ref_id=drive.open_calls[0].pk, unless=unless,
        then=and_then, **move_options,
    )  # fmt: skip


def wait_for_approval(drive: Drive) -> Progress:
    """Move the run to waiting until a person approves or denies its next call, or the approval expires."""
    needed = drive.needs_approval
    assert needed is not None
    chaos.point("approval.before")
    approval = approval_rows.new_approval(drive.run, needed.call, needed.request)
    given = needed.request.arguments if needed.is_changed else None

    def write() -> None:
        # The arguments as changed by hooks, so that the approver sees the arguments that run.
        AgentRunToolCall.objects.filter(pk=needed.call.pk).update(changed_arguments=given)
        approval_rows.save_request(approval)
        chaos.point("approval.in_transaction")

    released = release_run(
        drive, RunStatus.WAITING, RunWaiting(reason=WaitReason.APPROVAL, until=approval.expires_at),
        reason=WaitReason.APPROVAL, not_before=approval.expires_at, ref_id=needed.call.pk, unless=STOP_OR_PAUSE,
        # After the move, which fails if the run was taken over: the other worker may have requested an approval.
        then=write, events_before=[*needed.events, approval_rows.requested_event(approval)],
    )  # fmt: skip
    chaos.point("approval.requested")
    return released


def wait_for_outcome(drive: Drive) -> Progress:
    """Move the run to waiting until a person resolves the unknown outcome of a call."""
    call = drive.unknown_call
    assert call is not None
    unknown = AgentRunToolCall.objects.filter(pk=call.pk, status=ToolStatus.RUNNING)
    also = partial(unknown.update, status=ToolStatus.UNKNOWN, finished_at=tool_results.end_of(call))
    payload, reason = RunWaiting(reason=WaitReason.UNKNOWN_TOOL), WaitReason.UNKNOWN_TOOL
    return release_run(
        drive, RunStatus.WAITING, payload, reason=reason, also=also, unless=STOP_OR_PAUSE, ref_id=call.pk
    )


def pause_engine_error(held_run: HeldRun, error: str) -> Progress:
    """Pause a run after repeated errors inside the engine, which are in its log."""
    reason = PauseReason.ENGINE_ERROR
    return release_run(
        held_run, RunStatus.PAUSED, RunPaused(reason=reason, detail=error), reason=reason, error_type=reason.value,
        error_message=error, unless=STOP_OR_PAUSE,
    )  # fmt: skip


def follow_command(held_run: HeldRun) -> Progress | None:
    """Stop or pause the run if such a command is pending; return None without one."""
    pending = command_outcomes.pending_types(held_run.run.pk)
    if Type.STOP in pending:
        return stop(held_run)
    return pause(held_run) if Type.PAUSE in pending else None


def abandon_open_turn(lease: Lease, *, reason: str = "worker_lost") -> None:
    """Close the model call that an earlier worker, or this one before an error, started and did not finish."""
    last = log.open_turn(lease.run_id)
    if last is None:
        return
    chaos.point("recovery.before")
    # Only the worker that made the call could know the usage that the provider counted.
    payload = LlmTurnAbandoned(attempt=last.payload.get("attempt"), reason=reason, usage="unknown")
    note(lease, Entry(payload, step=last.step))
    chaos.point("recovery.done")


def _command(drive: HeldRun, kind: str) -> RunCommand:
    return next(c for c in inbox.pending_commands(drive.run.pk) if c.type == kind)
