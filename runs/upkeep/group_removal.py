"""The removal of run groups: hides a group, leaves tombstones, and deletes its rows in batches.

A removal has two phases. First, one transaction writes the tombstones of a group and hides its runs (see RunManager).
Then the rows are deleted in batches. If the process dies in between, the group stays hidden and the next removal
finishes it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models.fields.json import KT

from agentops.accounts import notifications
from agentops.accounts.models import Notification, Project
from agentops.base import database_clock
from agentops.base.database_clock import Now
from runs import models
from runs.database_errors import concerns_all
from runs.models import AgentRun, FlowRun, ReportedCall
from runs.upkeep.run_groups import RunGroup, run_groups_of
from timeline import log, tombstones
from timeline.models import Tombstone
from timeline.tombstones import EVENTS, OwnedTable

logger = logging.getLogger(__name__)
#: The tables of a run's rows, in the order of deletion: tool calls and requests of AG-UI clients refer to messages.
PARTS = (
    OwnedTable(models.SearchEntry, "log"),
    EVENTS,
    OwnedTable(models.Checkpoint, "run"),
    OwnedTable(models.Attempt, "run"),
    OwnedTable(models.CliSession, "run"),
    OwnedTable(models.TurnUsage, "run"),
    OwnedTable(models.ReportedCall, "run"),
    OwnedTable(models.RunError, "run"),
    OwnedTable(models.RunNote, "run"),
    OwnedTable(models.ShareLink, "run"),
    OwnedTable(models.Approval, "run"),
    OwnedTable(models.AlertFinding, "run"),
    OwnedTable(models.AlertFinding, "flow_run"),
    OwnedTable(models.AlertMute, "run"),
    OwnedTable(models.RunCommand, "run"),
    OwnedTable(models.AgUiRun, "run"),
    OwnedTable(models.GraphValue, "run"),
    OwnedTable(models.RemoteStepPiece, "run"),
    OwnedTable(models.RemoteStep, "run"),
    OwnedTable(models.AgentRunToolCall, "run"),
    OwnedTable(models.AgentRunMessage, "run"),
    OwnedTable(models.ExternalRun, "run"),
    OwnedTable(models.OtlpItem, "run"),
    OwnedTable(models.OtlpGroup, "run"),
    OwnedTable(models.FlowVisit, "flow_run"),
)
RUNS, FLOW_RUNS = OwnedTable(models.AgentRun, "log"), OwnedTable(models.FlowRun, "log")
#: In the order of deletion. Locks are taken in reverse order: a flow run before its runs, as in runs.flows.runner.
HEADS = (RUNS, FLOW_RUNS)
#: Notifications about runs are deleted when the runs are hidden, because they link to them and quote them.
NOTIFICATIONS = str(Notification._meta.db_table)
#: The columns of a run that are copied to its tombstone.
TOMBSTONE_FIELDS = (
    *("project_id", "status", "source", "code_version", "is_packaged", "step_base", "step_count"),
    *("created_at", "completed_at"),
)
#: A removal in progress. It yields after each batch. The caller exhausts it or closes it.
Removal = Generator[None, None, None]
RunOrFlowRun = AgentRun | FlowRun


@dataclass(frozen=True)
class RemovalRule:
    """The reason, actor and condition of a removal."""

    #: The reason in the tombstones.
    reason: str
    #: The actor, in the form of the audit log.
    by: str
    #: Returns whether a group may be removed. Called with the group and its runs, whose rows are locked.
    may_remove: Callable[[RunGroup, Sequence[RunOrFlowRun]], bool]


def hide_group(group: RunGroup, rule: RemovalRule, rows: Counter[str]) -> bool:
    """Write the tombstones of a group and hide its runs, in one transaction.

    Returns False, and changes nothing, if the group has changed or may not be removed. Deletes the notifications about
    the runs, and adds their number to `rows`.
    """
    with transaction.atomic():
        # Resume, fork, hold and spawn lock these rows too. A change committed earlier is detected below.
        flow_runs = list(FlowRun.objects.select_for_update().filter(pk__in=group.run_ids).order_by("pk"))
        runs = AgentRun.objects.select_for_update().filter(pk__in=group.run_ids).order_by("pk")
        members: list[RunOrFlowRun] = [*flow_runs]
        members += list(runs.annotate(agent_name=KT("agent_config__agent_id")).only(*TOMBSTONE_FIELDS))
        current = run_groups_of(group.run_ids)
        if [each.run_ids for each in current] != [group.run_ids] or not rule.may_remove(current[0], members):
            return False
        notification_counts = notifications.forget_runs(group.run_ids)
        Tombstone.objects.bulk_create(_tombstone(run, group, rule, notification_counts[run.pk]) for run in members)
        FlowRun.objects.filter(pk__in=group.run_ids).update(removed_at=Now())
        # The external ID can be reused, and the calls may be reported again.
        ReportedCall.objects.filter(run__in=group.run_ids).delete()
        AgentRun.objects.filter(pk__in=group.run_ids).update(removed_at=Now(), external_id=None)
        for run in members:
            log.announce_run(run.project_id, run.pk)
    rows += Counter({NOTIFICATIONS: notification_counts.total()})
    return True


def finish_interrupted(project: Project, rows: Counter[str]) -> Removal:
    """Finish the interrupted removals of a project, oldest first, and add the deleted rows to `rows`."""
    unfinished = tombstones.unfinished_tombstones().filter(project=project).order_by("removed_at")
    for group_id in dict.fromkeys(unfinished.values_list("family", flat=True)):
        yield from isolated(remove_group(group_id, rows), group=str(group_id))


def hide_and_remove(group: RunGroup, rule: RemovalRule, rows: Counter[str]) -> Removal:
    """Hide a group and delete its rows, unless it has changed or may not be removed. Logs an error: see `isolated`."""

    def steps() -> Removal:
        if hide_group(group, rule, rows):
            yield from remove_group(group.run_ids[0], rows)

    yield from isolated(steps(), group=str(group.run_ids[0]))


def isolated(removal: Removal, **log_fields: str) -> Removal:
    """Yield the batches of one removal among many. Logs its error, so that it does not block the other removals.

    Raises errors that affect all removals, such as an unavailable database.
    """
    try:
        yield from removal
    except Exception as error:
        if concerns_all(error):
            raise
        logger.exception("a removal failed; the next one tries it again", extra=log_fields)


def remove_group(group_id: UUID, rows: Counter[str]) -> Removal:
    """Delete the rows of a hidden group in batches, and add them to `rows`. `group_id`: the lowest ID of its runs.

    Most groups are small: their first batch is also the last.
    """
    finished, removed = tombstones.finish(group_id, PARTS, HEADS)
    rows += removed
    yield
    if not finished:
        yield from _remove_rows(group_id, rows)
    while not finished:
        finished, removed = tombstones.finish(group_id, PARTS, HEADS)
        rows += removed
        yield


def _remove_rows(group_id: UUID, rows: Counter[str]) -> Removal:
    """Delete the rows of each run of a large group, without locking rows for long."""
    unfinished = tombstones.unfinished_tombstones().filter(family=group_id).order_by("pk")
    for run_id in list(unfinished.values_list("pk", flat=True)):
        has_more = True
        while has_more:
            has_more, removed = tombstones.remove_batch(run_id, PARTS)
            rows += removed
            if removed:
                yield


def _facts(run: RunOrFlowRun) -> dict[str, Any]:
    """Return what the tombstone says about a run: neither its title nor its result, because these are content."""
    if isinstance(run, FlowRun):
        return {"flow_id": run.slug, "status": run.status}
    return {
        "agent_id": getattr(run, "agent_name", None),
        "status": run.status,
        "source": run.source_name,
        "steps": run.step_count - run.step_base,
    }


def _tombstone(run: RunOrFlowRun, group: RunGroup, rule: RemovalRule, notification_count: int) -> Tombstone:
    return Tombstone(
        pk=run.pk,
        project_id=run.project_id,
        family=group.run_ids[0],
        facts=_facts(run),
        created_at=run.created_at,
        completed_at=run.completed_at,
        reason=rule.reason,
        removed_by=rule.by,
        removed_at=database_clock.now(),
        rows={NOTIFICATIONS: notification_count} if notification_count else {},
    )
