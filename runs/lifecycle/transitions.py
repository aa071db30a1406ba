"""The only place that changes a run's status. `move` and `claim` each send a guarded UPDATE and append its event.

The UPDATE and the event are committed together. runs/statuses.py lists the allowed moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Coalesce, Greatest

from agentops.base.database_clock import Now
from runs import chaos
from runs.conversation import tool_results, writes
from runs.database_errors import done_alone
from runs.errors import MoveRefused
from runs.lifecycle import (
    approval_rows,
    causes,
    command_outcomes,
    moves,
    places,
    session_subagents,
    summaries,
    suspicion,
)
from runs.lifecycle.moves import PHASES
from runs.lifecycle.suspicion import CHILD_SEPARATOR
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
from timeline.events import Payload
from timeline.events.llm import LlmTurnAbandoned
from timeline.events.run import RunPaused, RunPhase, RunRecovered, RunStarted
from timeline.log import Entry
from timeline.models import LeaseLost, Source

#: The end reason of an attempt whose run a person's resume took from its worker.
KILLED = "killed"
#: Status reasons of a queued run whose worker's death has not been handled yet.
DEATH_UNDECIDED = (WaitReason.ON_DEAD, WaitReason.RETRY_ALONE)
#: Wait reason → the status reason of the queued run when its `not_before` has passed; else "cooldown_over".
END_OF_WAIT: dict[str, str] = {
    WaitReason.CHILDREN: "children_timed_out",
    WaitReason.TIMER: "timer_over",
    WaitReason.SIGNAL: "timed_out",
}
#: Columns of the agent that a claim does not read, because they may be large.
OF_DEFINITION = [f"agent__{name}" for name in ("instructions", "tools", "settings", "policies")]


@dataclass(frozen=True)
class ClaimedRun:
    """The result of a claim."""

    #: The run as the claim left it, with its project.
    run: AgentRun
    epoch: int
    #: Processes that died in the current step while they held only this run. Deaths of processes with further runs, and
    #: deaths that no worker detected, do not count.
    deaths: int
    #: Whether the last worker died with the run, and no policy has handled the death yet.
    died: bool = False
    #: Whether no worker has held the run before.
    is_first: bool = False
    #: Whether a worker has died in the current step: see runs.lifecycle.suspicion.
    is_suspected: bool = False


def move(
    run: AgentRun,
    to: RunStatus,
    payload: Payload,
    *,
    source: Source,
    reason: str = "",
    epoch: int | None = None,
    ref_id: UUID | None = None,
    events_before: Sequence[Entry] = (),
    savepoint: bool = True,
    **changes: Any,
) -> None:
    """Change the status of `run` and append the event, in one transaction.

    The UPDATE only matches the status that `run` has in memory, and the `epoch` if one is given. If the row has changed
    since, writes nothing and raises `MoveRefused`, or `LeaseLost` if an epoch was given. `changes` are further columns.
    `events_before` are appended before the event of the move, like the `error` event of an error that causes the move.
    A run that ends or pauses gets its summary, and its open calls, commands, approval and sub-agents are closed. A
    pause that needs a person notifies the project. Without a `savepoint`, an error ends the caller's transaction too.
    """
    if to not in MOVES[run.state]:
        raise MoveRefused(f"a {run.status} run cannot become {to}", run_status=run.status)
    if (to.terminal and to is not RunStatus.RESUMED) or to is RunStatus.PAUSED:
        summaries.fill_in(run, changes)
    with transaction.atomic(savepoint=savepoint):
        rows = AgentRun.objects.filter(pk=run.pk, status=run.status)
        if epoch is not None:
            rows = rows.filter(lease_epoch=epoch)
        if not rows.update(**{**_columns(to, reason), **changes}):
            raise _conflict_error(run, epoch)
        if to.terminal or to is RunStatus.PAUSED:
            events_before = [*_close_what_is_open(run, to, source=source, epoch=epoch), *events_before]
        error = causes.error_events(run, to, payload, reason=reason, events_before=events_before, changes=changes)
        entry = Entry(payload, phase=PHASES[to], ref_id=ref_id)
        log.append(run.pk, [*error, *events_before, entry], source=source, epoch=epoch)
        causes.save_errors(run, [*error, *events_before])
        log.announce_run(run.project_id, run.pk)
        if to is RunStatus.PAUSED:
            moves.notify_of_pause(run, payload, reason)
        if run.state is RunStatus.RUNNING:
            _end_attempt(run, reason or to.value)
            places.leave(run)
        if to is RunStatus.QUEUED:
            wake(run)
        moves.call_listeners(run, to, reason)
        moves.log_move(run, to, reason, changes)
        if to.terminal:
            chaos.point("end.in_transaction")
    run.status, run.status_reason = to.value, reason


def _close_what_is_open(run: AgentRun, to: RunStatus, *, source: Source, epoch: int | None) -> list[Entry]:
    """Close the sub-agents, calls, commands and the approval of a run that ends or pauses. Returns events to append."""
    session_subagents.end_all(run, source=source, epoch=epoch)
    tool_results.close_open_calls(run, epoch=epoch, source=source)
    command_outcomes.close(run.pk, to)
    return approval_rows.cancel(run)


def claim(
    run_id: UUID,
    owner: str,
    expected: Mapping[str, Any] | None = None,
    *,
    careful: bool = True,
    remote: bool = False,
    accepts: Callable[[AgentRun], bool] | None = None,
) -> ClaimedRun | None:
    """Take the lease of a run. Returns None if the run cannot be claimed, has no place, or another worker was faster.

    Claims only while the columns of the run have the `expected` values. `remote`: the claimant is a process elsewhere.
    `accepts` returns whether the claimant can execute the run.
    Raises `Suspected` if the run may crash its workers and `owner` may not try it now; `careful` enables this check.
    If a lease has expired by the database's clock, its holder is dead or suspended: the next epoch fences it.
    """
    chaos.point("claim.before")
    with transaction.atomic():
        run = _lock_claimable(run_id, expected or {}, remote=remote)
        if run is None or (accepts is not None and not accepts(run)):
            return None
        lapsed = run.state is RunStatus.RUNNING
        suspected = cast("Any", run).died + lapsed
        if careful and suspected:
            suspicion.check(run_id, owner, suspected, lapsed=lapsed)
        if not lapsed and not places.has_place(run):
            return None
        # Also true if the run was queued again before its policy handled the death of the worker.
        died = lapsed or run.status_reason in DEATH_UNDECIDED
        last_event_at = log.last_event_at(run.pk) if lapsed else None
        if lapsed:
            chaos.point("lease.lapse_seen")
            # The attempt ended with its last event, not when the loss of its worker is detected.
            alive_until = Greatest("claimed_at", Value(last_event_at))
            _end_attempt(run, DIED, step_number=run.step_count + 1, ended_at=alive_until)
        previous, new_epoch, now = run.lease_epoch, run.lease_epoch + 1, cast("datetime", cast("Any", run).now)
        columns = _columns_of_lease(run, owner, now)
        rows = AgentRun.objects.filter(pk=run.pk, lease_epoch=previous, status=run.status)
        rows.update(status=RunStatus.RUNNING, **columns)
        log.raise_epoch(run.pk, new_epoch)
        Attempt.objects.create(run=run, epoch=new_epoch, owner=owner, step_number=run.step_count + 1, claimed_at=now)
        entry = Entry(_claimed_event(run, owner, new_epoch, last_event_at, lapsed=lapsed))
        log.append(run.pk, [entry], source=Source.WORKER, epoch=new_epoch)
        log.announce_run(run.project_id, run.pk)
        deaths = _count_deaths(run) if previous else 0
    for name, value in {"status": RunStatus.RUNNING.value, **columns}.items():
        setattr(run, name, value)
    chaos.point("run.taken_over" if lapsed else "claim.committed")
    return ClaimedRun(run, new_epoch, deaths, died, is_first=not previous, is_suspected=suspected > 0)


def _columns_of_lease(run: AgentRun, owner: str, now: datetime) -> dict[str, Any]:
    """Return the columns of a run that `owner` claims at the time `now`, except for the status."""
    return {
        "status_reason": "",
        "lease_owner": owner,
        "lease_epoch": run.lease_epoch + 1,
        "lease_expires_at": now + timedelta(seconds=settings.AGENTOPS_LEASE_S),
        "not_before": None,
        # Not before queued_at, which another machine's clock may have set.
        "started_at": run.started_at or max(now, run.queued_at),
    }


def _lock_claimable(run_id: UUID, expected: Mapping[str, Any], *, remote: bool) -> AgentRun | None:
    """Lock and return a run that matches `expected`; None if it cannot be claimed now.

    Its attributes `now` and `died` are set: the time by the database's clock, and the number of workers that have died
    in its step.
    """
    # FOR NO KEY UPDATE, because the old holder may be committing: see runs.lifecycle.inbox.
    claimable = AgentRun.objects.claimable()
    of_claimant = claimable.remote() if remote else claimable.of_workers()
    locked = of_claimant.select_for_update(skip_locked=True, no_key=True, of=("self",))
    with_owners = locked.select_related("project", "agent").defer(*OF_DEFINITION)
    rows = with_owners.annotate(now=Now(), died=suspicion.deaths_in_step())
    return rows.filter(pk=run_id, **expected).first()


def kill(run: AgentRun, *, by: str) -> None:
    """Take a running run away from its worker on behalf of `by`, and pause it. The caller has locked its row."""
    fence(run, RunPaused(reason=PauseReason.OPERATOR, by=by or None, detail=KILLED), by=by, why=KILLED)


def fence(run: AgentRun, paused: RunPaused, *, by: str, why: str, source: Source = Source.WEB, **columns: Any) -> None:
    """Take a running run away from its worker, and pause it. The caller has locked its row.

    The next epoch is assigned to `by` and never used, so that every later write of the worker is refused. `why` is the
    reason in the ended attempt and in the event of an abandoned model call; `columns` are passed to `move`.
    """
    epoch = run.lease_epoch + 1
    with transaction.atomic():
        log.raise_epoch(run.pk, epoch)
        open_turn = log.open_turn(run.pk)
        if open_turn is not None:
            abandoned = LlmTurnAbandoned(attempt=open_turn.payload.get("attempt"), reason=why, usage="unknown")
            entries = [Entry(abandoned, phase=PHASES[run.state], step=open_turn.step)]
            writes.count_abandoned(run.pk, run.lease_epoch, entries)
            log.append(run.pk, entries, source=source)
        reason = str(paused.reason)
        columns |= {"lease_epoch": epoch, "not_before": None}
        move(run, RunStatus.PAUSED, paused, source=source, reason=reason, **columns)
        Attempt.objects.create(
            run=run,
            epoch=epoch,
            owner=by[:128],
            step_number=run.step_count + 1,
            claimed_at=Now(),
            ended_at=Now(),
            end_reason=why,
        )
    run.lease_epoch = epoch


def committed_claim(run_id: UUID, owner: str) -> ClaimedRun | None:
    """Return the committed claim of `owner`, after the database's answer to it was lost; None if none was committed."""
    run = AgentRun.objects.filter(pk=run_id, lease_owner=owner, status=RunStatus.RUNNING).first()
    if run is None:
        return None
    before = Attempt.objects.filter(run=run, epoch=run.lease_epoch - 1)
    is_lost = before.filter(end_reason__in=AFTER_A_DEATH).exists()
    return ClaimedRun(run, run.lease_epoch, _count_deaths(run), is_lost)


def note_fenced(run_id: UUID, epoch: int) -> None:
    """Record that a worker that lost its lease is alive, so that its attempt does not count as a death.

    The worker may detect the loss before another worker has taken the run over.
    """
    attempts = Attempt.objects.filter(run_id=run_id, epoch=epoch, end_reason__in=["", DIED])
    attempts.update(end_reason=FENCED)


def renew(run_id: UUID, epoch: int) -> bool:
    """Extend a lease. Returns False if another worker has the run."""
    rows = AgentRun.objects.filter(pk=run_id, lease_epoch=epoch, status=RunStatus.RUNNING)
    return bool(rows.update(lease_expires_at=lease_end()))


def lease_end() -> Any:
    """Return the SQL expression for the end of a lease that starts now, by the database's clock.

    `claim` and runs.engine.leases compute the end in the same way.
    """
    return Now() + timedelta(seconds=settings.AGENTOPS_LEASE_S)


def end_lease(run_id: UUID, epoch: int, *, reason: str, at_most: int) -> None:
    """End a lease whose worker cannot release the run, so that another worker takes the run over now.

    Once more than `at_most` attempts in the step have ended for this reason, the lease is left to expire instead.
    """
    with transaction.atomic():
        attempts = Attempt.objects.filter(run_id=run_id, epoch=epoch, end_reason="")
        attempts.update(end_reason=reason)
        rows = AgentRun.objects.filter(pk=run_id, lease_epoch=epoch, status=RunStatus.RUNNING)
        in_step = Attempt.objects.filter(run_id=run_id, step_number__in=rows.values(step=F("step_count") + 1))
        if in_step.filter(end_reason=reason).count() <= at_most:
            rows.update(lease_expires_at=Now() - timedelta(seconds=1))


def expire_leases(owner: str) -> int:
    """End the leases of a dead worker, and of the processes that it started, so that its runs are recovered now.

    Returns how many. If the worker is still alive, the next epoch of each run fences it, as after an expired lease.
    """
    if not owner:
        return 0
    of_worker = Q(lease_owner=owner) | Q(lease_owner__startswith=f"{owner}{CHILD_SEPARATOR}")
    rows = AgentRun.objects.filter(of_worker, status=RunStatus.RUNNING)
    # A second ago, because a lease has only expired if its end is before now.
    return rows.update(lease_expires_at=Now() - timedelta(seconds=1))


def end_waits() -> int:
    """Queue the waiting runs whose `not_before` has passed. Returns how many.

    Does not handle runs that wait for a resume by their policy (see runs.worker.sweep), and expired approvals (see
    runs.lifecycle.approval_decisions).
    """
    due = AgentRun.objects.due_waits().exclude(status_reason__in=[*POLICY_WAITS, WaitReason.APPROVAL])
    failure = "the wait of a run could not end"
    return sum(done_alone(partial(_end_wait, run), failure, run_id=str(run.pk)) for run in due[:100])


def _end_wait(run: AgentRun) -> bool:
    """Queue a waiting run. Returns False if another process has changed its status."""
    # A run that must be tried alone keeps that status reason, and its position in the queue.
    is_alone = run.status_reason == WaitReason.RETRY_ALONE
    reason: str = WaitReason.RETRY_ALONE if is_alone else END_OF_WAIT.get(run.status_reason, "cooldown_over")
    queue_position: dict[str, Any] = {"queued_at": run.queued_at} if is_alone else {}
    payload = RunPhase(status=RunStatus.QUEUED, reason=reason)
    try:
        move(run, RunStatus.QUEUED, payload, source=Source.WORKER, reason=reason, not_before=None, **queue_position)
    except MoveRefused:
        return False  # another sweep was faster
    return True


def _columns(to: RunStatus, reason: str) -> dict[str, Any]:
    """Return the columns that a move to this status sets."""
    columns: dict[str, Any] = {
        "status": to,
        "status_reason": reason,
        "lease_owner": None,
        "lease_expires_at": None,
    }
    if to is RunStatus.QUEUED:
        columns |= {"queued_at": Now(), "message_sent_at": None}
    if to.terminal:
        columns["completed_at"] = Greatest(Now(), Coalesce("started_at", "queued_at"))
    return columns


def _conflict_error(run: AgentRun, epoch: int | None) -> Exception:
    if epoch is not None:
        return LeaseLost(f"run {run.pk} was taken over from epoch {epoch}")
    return MoveRefused(f"run {run.pk} is not {run.status} any more", run_status=run.status)


def _end_attempt(run: AgentRun, reason: str, **changes: Any) -> None:
    """Close the open attempt of a run, if any. An end reason that was recorded before is kept."""
    end_reason = Case(When(end_reason="", then=Value(reason)), default=F("end_reason"))
    Attempt.objects.filter(run=run, ended_at=None).update(**{"ended_at": Now(), "end_reason": end_reason} | changes)


def _count_deaths(run: AgentRun) -> int:
    """Return how many processes that held only this run have died in its current step."""
    return Attempt.objects.filter(run=run, step_number=run.step_count + 1, end_reason=DIED_ALONE).count()


def _claimed_event(run: AgentRun, owner: str, epoch: int, last_event_at: datetime | None, *, lapsed: bool) -> Payload:
    """Return the event of a claim: a recovery, the start of a run, or its continuation."""
    if lapsed:
        return RunRecovered(
            cause="lease_expired", epoch=epoch, previous_epoch=run.lease_epoch, last_event_at=last_event_at
        )
    if run.started_at is None:
        return RunStarted(worker=owner, epoch=epoch)
    return RunPhase(status="running", reason="continued")
