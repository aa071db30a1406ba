"""After a restore: what was handed out in the lost part of the time is made worthless, and the work goes on.

A backup that was put back knows nothing of what came after it: of
epochs that workers still hold, of events that readers have. Counting on from it would hand the same epochs and the same
seqs out again. So a restore begins a new incarnation, whose number stands in every cursor, and is the epoch from which
all live runs count on.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Max
from django.db.models.functions import Now

from agentops.projects.audit import Actor, record
from agentops.projects.models import Incarnation
from runs.lifecycle import transitions
from runs.lifecycle.wake import wake
from runs.models import AgentRun, Attempt
from runs.statuses import TERMINAL, RunStatus
from timeline import log
from timeline.events.run import RunPhase
from timeline.models import Log, Source

#: The attempt that stands for the epochs that were skipped; INV-L6 knows it.
OWNER = "post_restore"
RESTORED = "restored"
AUDITED = "database.restored"
#: Numbers are seconds since then: an integer column has room until the year 2088.
BEGAN = datetime(2020, 1, 1, tzinfo=UTC)
#: More than a run can be claimed between two restores that come at once.
STRIDE = 1000


def begin(*, by: Actor) -> Incarnation:
    """A new incarnation. Begun twice after one restore, there are two: the work is fenced off twice, and goes on.

    Its number comes of the time, not of a count: two restores of one backup must differ. No run is claimed more than
    once a second for as long as there are runs, so none has reached it; and a clock that was put back since the
    backup was made cannot go below what the backup knows.
    """
    with transaction.atomic():
        known = Incarnation.objects.aggregate(newest=Max("number"))["newest"] or 0
        highest = AgentRun.objects.aggregate(highest=Max("lease_epoch"))["highest"] or 0
        number = max(_seconds(), known + STRIDE, highest + STRIDE)
        made = Incarnation.objects.create(number=number, made_by=by if isinstance(by, str) else by.actor)
        record(by, AUDITED, project=None, obj=made)
    return made


def fence_off(incarnation: Incarnation) -> Iterator[UUID]:
    """Take every live run away from whoever held it, one transaction each, and wake workers for those that can go on.

    Yields their ids as it goes. Cut off, it has to be begun again.
    """
    live = AgentRun.objects.filter(source=AgentRun.Source.NATIVE, lease_epoch__lt=incarnation.number)
    for run_id in list(live.exclude(status__in=TERMINAL).order_by("pk").values_list("pk", flat=True)):
        if _take(run_id, incarnation.number):
            yield run_id
    Incarnation.objects.filter(pk=incarnation.pk).update(finished_at=Now())


def _take(run_id: UUID, epoch: int) -> bool:
    with transaction.atomic():
        run = AgentRun.objects.select_for_update().filter(pk=run_id).first()
        if run is None or run.state.terminal or run.lease_epoch >= epoch:
            return False
        AgentRun.objects.filter(pk=run_id).update(lease_epoch=epoch)
        log.raise_epoch(run_id, epoch)
        if run.state is RunStatus.RUNNING:
            queued = RunPhase(status=RunStatus.QUEUED, reason=RESTORED)
            transitions.move(run, RunStatus.QUEUED, queued, source=Source.WEB, reason=RESTORED)
        elif run.state is RunStatus.QUEUED:
            wake(run_id)
        Attempt.objects.create(
            run=run, epoch=epoch, owner=OWNER, step_number=run.step_count + 1, claimed_at=Now(), ended_at=Now(),
            end_reason=RESTORED,
        )  # fmt: skip
        # Whoever reads it is to look again, also where nothing was written.
        log.announce(run_id, Log.objects.values_list("last_seq", flat=True).get(pk=run_id))
        log.announce_run(run.project_id, run_id)
    return True


def _seconds() -> int:
    return int((datetime.now(UTC) - BEGAN).total_seconds())
