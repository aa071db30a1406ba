"""Generates a project with many runs, and one run with as many events, in SQL.

Import it after `workspace.prepare_workspace` has set up Django, because it imports the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from bench.workspace import Workspace, vacuum

#: Events of a step (bench/long_run.py, which needs Django set up).
PER_STEP = 10
#: Seconds between two runs.
APART_S = 5
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)

#: Statements for runs `first` to `last`, formatted with ID and AT. bench.growth_rows uses them too.
LOGS = """
INSERT INTO timeline_log (id, project_id, last_seq, epoch, last_event_at, created_at)
SELECT {id}, %(project)s, 40, 1, {at} + interval '95 s', {at} FROM generate_series(%(first)s::int, %(last)s::int) n"""
RUNS = """
INSERT INTO agent_runs (id, project_id, agent_id, agent_config, root_run_id, starts_fresh, status, status_reason,
    run_kind, source, title, summary, prompt, result, session_id, step_base, step_count, max_steps, input_tokens,
    output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_usd, cost_source, error_type,
    error_message, lease_epoch, created_at, queued_at, started_at, completed_at, labels)
SELECT {id}, %(project)s, %(agent)s,
    jsonb_build_object('agent_id', 'bench', 'provider', 'fixture', 'model', 'm',
        'instructions', repeat('Be exact. ', 60)),
    {id}, false, CASE WHEN n %% 10 = 0 THEN 'failed' ELSE 'completed' END, '', 'session', 'native',
    'Look into ticket number ' || n || ' and say what to do', '', to_jsonb(repeat('What went wrong here? ', 20)),
    repeat('It was the cache. ', 20), '', 0, n %% 50 + 1, 50, n %% 9000 * 11, n %% 900 * 7, 0, 0, 0,
    (n %% 1000) * 0.0001, 'computed', '', '', 1, {at}, {at},
    {at} + interval '1 s', {at} + interval '95 s', {labels}
FROM generate_series(%(first)s::int, %(last)s::int) n"""
#: One step after the other. Each has the events of a real step, with a unique call ID.
_EVENTS = """
INSERT INTO agent_run_events (log_id, seq, run_kind, phase, type, ts, step, node_id, payload, source, epoch, late,
    sanitized, created_at)
SELECT %(log)s, n, 'session', 'running', one.type, {at}, (n - 1) / {per_step}, '',
    CASE WHEN one.payload ? 'call_id'
        THEN jsonb_set(one.payload, '{{call_id}}', to_jsonb('call-' || (n - 1) / {per_step})) ELSE one.payload END,
    'worker', 1, false, '', {at}
FROM generate_series(1, %(count)s) n
JOIN unnest(%(places)s::int[], %(types)s::text[], %(payloads)s::jsonb[]) AS one (place, type, payload)
    ON one.place = (n - 1) %% {per_step}"""
#: IDs sort by time, as UUIDv7 do, and are the same in both tables.
ID = "(lpad(to_hex(n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid"
AT = f"(%(begin)s::timestamptz + n * interval '{APART_S} s')"


@dataclass(frozen=True)
class FilledSite:
    count: int
    #: The time of the oldest run.
    begin: datetime
    project_id: UUID
    #: The ID of the run with as many events as there are runs.
    long_run: UUID
    read_key: str
    #: The value of a session cookie.
    session: str


def fill(workspace: Workspace, count: int, *, begin: datetime = BEGIN, event_count: int | None = None) -> FilledSite:
    """Generate the rows of a project, without foreign key checks and without synchronous commits.

    The oldest run is of the time `begin`; the others follow, `APART_S` apart. The newest one gets `event_count` events,
    by default as many as there are runs.
    """
    from agentops.accounts.access import SYSTEM
    from agentops.accounts.keys import create_key
    from agentops.accounts.memberships import create_project
    from runs.models import Agent, AgentRun

    project = create_project("bench", "Bench", actor=SYSTEM)
    agent = Agent.objects.create(project=project, slug="bench", provider="fixture", model="m")
    values = {"project": project.pk, "agent": agent.pk, "first": 1, "last": count, "begin": begin}
    with workspace.connect() as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        for statement in (LOGS, RUNS):
            connection.execute(statement.format(id=ID, at=AT, labels="""'["nightly"]'"""), values)
        newest = AgentRun.objects.newest_first()[:1].get()
        events = {"log": newest.pk, "count": count if event_count is None else event_count, "begin": begin}
        connection.execute(_EVENTS.format(at=AT, per_step=PER_STEP), {**events, **events_as_columns()})
        connection.execute("UPDATE timeline_log SET last_seq = %s WHERE id = %s", [events["count"], newest.pk])
    vacuum(workspace)
    key = create_key(project, name="bench", scopes=["read"], actor=SYSTEM).plain
    return FilledSite(count, begin, project.pk, newest.pk, key, session_of_superuser())


def events_as_columns() -> dict[str, Any]:
    """Return the events of one step as columns."""
    from bench.long_run import events_of_step

    types, payloads = zip(*events_of_step(0), strict=True)
    return {
        "places": list(range(len(types))),
        "types": [str(one) for one in types],
        "payloads": [Jsonb(one) for one in payloads],
    }


def session_of_superuser() -> str:
    from django.conf import settings
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.create_superuser("bench"))
    return client.cookies[settings.SESSION_COOKIE_NAME].value
