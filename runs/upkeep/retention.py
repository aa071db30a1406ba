"""Retention: removes run groups after their retention period, and leaves tombstones.

A removal has two phases. One transaction writes the tombstones of a group and hides its runs (see RunManager). Then
the rows are deleted in batches. If the process dies in between, the group stays hidden and the next removal
finishes it.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Generator, Iterator
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
from django.db.models.fields.json import KT
from django.utils import timezone

from agentops.projects import notifications
from agentops.projects.access import SYSTEM
from agentops.projects.audit import Actor, record
from agentops.projects.idempotency_keys import delete_expired_keys
from agentops.projects.models import Notification, Project
from runs.errors import RunNotFound
from runs.models import (
    AgentRun,
    AgentRunMessage,
    AgentRunToolCall,
    AgUiRun,
    AlertFinding,
    AlertMute,
    Approval,
    Attempt,
    Checkpoint,
    Chore,
    CliSession,
    ExternalRun,
    FlowRun,
    FlowVisit,
    OtlpGroup,
    OtlpItem,
    RunCommand,
    RunError,
    RunNote,
    SearchEntry,
    ShareLink,
    TurnUsage,
)
from runs.upkeep import old_records
from runs.upkeep.run_groups import RetentionReason, RunGroup, run_groups_of
from timeline import log, tombstones
from timeline.database_clock import Now
from timeline.models import Tombstone
from timeline.tombstones import EVENTS, OwnedTable

#: The tables of a run's rows, in the order of deletion: tool calls and requests of AG-UI clients refer to messages.
PARTS = (
    OwnedTable(SearchEntry, "run"),
    EVENTS,
    OwnedTable(Checkpoint, "run"),
    OwnedTable(Attempt, "run"),
    OwnedTable(CliSession, "run"),
    OwnedTable(TurnUsage, "run"),
    OwnedTable(RunError, "run"),
    OwnedTable(RunNote, "run"),
    OwnedTable(ShareLink, "run"),
    OwnedTable(Approval, "run"),
    OwnedTable(AlertFinding, "run"),
    OwnedTable(AlertFinding, "flow_run"),
    OwnedTable(AlertMute, "run"),
    OwnedTable(RunCommand, "run"),
    OwnedTable(AgUiRun, "run"),
    OwnedTable(AgentRunToolCall, "run"),
    OwnedTable(AgentRunMessage, "run"),
    OwnedTable(ExternalRun, "run"),
    OwnedTable(OtlpItem, "run"),
    OwnedTable(OtlpGroup, "run"),
    OwnedTable(FlowVisit, "flow_run"),
)
RUNS, FLOW_RUNS = OwnedTable(AgentRun, "log"), OwnedTable(FlowRun, "log")
#: In the order of deletion. Locked in reverse: a flow run before its runs, as by runs.flows.runner.
HEADS = (RUNS, FLOW_RUNS)
#: Notifications about runs are deleted when the runs are hidden, because they link to them and quote them.
NOTIFICATIONS = str(Notification._meta.db_table)
#: The columns of a run that are copied to its tombstone.
TOMBSTONE_FIELDS = ("project_id", "status", "source", "step_base", "step_count", "created_at", "completed_at")
#: The number of runs per query.
PAGE = 200
#: A removal in progress. It yields after each batch. Close it if you do not exhaust it.
Removal = Generator[None, None, None]
CHORE = "retention"
_ROWS: tuple[QuerySet[Any], ...] = (AgentRun.objects.all(), FlowRun.objects.all())
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
    #: The number of groups that contain an expired run but are kept, by reason.
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
    """Remove the groups that ended more than `report.days` days ago, and finish interrupted removals.

    Yields after each batch and counts the rows in `report`. Iteration may stop at any point; what was removed is then
    audited too.
    """
    try:
        yield from _finish_unfinished(report)
        if report.days is not None:
            before = _cutoff(report.days)
            for group in _due_groups(report, before):
                if _hide(group, report, before, by=by):
                    yield from _remove(group.run_ids[0], report)
    finally:
        if report.rows:
            details = {"older_than_days": report.days, "runs": report.runs, "rows": dict(report.rows)}
            record(by, RetentionAuditAction.RETENTION_APPLIED, project=report.project, after=details)


def daily() -> Removal:
    """Apply the retention of all projects, in batches. Does nothing if a process did so within the last day."""
    if not Chore.objects.take(CHORE, every=DAILY):
        return
    delete_expired()
    for project in Project.objects.order_by("pk"):
        with closing(apply(RemovalReport(project, project.retention_days), by=SYSTEM)) as removal:
            yield from removal


def delete_expired() -> None:
    """Delete expired sessions, idempotency keys, and old notifications, imports, counts and transcripts."""
    import_module(settings.SESSION_ENGINE).SessionStore.clear_expired()
    old_records.end_abandoned_imports()
    while delete_expired_keys() or notifications.forget_old() or old_records.delete_batch():
        pass
    while old_records.delete_transcripts():
        pass


def hold(run_id: UUID, *, reason: str, by: Actor) -> AgentRun:
    """Put a run on hold, so that retention keeps it and its group. Raises `RunNotFound`.

    If the run is on hold already, only an audit entry is added.
    """
    return _set_hold(run_id, timezone.now(), RetentionAuditAction.RUN_HELD, reason=reason, by=by)


def release(run_id: UUID, *, reason: str, by: Actor) -> AgentRun:
    """Release a run from hold. Raises `RunNotFound`."""
    return _set_hold(run_id, None, RetentionAuditAction.RUN_RELEASED, reason=reason, by=by)


def _set_hold(
    run_id: UUID, held_at: datetime | None, action: RetentionAuditAction, *, reason: str, by: Actor
) -> AgentRun:
    with transaction.atomic():
        # The removal locks the same row and checks again before it hides the run.
        rows = AgentRun.objects.select_for_update(no_key=True, of=("self",)).select_related("project")
        run = rows.filter(pk=run_id).first()
        if run is None:
            raise RunNotFound(f"no run {run_id}")
        before = run.held_at
        run.held_at = before if before is not None and held_at is not None else held_at
        run.save(update_fields=["held_at"])
        after = {"held_at": run.held_at, "reason": reason}
        record(by, action, project=run.project, obj=run, before={"held_at": before}, after=after)
    return run


# --- What is due ----------------------------------------------------------------------------------------------------


def _cutoff(days: int) -> datetime:
    return timezone.now() - timedelta(days=days)


def _due_groups(report: RemovalReport, before: datetime) -> Iterator[RunGroup]:
    """Yield the groups of the project to remove, oldest first, and count the ones that are kept."""
    root_ids: set[UUID] = set()
    old_runs = (_pages_of_old(rows.filter(project=report.project), before) for rows in _ROWS)
    for page in chain.from_iterable(old_runs):
        for group in run_groups_of(run_id for run_id in page if run_id not in root_ids):
            reason = group.reason_to_keep(report.project, before)
            # The runs of a group can be on several pages; it is counted once.
            root_ids.update(group.run_ids if len(group.members) > 1 else ())
            if reason is None:
                yield group
            else:
                report.kept_groups[reason] += 1


def _pages_of_old(rows: QuerySet[Any], before: datetime) -> Iterator[list[UUID]]:
    """Yield pages of runs or flow runs that ended before a time, oldest first, using the index for retention."""
    runs = rows.filter(completed_at__lt=before).order_by("completed_at", "pk")
    page = list(runs.values_list("completed_at", "pk")[:PAGE])
    while page:
        yield [run_id for _, run_id in page]
        if len(page) < PAGE:
            return
        time, run_id = page[-1]
        rest = runs.filter(completed_at__gte=time).exclude(completed_at=time, pk__lte=run_id)
        page = list(rest.values_list("completed_at", "pk")[:PAGE])


# --- The removal ----------------------------------------------------------------------------------------------------


def _hide(group: RunGroup, report: RemovalReport, before: datetime, *, by: Actor) -> bool:
    """Write the tombstones and hide the runs in one transaction. Return False if the group has changed."""
    with transaction.atomic():
        # Resume, fork, hold and spawn lock the row too. A change that was committed before is detected below.
        flow_runs = list(FlowRun.objects.select_for_update().filter(pk__in=group.run_ids).order_by("pk"))
        runs = AgentRun.objects.select_for_update().filter(pk__in=group.run_ids).order_by("pk")
        hidden: list[AgentRun | FlowRun] = [*flow_runs]
        hidden += list(runs.annotate(agent_name=KT("agent_config__agent_id")).only(*TOMBSTONE_FIELDS))
        current = run_groups_of(group.run_ids)
        if [each.run_ids for each in current] != [group.run_ids] or current[0].reason_to_keep(
            report.project, before
        ) is not None:
            return False
        notification_counts = notifications.forget_runs(group.run_ids)
        Tombstone.objects.bulk_create(_tombstone(run, group, report, by, notification_counts[run.pk]) for run in hidden)
        FlowRun.objects.filter(pk__in=group.run_ids).update(removed_at=Now())
        # The external ID can be reused.
        AgentRun.objects.filter(pk__in=group.run_ids).update(removed_at=Now(), external_id=None)
        for run in hidden:
            log.announce_run(run.project_id, run.pk)
    report.rows += Counter({NOTIFICATIONS: notification_counts.total()})
    return True


def _facts(run: AgentRun | FlowRun) -> dict[str, Any]:
    if isinstance(run, FlowRun):
        return {"flow_id": run.slug, "status": run.status}
    return {
        "agent_id": getattr(run, "agent_name", None),
        "status": run.status,
        "source": run.source,
        "steps": run.step_count - run.step_base,
    }


def _tombstone(
    run: AgentRun | FlowRun, group: RunGroup, report: RemovalReport, by: Actor, notification_count: int
) -> Tombstone:
    """Return the tombstone of a run or a flow run, without title and result, which are content."""
    return Tombstone(
        pk=run.pk,
        project_id=run.project_id,
        family=group.run_ids[0],
        facts=_facts(run),
        created_at=run.created_at,
        completed_at=run.completed_at,
        reason=f"it ended more than {report.days} {'day' if report.days == 1 else 'days'} ago",
        removed_by=by if isinstance(by, str) else by.actor,
        removed_at=timezone.now(),
        rows={NOTIFICATIONS: notification_count} if notification_count else {},
    )


def _finish_unfinished(report: RemovalReport) -> Removal:
    """Finish the removals that were interrupted."""
    unfinished = tombstones.unfinished_tombstones().filter(project=report.project).order_by("removed_at")
    for group in dict.fromkeys(unfinished.values_list("family", flat=True)):
        yield from _remove(group, report)


def _remove(group: UUID, report: RemovalReport) -> Removal:
    """Delete the rows of a hidden group in batches."""
    for run_id in list(
        tombstones.unfinished_tombstones().filter(family=group).order_by("pk").values_list("pk", flat=True)
    ):
        has_more = True
        while has_more:
            has_more, removed = tombstones.remove_batch(run_id, PARTS)
            report.rows += removed
            if removed:
                yield
    finished = False
    while not finished:
        finished, removed = tombstones.finish(group, PARTS, HEADS)
        report.rows += removed
        yield
