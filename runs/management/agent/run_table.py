"""A run as one row of a list on the command line."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from agentops.projects.access import SYSTEM, Action, project_for, scoped
from agentops.projects.management.base import OurCommand
from agentops.projects.models import Project
from runs.lifecycle.title_limits import MAX_TITLE
from runs.models import AgentRun
from runs.queries.durations import times_of, with_times
from timeline.preview import preview
from timeline.redaction.redact import DEFAULT as REDACTOR

PREVIEW = 280

Facts = dict[str, Any]


def ls(command: OurCommand, options: dict[str, Any]) -> None:
    project = project_for(SYSTEM, options["project"], Action.READ) if options["project"] is not None else None
    rows = [row_of(run) for run in _listed(project, options["status"])[: options["limit"]]]
    if options["json"]:
        command.write_json(rows)
        return
    headers = ["id", "project", "agent", "status", "reason", "steps", "created", "title"]
    width = 60 if command.stdout.isatty() else MAX_TITLE * 4
    command.write_table(headers, [_cells(row, width) for row in rows])


def row_of(run: AgentRun) -> Facts:
    """A run in a list. The caller has selected its project and its log with it."""
    times = times_of(run, timezone.now())
    return {
        "id": run.pk,
        "project": run.project.slug,
        "agent_id": run.agent_config.get("agent_id"),
        "title": shown(run.title),
        "status": run.status,
        "status_reason": run.status_reason,
        "step_count": run.step_count,
        "step_limit": run.step_limit(settings.AGENTOPS_MAX_TOTAL_STEPS),
        "labels": [shown(label) for label in run.labels],
        "created_at": run.created_at,
        "started_at": run.started_at,
        "completed_at": run.completed_at,
        "duration": None if times is None else times.worked_s,
        "waited": None if times is None else times.waited_s,
    }


def with_reason(facts: Facts) -> str:
    status, reason = facts["status"], facts["status_reason"]
    return f"{status} ({reason})" if reason else str(status)


def shown(text: str) -> str:
    """What a model or a person wrote, without secrets."""
    return REDACTOR.clean_text(text)[0]


def cut(text: str, limit: int = PREVIEW) -> str:
    kept, more = preview(text, limit)
    return f"{kept}…" if more else kept


def _listed(project: Project | None, statuses: list[str] | None) -> QuerySet[AgentRun]:
    runs = with_times(scoped(AgentRun.objects.select_related("project", "log"), SYSTEM))
    if statuses:
        runs = runs.filter(status__in=statuses)
    # Over all projects by id, which has an index of its own and is as old as the run.
    return runs.filter(project=project).order_by("-created_at", "-pk") if project else runs.order_by("-pk")


def _cells(row: Facts, width: int) -> list[object]:
    return [
        row["id"],
        row["project"],
        row["agent_id"],
        row["status"],
        row["status_reason"] or "-",
        f"{row['step_count']}/{row['step_limit']}",
        f"{row['created_at']:%Y-%m-%dT%H:%MZ}",
        cut(row["title"], width),
    ]
