"""Find the runs that may crash their workers, set them aside, and count deaths: see runs.lifecycle.suspicion."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from agentops.base.database_clock import Now
from runs.lifecycle import suspicion, transitions
from runs.lifecycle.transitions import ClaimedRun
from runs.models import AgentRun, Attempt
from runs.statuses import DEATHS, DIED_ALONE, RunStatus, WaitReason
from timeline import log
from timeline.events.llm import LlmTurnAbandoned
from timeline.events.run import RunWaiting
from timeline.log import Entry
from timeline.models import Source

#: The pause before the first attempt in a separate process, as a fraction of a lease. It doubles with each death.
FIRST_PAUSE = 0.25
MAX_DOUBLINGS = 3


def waiting(limit: int) -> list[AgentRun]:
    """Return at most `limit` suspected runs that may be claimed now: their lease has expired, or workers have died."""
    is_lapsed = Q(status=RunStatus.RUNNING)
    # Counting the deaths of thousands of queued runs would take seconds, so only lineages with a death are counted.
    died = Attempt.objects.filter(end_reason__in=DEATHS, ended_at__isnull=False).values("run__root_run")
    runs = AgentRun.objects.runnable().filter(is_lapsed | Q(root_run__in=died))
    return list(runs.annotate(died=suspicion.deaths_in_step()).filter(is_lapsed | Q(died__gt=0))[:limit])


def pause_s(deaths: int) -> float:
    """Return how many seconds a run waits before its next attempt, after this number of deaths."""
    if deaths < suspicion.ALONE_FROM:
        return 0.0
    return float(settings.AGENTOPS_LEASE_S * FIRST_PAUSE * 2 ** min(deaths - suspicion.ALONE_FROM, MAX_DOUBLINGS))


def set_aside(run_id: UUID, owner: str, *, wait_s: float) -> bool:
    """Take a run from a dead worker, and move it to waiting. Returns False if the run could not be taken.

    The run keeps its position in the queue. The claim by `owner` fences the old holder off.
    """
    reason = WaitReason.RETRY_ALONE
    with transaction.atomic():
        lapsed = AgentRun.objects.claimable().of_workers().filter(pk=run_id, status=RunStatus.RUNNING)
        locked = lapsed.select_for_update(skip_locked=True, no_key=True, of=("self",))
        now = locked.annotate(now=Now()).values_list("now", flat=True).first()
        claimed = None if now is None else transitions.claim(run_id, owner, careful=False)
        if now is None or claimed is None:
            return False
        _close_open_turn(claimed)
        until = now + timedelta(seconds=wait_s)
        transitions.move(
            claimed.run,
            RunStatus.WAITING,
            RunWaiting(reason=reason, until=until),
            source=Source.WORKER,
            reason=reason,
            epoch=claimed.epoch,
            not_before=until,
        )
    return True


def _close_open_turn(claimed: ClaimedRun) -> None:
    """Close the model call that the dead worker has left open in the log, if any."""
    turn = log.open_turn(claimed.run.pk)
    if turn is not None:
        abandoned = LlmTurnAbandoned(attempt=turn.payload.get("attempt"), reason="worker_lost")
        entry = Entry(abandoned, step=turn.step)
        log.append(claimed.run.pk, [entry], source=Source.WORKER, epoch=claimed.epoch)


def note_death_alone(owner: str) -> bool:
    """Count the death of a process that held a single run. Returns False if the process had released the run.

    `owner` is the name of the process. Called by the worker that started it and detected its end. The run can then be
    taken over at once.
    """
    with transaction.atomic():
        ended_count = Attempt.objects.filter(owner=owner, ended_at=None, end_reason="").update(end_reason=DIED_ALONE)
        transitions.expire_leases(owner)
    return bool(ended_count)
