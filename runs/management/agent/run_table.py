"""`agentops agent ls`: list runs."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from agentops.accounts.access import SYSTEM, Action, project_for, visible_rows
from agentops.accounts.management.base import AgentopsCommand
from agentops.accounts.models import Project
from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.lifecycle.title_limits import MAX_TITLE
from runs.models import AgentRun
from runs.queries.durations import times_of, with_times
from runs.queries.place_waits import PlaceWait, place_waits
from runs.statuses import RunStatus
from timeline.preview import preview
from timeline.reasons import reason_label

PREVIEW = 280

Facts = dict[str, Any]


def ls(command: AgentopsCommand, options: dict[str, Any]) -> None:
    project = project_for(SYSTEM, options["project"], Action.READ) if options["project"] is not None else None
    runs = list(_listed_runs(project, options["status"])[: options["limit"]])
    waits = place_waits([run.pk for run in runs if run.state is RunStatus.QUEUED])
    if options["json"]:
        kinds = {run_id: wait.kind for run_id, wait in waits.items()}
        command.write_json([row_of(run) | {"waiting_for": kinds.get(run.pk)} for run in runs])
        return
    headers = ["id", "project", "agent", "status", "reason", "steps", "created", "title"]
    rows = [(row_of(run), waits.get(run.pk)) for run in runs]
    command.write_table(headers, [_cells(row, place, for_people=command.stdout.isatty()) for row, place in rows])


def row_of(run: AgentRun) -> Facts:
    """Return the facts of a run for a list. The caller must select its project and log."""
    times = times_of(run, database_clock.now())
    # An external run has no step limit here.
    step_limit = run.step_limit(settings.AGENTOPS_MAX_TOTAL_STEPS) if run.source == AgentRun.Source.NATIVE else None
    return {
        "id": run.pk,
        "project": run.project.slug,
        "agent_id": run.agent_config.get("agent_id"),
        "title": redacted(run.title),
        "status": run.status,
        "status_reason": run.status_reason,
        "step_count": run.step_count,
        "step_limit": step_limit,
        "labels": [redacted(label) for label in run.labels],
        "created_at": run.created_at,
        "started_at": run.started_at,
        "completed_at": run.completed_at,
        "duration": None if times is None else times.worked_s,
        "waited": None if times is None else times.waited_s,
    }


def with_reason(facts: Facts) -> str:
    status, reason = facts["status"], facts["status_reason"]
    return f"{status} ({reason_label(reason)})" if reason else str(status)


def steps_text(facts: Facts) -> str:
    """Return the steps of a run, and its limit if it has one."""
    count, limit = facts["step_count"], facts["step_limit"]
    return str(count) if limit is None else f"{count}/{limit}"


def redacted(text: str) -> str:
    """Return a text of a model or a person with its secrets redacted."""
    return REDACTOR.clean_text(text)[0]


def shorten(text: str, limit: int = PREVIEW) -> str:
    head, is_truncated = preview(text, limit)
    return f"{head}…" if is_truncated else head


def _listed_runs(project: Project | None, statuses: list[str] | None) -> QuerySet[AgentRun]:
    runs = with_times(visible_rows(AgentRun.objects.select_related("project", "log"), SYSTEM))
    if statuses:
        runs = runs.filter(status__in=statuses)
    # Across all projects, order by ID: it is indexed, and IDs ascend with creation time.
    return runs.filter(project=project).order_by("-created_at", "-pk") if project else runs.order_by("-pk")


def _cells(row: Facts, place: PlaceWait | None, *, for_people: bool) -> list[object]:
    """Return the cells of a row. Pipes get the reason code and the whole title."""
    reason = reason_label(row["status_reason"]) if for_people else row["status_reason"]
    if place is not None and for_people:
        reason = str(place)
    return [
        row["id"],
        row["project"],
        row["agent_id"],
        row["status"],
        reason or "-",
        steps_text(row),
        f"{row['created_at']:%Y-%m-%dT%H:%MZ}",
        shorten(row["title"], 60 if for_people else MAX_TITLE * 4),
    ]
