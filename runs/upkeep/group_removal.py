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
from runs.database_errors import concerns_all
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
    CliSession,
    ExternalRun,
    FlowRun,
    FlowVisit,
    OtlpGroup,
    OtlpItem,
    ReportedCall,
    RunCommand,
    RunError,
    RunNote,
    SearchEntry,
    ShareLink,
    TurnUsage,
)
from runs.upkeep.run_groups import RunGroup, run_groups_of
from timeline import log, tombstones
from timeline.models import Tombstone
from timeline.tombstones import EVENTS, OwnedTable

logger = logging.getLogger(__name__)
#: The tables of a run's rows, in the order of deletion: tool calls and requests of AG-UI clients refer to messages.
PARTS = (
    OwnedTable(SearchEntry, "log"),
    EVENTS,
    OwnedTable(Checkpoint, "run"),
    OwnedTable(Attempt, "run"),
    OwnedTable(CliSession, "run"),
    OwnedTable(TurnUsage, "run"),
    OwnedTable(ReportedCall, "run"),
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
#: In the order of deletion. Locks are taken in reverse order: a flow run before its runs, as in runs.flows.runner.
HEADS = (RUNS, FLOW_RUNS)
#: Notifications about runs are deleted when the runs are hidden, because they link to them and quote them.
NOTIFICATIONS = str(Notification._meta.db_table)
#: The columns of a run that are copied to its tombstone.
TOMBSTONE_FIELDS = ("project_id", "status", "source", "step_base", "step_count", "created_at", "completed_at")
#: A removal in progress. It yields after each batch. Close it if you do not exhaust it.
Removal = Generator[None, None, None]
#: A run or a flow run, with the columns of its tombstone.
Hidden = AgentRun | FlowRun


@dataclass(frozen=True)
class Removing:
    """The reason, actor and condition of a removal."""

    #: The reason in the tombstones.
    reason: str
    #: The actor, in the form of the audit log.
    by: str
    #: Returns whether a group may be removed. Its rows are locked.
    may_remove: Callable[[RunGroup, Sequence[Hidden]], bool]


def hide_group(group: RunGroup, why: Removing, rows: Counter[str]) -> bool:
    """Write the tombstones and hide the runs in one transaction. Return False if the group has changed.

    Notifications of the runs are deleted, and counted in `rows`.
    """
    with transaction.atomic():
        # Resume, fork, hold and spawn lock these rows too. A change committed earlier is detected below.
        flow_runs = list(FlowRun.objects.select_for_update().filter(pk__in=group.run_ids).order_by("pk"))
        runs = AgentRun.objects.select_for_update().filter(pk__in=group.run_ids).order_by("pk")
        hidden: list[Hidden] = [*flow_runs]
        hidden += list(runs.annotate(agent_name=KT("agent_config__agent_id")).only(*TOMBSTONE_FIELDS))
        current = run_groups_of(group.run_ids)
        if [each.run_ids for each in current] != [group.run_ids] or not why.may_remove(current[0], hidden):
            return False
        notification_counts = notifications.forget_runs(group.run_ids)
        Tombstone.objects.bulk_create(_tombstone(run, group, why, notification_counts[run.pk]) for run in hidden)
        FlowRun.objects.filter(pk__in=group.run_ids).update(removed_at=Now())
        # The external ID can be reused, and the calls may be reported again.
        ReportedCall.objects.filter(run__in=group.run_ids).delete()
        AgentRun.objects.filter(pk__in=group.run_ids).update(removed_at=Now(), external_id=None)
        for run in hidden:
            log.announce_run(run.project_id, run.pk)
    rows += Counter({NOTIFICATIONS: notification_counts.total()})
    return True


def finish_unfinished(project: Project, rows: Counter[str]) -> Removal:
    """Finish the removals of a project that were interrupted."""
    unfinished = tombstones.unfinished_tombstones().filter(project=project).order_by("removed_at")
    for family in dict.fromkeys(unfinished.values_list("family", flat=True)):
        yield from alone(remove_group(family, rows), group=str(family))


def hide_and_remove(group: RunGroup, why: Removing, rows: Counter[str]) -> Removal:
    """Hide a group and delete its rows, unless it has changed. An error is logged: see `alone`."""

    def steps() -> Removal:
        if hide_group(group, why, rows):
            yield from remove_group(group.run_ids[0], rows)

    yield from alone(steps(), group=str(group.run_ids[0]))


def alone(removal: Removal, **facts: str) -> Removal:
    """Yield the batches of one removal among many. Logs its error, so that it does not block the other removals.

    Raises errors that affect all removals.
    """
    try:
        yield from removal
    except Exception as error:
        if concerns_all(error):
            raise
        logger.exception("a removal failed; the next one tries it again", extra=facts)


def remove_group(family: UUID, rows: Counter[str]) -> Removal:
    """Delete the rows of a hidden group in batches, and count them in `rows`.

    Most groups are small: their first batch is also the last.
    """
    finished, removed = tombstones.finish(family, PARTS, HEADS)
    rows += removed
    yield
    if not finished:
        yield from _remove_rows(family, rows)
    while not finished:
        finished, removed = tombstones.finish(family, PARTS, HEADS)
        rows += removed
        yield


def _remove_rows(family: UUID, rows: Counter[str]) -> Removal:
    """Delete the rows of each run of a large group, without locking rows for long."""
    for run_id in list(
        tombstones.unfinished_tombstones().filter(family=family).order_by("pk").values_list("pk", flat=True)
    ):
        has_more = True
        while has_more:
            has_more, removed = tombstones.remove_batch(run_id, PARTS)
            rows += removed
            if removed:
                yield


def _facts(run: Hidden) -> dict[str, Any]:
    if isinstance(run, FlowRun):
        return {"flow_id": run.slug, "status": run.status}
    return {
        "agent_id": getattr(run, "agent_name", None),
        "status": run.status,
        "source": run.source,
        "steps": run.step_count - run.step_base,
    }


def _tombstone(run: Hidden, group: RunGroup, why: Removing, notification_count: int) -> Tombstone:
    """Return the tombstone of a run or a flow run, without title and result, which are content."""
    return Tombstone(
        pk=run.pk,
        project_id=run.project_id,
        family=group.run_ids[0],
        facts=_facts(run),
        created_at=run.created_at,
        completed_at=run.completed_at,
        reason=why.reason,
        removed_by=why.by,
        removed_at=database_clock.now(),
        rows={NOTIFICATIONS: notification_count} if notification_count else {},
    )
