"""The deletion of projects: removes all data of a hidden project in batches, and then its row.

Each batch is one transaction that also counts the deleted rows. If a process dies, the next one continues. Several
processes may delete at the same time. Entries of the audit log remain, without their project.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any
from uuid import UUID

from django.db import models, transaction
from django.db.models import QuerySet
from django_celery_beat.models import PeriodicTask, PeriodicTasks

from agentops.accounts.access import SYSTEM
from agentops.accounts.audit import AuditAction, record
from agentops.accounts.models import (
    ApiKey,
    AuditEntry,
    IdempotencyKey,
    Invitation,
    Membership,
    Notification,
    NotificationReceipt,
    Project,
    RedactionRule,
)
from agentops.base.refusals import Refusal
from runs.lifecycle import inbox
from runs.models import (
    Agent,
    AgentRun,
    AgentVersion,
    AgUiRun,
    Alert,
    AlertDelivery,
    AlertFinding,
    AlertMessage,
    AlertMute,
    AlertRule,
    Chore,
    ClaudeTranscript,
    ClaudeTranscriptEntry,
    Delivery,
    FileImport,
    FileImportPiece,
    Flow,
    FlowRun,
    FlowVersion,
    IngestCount,
    OtlpGroup,
    OtlpItem,
    SavedView,
    Schedule,
    ScheduleStart,
    Sink,
    SinkCursor,
)
from runs.statuses import LIVE
from runs.upkeep.group_removal import Hidden, Removal, Removing, alone, finish_unfinished, hide_and_remove
from runs.upkeep.run_groups import RunGroup, run_groups_of
from timeline import tombstones
from timeline.models import Log, Tombstone

log = logging.getLogger(__name__)

#: The number of runs per query.
PAGE = 200
#: At most one process starts to delete in each of these periods.
CHORE, EVERY = "project_removal", timedelta(seconds=10)
REASON = "its project was deleted"


@dataclass(frozen=True)
class ProjectTable:
    """A table whose rows belong to projects. `path` leads to the project."""

    model: type[models.Model]
    path: str = "project"

    @property
    def table(self) -> str:
        """The name of the database table."""
        return str(self.model._meta.db_table)

    def rows(self, project: Project) -> QuerySet[Any]:
        """Return the rows of a project, including hidden ones."""
        return self.model._base_manager.filter(**{self.path: project})


#: Tables read by background work. They are deleted before the runs, so that the work does not access deleted runs.
BEFORE_RUNS = (
    ProjectTable(Delivery),
    ProjectTable(Delivery, "sink__project"),
    ProjectTable(SinkCursor, "sink__project"),
    ProjectTable(Sink),
    ProjectTable(AlertDelivery),
    ProjectTable(AlertFinding),
    ProjectTable(AlertMessage),
    ProjectTable(Alert),
    ProjectTable(AlertMute),
    ProjectTable(AlertRule),
    ProjectTable(FileImportPiece, "file_import__project"),
    ProjectTable(FileImport),
)
#: In the order of deletion: a table comes after the tables that refer to it.
AFTER_RUNS = (
    ProjectTable(ScheduleStart, "schedule__project"),
    ProjectTable(Schedule),
    ProjectTable(OtlpItem, "group__project"),
    ProjectTable(OtlpGroup),
    ProjectTable(AgUiRun, "agent__project"),
    ProjectTable(AgentVersion, "agent__project"),
    ProjectTable(Agent),
    ProjectTable(FlowVersion, "flow__project"),
    ProjectTable(Flow),
    ProjectTable(ClaudeTranscriptEntry, "transcript__project"),
    ProjectTable(ClaudeTranscript),
    ProjectTable(SavedView),
    ProjectTable(NotificationReceipt),
    ProjectTable(Notification),
    ProjectTable(IdempotencyKey),
    ProjectTable(IngestCount),
    ProjectTable(Invitation),
    ProjectTable(Membership),
    ProjectTable(ApiKey),
    ProjectTable(RedactionRule),
)
RUNS = (ProjectTable(AgentRun), ProjectTable(FlowRun))
STONES, AUDIT = ProjectTable(Tombstone), ProjectTable(AuditEntry)
#: The project itself can be deleted once it has no row in any of these.
LEFT = (*BEFORE_RUNS, *RUNS, *AFTER_RUNS, ProjectTable(Log), STONES, AUDIT)


def pending() -> QuerySet[Project]:
    """Return the projects that are being deleted, in the order in which they were hidden."""
    return Project._base_manager.filter(removed_at__isnull=False).order_by("removed_at", "pk")


def remove_pending() -> Removal:
    """Delete the hidden projects, unless another process began within the last seconds."""
    if pending().exists() and Chore.objects.take(CHORE, every=EVERY):
        for project in pending():
            yield from alone(remove(project), project=str(project.pk))


def release_claim() -> None:
    """Release the claim after interrupting `remove_pending`, so that the next process continues immediately."""
    Chore.objects.release(CHORE, every=EVERY)


def remove(project: Project) -> Removal:
    """Delete a hidden project. Yields after each batch; iteration may stop at any point.

    Runs that are on hold, and runs that a worker currently holds, are kept, and so is the hidden project. A later
    removal finishes it.
    """
    for table in BEFORE_RUNS:
        yield from _empty(table, project)
    # Their rows are counted in the tombstones.
    rows: Counter[str] = Counter()
    yield from finish_unfinished(project, rows)
    why = Removing(reason=REASON, by=_removal_of(project)["by"], may_remove=_may_remove)
    for group in _groups(project):
        _stop_live(group)
        yield from hide_and_remove(group, why, rows)
    if any(table.rows(project).exists() for table in RUNS):
        return
    for table in AFTER_RUNS:
        yield from _empty(table, project)
    yield from _forget_tombstones(project)
    yield from _detach_audit_log(project)
    _finish(project)


# --- Runs -----------------------------------------------------------------------------------------------------------


def _groups(project: Project) -> Iterator[RunGroup]:
    """Yield the run groups of the project."""
    root_ids: set[UUID] = set()
    rows: tuple[QuerySet[Any], ...] = (AgentRun.objects.all(), FlowRun.objects.all())
    for page in chain.from_iterable(_pages(each.filter(project=project)) for each in rows):
        for group in run_groups_of(run_id for run_id in page if run_id not in root_ids):
            # The runs of a group can be on several pages.
            root_ids.update(group.run_ids if len(group.members) > 1 else ())
            yield group


def _pages(rows: QuerySet[Any]) -> Iterator[list[UUID]]:
    """Yield pages of IDs in the order of IDs."""
    page = list(rows.order_by("pk").values_list("pk", flat=True)[:PAGE])
    while page:
        yield page
        page = list(rows.filter(pk__gt=page[-1]).order_by("pk").values_list("pk", flat=True)[:PAGE])


def _may_remove(group: RunGroup, runs: Sequence[Hidden]) -> bool:
    return not any(member.held_at is not None for member in group.members) and not any(map(_has_worker, runs))


def _has_worker(run: Hidden) -> bool:
    """Return whether a worker holds the run, or may claim it."""
    return isinstance(run, AgentRun) and not run.is_recorded and run.status in LIVE


def _stop_live(group: RunGroup) -> None:
    """Stop the runs that were started while their project was being hidden.

    A run with a worker stops after its step.
    """
    live = AgentRun.objects.in_progress().filter(pk__in=group.run_ids)
    for run_id in live.values_list("pk", flat=True):
        # The run has ended in the meantime.
        with suppress(Refusal):
            inbox.stop(run_id, by="system")


# --- Everything else ------------------------------------------------------------------------------------------------


def _empty(table: ProjectTable, project: Project) -> Removal:
    """Delete the rows of a table in batches."""
    while True:
        with transaction.atomic():
            if (locked := _locked(project)) is None:
                return
            ids = list(table.rows(project).values_list("pk", flat=True)[: tombstones.BATCH])
            if not ids:
                return
            batch = table.model._base_manager.filter(pk__in=ids)
            tasks = list(batch.values_list("periodic_task", flat=True)) if table.model is Schedule else []
            # Skips Django's search for referring rows, which are deleted before these.
            _count(locked, {table.table: batch._raw_delete(batch.db)})
            # These rows have no project, so nothing refers to them without their schedule.
            if tasks:
                PeriodicTask.objects.filter(pk__in=tasks).delete()
                PeriodicTasks.update_changed()
        yield


def _forget_tombstones(project: Project) -> Removal:
    """Delete the tombstones of the project, and add the counts of tombstones from its deletion."""
    while True:
        with transaction.atomic():
            if (locked := _locked(project)) is None:
                return
            stones = list(STONES.rows(project).only("pk", "rows", "reason")[: tombstones.BATCH])
            if not stones:
                return
            _count(locked, sum((Counter(each.rows) for each in stones if each.reason == REASON), Counter()))
            batch = Tombstone.objects.filter(pk__in=[each.pk for each in stones])
            batch._raw_delete(batch.db)
        yield


def _detach_audit_log(project: Project) -> Removal:
    """Detach the entries of the audit log from the project, so that they remain."""
    while ids := list(AUDIT.rows(project).values_list("pk", flat=True)[: tombstones.BATCH]):
        AuditEntry._base_manager.filter(pk__in=ids).update(project=None)
        yield


def _finish(project: Project) -> None:
    """Delete the row of the project if no row refers to it."""
    with transaction.atomic():
        # The lock also blocks inserts of referring rows, so none can appear after the check.
        rows = Project._base_manager.select_for_update().filter(pk=project.pk)
        if (locked := rows.first()) is None or any(table.rows(project).exists() for table in LEFT):
            return
        removal = _removal_of(locked)
        before, after = {"slug": removal["slug"], "name": locked.name}, {"rows": removal["rows"]}
        record(SYSTEM, AuditAction.PROJECT_REMOVED, project=None, obj=locked, before=before, after=after)
        rows._raw_delete(rows.db)
    log.info("project deleted: %s", project.pk)


def _locked(project: Project) -> Project | None:
    """Return the current project, locked, so that batches are counted one after the other. None if it was deleted."""
    return Project._base_manager.select_for_update(no_key=True).filter(pk=project.pk).first()


def _count(locked: Project, rows: dict[str, int]) -> None:
    removal = _removal_of(locked)
    removal["rows"] = dict(Counter(removal["rows"]) + Counter(rows))
    locked.save(update_fields=["removal"])


def _removal_of(project: Project) -> dict[str, Any]:
    assert project.removal is not None  # set when the deletion began
    removal: dict[str, Any] = project.removal
    return removal
