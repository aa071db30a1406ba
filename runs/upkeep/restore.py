"""Recovery after a restore from a backup: fences off old workers, invalidates cursors and requeues the runs.

A restored database does not contain the epochs and sequence numbers that were issued after the backup. It would issue
them again, while workers and clients may still hold them. So a restore starts a new incarnation. The number of the
incarnation is part of every cursor, and the epochs of all live runs continue from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Max

from agentops.accounts.audit import Actor, record
from agentops.accounts.models import Incarnation
from agentops.base import database_clock
from agentops.base.database_clock import Now
from runs.lifecycle import transitions
from runs.lifecycle.wake import wake
from runs.models import AgentRun, Attempt
from runs.statuses import TERMINAL, RunStatus
from timeline import log
from timeline.events.run import RunPhase
from timeline.models import Log, Source

#: The owner of the attempt that marks the skipped epochs. Invariant L6 allows a gap before this attempt.
OWNER = "post_restore"
#: The status reason of requeued runs.
RESTORED = "restored"
#: The action in the audit log.
AUDITED = "database.restored"
#: Incarnation numbers are seconds since this date. An integer column is sufficient until 2088.
BEGAN = datetime(2020, 1, 1, tzinfo=UTC)
#: More than the number of claims of a run between two consecutive restores.
STRIDE = 1000


def begin(*, by: Actor) -> Incarnation:
    """Create and return a new incarnation. More than one after a restore are harmless.

    Its number is derived from the time, because two restores of the same backup must have different numbers. The number
    is above all epochs ever issued, because a run is claimed less than once a second on average. It is also above all
    known epochs if the clock was set back since the backup.
    """
    with transaction.atomic():
        newest = Incarnation.objects.aggregate(newest=Max("number"))["newest"] or 0
        highest = AgentRun.objects.aggregate(highest=Max("lease_epoch"))["highest"] or 0
        seconds = int(database_clock.seconds_between(BEGAN, database_clock.now()))
        number = max(seconds, newest + STRIDE, highest + STRIDE)
        incarnation = Incarnation.objects.create(number=number, made_by=by if isinstance(by, str) else by.actor)
        record(by, AUDITED, project=None, obj=incarnation)
    return incarnation


def fence_off(incarnation: Incarnation) -> Iterator[UUID]:
    """Give all live runs the epoch of the incarnation, one transaction per run, and wake workers for the runnable ones.

    Yields the IDs of the runs. If it is interrupted, call it again.
    """
    live = AgentRun.objects.filter(source=AgentRun.Source.NATIVE, lease_epoch__lt=incarnation.number)
    for run_id in list(live.exclude(status__in=TERMINAL).order_by("pk").values_list("pk", flat=True)):
        if _take(run_id, incarnation.number):
            yield run_id
    Incarnation.objects.filter(pk=incarnation.pk).update(finished_at=Now())


def _take(run_id: UUID, epoch: int) -> bool:
    """Fence off the worker of a run, and queue the run if it was running. Returns False if nothing was to be done."""
    with transaction.atomic():
        run = AgentRun.objects.select_for_update().filter(pk=run_id).first()
        if run is None or run.state.terminal or run.lease_epoch >= epoch:
            return False
        AgentRun.objects.filter(pk=run_id).update(lease_epoch=epoch)
        log.raise_epoch(run_id, epoch)
        run.lease_epoch = epoch
        if run.state is RunStatus.RUNNING:
            queued = RunPhase(status=RunStatus.QUEUED, reason=RESTORED)
            transitions.move(run, RunStatus.QUEUED, queued, source=Source.WEB, reason=RESTORED)
        elif run.state is RunStatus.QUEUED:
            wake(run)
        Attempt.objects.create(
            run=run,
            epoch=epoch,
            owner=OWNER,
            step_number=run.step_count + 1,
            claimed_at=Now(),
            ended_at=Now(),
            end_reason=RESTORED,
        )
        # Readers have to reload the log, even if no event was appended.
        log.announce(run_id, Log.objects.values_list("last_seq", flat=True).get(pk=run_id))
        log.announce_run(run.project_id, run_id)
    return True
