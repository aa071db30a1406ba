"""Runs that may be what kills their workers, and how carefully to try them: alone, later, or like any other.

Nothing is kept in memory: the attempts of a run's current step say how many workers have died in it. A committed step
clears the run, because the next step has no attempts yet.

Without a death a run is tried like any other. After one death it is tried beside others, but only one such run at a
time in each worker, so that a second death shows which run it was. After more it is tried in a process of its own,
after a growing pause; only a death there counts against it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Count, F, OuterRef, Subquery
from django.db.models.functions import Coalesce

from runs.lifecycle import transitions
from runs.lifecycle.transitions import ClaimedRun
from runs.models import AgentRun, Attempt
from runs.statuses import DEATHS, DIED_ALONE, RunStatus, WaitReason
from timeline import log
from timeline.database_clock import Now
from timeline.events.llm import LlmTurnAbandoned
from timeline.events.run import RunPhase, RunWaiting
from timeline.log import Entry
from timeline.models import Source

#: Deaths in one step from which on a run is tried in a process of its own.
ALONE_FROM = 2
#: The first pause before a try, as a share of a lease, and how often it doubles at most.
FIRST_PAUSE, DOUBLINGS = 0.25, 3


class Candidate(NamedTuple):
    """A run that may be claimed now."""

    run_id: UUID
    #: Whether its lease has lapsed.
    lapsed: bool
    #: Workers that died in its current step, including the one with the lapsed lease.
    deaths: int


def candidates(limit: int, *, clear_only: bool = False) -> list[Candidate]:
    """Return the first `limit` runs to claim, in order. `clear_only` leaves out queued runs under suspicion.

    A run that continues another one inherits the suspicion of its step.
    """
    died = (
        Attempt.objects.filter(
            run__root_run=OuterRef("root_run"),
            step_number=OuterRef("step_count") + 1,
            end_reason__in=DEATHS,
            ended_at__isnull=False,
        )
        .order_by()
        .values("run__root_run")
        .annotate(number=Count("pk"))
        .values("number")
    )
    runs = AgentRun.objects.runnable().annotate(died=Coalesce(Subquery(died), 0))
    if clear_only:
        runs = runs.exclude(status=RunStatus.QUEUED, died__gt=0)
    rows = runs.values_list("pk", F("status"), F("died"))[:limit]
    candidates = []
    for run_id, status, deaths in rows:
        lapsed = status == RunStatus.RUNNING
        candidates.append(Candidate(run_id, lapsed, deaths + lapsed))
    return candidates


def pause_s(deaths: int) -> float:
    """Return the seconds that a run with so many deaths waits before the next try."""
    if deaths < ALONE_FROM:
        return 0.0
    return float(settings.AGENTOPS_LEASE_S * FIRST_PAUSE * 2 ** min(deaths - ALONE_FROM, DOUBLINGS))


def set_aside(run_id: UUID, owner: str, *, wait_s: float) -> bool:
    """Take a run from a dead worker and queue it for later. Returns False if it was not there to be taken.

    It keeps its place in the queue. With `wait_s` nobody claims it before that time. The claim by `owner` fences
    the old holder off.
    """
    reason = WaitReason.RETRY_ALONE
    with transaction.atomic():
        lapsed = AgentRun.objects.runnable().filter(pk=run_id, status=RunStatus.RUNNING)
        locked = lapsed.select_for_update(skip_locked=True, no_key=True, of=("self",))
        lapsed_run = locked.annotate(now=Now()).values_list("now", "queued_at").first()
        claimed = None if lapsed_run is None else transitions.claim(run_id, owner)
        if lapsed_run is None or claimed is None:
            return False
        now, queued_at = lapsed_run
        _close_open_turn(claimed)
        move: Callable[..., None] = partial(
            transitions.move, claimed.run, source=Source.WORKER, reason=reason, epoch=claimed.epoch
        )
        if wait_s:
            until = now + timedelta(seconds=wait_s)
            move(to=RunStatus.WAITING, payload=RunWaiting(reason=reason, until=until), not_before=until)
        else:
            queued = RunPhase(status=RunStatus.QUEUED, reason=reason)
            move(to=RunStatus.QUEUED, payload=queued, queued_at=queued_at)
    return True


def _close_open_turn(claimed: ClaimedRun) -> None:
    """Close the model call of the dead worker."""
    turn = log.open_turn(claimed.run.pk)
    if turn is not None:
        abandoned = LlmTurnAbandoned(attempt=turn.payload.get("attempt"), reason="worker_lost")
        entry = Entry(abandoned, step=turn.step)
        log.append(claimed.run.pk, [entry], source=Source.WORKER, epoch=claimed.epoch)


def note_death_alone(owner: str) -> bool:
    """Count the death of a process that held only this run. Returns False if it had released the run.

    Called by the worker that started the process and saw it end. The run can be taken over at once.
    """
    with transaction.atomic():
        ended_count = Attempt.objects.filter(owner=owner, ended_at=None, end_reason="").update(end_reason=DIED_ALONE)
        transitions.expire_leases(owner)
    return bool(ended_count)
