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
from runs.conversation import tool_results, transcript
from runs.engine.drive import Drive
from runs.engine.leases import Lease
from runs.engine.releases import DecideAgain, HeldRun, release_run
from runs.engine.results import ApprovalNeeded, Progress
from runs.engine.safe_commit import do_nothing, note
from runs.engine.turns import recorded_calls
from runs.lifecycle import approval_rows, causes, command_outcomes, inbox, summaries
from runs.lifecycle.causes import LLM_COMPLETE, LLM_STREAM
from runs.models import AgentRun, AgentRunToolCall, RunCommand
from runs.providers.base import FixtureExhausted
from runs.queries.durations import times_of
from runs.statuses import PauseReason, RunStatus, ToolStatus, WaitReason
from runs.tools.agent_tools import Question
from timeline import log
from timeline.display import preview
from timeline.events.llm import LlmTurnAbandoned
from timeline.events.notice import Error
from timeline.events.run import RunCompleted, RunFailed, RunPaused, RunPhase, RunStopped, RunWaiting
from timeline.log import Entry

Type = inbox.Type
#: Commands that have priority over a pause or a wait of the run.
STOP_OR_PAUSE = frozenset({Type.STOP, Type.PAUSE})
#: Commands that have priority over the completion of the run.
STOP_OR_MESSAGE = frozenset({Type.STOP, Type.SEND, Type.REPLY})


def complete(drive: Drive, **move_options: Any) -> Progress:
    """Complete the run, or pause it if its result does not match the agent's output schema.

    `move_options` are further arguments of the move, if a policy completes the run.
    """
    chaos.point("end.before")
    # The message in the conversation is not redacted; its copy in the run's row is.
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
    # The move closes open calls, so the checkpoint of their step is saved after the move.
    then = partial(_checkpoint_last_step, drive) if drive.open_calls else None
    recorded_ms = recorded_calls.duration_ms(drive)
    return complete_with(drive, result, summary, duration_ms=recorded_ms, then=then, **move_options)


def complete_with(
    held_run: HeldRun,
    result: str,
    summary: str,
    *,
    duration_ms: int | None = None,
    unless: Set[str] = STOP_OR_MESSAGE,
    then: Callable[[], Any] | None = None,
    **move_options: Any,
) -> Progress:
    """Complete the run with this result, which is redacted. `duration_ms`: None for the time that workers held it."""
    run = held_run.run
    summary = summaries.first_paragraph(summary or result)
    if duration_ms is None:
        times = times_of(run, database_clock.now())
        duration_ms = round(times.worked_s * 1000) if times is not None else 0
    payload = RunCompleted(summary=summary or None, steps=run.step_count - run.step_base, duration_ms=duration_ms)
    columns = {"result": result, "summary": summary} | move_options
    released = release_run(held_run, RunStatus.COMPLETED, payload, unless=unless, then=then, **columns)
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
    row = transcript.new_checkpoint(run.pk, run.step_count, transcript.last_position(run.pk), drive.epoch)
    transcript.add_checkpoint(row, drive.epoch)


def fail(held_run: HeldRun, error_type: str, error: str, **move_options: Any) -> Progress:
    """End the run as failed."""
    error, _ = REDACTOR.clean_text(error)
    error_type = error_type[:64]
    payload = RunFailed(error_type=error_type, error=error[:2000] or None)
    columns = {"error_type": error_type, "error_message": error} | move_options
    return release_run(held_run, RunStatus.FAILED, payload, reason=error_type, **columns)


def stop(held_run: HeldRun) -> Progress:
    """Stop the run, as a pending command demands."""
    command = _command(held_run, Type.STOP)
    reason = "hook" if command.created_by.startswith(inbox.HOOK) else "operator"
    payload = RunStopped(reason=reason, by=command.created_by)
    return release_run(held_run, RunStatus.STOPPED, payload, reason=reason, applied=[command])


def stop_repeated(drive: Drive) -> Progress:
    """Stop the run at a call that the model has repeated too often, without running the call."""
    call = drive.open_calls[0]
    times = f"{drive.streak(call)} times in a row with the same arguments"
    payload = RunStopped(reason=causes.REPEATED_CALLS, message=f"Run stopped: {call.tool_name} was requested {times}")
    return release_run(drive, RunStatus.STOPPED, payload, reason=causes.REPEATED_CALLS, unless={Type.STOP})


def pause(held_run: HeldRun) -> Progress:
    """Pause the run, as a pending command demands."""
    command, reason = _command(held_run, Type.PAUSE), PauseReason.OPERATOR
    payload = RunPaused(reason=reason, by=command.created_by)
    return release_run(held_run, RunStatus.PAUSED, payload, reason=reason, applied=[command], unless={Type.STOP})


def _pause_because(held_run: HeldRun, reason: PauseReason, detail: str, **move_options: Any) -> Progress:
    """Pause the run for a reason other than a command. A pending stop or pause has priority."""
    payload = RunPaused(reason=reason, detail=detail)
    return release_run(held_run, RunStatus.PAUSED, payload, reason=reason, unless=STOP_OR_PAUSE, **move_options)


def pause_max_steps(held_run: HeldRun) -> Progress:
    """Pause the run at its step limit."""
    return _pause_because(held_run, PauseReason.MAX_STEPS, steps_used(held_run.run))


def steps_used(run: AgentRun) -> str:
    """Return, as text, how many of its steps the run has used; also the steps of its lineage if it continues a run."""
    limit = run.step_limit(settings.AGENTOPS_MAX_TOTAL_STEPS)
    text = f"{run.step_count - run.step_base} of {limit - run.step_base} steps used"
    return f"{text}, {run.step_count} in the lineage" if run.step_base else text


def pause_error(
    held_run: HeldRun,
    error_type: str,
    error: str,
    *,
    details: str = "",
    context: str = LLM_STREAM,
    reason: PauseReason = PauseReason.ERROR,
) -> Progress:
    """Pause the run after an error that a person has to fix. `context`: a constant of runs.lifecycle.causes."""
    error, _ = REDACTOR.clean_text(error)
    error_type = error_type[:64]
    payload = Error(error_type=error_type, error=error[:2000], details=details[:1000] or None, context=context)
    event = Entry(payload, step=held_run.run.step_count if context == LLM_COMPLETE else None)
    columns = {"error_type": error_type, "error_message": error}
    return _pause_because(held_run, reason, error[:2000], events_before=[event], **columns)


def pause_budget(held_run: HeldRun, used_up: str) -> Progress:
    """Pause the run when a budget is used up, as the text `used_up` says.

    A resumed run starts with its budgets unused; only a project's daily budgets count across runs.
    """
    if not used_up:
        raise DecideAgain  # a daily budget was reset at midnight
    return _pause_because(held_run, PauseReason.BUDGET, used_up)


def pause_exhausted(drive: Drive, error: str) -> Progress:
    """Pause the run when its fixture has no more answers."""
    columns = {"error_type": FixtureExhausted.code, "error_message": error}
    return _pause_because(drive, PauseReason.FIXTURE_EXHAUSTED, error, **columns)


def pause_poisoned(
    held_run: HeldRun, deaths: int, *, processes: str = "processes that executed only this run"
) -> Progress:
    """Pause a run whose step crashes every process that runs it. The run is not loaded, because loading may crash too.

    Returns CONTINUE if a stop or a pause is pending, which has priority. `processes`: which of them `deaths` counts.
    """
    detail = f"Step {held_run.run.step_count + 1} killed {deaths} {processes}."
    abandon_open_turn(held_run.lease)
    reason = PauseReason.POISON_STEP
    try:
        return _pause_because(held_run, reason, detail, error_type=reason.value, error_message=detail)
    except DecideAgain:
        return Progress.CONTINUE


def hand_back(held_run: HeldRun, reason: str) -> Progress:
    """Return the run to the queue, behind the runs that wait there."""
    payload = RunPhase(status=RunStatus.QUEUED, reason=reason)
    released = release_run(held_run, RunStatus.QUEUED, payload, reason=reason)
    chaos.point("end.hint_sent")
    return released


def cool_down(drive: Drive, until: datetime) -> Progress:
    """Move the run to waiting, without a worker, until the time of the next attempt."""
    reason = WaitReason.COOLDOWN
    payload = RunWaiting(reason=reason, until=until)
    return release_run(drive, RunStatus.WAITING, payload, reason=reason, not_before=until, unless=STOP_OR_PAUSE)


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
    move_options |= {"reason": WaitReason.INPUT, "ref_id": drive.open_calls[0].pk}

    def after_move() -> None:
        then()
        inbox.answer_early(drive.run)

    return release_run(drive, RunStatus.WAITING, payload, then=after_move, unless=unless, **move_options)


def wait_for_approval(held_run: HeldRun, needed: ApprovalNeeded) -> Progress:
    """Move the run to waiting until a person approves or denies a call, or the approval expires."""
    chaos.point("approval.before")
    approval = approval_rows.new_approval(held_run.run, needed.call, needed.request)
    # The arguments as changed by hooks, so that the approver sees the arguments that run.
    changed_arguments = needed.request.arguments if needed.is_changed else None

    def write() -> None:
        AgentRunToolCall.objects.filter(pk=needed.call.pk).update(changed_arguments=changed_arguments)
        approval_rows.save_request(approval)
        chaos.point("approval.in_transaction")

    released = release_run(
        held_run,
        RunStatus.WAITING,
        RunWaiting(reason=WaitReason.APPROVAL, until=approval.expires_at),
        reason=WaitReason.APPROVAL,
        not_before=approval.expires_at,
        ref_id=needed.call.pk,
        unless=STOP_OR_PAUSE,
        # After the move, which fails if the run was taken over: the other worker may have requested an approval.
        then=write,
        events_before=[*needed.events, approval_rows.requested_event(approval)],
    )
    chaos.point("approval.requested")
    return released


def wait_for_outcome(held_run: HeldRun, call: AgentRunToolCall) -> Progress:
    """Move the run to waiting until a person resolves the unknown outcome of a call."""
    unknown = AgentRunToolCall.objects.filter(pk=call.pk, status=ToolStatus.RUNNING)
    also = partial(unknown.update, status=ToolStatus.UNKNOWN, finished_at=tool_results.end_of(call))
    payload, reason = RunWaiting(reason=WaitReason.UNKNOWN_TOOL), WaitReason.UNKNOWN_TOOL
    return release_run(
        held_run, RunStatus.WAITING, payload, reason=reason, also=also, unless=STOP_OR_PAUSE, ref_id=call.pk
    )


def pause_engine_error(held_run: HeldRun, error: str) -> Progress:
    """Pause a run after repeated errors inside the engine, which are in its log."""
    reason = PauseReason.ENGINE_ERROR
    return _pause_because(held_run, reason, error, error_type=reason.value, error_message=error)


def follow_command(held_run: HeldRun) -> Progress | None:
    """Stop or pause the run if such a command is pending. Returns None, and changes nothing, without one."""
    pending = command_outcomes.pending_types(held_run.run.pk)
    if Type.STOP in pending:
        return stop(held_run)
    return pause(held_run) if Type.PAUSE in pending else None


def abandon_open_turn(lease: Lease, *, reason: str = "worker_lost") -> None:
    """Append the end of a model call that has a start in the log, but no end: its worker died or had an error.

    `reason` is why the call was abandoned.
    """
    last = log.open_turn(lease.run_id)
    if last is None:
        return
    chaos.point("recovery.before")
    # The usage is unknown: only the worker that made the call could have received it.
    payload = LlmTurnAbandoned(attempt=last.payload.get("attempt"), reason=reason, usage="unknown")
    note(lease, Entry(payload, step=last.step))
    chaos.point("recovery.done")


def _command(held_run: HeldRun, kind: str) -> RunCommand:
    return next(command for command in inbox.pending_commands(held_run.run.pk) if command.type == kind)
