"""Runs that ended long ago, and the rows that remain of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db import connection
from django.utils import timezone

from agentops.accounts.models import Project
from runs.actions.resume import resume
from runs.lifecycle import inbox
from runs.models import Agent, AgentRun
from runs.statuses import RunStatus
from runs.upkeep import retention
from runs.upkeep.retention import RemovalReport
from tests.support.factories import drive, make_run

BY = "cli:test"


def aged(run: AgentRun, days: float) -> AgentRun:
    """Change the run as if it had ended this many days ago. Stop it first if it is not over."""
    if not AgentRun.objects.get(pk=run.pk).state.terminal:
        inbox.stop(run.pk, by="test")
    AgentRun.objects.filter(pk=run.pk).update(completed_at=timezone.now() - timedelta(days=days))
    run.refresh_from_db()
    return run


def lineage(agent: Agent, *, length: int = 3) -> list[AgentRun]:
    """Create runs that each resume the previous run. The last run is stopped; the others are `resumed`."""
    runs = [make_run(agent)]
    for _ in range(length - 1):
        inbox.pause(runs[-1].pk, by="test")
        runs.append(resume(runs[-1].pk, by="test").run)
    inbox.stop(runs[-1].pk, by="test")
    return runs


def paused_half_way(agent: Agent) -> AgentRun:
    """Create a run that has made steps and is paused at its budget."""
    run = drive(make_run(agent, max_steps=2))
    assert run.status == RunStatus.PAUSED
    return run


def apply(project: Project, days: int | None = 90) -> RemovalReport:
    """Apply retention to the end, and return its report."""
    done = RemovalReport(project, days)
    for _ in retention.apply(done, by=BY):
        pass
    return done


def there(*runs: AgentRun) -> list[bool]:
    return [AgentRun.objects.filter(pk=run.pk).exists() for run in runs]


def rows_of(run_id: UUID) -> dict[str, int]:
    """Return the rows that contain this ID in any column, by table, without its tombstone and the audit log."""
    found = {}
    for model in apps.get_models(include_auto_created=True):
        table = model._meta.db_table
        if table in ("timeline_tombstone", "projects_auditentry"):
            continue
        keys = [field.attname for field in model._meta.concrete_fields if _is_uuid(field)]
        count = sum(model._base_manager.filter(**{key: run_id}).count() for key in keys)
        if count:
            found[table] = count
    return found


def _is_uuid(field: Any) -> bool:
    while field.remote_field is not None and hasattr(field, "target_field"):
        field = field.target_field
    return bool(field.get_internal_type() == "UUIDField")


def cells_with(text: str) -> list[str]:
    """Return the tables and columns that contain this text, in any representation that the database returns."""
    found = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            names = [column.name for column in connection.introspection.get_table_description(cursor, table)]
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            for row in cursor.fetchall():
                cells = zip(names, row, strict=True)
                found += [f"{table}.{name}" for name, cell in cells if text in str(cell)]
    return sorted(set(found))
