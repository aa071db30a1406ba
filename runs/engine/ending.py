"""How a run leaves a worker's hands: done, failed, stopped, paused, waiting, or back to the queue.

Every ending is one guarded move of the lifecycle.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from django.db import transaction
from django.utils import timezone

from runs import chaos
from runs.conversation import transcript
from runs.engine.decisions import Next
from runs.engine.drive import Drive, note
from runs.engine.leases import Lease
from runs.engine.model_turn import Cooldown
from runs.engine.safe_commit import durably, nothing
from runs.lifecycle import causes, inbox, summaries, transitions
from runs.lifecycle.command_outcomes import mark_applied
from runs.models import AgentRun, AgentRunToolCall, RunCommand
from runs.providers.base import FixtureExhausted
from runs.queries.durations import times_of
from runs.statuses import PauseReason, RunStatus, ToolStatus, WaitReason
from runs.tools.speaking import Question
from timeline import log
from timeline.events import Payload
from timeline.events.llm import LlmTurnAbandoned
from timeline.events.notice import Error
from timeline.events.run import RunCompleted, RunFailed, RunPaused, RunPhase, RunStopped, RunWaiting
from timeline.log import Entry
from timeline.models import Source
from timeline.preview import preview
from timeline.redaction.redact import DEFAULT as REDACTOR

Type = inbox.Type
#: What calls an ending off, because it would not be what somebody has asked for meanwhile.
ASKED_TO_END = frozenset({Type.STOP, Type.PAUSE})
SPOKEN_TO = frozenset({Type.STOP, Type.SEND, Type.REPLY})


class Held(Protocol):
    """A run in the hands of a worker, loaded or not."""

    @property
    def run(self) -> AgentRun: ...
    @property
    def lease(self) -> Lease: ...
    @property
    def epoch(self) -> int: ...


@dataclass(frozen=True)
class Unopened:
    """A run that cannot be loaded as its agent says."""

    run: AgentRun
    lease: Lease

    @property
    def epoch(self) -> int:
        return self.lease.epoch


class DecideAgain(Exception):
    """A command arrived between the decision and its commit: nothing was written."""


def leave(drive: Drive, action: Next) -> None:
    """Carry out a decision that ends the drive; raises `DecideAgain` where it does not hold any more."""
    endings: dict[Next, Callable[[Drive], None]] = {
        Next.COMPLETE: complete,
        Next.STOP: stop,
        Next.STOP_REPEATED: stop_repeated,
        Next.PAUSE: pause,
        Next.PAUSE_BUDGET: pause_budget,
        Next.WAIT_FOR_UNKNOWN: wait_for_unknown,
        Next.HAND_BACK: partial(hand_back, reason="slice_over"),
    }
    endings[action](drive)


def complete(drive: Drive, **explained: Any) -> None:
    """End it as done; `explained`: the policy's part of the move, where it is a policy that says so."""
    chaos.point("end.before")
    run = drive.run
    # The answer itself is never altered; its copy on the run is for reading.
    said, summary = _result(drive)
    result, _ = REDACTOR.clean_text(said)
    summary = summaries.first_paragraph(summary or result)
    times = times_of(run, timezone.now())
    payload = RunCompleted(
        summary=summary or None,
        steps=run.step_count - run.step_base,
        duration_ms=round(times.worked_s * 1000) if times is not None else 0,
    )
    # A call that the end leaves open is closed by the move: its step has its checkpoint only after that.
    then = partial(_checkpoint_last_step, drive) if drive.open_calls else None
    columns = {"result": result, "summary": summary} | explained
    move(drive, RunStatus.COMPLETED, payload, unless=SPOKEN_TO, then=then, **columns)
    chaos.point("end.committed")


def _result(drive: Drive) -> tuple[str, str]:
    """Return the result and the summary of the call that says the run is done, else the last answer without one."""
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


def fail(held: Held, error_type: str, error: str, **explained: Any) -> None:
    error, _ = REDACTOR.clean_text(error)
    word = error_type[:64]
    payload = RunFailed(error_type=word, error=error[:2000] or None)
    move(held, RunStatus.FAILED, payload, reason=word, error_type=word, error_message=error, **explained)


def stop(drive: Held) -> None:
    command = _command(drive, Type.STOP)
    payload = RunStopped(reason="operator", by=command.created_by)
    move(drive, RunStatus.STOPPED, payload, reason="operator", applied=[command])


def stop_repeated(drive: Drive) -> None:
    """The repeat guard: the call is not run, and nothing after it."""
    call = drive.open_calls[0]
    times = f"{drive.streak(call)} times in a row with the same arguments"
    payload = RunStopped(reason=causes.REPEATED_CALLS, message=f"Run stopped: {call.tool_name} was asked for {times}")
    move(drive, RunStatus.STOPPED, payload, reason=causes.REPEATED_CALLS, unless={Type.STOP})


def pause(drive: Held) -> None:
    command = _command(drive, Type.PAUSE)
    payload = RunPaused(reason=PauseReason.OPERATOR, by=command.created_by)
    move(drive, RunStatus.PAUSED, payload, reason=PauseReason.OPERATOR, applied=[command], unless={Type.STOP})


def pause_max_steps(drive: Drive) -> None:
    detail = f"{drive.run.step_count} steps made"
    payload = RunPaused(reason=PauseReason.MAX_STEPS, detail=detail)
    move(drive, RunStatus.PAUSED, payload, reason=PauseReason.MAX_STEPS, unless={Type.STOP, Type.PAUSE})


def pause_error(held: Held, error_type: str, error: str, *, details: str = "") -> None:
    """After an error that the run does not get over by itself. Whoever has removed its cause resumes it."""
    error, _ = REDACTOR.clean_text(error)
    word = error_type[:64]
    told = Entry(Error(error_type=word, error=error[:2000], details=details[:1000] or None, context="llm"))
    payload = RunPaused(reason=PauseReason.ERROR, detail=error[:2000])
    move(
        held, RunStatus.PAUSED, payload, reason=PauseReason.ERROR, unless=ASKED_TO_END, told=[told],
        error_type=word, error_message=error,
    )  # fmt: skip


def pause_budget(drive: Drive) -> None:
    """A resume counts anew: the run that goes on has the same budgets, and has used nothing of them. Only what a
    project may use in a day is counted over all its runs."""
    detail = drive.spending.used_up()
    if not detail:
        raise DecideAgain  # midnight has passed
    payload = RunPaused(reason=PauseReason.BUDGET, detail=detail)
    move(drive, RunStatus.PAUSED, payload, reason=PauseReason.BUDGET, unless={Type.STOP, Type.PAUSE})


def pause_exhausted(drive: Drive, error: str) -> None:
    """The recording has no more answers: nothing failed, and asking again would not help."""
    payload = RunPaused(reason=PauseReason.FIXTURE_EXHAUSTED, detail=error)
    move(
        drive, RunStatus.PAUSED, payload, reason=PauseReason.FIXTURE_EXHAUSTED, unless={Type.STOP, Type.PAUSE},
        error_type=FixtureExhausted.code, error_message=error,
    )  # fmt: skip


def pause_poisoned(run: AgentRun, lease: Lease, deaths: int) -> bool:
    """Pause a run whose step ends every process that makes it, without loading it: even that may be what ends them.

    False where somebody has asked for a stop or a pause, which goes before.
    """
    step = run.step_count + 1
    detail = f"Step {step} ended {deaths} processes that held no other run."
    abandon_open_turn(lease)
    reason = PauseReason.POISON_STEP
    try:
        move(
            Unopened(run, lease), RunStatus.PAUSED, RunPaused(reason=reason, detail=detail), reason=reason,
            error_type=reason.value, error_message=detail, unless=ASKED_TO_END,
        )  # fmt: skip
    except DecideAgain:
        return False
    return True


def hand_back(drive: Drive, reason: str) -> None:
    """To the queue: any worker goes on, this one after the others."""
    payload = RunPhase(status=RunStatus.QUEUED, reason=reason)
    _close_started_turn(drive, reason)
    move(drive, RunStatus.QUEUED, payload, reason=reason)
    chaos.point("end.hint_sent")


def cool_down(drive: Drive, wait: Cooldown) -> None:
    """Wait without a worker; the sweep queues the run when its time has come."""
    payload = RunWaiting(reason=WaitReason.COOLDOWN, until=wait.until)
    move(
        drive, RunStatus.WAITING, payload, reason=WaitReason.COOLDOWN, not_before=wait.until,
        unless={Type.STOP, Type.PAUSE},
    )  # fmt: skip


def wait_for_input(
    drive: Drive,
    asked: Question,
    *,
    then: Callable[[], Any] = nothing,
    unless: Set[str] = ASKED_TO_END,
    **explained: Any,
) -> None:
    """Leave the call as planned until somebody answers. One who has replied already has answered this."""
    shown, _ = preview(asked.question)
    payload = RunWaiting(reason=WaitReason.INPUT, question=shown, choices=asked.choices or None)

    def and_then() -> None:
        then()
        inbox.answer_early(drive.run)

    move(
        drive, RunStatus.WAITING, payload, reason=WaitReason.INPUT, ref_id=drive.open_calls[0].pk, unless=unless,
        then=and_then, **explained,
    )  # fmt: skip


def wait_for_unknown(drive: Drive) -> None:
    """Leave the call as `unknown`, without a result, until somebody says what came of it."""
    call = drive.unknown_call
    assert call is not None
    unknown = AgentRunToolCall.objects.filter(pk=call.pk, status=ToolStatus.RUNNING)
    also = partial(unknown.update, status=ToolStatus.UNKNOWN, finished_at=transcript.end_of(call))
    payload, reason = RunWaiting(reason=WaitReason.UNKNOWN_TOOL), WaitReason.UNKNOWN_TOOL
    move(drive, RunStatus.WAITING, payload, reason=reason, also=also, unless={Type.STOP, Type.PAUSE}, ref_id=call.pk)


def abandon_open_turn(lease: Lease) -> None:
    """Close the model call that an earlier holder of the run started and did not commit an answer of."""
    last = log.open_turn(lease.run_id)
    if last is None:
        return
    chaos.point("recovery.before")
    # What the provider counted for it, the lost worker alone could have said.
    payload = LlmTurnAbandoned(attempt=last.payload.get("attempt"), reason="worker_lost", usage="unknown")
    note(lease, Entry(payload, step=last.step))
    chaos.point("recovery.done")


def _close_started_turn(drive: Drive, reason: str) -> None:
    """A turn whose start was committed with the last result, and that is not made here after all."""
    if drive.turn_started:
        drive.note(Entry(LlmTurnAbandoned(reason=reason), step=drive.run.step_count + 1))
        drive.turn_started = False


def move(
    held: Held,
    to: RunStatus,
    payload: Payload,
    *,
    reason: str = "",
    applied: list[RunCommand] | None = None,
    also: Callable[[], Any] | None = None,
    then: Callable[[], Any] | None = None,
    unless: Set[str] = frozenset(),
    source: Source = Source.WORKER,
    **changes: Any,
) -> None:
    """The guarded move. Commands of the types in `unless` that came since the decision call it off: the move
    holds the run's row, for which whoever posts a command waits, so none can slip in between. `applied` are the
    commands that it carries out. `also` and `then` are done before and after it, in its transaction."""
    run, believed = held.run, (held.run.status, held.run.status_reason)

    def write() -> None:
        run.status, run.status_reason = believed
        with transaction.atomic():
            # NO KEY, as for a command: see runs.lifecycle.inbox.
            AgentRun.objects.select_for_update(no_key=True, of=("self",)).only("pk").get(pk=run.pk)
            if unless and unless & inbox.waiting(run.pk):
                raise DecideAgain
            if also is not None:
                also()
            mark_applied(applied or [])
            transitions.move(run, to, payload, source=source, reason=reason, epoch=held.epoch, **changes)
            if then is not None:
                then()

    def landed() -> bool:
        return AgentRun.objects.filter(pk=run.pk, status=to, lease_epoch=held.epoch).exists()

    durably(write, landed=landed, found=nothing, lease=held.lease)


def _command(drive: Held, kind: str) -> RunCommand:
    return next(c for c in inbox.pending(drive.run.pk) if c.type == kind)
