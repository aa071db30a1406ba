"""Which of an agent's newest runs failed. In SQL, because the ORM has no list of the newest rows per group."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from django.db import connection

from agentops.projects.models import Project
from runs.alerts.rule_definition import MAX_RUNS
from runs.models import Agent


@dataclass(frozen=True)
class RecentOutcomes:
    """The newest runs of an agent that have a result, newest first: whether each failed."""

    agent_id: UUID
    project_id: UUID
    name: str
    failed: list[bool]


# Of each agent the newest runs by the index `run_of_agent`. A run that paused after an error failed too: with the
# default policies few runs have the status `failed`.
_SQL = """
SELECT a.id, a.project_id, a.slug, (
    SELECT {join}(n.outcome, '') FROM (
        SELECT CASE r.status WHEN 'completed' THEN 'c' ELSE 'f' END AS outcome FROM agent_runs r
        WHERE r.agent_id = a.id AND r.removed_at IS NULL AND r.source <> 'import'
            AND (r.status IN ('completed', 'failed')
                OR (r.status = 'paused' AND r.status_reason IN ('error', 'poison_step', 'engine_error')))
        ORDER BY r.created_at DESC LIMIT {limit}
    ) n
) FROM {agents} a WHERE a.project_id IN ({marks}) ORDER BY a.id"""


def recent_outcomes(project_ids: Collection[UUID]) -> list[RecentOutcomes]:
    """Return the outcomes of the agents of these projects, at most `MAX_RUNS` of each. One query."""
    join = "string_agg" if connection.vendor == "postgresql" else "group_concat"
    marks = ", ".join(["%s"] * len(project_ids))
    sql = _SQL.format(join=join, limit=MAX_RUNS, agents=Agent._meta.db_table, marks=marks)
    key = Project._meta.pk
    with connection.cursor() as cursor:
        cursor.execute(sql, [key.get_db_prep_value(each, connection) for each in project_ids])
        return [
            RecentOutcomes(
                key.to_python(agent_id), key.to_python(project_id), name, [each == "f" for each in text or ""]
            )
            for agent_id, project_id, name, text in cursor
        ]
