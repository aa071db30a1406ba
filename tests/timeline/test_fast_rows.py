"""Writing and reading rows without the ORM gives the same result as the ORM."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, models

from agentops.accounts.access import SYSTEM
from agentops.accounts.keys import create_key
from agentops.accounts.models import ApiKey, Project
from agentops.base.database.statements import insert, select, select_joined
from runs.models import AgentRun, RunError
from tests.support.factories import make_run

pytestmark = pytest.mark.django_db
AT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


class Text(str):
    """A subclass of str, such as members of enumerations."""


def columns(row: models.Model) -> dict[str, Any]:
    return {name: value for name, value in vars(row).items() if name not in ("_state", "id")}


@pytest.mark.parametrize("count", [1, 5])
def test_insert_writes_the_same_rows_as_the_orm(count: int) -> None:
    """Through INSERT and COPY; with subclasses of str and int, and with each character that COPY treats specially."""
    run = make_run()
    text = "tab\t line\n back\\slash \\N é \U0001f600"

    def rows() -> list[RunError]:
        values: dict[str, Any] = {"context": Text("runner"), "error_type": "e", "message": text, "details": ""}
        return [RunError(run_id=run.pk, step_number=7, attempt=True, created_at=AT, **values) for _ in range(count)]

    for row in rows():
        row.save()
    with connection.cursor() as cursor:
        insert(cursor, rows())

    written = [columns(row) for row in RunError.objects.order_by("pk")]
    assert len(written) == 2 * count
    assert written[0]["message"] == text
    assert all(row == written[0] for row in written)


def test_select_reads_the_same_rows_as_the_orm() -> None:
    """The instances can be changed and saved, and have their related objects."""
    run = make_run()
    project = run.project
    create_key(project, name="key", scopes=["read", "ingest"], actor=SYSTEM)

    [own] = select(AgentRun, "id = %s", [run.pk])
    assert columns(own) == columns(AgentRun.objects.get(pk=run.pk))
    assert own.project == project
    own.title = "changed"
    own.save()
    assert AgentRun.objects.get().title == "changed"
    assert select(AgentRun, "id = %s", [uuid4()]) == []

    tables = "projects_apikey JOIN projects_project ON projects_project.id = projects_apikey.project_id WHERE true"
    [(key, joined)] = select_joined((ApiKey, Project), tables, [])
    assert columns(key) == columns(ApiKey.objects.get())
    assert columns(joined) == columns(Project.objects.get(pk=project.pk))


def test_repeated_queries_are_planned_once() -> None:
    """PostgreSQL uses a prepared statement and still reads later changes; SQLite returns the same rows."""
    run = make_run()
    for number in range(8):
        AgentRun.objects.filter(pk=run.pk).update(title=f"title {number}")
        [found] = select(AgentRun, "agent_runs.id = %s", [run.pk])
        assert found.title == f"title {number}"
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%%agent_runs.id = $1'")
            assert cursor.fetchone() == (1,)
