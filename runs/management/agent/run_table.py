"""`agentops run ls`: list runs; and functions that several commands use to print a run."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.management.base import CommandError
from django.db.models import QuerySet

from agentops.accounts import terminal
from agentops.accounts.access import SYSTEM, Action, visible_rows
from agentops.accounts.command_base import EXIT_NOT_COMPLETED, AgentopsCommand, printable
from agentops.accounts.current_project import project_filter
from agentops.accounts.models import Project
from agentops.accounts.terminal import When
from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.lifecycle.title_limits import MAX_TITLE
from runs.management.agent import redraw
from runs.management.agent.options import NEWEST_RUNS
from runs.management.agent.redraw import WatchFrame
from runs.models import AgentRun
from runs.queries.durations import PlaceWait, place_waits, times_of, with_times
from runs.statuses import RunStatus
from timeline.display import preview
from timeline.reasons import reason_label

#: Maximum bytes of a shortened text.
PREVIEW = 280

#: The columns of the list of runs.
HEADERS = ("id", "project", "agent", "status", "reason", "steps", "created", "title")

#: The members of a JSON object about a run, a message or a call.
Facts = dict[str, Any]


def ls(command: AgentopsCommand, options: dict[str, Any]) -> None:
    project = project_filter(options, Action.READ)
    if options.get("watch"):
        # As many as fit, below the header and above the cursor.
        limit = max(min(options["limit"] or NEWEST_RUNS, terminal.size()[1] - 2), 1)
        redraw.redraw(command, options, lambda: WatchFrame(_drawn(command, project, options["status"], limit)))
        return
    runs = list(_listed_runs(project, options["status"])[: options["limit"] or NEWEST_RUNS])
    if options["json"]:
        kinds = {run_id: wait.kind for run_id, wait in _waits(runs).items()}
        command.write_json([row_of(run) | {"waiting_for": kinds.get(run.pk)} for run in runs])
    elif command.stdout.isatty():
        command.stdout.write(_table(command, runs, project), ending="")
    else:
        command.write_table(HEADERS, [_cells(row_of(run), None, is_terminal=False) for run in runs])


def _drawn(command: AgentopsCommand, project: Project | None, statuses: list[str] | None, limit: int) -> str:
    return _table(command, list(_listed_runs(project, statuses)[:limit]), project)


def _table(command: AgentopsCommand, runs: list[AgentRun], project: Project | None) -> str:
    """Return the list for a terminal. The project is in it only if several projects are listed."""
    if not runs:
        return "no runs; start one with `agentops run start AGENT_ID`\n"
    waits = _waits(runs)
    rows = [_cells(row_of(run), waits.get(run.pk), is_terminal=True) for run in runs]
    if project is not None:
        rows = [[*row[:1], "", *row[2:]] for row in rows]
    return command.table(HEADERS, rows, optional=("steps", "project", "reason"))


def _waits(runs: list[AgentRun]) -> dict[UUID, PlaceWait]:
    return place_waits([run.pk for run in runs if run.state is RunStatus.QUEUED])


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
    """Return the status, with the phrase for its reason in parentheses."""
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


def _cells(row: Facts, wait: PlaceWait | None, *, is_terminal: bool) -> list[object]:
    """Return the cells of a row. Programs get the reason code and the whole title."""
    reason = row["status_reason"]
    if is_terminal:
        reason = reason_label(reason) if wait is None else str(wait)
    return [
        row["id"],
        row["project"],
        row["agent_id"],
        row["status"],
        reason or "-",
        steps_text(row),
        When(row["created_at"], "%Y-%m-%dT%H:%MZ"),
        shorten(row["title"], MAX_TITLE * 4),
    ]


def refresh(run: AgentRun) -> AgentRun:
    """Reload the columns that change while a run is executed, and return the run."""
    run.refresh_from_db(fields=["status", "status_reason", "step_count", "started_at", "completed_at", "error_message"])
    return run


def require_completed(run: AgentRun) -> None:
    """Raise `CommandError` with exit code 1 unless the run has completed."""
    if run.state is RunStatus.COMPLETED:
        return
    cause = f": {shorten(redacted(run.error_message))}" if run.error_message else ""
    if run.state is RunStatus.RESUMED:
        cause = f"; continued by {AgentRun.objects.get(resumed_from=run).pk}"
    raise CommandError(printable(f"the run is {with_reason(row_of(run))}{cause}"), returncode=EXIT_NOT_COMPLETED)
