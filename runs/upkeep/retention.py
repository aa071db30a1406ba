"""Retention: removes run groups after their retention period (see runs.upkeep.group_removal), and puts runs on hold."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib import import_module
from itertools import chain
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from agentops.accounts import notifications
from agentops.accounts.access import SYSTEM
from agentops.accounts.audit import Actor, name_of, record
from agentops.accounts.models import Project
from agentops.accounts.models.key_models import delete_expired_keys
from agentops.base import database_clock
from runs.errors import RunNotFound
from runs.lifecycle import inbox
from runs.models import AgentRun, Chore, FileImport, FlowRun, ImportState
from runs.upkeep import old_records
from runs.upkeep.group_removal import (
    HEADS,
    NOTIFICATIONS,
    PARTS,
    RUNS,
    Removal,
    RemovalRule,
    finish_interrupted,
    hide_and_remove,
)
from runs.upkeep.run_groups import RetentionReason, RunGroup, run_groups_of

#: The number of runs per query.
PAGE = 200
#: The name of the claim.
CHORE = "retention"
DAILY = timedelta(days=1)


class RetentionAuditAction(enum.StrEnum):
    """The audited actions of retention."""

    RETENTION_APPLIED = "retention.applied"
    RUN_HELD = "run.held"
    RUN_RELEASED = "run.released"


@dataclass
class RemovalReport:
    """The progress of a removal, or the result of a preview."""

    project: Project
    #: The retention period in days. None: runs are kept forever.
    days: int | None
    #: The number of removed rows by table.
    rows: Counter[str] = field(default_factory=Counter)
    #: The number of groups that are kept although they contain an expired run, by reason.
    kept_groups: Counter[RetentionReason] = field(default_factory=Counter)

    @property
    def runs(self) -> int:
        """The number of removed runs."""
        return self.rows[RUNS.table]


def preview(project: Project, days: int | None) -> RemovalReport:
    """Return what `apply` would delete. Read-only."""
    report = RemovalReport(project, days)
    if days is None:
        return report
    run_ids = [run_id for group in _due_groups(report, _cutoff(days)) for run_id in group.run_ids]
    for batch in (run_ids[start : start + PAGE] for start in range(0, len(run_ids), PAGE)):
        for part in (*PARTS, *HEADS):
            report.rows[part.table] += part.model._base_manager.filter(**{f"{part.owner}__in": batch}).count()
        report.rows[NOTIFICATIONS] += notifications.count_of_runs(batch)
    return report


def apply(report: RemovalReport, *, by: Actor) -> Removal:
    """Finish interrupted removals, and remove the groups whose retention began more than `report.days` days ago.

    Yields after each batch, and counts the deleted rows in `report`. Iteration may stop at any point. At the end,
    writes an entry with the rows to the audit log.
    """
    try:
        yield from finish_interrupted(report.project, report.rows)
        if report.days is not None:
            before = _cutoff(report.days)
            for group in _due_groups(report, before):
                yield from hide_and_remove(group, _rule(report, group, before, by=by), report.rows)
    finally:
        if report.rows:
            details = {"older_than_days": report.days, "runs": report.runs, "rows": dict(report.rows)}
            record(by, RetentionAuditAction.RETENTION_APPLIED, project=report.project, after=details)


def kept_until(project: Project, imported_at: datetime) -> datetime | None:
    """Return when retention deletes a run that was imported at this time and not continued; None: never."""
    return None if project.retention_days is None else imported_at + timedelta(days=project.retention_days)


def kept_until_of(file_import: FileImport) -> datetime | None:
    """Return when retention deletes the runs of an uploaded file; None: never, or the file is not imported yet."""
    if file_import.state != ImportState.DONE or file_import.finished_at is None:
        return None
    return kept_until(file_import.project, file_import.finished_at)


def daily() -> Removal:
    """Apply the retention of all projects, in batches. Does nothing if a process has begun to within the last day."""
    if not Chore.objects.take(CHORE, every=DAILY):
        return
    delete_expired()
    for project in Project.objects.order_by("pk"):
        with closing(apply(RemovalReport(project, project.retention_days), by=SYSTEM)) as removal:
            yield from removal


def release_claim() -> None:
    """Release the claim after interrupting `daily`, so that the next process continues immediately."""
    Chore.objects.release(CHORE, every=DAILY)


def delete_expired() -> None:
    """Delete expired browser sessions and idempotency keys, old notifications, and the records of `old_records`."""
    import_module(settings.SESSION_ENGINE).SessionStore.clear_expired()
    old_records.end_abandoned_imports()
    while delete_expired_keys() or notifications.forget_old() or old_records.delete_batch():
        pass
    while old_records.delete_sessions():
        pass


def hold(run_id: UUID, *, reason: str, by: Actor) -> AgentRun:
    """Put a run on hold, so that retention keeps it and its group. Raises `RunNotFound`.

    If the run is on hold already, this only adds an entry to the audit log.
    """
    return _set_hold(run_id, database_clock.now(), RetentionAuditAction.RUN_HELD, reason=reason, by=by)


def release(run_id: UUID, *, reason: str, by: Actor) -> AgentRun:
    """Release a run from hold. Raises `RunNotFound`."""
    return _set_hold(run_id, None, RetentionAuditAction.RUN_RELEASED, reason=reason, by=by)


def _set_hold(
    run_id: UUID, held_at: datetime | None, action: RetentionAuditAction, *, reason: str, by: Actor
) -> AgentRun:
    """Set or clear the hold of a run, with an audit entry. A run that is on hold keeps its first time."""
    with transaction.atomic():
        # A removal locks the same row, and checks for holds again before it hides the run.
        run = inbox.lock_run(run_id, "project")
        if held_at is not None and run.project.removed_at is not None:
            raise RunNotFound(f"the project of run {run_id} is being deleted")
        before = run.held_at
        run.held_at = before if before is not None and held_at is not None else held_at
        run.save(update_fields=["held_at"])
        after = {"held_at": run.held_at, "reason": reason}
        record(by, action, project=run.project, obj=run, before={"held_at": before}, after=after)
    return run


def _rule(report: RemovalReport, group: RunGroup, before: datetime, *, by: Actor) -> RemovalRule:
    """Return the rule for removing a group whose retention began before `before`."""
    last_activity = "it ended" if group.has_ended else "its last event was"
    return RemovalRule(
        reason=f"{last_activity} more than {report.days} {'day' if report.days == 1 else 'days'} ago",
        by=name_of(by),
        may_remove=lambda group, _: group.reason_to_keep(report.project, before) is None,
    )


# --- Due groups -----------------------------------------------------------------------------------------------------


def _cutoff(days: int) -> datetime:
    return database_clock.now() - timedelta(days=days)


def _due_groups(report: RemovalReport, before: datetime) -> Iterator[RunGroup]:
    """Yield the groups of the project to remove, and count the groups to keep in `report`."""
    root_ids: set[UUID] = set()
    runs = AgentRun.objects.filter(project=report.project)
    flow_runs = FlowRun.objects.filter(project=report.project, completed_at__lt=before)
    old_runs = (
        *(_pages(ended, "completed_at") for ended in (runs.ended_before(before), flow_runs)),
        _pages(runs.left_before(before), "created_at"),
    )
    for page in chain.from_iterable(old_runs):
        for group in run_groups_of(run_id for run_id in page if run_id not in root_ids):
            reason = group.reason_to_keep(report.project, before)
            # The runs of a group may be on several pages; the group is counted once.
            root_ids.update(group.run_ids if len(group.members) > 1 else ())
            if reason is None:
                yield group
            else:
                report.kept_groups[reason] += 1


def _pages(rows: QuerySet[Any], column: str) -> Iterator[list[UUID]]:
    """Yield the IDs of runs or flow runs in pages, in the order of a column with times."""
    runs = rows.order_by(column, "pk")
    page = list(runs.values_list(column, "pk")[:PAGE])
    while page:
        yield [run_id for _, run_id in page]
        if len(page) < PAGE:
            return
        time, run_id = page[-1]
        rest = runs.filter(**{f"{column}__gte": time}).exclude(**{column: time, "pk__lte": run_id})
        page = list(rest.values_list(column, "pk")[:PAGE])
