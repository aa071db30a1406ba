"""The only place that changes a run's status: one guarded UPDATE and one event, committed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Coalesce, Greatest, Now

from runs import chaos
from runs.conversation import tool_results, writes
from runs.errors import MoveRefused
from runs.lifecycle import causes, command_outcomes, pause_notifications, summaries
from runs.lifecycle.wake import wake
from runs.models import AgentRun, Attempt
from runs.statuses import (
    AFTER_A_DEATH,
    DIED,
    DIED_ALONE,
    FENCED,
    MOVES,
    POLICY_WAITS,
    PauseReason,
    RunStatus,
    WaitReason,
)
from timeline import log
from timeline.errors import LeaseLost
from timeline.events import Payload
from timeline.events.llm import LlmTurnAbandoned
from timeline.events.run import RunPaused, RunPhase, RunRecovered, RunStarted
from timeline.log import Entry
from timeline.models import Phase, Source

#: Between the name of a worker and what tells the processes apart that it starts for single runs.
OF_A_WORKER = "."
#: Why a queued run still awaits a decision about the death of its worker.
DEATH_UNDECIDED = (WaitReason.ON_DEAD, WaitReason.RETRY_ALONE)
PHASES = {
    RunStatus.QUEUED: Phase.QUEUED,
    RunStatus.RUNNING: Phase.RUNNING,
    RunStatus.WAITING: Phase.RUNNING,
    RunStatus.PAUSED: Phase.RUNNING,
    RunStatus.RESUMED: Phase.STOPPED,
    RunStatus.COMPLETED: Phase.COMPLETED,
    RunStatus.FAILED: Phase.FAILED,
    RunStatus.STOPPED: Phase.STOPPED,
}


@dataclass(frozen=True)
class Claimed:
    """What a claim gives: the fencing token, and how dangerous the step is."""

    run: AgentRun
    epoch: int
    #: How many processes that held this run alone have died in the step that it stands at. A death with other runs
    #: beside it, or one that no worker lived to see, is nobody's fault and is not counted.
    deaths: int
    #: Whether the worker before died holding the run, and nothing was decided about that yet.
    died: bool = False


def move(
    run: AgentRun,
    to: RunStatus,
    payload: Payload,
    *,
    source: Source,
    reason: str = "",
    epoch: int | None = None,
    ref_id: UUID | None = None,
    explained_by: Sequence[Entry] = (),
    **changes: Any,
) -> None:
    """Change `run`'s status and say so in its log, in one transaction. `run` is what the caller believed; `told` are
    events that explain the move, and stand before it. A move for an error has an `error` event before it (see
    runs.lifecycle.causes); a run that ends or pauses has its summary; a pause that needs a person notifies the project.

    The UPDATE's WHERE is the rule: a status (or, with `epoch`, a lease) that is not what the caller saw moves
    nothing and raises `MoveRefused` (`LeaseLost`). Calls that are open in a run that ends or pauses are closed,
    so that the conversation stays valid, and so are the commands that nobody carries out any more.
    """
    if to not in MOVES[run.state]:
        raise MoveRefused(f"a {run.status} run cannot become {to}", run_status=run.status)
    if (to.terminal and to is not RunStatus.RESUMED) or to is RunStatus.PAUSED:
        summaries.fill_in(run, changes)
    with transaction.atomic():
        believed = AgentRun.objects.filter(pk=run.pk, status=run.status)
        if epoch is not None:
            believed = believed.filter(lease_epoch=epoch)
        if not believed.update(**{**_columns(to, reason), **changes}):
            raise _lost(run, epoch)
        if to.terminal or to is RunStatus.PAUSED:
            tool_results.close_open_calls(run, epoch=epoch, source=source)
            command_outcomes.close(run.pk, to)
        error = causes.before(run, to, payload, reason=reason, explained_by=explained_by, changes=changes)
        moved = Entry(payload, phase=PHASES[to], ref_id=ref_id)
        log.append(run.pk, [*error, *explained_by, moved], source=source, epoch=epoch)
        log.announce_run(run.project_id, run.pk)
        if to is RunStatus.PAUSED:
            pause_notifications.notify(run, payload, reason)
        if run.state is RunStatus.RUNNING:
            _end_attempt(run, reason or to.value)
        if to is RunStatus.QUEUED:
            wake(run.pk)
        if to.terminal:
            chaos.point("end.in_transaction")
    run.status, run.status_reason = to.value, reason


def claim(run_id: UUID, owner: str) -> Claimed | None:
    """Take the run's lease; None where there is nothing to claim or someone else is faster.

    Everything is judged by the database's clock. A lapsed lease means that its holder is dead or suspended:
    the run goes on here under the next epoch, which fences the old holder off.
    """
    chaos.point("claim.before")
    with transaction.atomic():
        # NO KEY: whoever held it may be committing just now; see runs.lifecycle.inbox.
        mine = AgentRun.objects.runnable().select_for_update(skip_locked=True, no_key=True, of=("self",))
        run = mine.filter(pk=run_id).first()
        if run is None:
            return None
        lapsed = run.state is RunStatus.RUNNING
        # Or queued again before anybody has decided what becomes of a death.
        died = lapsed or run.status_reason in DEATH_UNDECIDED
        if lapsed:
            chaos.point("lease.lapse_seen")
            # It ended with its last sign of life, not when its loss is noticed.
            alive_until = Greatest("claimed_at", Value(log.last_event_at(run.pk)))
            _end_attempt(run, DIED, step_number=run.step_count + 1, ended_at=alive_until)
        previous, epoch = run.lease_epoch, run.lease_epoch + 1
        AgentRun.objects.filter(pk=run.pk, lease_epoch=previous, status=run.status).update(
            status=RunStatus.RUNNING,
            status_reason="",
            lease_owner=owner,
            lease_epoch=epoch,
            lease_expires_at=lease_end(),
            not_before=None,
            # Not before it was queued, which another machine's clock has told.
            started_at=Coalesce("started_at", Greatest(Now(), "queued_at")),
        )
        log.raise_epoch(run.pk, epoch)
        Attempt.objects.create(run=run, epoch=epoch, owner=owner, step_number=run.step_count + 1, claimed_at=Now())
        seen = log.last_event_at(run.pk)
        log.append(
            run.pk, [Entry(_claimed_event(run, owner, epoch, seen, lapsed=lapsed))], source=Source.WORKER, epoch=epoch
        )
        log.announce_run(run.project_id, run.pk)
        deaths = _deaths(run)
    run.status, run.lease_owner, run.lease_epoch = RunStatus.RUNNING.value, owner, epoch
    chaos.point("run.taken_over" if lapsed else "claim.committed")
    return Claimed(run, epoch, deaths, died)


def fence(run: AgentRun, *, by: str) -> None:
    """Take a live run away from whoever works on it, and pause it. The caller has locked its row.

    `by` has the next epoch, and does nothing with it: what a worker of the one before still writes is refused.
    """
    epoch = run.lease_epoch + 1
    with transaction.atomic():
        log.raise_epoch(run.pk, epoch)
        open_turn = log.open_turn(run.pk)
        if open_turn is not None:
            abandoned = LlmTurnAbandoned(attempt=open_turn.payload.get("attempt"), reason="killed", usage="unknown")
            entries = [Entry(abandoned, phase=PHASES[run.state], step=open_turn.step)]
            writes.count_abandoned(run.pk, run.lease_epoch, entries)
            log.append(run.pk, entries, source=Source.WEB)
        paused = RunPaused(reason=PauseReason.OPERATOR, by=by or None, detail="killed")
        reason = PauseReason.OPERATOR
        move(run, RunStatus.PAUSED, paused, source=Source.WEB, reason=reason, lease_epoch=epoch, not_before=None)
        Attempt.objects.create(
            run=run, epoch=epoch, owner=by[:128], step_number=run.step_count + 1, claimed_at=Now(), ended_at=Now(),
            end_reason="killed",
        )  # fmt: skip
    run.lease_epoch = epoch


def held_by(run_id: UUID, owner: str) -> Claimed | None:
    """The claim of `owner` that may have been committed without its hearing of it."""
    run = AgentRun.objects.filter(pk=run_id, lease_owner=owner, status=RunStatus.RUNNING).first()
    if run is None:
        return None
    before = Attempt.objects.filter(run=run, epoch=run.lease_epoch - 1)
    lost = before.filter(end_reason__in=AFTER_A_DEATH).exists()
    return Claimed(run, run.lease_epoch, _deaths(run), lost)


def note_fenced(run_id: UUID, epoch: int) -> None:
    """A worker that lost its lease lives after all: its attempt did not die, so it counts for no poison step.

    It may know before anyone has taken the run over, so the reason can come before the end.
    """
    mine = Attempt.objects.filter(run_id=run_id, epoch=epoch, end_reason__in=["", DIED])
    mine.update(end_reason=FENCED)


def renew(run_id: UUID, epoch: int) -> bool:
    """Push the lease's end on; False means that it is not ours any more."""
    held = AgentRun.objects.filter(pk=run_id, lease_epoch=epoch, status=RunStatus.RUNNING)
    return bool(held.update(lease_expires_at=lease_end()))


def lease_end() -> Any:
    return Now() + timedelta(seconds=settings.AGENTOPS_LEASE_S)


def expire_leases(owner: str) -> int:
    """End the leases of a worker that is known to be dead, and of the processes that it started for single runs: its
    runs are recovered now, not when their time is up.

    Should it live after all, nothing worse happens than with a lease that ran out: the next epoch fences it off.
    """
    if not owner:
        return 0
    its = Q(lease_owner=owner) | Q(lease_owner__startswith=f"{owner}{OF_A_WORKER}")
    held = AgentRun.objects.filter(its, status=RunStatus.RUNNING)
    # In the past by more than the clock's grain: a lease has lapsed where its end is before now.
    return held.update(lease_expires_at=Now() - timedelta(seconds=1))


def end_waits() -> int:
    """Queue the waiting runs whose time has come; the number of runs that moved. Those that wait for their policy to
    resume them are left to it: see runs.engine.policy.due_resumes."""
    moved = 0
    due = AgentRun.objects.waited_enough().exclude(status_reason__in=POLICY_WAITS)
    for run in due[:100]:
        # What waited to be tried alone still has to be, and goes back to its place in the order.
        alone = run.status_reason == WaitReason.RETRY_ALONE
        reason: str = WaitReason.RETRY_ALONE if alone else "cooldown_over"
        place: dict[str, Any] = {"queued_at": run.queued_at} if alone else {}
        try:
            over = RunPhase(status=RunStatus.QUEUED, reason=reason)
            move(run, RunStatus.QUEUED, over, source=Source.WORKER, reason=reason, not_before=None, **place)
            moved += 1
        except MoveRefused:
            continue  # another sweep was faster
    return moved


def _columns(to: RunStatus, reason: str) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "status": to,
        "status_reason": reason,
        "lease_owner": None,
        "lease_expires_at": None,
    }
    if to is RunStatus.QUEUED:
        columns["queued_at"] = Now()
    if to.terminal:
        columns["completed_at"] = Greatest(Now(), Coalesce("started_at", "queued_at"))
    return columns


def _lost(run: AgentRun, epoch: int | None) -> Exception:
    if epoch is not None:
        return LeaseLost(f"run {run.pk} was taken over from epoch {epoch}")
    return MoveRefused(f"run {run.pk} is not {run.status} any more", run_status=run.status)


def _end_attempt(run: AgentRun, reason: str, **changes: Any) -> None:
    """Close the open attempt, if there is one; a reason that its worker gave itself stays."""
    end_reason = Case(When(end_reason="", then=Value(reason)), default=F("end_reason"))
    Attempt.objects.filter(run=run, ended_at=None).update(**{"ended_at": Now(), "end_reason": end_reason} | changes)


def _deaths(run: AgentRun) -> int:
    return Attempt.objects.filter(run=run, step_number=run.step_count + 1, end_reason=DIED_ALONE).count()


def _claimed_event(run: AgentRun, owner: str, epoch: int, seen: datetime | None, *, lapsed: bool) -> Payload:
    if lapsed:
        return RunRecovered(cause="lease_expired", epoch=epoch, previous_epoch=run.lease_epoch, last_event_at=seen)
    if run.started_at is None:
        return RunStarted(worker=owner, epoch=epoch)
    return RunPhase(status="running", reason="continued")
