"""How a run leaves a worker's hands: done, failed, stopped, paused, waiting, or back to the queue.

May import state, parts and the engine's drive. Every ending is one guarded move of the lifecycle.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone

from runs import chaos, inbox, lifecycle, transcript
from runs.decisions import Next
from runs.engine.commit import durably, nothing
from runs.engine.drive import Drive
from runs.engine.lease import Lease
from runs.engine.model_turn import Cooldown
from runs.models import AgentRun, AgentRunToolCall, RunCommand
from runs.statuses import PauseReason, RunStatus, ToolStatus, WaitReason
from timeline import log
from timeline.events import Payload
from timeline.events.llm import LlmTurnAbandoned
from timeline.events.run import RunCompleted, RunFailed, RunPaused, RunPhase, RunStopped, RunWaiting
from timeline.log import Entry
from timeline.models import Source
from timeline.redact import DEFAULT as REDACTOR

Type = inbox.Type


class DecideAgain(Exception):
    """A command arrived between the decision and its commit: nothing was written."""


def leave(drive: Drive, action: Next) -> None:
    """Carry out a decision that ends the drive; raises `DecideAgain` where it does not hold any more."""
    endings: dict[Next, Callable[[Drive], None]] = {
        Next.COMPLETE: complete,
        Next.STOP: stop,
        Next.STOP_REPEATED: stop_repeated,
        Next.PAUSE: pause,
        Next.PAUSE_MAX_STEPS: pause_max_steps,
        Next.PAUSE_BUDGET: pause_budget,
        Next.WAIT_FOR_UNKNOWN: wait_for_unknown,
        Next.HAND_BACK: partial(hand_back, reason="slice_over"),
    }
    endings[action](drive)


def complete(drive: Drive) -> None:
    chaos.point("CP25")
    run = drive.run
    # The answer itself is never altered; its copy on the run is for reading.
    result, _ = REDACTOR.clean_text(transcript.last_answer(drive.conversation))
    began = run.started_at or run.created_at
    payload = RunCompleted(
        summary=result[:280] or None,
        steps=run.step_count - run.step_base,
        duration_ms=max(round((timezone.now() - began).total_seconds() * 1000), 0),
    )
    _move(drive, RunStatus.COMPLETED, payload, unless={Type.STOP, Type.SEND, Type.REPLY}, result=result)
    chaos.point("CP27")


def fail(drive: Drive, error_type: str, error: str) -> None:
    error, _ = REDACTOR.clean_text(error)
    payload = RunFailed(error_type=error_type, error=error[:2000] or None)
    word = error_type[:64]
    _move(drive, RunStatus.FAILED, payload, reason=word, error_type=word, error_message=error)


def fail_unopened(run: AgentRun, lease: Lease, error: str) -> None:
    """End a run that cannot be loaded as its agent says."""
    text, _ = REDACTOR.clean_text(error)
    word = "unusable_agent"
    payload = RunFailed(error_type=word, error=text[:2000] or None)
    lifecycle.move(
        run, RunStatus.FAILED, payload, source=Source.WORKER, reason=word, epoch=lease.epoch,
        error_type=word, error_message=text,
    )  # fmt: skip


def stop(drive: Drive) -> None:
    command = _command(drive, Type.STOP)
    payload = RunStopped(reason="operator", by=command.created_by)
    _move(drive, RunStatus.STOPPED, payload, reason="operator", applied=inbox.pending(drive.run.pk))


def stop_repeated(drive: Drive) -> None:
    """The repeat guard: the call is not run, and nothing after it."""
    call = drive.open_calls[0]
    times = f"{drive.streak(call)} times in a row with the same arguments"
    payload = RunStopped(reason="repeated_calls", message=f"Run stopped: {call.tool_name} was asked for {times}")
    _move(drive, RunStatus.STOPPED, payload, reason="repeated_calls", unless={Type.STOP})


def pause(drive: Drive) -> None:
    command = _command(drive, Type.PAUSE)
    payload = RunPaused(reason=PauseReason.OPERATOR, by=command.created_by)
    _move(drive, RunStatus.PAUSED, payload, reason=PauseReason.OPERATOR, applied=[command], unless={Type.STOP})


def pause_max_steps(drive: Drive) -> None:
    detail = f"{drive.run.step_count} steps made"
    payload = RunPaused(reason=PauseReason.MAX_STEPS, detail=detail)
    _move(drive, RunStatus.PAUSED, payload, reason=PauseReason.MAX_STEPS, unless={Type.STOP, Type.PAUSE})


def pause_budget(drive: Drive) -> None:
    """A resume counts anew: the run that goes on has the same budgets, and has used nothing of them. Only what a
    project may use in a day is counted over all its runs."""
    detail = drive.spending.used_up()
    if not detail:
        raise DecideAgain  # midnight has passed
    payload = RunPaused(reason=PauseReason.BUDGET, detail=detail)
    _move(drive, RunStatus.PAUSED, payload, reason=PauseReason.BUDGET, unless={Type.STOP, Type.PAUSE})


def hand_back(drive: Drive, reason: str) -> None:
    """To the queue: any worker goes on, this one after the others."""
    payload = RunPhase(status=RunStatus.QUEUED, reason=reason)
    _close_started_turn(drive, reason)
    _move(drive, RunStatus.QUEUED, payload, reason=reason)
    chaos.point("CP28")


def cool_down(drive: Drive, wait: Cooldown) -> None:
    """Wait without a worker; the sweep queues the run when its time has come."""
    payload = RunWaiting(reason=WaitReason.COOLDOWN, until=wait.until)
    _move(
        drive, RunStatus.WAITING, payload, reason=WaitReason.COOLDOWN, not_before=wait.until,
        unless={Type.STOP, Type.PAUSE},
    )  # fmt: skip


def wait_for_unknown(drive: Drive) -> None:
    """Leave the call as `unknown`, without a result, until somebody says what came of it."""
    call = drive.unknown_call
    assert call is not None
    unknown = AgentRunToolCall.objects.filter(pk=call.pk, status=ToolStatus.RUNNING)
    also = partial(unknown.update, status=ToolStatus.UNKNOWN, finished_at=timezone.now())
    payload, reason = RunWaiting(reason=WaitReason.UNKNOWN_TOOL), WaitReason.UNKNOWN_TOOL
    _move(drive, RunStatus.WAITING, payload, reason=reason, also=also, unless={Type.STOP, Type.PAUSE}, ref_id=call.pk)


def abandon_open_turn(drive: Drive) -> None:
    """Close the model call that an earlier holder of the run started and did not commit an answer of."""
    last = log.open_turn(drive.run.pk)
    if last is None:
        return
    chaos.point("CP04")
    payload = LlmTurnAbandoned(attempt=last.payload.get("attempt"), reason="worker_lost")
    drive.note(Entry(payload, step=last.step))
    chaos.point("CP05")


def _close_started_turn(drive: Drive, reason: str) -> None:
    """A turn whose start was committed with the last result, and that is not made here after all."""
    if drive.turn_started:
        drive.note(Entry(LlmTurnAbandoned(reason=reason), step=drive.run.step_count + 1))
        drive.turn_started = False


def _move(
    drive: Drive,
    to: RunStatus,
    payload: Payload,
    *,
    reason: str = "",
    applied: list[RunCommand] | None = None,
    also: Callable[[], Any] | None = None,
    unless: Set[str] = frozenset(),
    **changes: Any,
) -> None:
    """The guarded move. Commands of the types in `unless` that came since the decision call it off: the move
    holds the run's row, for which whoever posts a command waits, so none can slip in between."""
    run, believed = drive.run, (drive.run.status, drive.run.status_reason)

    def write() -> None:
        run.status, run.status_reason = believed
        with transaction.atomic():
            if also is not None:
                also()
            lifecycle.move(run, to, payload, source=Source.WORKER, reason=reason, epoch=drive.epoch, **changes)
            inbox.mark_applied(applied or [])
            if unless and unless & inbox.waiting(run.pk):
                run.status, run.status_reason = believed
                raise DecideAgain

    def landed() -> bool:
        return AgentRun.objects.filter(pk=drive.run.pk, status=to, lease_epoch=drive.epoch).exists()

    durably(write, landed=landed, found=nothing, lease=drive.lease)


def _command(drive: Drive, kind: str) -> RunCommand:
    return next(c for c in inbox.pending(drive.run.pk) if c.type == kind)
