"""Child runs and their parents. A parent continues when its children have ended; stopping it stops its children too.

A waiting parent holds no worker. The last child to end queues the parent, as does a child whose pause is a result of
the call. If the process of that child dies first, a sweep queues the parent.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef

from agentops.base.database.statements import after_commit
from agentops.base.refusals import Refusal
from runs import chaos
from runs.database_errors import done_alone
from runs.errors import MoveRefused
from runs.lifecycle import inbox, transitions
from runs.lifecycle.wake import wake_flows
from runs.models import AgentRun
from runs.models.querysets import RunQuerySet
from runs.statuses import PauseReason, RunStatus, WaitReason
from timeline.events.run import RunPhase
from timeline.models import Source

#: Status reason of a parent that returns to the queue.
ENDED = "children_ended"


def newest(run: AgentRun) -> AgentRun:
    """Return the newest run that continues a run; the run itself if it was not resumed."""
    while run.state is RunStatus.RESUMED:
        run = AgentRun.objects.get(resumed_from=run)
    return run


def unended(parent_id: UUID | OuterRef) -> RunQuerySet:
    """Return the child runs that this site executes and that have not ended, including paused ones."""
    return AgentRun.objects.unended().filter(parent_run=parent_id)


def awaited(parent_id: UUID | OuterRef) -> RunQuerySet:
    """Return the child runs for which a waiting parent has to wait."""
    return AgentRun.objects.holding_parents().filter(parent_run=parent_id)


def continue_parents() -> int:
    """Queue the runs that wait for children and whose awaited children have all ended. Returns how many."""
    waiting = AgentRun.objects.filter(status=RunStatus.WAITING, status_reason=WaitReason.CHILDREN)
    ready = waiting.exclude(Exists(awaited(OuterRef("pk")))).values_list("pk", flat=True)
    failure = "a run that waits for its children could not be queued"
    return sum(done_alone(partial(continue_parent, pk), failure, run_id=str(pk)) for pk in ready[:100])


def _continue_parent_after_commit(parent_id: UUID) -> None:
    chaos.point("child.ended")
    continue_parent(parent_id)


def continue_parent(run_id: UUID) -> bool:
    """Queue a run if it waits for children and all awaited children have ended. Returns whether it was queued."""
    with transaction.atomic():
        parent = AgentRun.objects.select_for_update(no_key=True, of=("self",)).filter(pk=run_id).first()
        if parent is None or not is_waiting(parent) or awaited(run_id).exists():
            return False
        payload = RunPhase(status=RunStatus.QUEUED, reason=ENDED)
        try:
            transitions.move(parent, RunStatus.QUEUED, payload, source=Source.WORKER, reason=ENDED, not_before=None)
        except MoveRefused:
            return False
        chaos.point("parent.in_transaction")
    return True


def is_waiting(run: AgentRun) -> bool:
    """Return whether the run waits for its children."""
    return run.state is RunStatus.WAITING and run.status_reason == WaitReason.CHILDREN


def taken_along(run_ids: Collection[UUID], to: RunStatus) -> list[AgentRun]:
    """Return the descendants that are also stopped or paused if these runs are.

    Descendants below an ended run are excluded, and for a pause also paused runs and those below them.
    """
    rows = AgentRun.objects.unended()
    descendants = rows.exclude(pk__in=run_ids)
    if to is RunStatus.PAUSED:
        descendants = descendants.exclude(status=RunStatus.PAUSED)
    return _below(list(rows.filter(pk__in=run_ids).values_list("pk", flat=True)), descendants)


def recorded_below(run_ids: Collection[UUID]) -> list[AgentRun]:
    """Return the descendants of these recorded runs that are still recorded. Their recordings end at the same time."""
    rows = AgentRun.objects.being_recorded()
    return _below(list(rows.filter(pk__in=run_ids).values_list("pk", flat=True)), rows.exclude(pk__in=run_ids))


def _below(run_ids: Collection[UUID], rows: RunQuerySet) -> list[AgentRun]:
    """Return the descendants of these runs among `rows`, level by level. One query for each level."""
    descendants: list[AgentRun] = []
    while run_ids:
        level = list(rows.filter(parent_run__in=run_ids).for_list().order_by("pk"))
        descendants += level
        run_ids = [run.pk for run in level]
    return descendants


def follow_move(run: AgentRun, to: RunStatus, reason: str) -> None:
    """Stop or pause the children of a run that was stopped, failed or paused, and continue its parent and its flow.

    Called in the transaction of the move. The parent and the flow continue after the commit.
    """
    if to in (RunStatus.STOPPED, RunStatus.FAILED) or (to is RunStatus.PAUSED and reason == PauseReason.OPERATOR):
        _take_along(run, to)
    if not to.terminal and to is not RunStatus.PAUSED:
        return
    if run.parent_run_id is not None:
        after_commit(_continue_parent_after_commit, run.parent_run_id)
    if run.flow_run_id is not None:
        wake_flows()


def _take_along(parent: AgentRun, to: RunStatus) -> None:
    """Stop or pause the children of a run."""
    act = inbox.pause if to is RunStatus.PAUSED else inbox.stop
    for child_id in unended(parent.pk).order_by("pk").values_list("pk", flat=True):
        try:
            act(child_id, by=f"run:{parent.pk}")
        except Refusal:
            continue  # it has ended in the meantime
