"""Delete a project permanently: preview it, check whether it is allowed, and request it. Workers carry it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import QuerySet, Sum

from agentops.accounts.audit import Actor
from agentops.accounts.errors import NotArchivable, NotConfirmed, ProjectNotFound
from agentops.accounts.memberships import hide_project
from agentops.accounts.models import ApiKey, Membership, Project
from agentops.base.refusals import Conflict
from runs.actions.archiving import refuse_in_progress
from runs.models import Agent, AgentRun, AlertRule, ClaudeTranscript, FileImport, Flow, FlowRun, Schedule, Sink
from timeline.models import Log

#: The objects of a project that users know, in display order. The events of runs are counted separately.
_COUNTED: dict[str, QuerySet[Any]] = {
    "runs": AgentRun.objects.all(),
    "flow_runs": FlowRun.objects.all(),
    "agents": Agent.objects.all(),
    "flows": Flow.objects.all(),
    "members": Membership.objects.all(),
    "api_keys": ApiKey.objects.all(),
    "sinks": Sink.objects.all(),
    "alert_rules": AlertRule.objects.all(),
    "schedules": Schedule.objects.all(),
    "imports": FileImport.objects.all(),
    "transcripts": ClaudeTranscript.objects.all(),
}
EVENTS = "events"


@dataclass(frozen=True)
class DeletionPreview:
    """The objects that the deletion of a project would delete, and the reason for a refusal, if any."""

    counts: dict[str, int]
    refusal: Conflict | None


def preview(project: Project) -> DeletionPreview:
    """Return the preview of a deletion. One query for each count."""
    return DeletionPreview(_counts(project), _refusal(project))


def delete_project(project: Project, *, confirmation: str, by: Actor) -> dict[str, int]:
    """Hide a project, so that workers delete it, and return its counts. The caller checks Action.MANAGE.

    It cannot be undone. `confirmation` must be the slug. Raise NotConfirmed, `project_not_archived`, `runs_on_hold`,
    `imports_in_progress`, or NotArchivable while runs are in progress.
    """
    if confirmation != project.slug:
        raise NotConfirmed(f"to confirm, enter the slug {project.slug}")
    with transaction.atomic():
        # Not NO KEY: it waits for transactions that have just added a run, which the checks below then see.
        locked = Project.objects.select_for_update().filter(pk=project.pk).first()
        if locked is None:
            raise ProjectNotFound
        if (refusal := _refusal(locked)) is not None:
            raise refusal
        counts = _counts(locked)
        hide_project(locked, actor=by, found=counts)
    return counts


def _refusal(project: Project) -> Conflict | None:
    if project.archived_at is None:
        return Conflict("only an archived project can be deleted: archive it first", code="project_not_archived")
    try:
        refuse_in_progress(project)
    except NotArchivable as refusal:
        return refusal
    held = AgentRun.objects.filter(project=project, held_at__isnull=False)
    if count := held.count():
        one_or_more = "1 run is" if count == 1 else f"{count} runs are"
        return Conflict(f"{one_or_more} on hold: `agentops retention release` releases one", code="runs_on_hold")
    return (
        Conflict("files are being imported: wait until their imports end", code="imports_in_progress")
        if FileImport.objects.unfinished().filter(project=project).exists()
        else None
    )


def _counts(project: Project) -> dict[str, int]:
    events = Log.objects.filter(project=project).aggregate(events=Sum("last_seq"))["events"] or 0
    counts = {name: rows.filter(project=project).order_by().count() for name, rows in _COUNTED.items()}
    runs = {name: counts.pop(name) for name in ("runs", "flow_runs")}
    return {**runs, EVENTS: events, **counts}
