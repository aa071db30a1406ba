"""The list of runs, and a single run: columns, tables, order and conditions.

The list omits columns that may be large. A single run has them.
"""

from __future__ import annotations

from uuid import UUID

from django.db import connection
from django.db.models import Q
from django.db.models.sql import Query

from runs.models import AgentRun
from runs.models.run import REMOTE
from runs.queries.json_columns import ANY, ARRAY, BOOLEAN, ELAPSED, ID, INTEGER, MONEY, OBJECT, TEXT, TIME, Column
from runs.queries.json_lists import Listing, Where, by_id, by_time, id_param
from runs.queries.run_trees import UNPRICED_CALLS

_RUNS = "agent_runs r JOIN timeline_log l ON l.id = r.id"
_ALIASES = {"agent_runs": "r", "timeline_log": "l"}
#: The name of the agent. A subquery per row is cheaper than planning a join with a third table.
_SLUG = "(SELECT a.slug FROM runs_agent a WHERE a.id = r.agent_id)"
_AGENT_NAME_SQLITE = "JSON_EXTRACT(r.agent_config, '$.agent_id')"
#: The end of a run, or its last event.
_LAST = "COALESCE(r.completed_at, l.last_event_at)"


def _sqlite_us(time: str) -> str:
    """Return SQL for a time of SQLite in microseconds. Sums of floats would have other digits than on PostgreSQL."""
    fraction = f"CAST(SUBSTR(SUBSTR({time}, 21) || '000000', 1, 6) AS INTEGER)"
    return f"(CAST(STRFTIME('%%s', SUBSTR({time}, 1, 19)) AS INTEGER) * 1000000 + {fraction})"


# The time for which workers held the run: the sum of its attempts. An open attempt counts up to the last event.
_HOLDS = "FROM agent_run_attempts h WHERE h.run_id = r.id"
_ATTEMPT_END = f"COALESCE(h.ended_at, GREATEST({_LAST}, h.claimed_at))"
_WORKED = f"(SELECT SUM(EXTRACT(epoch FROM {_ATTEMPT_END} - h.claimed_at)) {_HOLDS})"  # noqa: S608 - constants only
_ATTEMPT_END_SQLITE = _sqlite_us(f"COALESCE(h.ended_at, MAX({_LAST}, h.claimed_at))")
_WORKED_SQLITE = f"(SELECT SUM({_ATTEMPT_END_SQLITE} - {_sqlite_us('h.claimed_at')}) {_HOLDS})"
# The time from the start to the end. The clock of a runner may be ahead: a run cannot start after its last event.
_SPAN = f"EXTRACT(epoch FROM GREATEST({_LAST}, r.started_at) - r.started_at)"
_SPAN_SQLITE = f"({_sqlite_us(f'MAX({_LAST}, r.started_at)')} - {_sqlite_us('r.started_at')})"
DURATION = Column(
    "duration",
    ELAPSED,
    # At most the time of the run, because an attempt is closed slightly later than its run.
    f"LEAST(COALESCE({_WORKED}, {_SPAN}), {_SPAN})",
    "Seconds for which workers held the run, up to its last event. For external runs, from start to end.",
    f"MIN(COALESCE({_WORKED_SQLITE}, {_SPAN_SQLITE}), {_SPAN_SQLITE})",
    nullable=True,
)
#: The number of running runs, and whether the agent or the project of a run has reached its limit of them.
_RUNNING = "SELECT COUNT(*) FROM agent_runs p WHERE p.status = 'running' AND p.source = 'native'"
_IS_FULL = "EXISTS (SELECT 1 FROM {table} o WHERE o.id = r.{owner}_id AND o.max_running <= ({running}))"
_OF_PROJECT = f"{_RUNNING} AND p.project_id = r.project_id"
_AGENT_IS_FULL = _IS_FULL.format(
    table="runs_agent", owner="agent", running=f"{_OF_PROJECT} AND p.agent_id = r.agent_id"
)
_PROJECT_IS_FULL = _IS_FULL.format(table="projects_project", owner="project", running=_OF_PROJECT)
_LISTED = (
    Column("id", ID, "r.id"),
    Column(
        "agent_id",
        TEXT,
        f"COALESCE({_SLUG}, r.agent_config->>'agent_id')",
        "Name of the agent. For external runs, the name given by the runner.",
        sqlite=f"COALESCE({_SLUG}, {_AGENT_NAME_SQLITE})",
        nullable=True,
    ),
    Column("title", TEXT, "r.title"),
    Column("status", TEXT, "r.status"),
    Column("status_reason", TEXT, "r.status_reason", "Reason for waiting, pausing, failing or stopping, or empty."),
    Column(
        "waiting_for",
        TEXT,
        f"CASE WHEN r.status = 'queued' AND r.source = 'native' THEN CASE WHEN {_AGENT_IS_FULL} THEN 'agent'"
        f" WHEN {_PROJECT_IS_FULL} THEN 'project' END END",
        "`agent` or `project` if the run is queued because that has reached its limit of running runs.",
        nullable=True,
    ),
    Column(
        "source",
        TEXT,
        f"CASE WHEN r.code_version IS NULL OR r.is_packaged THEN r.source ELSE '{REMOTE}' END",
        "`native` if workers of this site execute it, `remote` if a process elsewhere does so under the control of this"
        " site; `external`, `import` or `otlp` if this site only records it.",
    ),
    Column("run_kind", TEXT, "r.run_kind"),
    Column("labels", ARRAY, "r.labels"),
    Column("parent_run_id", ID, "r.parent_run_id", "Parent run.", nullable=True),
    Column("root_run_id", ID, "r.root_run_id", "First run of the lineage. For that run, its own ID."),
    Column("resumed_from", ID, "r.resumed_from_id", "The run that this run resumes.", nullable=True),
    Column("step_count", INTEGER, "r.step_count", "Steps so far, counted over the lineage."),
    Column("max_steps", INTEGER, "r.max_steps", "Step limit of this run."),
    DURATION,
    Column("input_tokens", INTEGER, "r.input_tokens"),
    Column("output_tokens", INTEGER, "r.output_tokens"),
    Column("cost_usd", MONEY, "r.cost_usd", "Null if unknown.", nullable=True),
    Column(
        "unpriced_calls",
        INTEGER,
        "r.unpriced_calls",
        "Model calls whose cost is unknown. `cost_usd` is a lower bound if there are any.",
    ),
    Column("last_seq", INTEGER, "l.last_seq", "Number of events in the log."),
    Column("created_at", TIME, "r.created_at"),
    Column("started_at", TIME, "r.started_at", nullable=True),
    Column("completed_at", TIME, "r.completed_at", nullable=True),
    Column("last_event_at", TIME, "l.last_event_at", nullable=True),
)


def _count_column(name: str, table: str, where: str = "run_id = r.id") -> Column:
    return Column(name, INTEGER, f"(SELECT COUNT(*) FROM {table} WHERE {where})")  # noqa: S608 - constants only


def _tree_sql(expression: str) -> str:
    """Return SQL for an aggregate over a run and all runs below it (`b`)."""
    return (
        "(WITH RECURSIVE tree (id) AS (SELECT r.id UNION SELECT c.id FROM tree JOIN agent_runs c"  # noqa: S608
        " ON c.parent_run_id = tree.id WHERE c.removed_at IS NULL)"
        f" SELECT {expression} FROM tree JOIN agent_runs b ON b.id = tree.id)"
    )


_CHILD_COUNT = _count_column("child_count", "agent_runs", "parent_run_id = r.id AND removed_at IS NULL")
_TREE_NOTE = "Of this run and all runs below it."
#: The usage of a run and all runs below it.
_TOTALS = (
    Column("total_runs", INTEGER, _tree_sql("COUNT(*)"), "Number of runs in the tree below this run, with it."),
    Column("total_input_tokens", INTEGER, _tree_sql("SUM(b.input_tokens)"), _TREE_NOTE),
    Column("total_output_tokens", INTEGER, _tree_sql("SUM(b.output_tokens)"), _TREE_NOTE),
    Column(
        "total_cost_usd",
        MONEY,
        _tree_sql("SUM(b.cost_usd)"),
        "Known cost of this run and all runs below it. Null if none is known.",
        nullable=True,
    ),
    Column(
        "total_unpriced_runs",
        INTEGER,
        _tree_sql("COUNT(*) - COUNT(b.cost_usd)"),
        "Number of these runs whose cost is unknown.",
    ),
    Column(
        "total_unpriced_calls",
        INTEGER,
        _tree_sql(f"SUM({UNPRICED_CALLS.format(r='b')})"),
        "Model calls of these runs whose cost is unknown. `total_cost_usd` is a lower bound if there are any.",
    ),
)
_RUN = (
    *_LISTED,
    Column("project_id", ID, "r.project_id"),
    Column("queue", TEXT, "r.queue", "The queue from which workers take the run."),
    Column("priority", INTEGER, "r.priority", "Its priority in the queue, from 0, which comes first, to 9."),
    Column("code_version", INTEGER, "r.code_version", "Version of the code of a durable function.", nullable=True),
    Column("external_id", TEXT, "r.external_id", "The runner's own ID of the run.", nullable=True),
    Column(
        "silent_since",
        TIME,
        "(SELECT e.silent_since FROM agent_run_external e WHERE e.run_id = r.id AND r.status = 'running')",
        "Time of the last event of an external runner that has fallen silent. Nothing is done because of it.",
        nullable=True,
    ),
    Column("session_id", TEXT, "r.session_id"),
    Column("summary", TEXT, "r.summary"),
    Column("prompt", ANY, "r.prompt", "First user turn: a text, or a list of texts and media.", nullable=True),
    Column("result", TEXT, "r.result"),
    Column("structured_output", ANY, "r.structured_output", nullable=True),
    Column("error_type", TEXT, "r.error_type"),
    Column("error_message", TEXT, "r.error_message"),
    Column("agent_config", OBJECT, "r.agent_config", "The agent as it was when the run was created."),
    Column("step_base", INTEGER, "r.step_base", "Steps of the lineage before this run."),
    Column(
        "resumed_as",
        ID,
        "(SELECT s.id FROM agent_runs s WHERE s.resumed_from_id = r.id AND s.removed_at IS NULL)",
        "The run that resumes this run.",
        nullable=True,
    ),
    Column("starts_fresh", BOOLEAN, "r.starts_fresh", "True if it resumes another run without its messages."),
    Column("flow_run_id", ID, "r.flow_run_id", "The flow run that it executes a node of.", nullable=True),
    Column(
        "schedule_id", ID, "r.schedule_id", "The schedule that started it, or the run that it continues.", nullable=True
    ),
    Column("forked_from", ID, "r.forked_from_id", nullable=True),
    Column("forked_at_step", INTEGER, "r.forked_at_step", nullable=True),
    Column("cache_read_tokens", INTEGER, "r.cache_read_tokens"),
    Column("cache_write_tokens", INTEGER, "r.cache_write_tokens"),
    Column("cache_write_1h_tokens", INTEGER, "r.cache_write_1h_tokens", "Those written for one hour."),
    Column("reasoning_tokens", INTEGER, "r.reasoning_tokens"),
    Column("cost_source", TEXT, "r.cost_source", "`project`, `reported`, `computed` or `unknown`."),
    Column(
        "waited",
        ELAPSED,
        f"CASE WHEN r.started_at IS NOT NULL THEN GREATEST({_SPAN} - COALESCE({_WORKED}, {_SPAN}), 0.000000) END",
        "Seconds between start and end (or the last event) in which no worker held the run.",
        sqlite=f"MAX({_SPAN_SQLITE} - COALESCE({_WORKED_SQLITE}, {_SPAN_SQLITE}), 0)",
        nullable=True,
    ),
    Column("queued_at", TIME, "r.created_at", "Time at which the run was first queued."),
    Column(
        "requeued_at",
        TIME,
        "CASE WHEN r.status = 'queued' AND r.started_at IS NOT NULL THEN r.queued_at END",
        "Time at which a started run was queued again.",
        nullable=True,
    ),
    Column("not_before", TIME, "r.not_before", "Time at which a waiting run continues by itself.", nullable=True),
    _count_column("message_count", "agent_run_messages"),
    _count_column("tool_call_count", "agent_run_tool_calls"),
    _count_column("error_count", "agent_run_errors"),
    _CHILD_COUNT,
    *_TOTALS,
    Column("attempt_count", INTEGER, "r.lease_epoch", "Number of claims by workers."),
)
_NEWEST_FIRST = (by_time("r.created_at"), by_id("r.id"))
RUNS = Listing(_RUNS, _LISTED, _NEWEST_FIRST, descending=True)
CHILDREN = Listing(_RUNS, (*_LISTED, _CHILD_COUNT, *_TOTALS), _NEWEST_FIRST, descending=True)
RUN = Listing(_RUNS, _RUN, _NEWEST_FIRST, descending=True)


def runs_of(project_id: UUID) -> Where:
    """Return the condition for the runs of a project, without runs that are being removed."""
    return Where(("r.project_id = %s", "r.removed_at IS NULL"), (id_param(project_id),))


def where_of(condition: Q) -> Where:
    """Return a condition on runs, and on their logs, as SQL over the tables of these lists."""
    if not condition:
        return Where()
    query = Query(AgentRun)
    query.add_q(condition)
    query.change_aliases({table: _ALIASES[table] for table, uses in query.alias_refcount.items() if uses})
    sql, params = query.where.as_sql(query.get_compiler(connection=connection), connection)
    return Where((sql,), tuple(params))


def with_id(where: Where, name: str, value: UUID) -> Where:
    """Return `where` and the condition that a column of UUIDs has this value."""
    return where.also(f"{name} = %s", id_param(value))
