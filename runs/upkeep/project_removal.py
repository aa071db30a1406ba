"""The deletion of projects: removes all data of a hidden project in batches, and then the row of the project.

Each batch is one transaction that also counts the deleted rows. If a process dies, the next process continues. Several
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

from django.db import transaction
from django.db.models import Model, QuerySet
from django_celery_beat.models import PeriodicTask, PeriodicTasks

from agentops.accounts import models as account_models
from agentops.accounts.access import SYSTEM
from agentops.accounts.audit import AuditAction, record
from agentops.accounts.models import AuditEntry, Project
from agentops.base.refusals import Refusal
from runs import models
from runs.lifecycle import inbox
from runs.models import AgentRun, Chore, FlowRun, Schedule
from runs.statuses import LIVE
from runs.upkeep.group_removal import (
    Removal,
    RemovalRule,
    RunOrFlowRun,
    finish_interrupted,
    hide_and_remove,
    isolated,
)
from runs.upkeep.run_groups import RunGroup, run_groups_of
from timeline import tombstones
from timeline.models import Log, Tombstone

log = logging.getLogger(__name__)

#: The number of runs per query.
PAGE = 200
#: The claim of the deletion: at most one process begins to delete in each period.
CHORE, EVERY = "project_removal", timedelta(seconds=10)
#: The reason in the tombstones.
REASON = "its project was deleted"


@dataclass(frozen=True)
class ProjectTable:
    """A table whose rows belong to projects. `path` is the lookup path to the project."""

    model: type[Model]
    path: str = "project"

    @property
    def table(self) -> str:
        """The name of the database table."""
        return str(self.model._meta.db_table)

    def rows(self, project: Project) -> QuerySet[Any]:
        """Return the rows of a project, including hidden ones."""
        return self.model._base_manager.filter(**{self.path: project})


#: Tables that background work reads. They are emptied before runs are deleted, which this work would access.
BEFORE_RUNS = (
    ProjectTable(models.Delivery),
    ProjectTable(models.Delivery, "sink__project"),
    ProjectTable(models.SinkCursor, "sink__project"),
    ProjectTable(models.Sink),
    ProjectTable(models.AlertDelivery),
    ProjectTable(models.AlertFinding),
    ProjectTable(models.AlertMessage),
    ProjectTable(models.Alert),
    ProjectTable(models.AlertMute),
    ProjectTable(models.AlertRule),
    ProjectTable(models.FileImportPiece, "file_import__project"),
    ProjectTable(models.FileImport),
)
#: Tables that are emptied after the runs, in this order: a table comes after the tables that refer to it.
AFTER_RUNS = (
    ProjectTable(models.ScheduleStart, "schedule__project"),
    ProjectTable(models.Schedule),
    ProjectTable(models.OtlpItem, "group__project"),
    ProjectTable(models.OtlpGroup),
    ProjectTable(models.AgUiRun, "agent__project"),
    ProjectTable(models.AgentVersion, "agent__project"),
    ProjectTable(models.Agent),
    ProjectTable(models.FlowVersion, "flow__project"),
    ProjectTable(models.Flow),
    ProjectTable(models.ClaudeTranscriptEntry, "transcript__project"),
    ProjectTable(models.ClaudeTranscript),
    ProjectTable(models.GraphValue, "thread__project"),
    ProjectTable(models.GraphThread),
    ProjectTable(models.SavedView),
    ProjectTable(account_models.NotificationReceipt),
    ProjectTable(account_models.Notification),
    ProjectTable(account_models.IdempotencyKey),
    ProjectTable(models.IngestCount),
    ProjectTable(models.WorkerProcess),
    ProjectTable(account_models.Invitation),
    ProjectTable(account_models.Membership),
    ProjectTable(account_models.ApiKey),
    ProjectTable(account_models.RedactionRule),
)
RUNS = (ProjectTable(models.AgentRun), ProjectTable(models.FlowRun))
TOMBSTONES, AUDIT = ProjectTable(Tombstone), ProjectTable(account_models.AuditEntry)
#: The project itself can be deleted once it has no row in any of these tables.
ALL_TABLES = (*BEFORE_RUNS, *RUNS, *AFTER_RUNS, ProjectTable(Log), TOMBSTONES, AUDIT)


def pending() -> QuerySet[Project]:
    """Return the projects that are being deleted, in the order in which they were hidden."""
    return Project._base_manager.filter(removed_at__isnull=False).order_by("removed_at", "pk")


def remove_pending() -> Removal:
    """Delete the hidden projects, unless another process began to within `EVERY`."""
    if pending().exists() and Chore.objects.take(CHORE, every=EVERY):
        for project in pending():
            yield from isolated(remove(project), project=str(project.pk))


def release_claim() -> None:
    """Release the claim after interrupting `remove_pending`, so that the next process continues immediately."""
    Chore.objects.release(CHORE, every=EVERY)


def remove(project: Project) -> Removal:
    """Delete a hidden project. Yields after each batch; iteration may stop at any point.

    Runs that are on hold, and runs that a worker holds or may claim, are kept for now, and so is the hidden project. A
    later removal finishes the deletion.
    """
    for table in BEFORE_RUNS:
        yield from _empty(table, project)
    # Not used: the deleted rows are counted in the tombstones.
    rows: Counter[str] = Counter()
    yield from finish_interrupted(project, rows)
    rule = RemovalRule(reason=REASON, by=_removal_of(project)["by"], may_remove=_may_remove)
    for group in _groups(project):
        _stop_live(group)
        yield from hide_and_remove(group, rule, rows)
    if any(table.rows(project).exists() for table in RUNS):
        return
    for table in AFTER_RUNS:
        yield from _empty(table, project)
    yield from _delete_tombstones(project)
    yield from _detach_audit_log(project)
    _finish(project)


# --- Runs -----------------------------------------------------------------------------------------------------------


def _groups(project: Project) -> Iterator[RunGroup]:
    """Yield the run groups of the project, each once."""
    yielded_ids: set[UUID] = set()
    rows: tuple[QuerySet[Any], ...] = (AgentRun.objects.all(), FlowRun.objects.all())
    for page in chain.from_iterable(_pages(each.filter(project=project)) for each in rows):
        for group in run_groups_of(run_id for run_id in page if run_id not in yielded_ids):
            # The runs of a group may be on several pages.
            yielded_ids.update(group.run_ids if len(group.members) > 1 else ())
            yield group


def _pages(rows: QuerySet[Any]) -> Iterator[list[UUID]]:
    """Yield the IDs of rows in pages, in ascending order."""
    page = list(rows.order_by("pk").values_list("pk", flat=True)[:PAGE])
    while page:
        yield page
        page = list(rows.filter(pk__gt=page[-1]).order_by("pk").values_list("pk", flat=True)[:PAGE])


def _may_remove(group: RunGroup, runs: Sequence[RunOrFlowRun]) -> bool:
    return not any(member.held_at is not None for member in group.members) and not any(map(_has_worker, runs))


def _has_worker(run: RunOrFlowRun) -> bool:
    """Whether a worker holds the run, or may claim it."""
    return isinstance(run, AgentRun) and not run.is_recorded and run.status in LIVE


def _stop_live(group: RunGroup) -> None:
    """Stop runs that were started while their project was being hidden. A run with a worker stops at its next check."""
    live = AgentRun.objects.in_progress().filter(pk__in=group.run_ids)
    for run_id in live.values_list("pk", flat=True):
        with suppress(Refusal):  # the run has ended in the meantime
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
            # Without Django's search for referring rows, which are deleted before these rows.
            _count(locked, {table.table: batch._raw_delete(batch.db)})
            # Periodic tasks have no project: without their schedule nobody would find them.
            if tasks:
                PeriodicTask.objects.filter(pk__in=tasks).delete()
                PeriodicTasks.update_changed()
        yield


def _delete_tombstones(project: Project) -> Removal:
    """Delete the tombstones of the project, and count the rows in the ones written by its deletion."""
    while True:
        with transaction.atomic():
            if (locked := _locked(project)) is None:
                return
            batch = list(TOMBSTONES.rows(project).only("pk", "rows", "reason")[: tombstones.BATCH])
            if not batch:
                return
            _count(locked, sum((Counter(each.rows) for each in batch if each.reason == REASON), Counter()))
            rows = Tombstone.objects.filter(pk__in=[each.pk for each in batch])
            rows._raw_delete(rows.db)
        yield


def _detach_audit_log(project: Project) -> Removal:
    """Detach the entries of the audit log from the project, so that they remain."""
    while ids := list(AUDIT.rows(project).values_list("pk", flat=True)[: tombstones.BATCH]):
        AuditEntry._base_manager.filter(pk__in=ids).update(project=None)
        yield


def _finish(project: Project) -> None:
    """Delete the row of the project if no row refers to it."""
    with transaction.atomic():
        # The lock also blocks inserts of rows that refer to the project, so none can appear after the check.
        rows = Project._base_manager.select_for_update().filter(pk=project.pk)
        if (locked := rows.first()) is None or any(table.rows(project).exists() for table in ALL_TABLES):
            return
        removal = _removal_of(locked)
        before, after = {"slug": removal["slug"], "name": locked.name}, {"rows": removal["rows"]}
        record(SYSTEM, AuditAction.PROJECT_REMOVED, project=None, obj=locked, before=before, after=after)
        rows._raw_delete(rows.db)
    log.info("project deleted: %s", project.pk)


def _locked(project: Project) -> Project | None:
    """Lock and return the project, so that batches are counted one after the other. None if the project was deleted."""
    return Project._base_manager.select_for_update(no_key=True).filter(pk=project.pk).first()


def _count(locked: Project, rows: dict[str, int]) -> None:
    """Add deleted rows, by table, to the record of the deletion."""
    removal = _removal_of(locked)
    removal["rows"] = dict(Counter(removal["rows"]) + Counter(rows))
    locked.save(update_fields=["removal"])


def _removal_of(project: Project) -> dict[str, Any]:
    """Return the record of the deletion: who began it, the slug of the project, and the deleted rows."""
    assert project.removal is not None  # set when the deletion began
    removal: dict[str, Any] = project.removal
    return removal
