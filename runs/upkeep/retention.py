"""Retention: families of runs that were kept for long enough are removed whole, and leave tombstones.

In two strokes: one transaction writes a family's tombstones and hides
its runs from everyone (see RunManager); then their rows go, in batches. Whoever is killed in between leaves a family
that nobody sees, and the next removal goes on with it.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib import import_module
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models.fields.json import KT
from django.db.models.functions import Now
from django.utils import timezone

from agentops.projects import notifications
from agentops.projects.access import SYSTEM
from agentops.projects.audit import Actor, record
from agentops.projects.idempotency_keys import forget_old_keys
from agentops.projects.models import Notification, Project
from runs.errors import RunNotFound
from runs.models import (
    AgentRun,
    AgentRunMessage,
    AgentRunToolCall,
    Attempt,
    Checkpoint,
    Chore,
    RunCommand,
    RunError,
    TurnUsage,
)
from runs.upkeep.run_groups import Family, Kept, families_of
from timeline import log, tombstones
from timeline.models import Tombstone
from timeline.tombstones import EVENTS, OwnedTable

#: What belongs to a run, in the order in which it can go: calls name messages.
PARTS = (
    EVENTS,
    OwnedTable(Checkpoint, "run"),
    OwnedTable(Attempt, "run"),
    OwnedTable(TurnUsage, "run"),
    OwnedTable(RunError, "run"),
    OwnedTable(RunCommand, "run"),
    OwnedTable(AgentRunToolCall, "run"),
    OwnedTable(AgentRunMessage, "run"),
)
RUNS = OwnedTable(AgentRun, "log")
#: What was told of runs: it goes when they are hidden, because it leads to them and says what they said.
NEWS = str(Notification._meta.db_table)
#: What a tombstone repeats of its run.
TOLD = ("project_id", "status", "source", "step_base", "step_count", "created_at", "completed_at")
#: Runs that are looked at together.
PAGE = 200
#: Stops after each batch; to be closed by whoever does not go on.
Removal = Generator[None, None, None]
CHORE = "retention"
DAILY = timedelta(days=1)


class RetentionAuditAction(enum.StrEnum):
    RETENTION_APPLIED = "retention.applied"
    RUN_HELD = "run.held"
    RUN_RELEASED = "run.released"


@dataclass
class RemovalReport:
    """What a removal has come to so far, or would come to."""

    project: Project
    #: None: kept for ever.
    days: int | None
    #: Table → rows.
    rows: Counter[str] = field(default_factory=Counter)
    #: Families that are old enough by one of their runs, and why they stay.
    kept: Counter[Kept] = field(default_factory=Counter)

    @property
    def runs(self) -> int:
        return self.rows[RUNS.table]


def preview(project: Project, days: int | None) -> RemovalReport:
    """What `apply` would remove; reads only."""
    found = RemovalReport(project, days)
    if days is None:
        return found
    run_ids = [run_id for family in _due(found, _moment(days)) for run_id in family.run_ids]
    for some in (run_ids[at : at + PAGE] for at in range(0, len(run_ids), PAGE)):
        for part in (*PARTS, RUNS):
            found.rows[part.table] += part.model._base_manager.filter(**{f"{part.owner}__in": some}).count()
        found.rows[NEWS] += notifications.count_of_runs(some)
    return found


def apply(done: RemovalReport, *, by: Actor) -> Removal:
    """Remove what ended more than `done.days` days ago, and what an earlier removal has left; stops after each batch.

    Counts in `done`. Whoever stops iterating leaves everything consistent; what was done is audited also then.
    """
    try:
        yield from _rest(done)
        if done.days is not None:
            before = _moment(done.days)
            for family in _due(done, before):
                if _hide(family, done, before, by=by):
                    yield from _remove(family.run_ids[0], done)
    finally:
        if done.rows:
            told = {"older_than_days": done.days, "runs": done.runs, "rows": dict(done.rows)}
            record(by, RetentionAuditAction.RETENTION_APPLIED, project=done.project, after=told)


def daily() -> Removal:
    """What the settings of all projects say, in batches; nothing where some process has done it within a day."""
    if not Chore.objects.take(CHORE, every=DAILY):
        return
    forget_what_is_over()
    for project in Project.objects.order_by("pk"):
        with closing(apply(RemovalReport(project, project.retention_days), by=SYSTEM)) as removal:
            yield from removal


def forget_what_is_over() -> None:
    """Sessions whose time is up, answers that no repeat of a request is given any more, old notifications: nobody can
    use them, but they name people, and say what was asked."""
    import_module(settings.SESSION_ENGINE).SessionStore.clear_expired()
    while forget_old_keys() or notifications.forget_old():
        pass


def hold(run_id: UUID, *, reason: str, by: Actor) -> AgentRun:
    """Keep the run, and so its family, whatever the retention says. On hold already: only the audit trail grows."""
    return _set_hold(run_id, timezone.now(), RetentionAuditAction.RUN_HELD, reason=reason, by=by)


def release(run_id: UUID, *, reason: str, by: Actor) -> AgentRun:
    return _set_hold(run_id, None, RetentionAuditAction.RUN_RELEASED, reason=reason, by=by)


def _set_hold(
    run_id: UUID, held_at: datetime | None, action: RetentionAuditAction, *, reason: str, by: Actor
) -> AgentRun:
    with transaction.atomic():
        # Against a removal that hides the run at this moment: it locks the same row, and looks again.
        rows = AgentRun.objects.select_for_update(no_key=True, of=("self",)).select_related("project")
        run = rows.filter(pk=run_id).first()
        if run is None:
            raise RunNotFound(f"no run {run_id}")
        before = run.held_at
        run.held_at = before if before is not None and held_at is not None else held_at
        run.save(update_fields=["held_at"])
        told = {"held_at": run.held_at, "reason": reason}
        record(by, action, project=run.project, obj=run, before={"held_at": before}, after=told)
    return run


# --- What is due ----------------------------------------------------------------------------------------------------


def _moment(days: int) -> datetime:
    return timezone.now() - timedelta(days=days)


def _due(outcome: RemovalReport, before: datetime) -> Iterator[Family]:
    """The families of the project that may go, the oldest first; counts those that stay."""
    seen: set[UUID] = set()
    last: tuple[datetime, UUID] | None = None
    while page := _old(outcome.project, before, last):
        last = page[-1]
        for family in families_of(run_id for _, run_id in page if run_id not in seen):
            kept = family.kept(outcome.project, before)
            # A family whose runs stand on several pages is met, and counted, once.
            seen.update(family.run_ids if len(family.members) > 1 else ())
            if kept is None:
                yield family
            else:
                outcome.kept[kept] += 1


def _old(project: Project, before: datetime, last: tuple[datetime, UUID] | None) -> list[tuple[datetime, UUID]]:
    """The next page of runs that ended before the moment, by the index `run_retention`."""
    runs = AgentRun.objects.filter(project=project, completed_at__lt=before)
    if last is not None:
        runs = runs.filter(completed_at__gte=last[0]).exclude(completed_at=last[0], pk__lte=last[1])
    found = runs.order_by("completed_at", "pk").values_list("completed_at", "pk")[:PAGE]
    return [(completed_at, run_id) for completed_at, run_id in found if completed_at is not None]


# --- The removal ----------------------------------------------------------------------------------------------------


def _hide(family: Family, done: RemovalReport, before: datetime, *, by: Actor) -> bool:
    """Write the tombstones and hide the runs, in one transaction; False where the family has changed meanwhile."""
    with transaction.atomic():
        # Who resumes, forks, holds or spawns from one of them locks its row too: done before, it is seen below.
        runs = AgentRun.objects.select_for_update().filter(pk__in=family.run_ids).order_by("pk")
        locked = list(runs.annotate(agent_name=KT("agent_config__agent_id")).only(*TOLD))
        now = families_of(family.run_ids)
        if [found.run_ids for found in now] != [family.run_ids] or now[0].kept(done.project, before) is not None:
            return False
        told = notifications.forget_runs(family.run_ids)
        Tombstone.objects.bulk_create(_tombstone(run, family, done, by, told[run.pk]) for run in locked)
        # The runner's own id may be used again from now on.
        AgentRun.objects.filter(pk__in=family.run_ids).update(removed_at=Now(), external_id=None)
        for run in locked:
            log.announce_run(run.project_id, run.pk)
    done.rows += Counter({NEWS: told.total()})
    return True


def _tombstone(run: AgentRun, family: Family, done: RemovalReport, by: Actor, told: int) -> Tombstone:
    """No title and no result: they say what somebody said."""
    return Tombstone(
        pk=run.pk,
        project_id=run.project_id,
        family=family.run_ids[0],
        facts={
            "agent_id": getattr(run, "agent_name", None),
            "status": run.status,
            "source": run.source,
            "steps": run.step_count - run.step_base,
        },
        created_at=run.created_at,
        completed_at=run.completed_at,
        reason=f"it ended more than {done.days} {'day' if done.days == 1 else 'days'} ago",
        removed_by=by if isinstance(by, str) else by.actor,
        removed_at=timezone.now(),
        rows={NEWS: told} if told else {},
    )


def _rest(done: RemovalReport) -> Removal:
    """What a removal that was cut off has left."""
    left = tombstones.unfinished().filter(project=done.project).order_by("removed_at")
    for family in dict.fromkeys(left.values_list("family", flat=True)):
        yield from _remove(family, done)


def _remove(family: UUID, done: RemovalReport) -> Removal:
    """The rows of a hidden family, batch by batch."""
    for run_id in list(tombstones.unfinished().filter(family=family).order_by("pk").values_list("pk", flat=True)):
        while removed := tombstones.remove_batch(run_id, PARTS):
            done.rows += removed
            yield
    finished = False
    while not finished:
        finished, removed = tombstones.finish(family, PARTS, RUNS)
        done.rows += removed
        yield
