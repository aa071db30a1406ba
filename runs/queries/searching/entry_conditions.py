"""Conditions on the entries of the search index by their project and by the status of their runs.

In them, `e` is an entry, `r` its run and `f` its flow run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import connection

from runs.queries.json_lists import Where, id_param

#: Up to this many matching runs, SQLite compares the entries' run IDs with a list instead of reading the runs.
FEW_RUNS = 1000


def project_tag(project_id: UUID) -> str:
    """Return the tag of a project's entries."""
    return f"p{project_id}"


def of_project(project_id: UUID) -> Where:
    """Return the conditions for the entries of a project, without entries of runs that are being removed."""
    conditions = ("e.project_id = %s", "r.removed_at IS NULL", "f.removed_at IS NULL")
    return Where(conditions, (id_param(project_id),))


def with_status(where: Where, project_id: UUID, statuses: Sequence[str]) -> Where:
    """Filter by the status of the run or flow run: any of `statuses`. Two statements."""
    marks = ", ".join(["%s"] * len(statuses))

    def ids_in(table: str, limit: int) -> list[Any]:
        statement = f"SELECT id FROM {table} WHERE project_id = %s AND status IN ({marks}) LIMIT {limit}"  # noqa: S608 - constants only
        with connection.cursor() as cursor:
            cursor.execute(statement, [id_param(project_id), *statuses])
            return [row_id for (row_id,) in cursor.fetchall()]

    is_sqlite = connection.vendor == "sqlite"
    run_ids, has_flow_runs = ids_in("agent_runs", FEW_RUNS + 1 if is_sqlite else 1), bool(ids_in("flow_runs", 1))
    if not run_ids and not has_flow_runs:
        return where.also("FALSE")
    if is_sqlite and len(run_ids) <= FEW_RUNS:
        # SQLite reads the texts before the runs, so it compares the IDs first. Flow runs have only event entries.
        is_event = "e.kind = 'event'" if has_flow_runs else "FALSE"
        where = where.also(f"(+e.run_id IN (SELECT value FROM JSON_EACH(%s)) OR {is_event})", json.dumps(run_ids))  # noqa: S608 - constants only
    # Without flow runs, PostgreSQL can start from the runs, if few have the status.
    status = "COALESCE(r.status, f.status)" if has_flow_runs else "r.status"
    return where.also(f"{status} IN ({marks})", *statuses)
