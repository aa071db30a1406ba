"""Rows for the tests of upkeep: runs that ended long ago, rows that contradict each other, and backups."""

from __future__ import annotations

import io
import shutil
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import psycopg
from django.apps import apps
from django.core.management import call_command
from django.db import connection
from django.utils import timezone
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from runs.actions.fork import fork
from runs.actions.resume import resume
from runs.external.ingest import Sender, record
from runs.flows import runner
from runs.lifecycle import inbox, transitions
from runs.models import Agent, AgentRun, AgentRunMessage, AgentRunToolCall, FlowRun, RunCommand
from runs.statuses import RunStatus
from runs.upkeep import retention
from runs.upkeep.invariants import check
from runs.upkeep.retention import RemovalReport
from tests.support import remote_samples
from tests.support.factories import drive, make_agent, make_awaiting_approval, make_project, make_run
from tests.support.flows import make_ended_flow_run, make_flow_run
from tests.support.machine import missing
from tests.support.remote import Program
from tests.support.stage import Stage
from timeline.models import Event
from timeline.tombstones import allow_changes

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


def red(run_id: UUID | None = None) -> set[str]:
    return {violation.invariant for violation in check(run_id)}


def recovered(run: AgentRun) -> AgentRun:
    """Return the run, completed by a second worker after the first died right after its claim."""
    transitions.claim(run.pk, "dead")
    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    return drive(run)


@dataclass
class World:
    """Clean rows of many kinds, and the IDs that the statements below use."""

    ids: dict[str, Any] = field(default_factory=dict)

    def spoil(self, *statements: str) -> None:
        with allow_changes("a test spoils the log"), connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement, self.ids)


def reported_run() -> AgentRun:
    """Create a completed external run with a call, usage and cost."""
    call = {"id": "c", "name": "look", "arguments": {}}
    sent = [
        ("run.started", {"agent": "coder", "prompt": "Look"}),
        (
            "llm.turn.end",
            {"text": "I look", "toolCalls": [call], "inputTokens": 7, "outputTokens": 3, "costUsd": "0.01"},
        ),
        ("tool.end", {"callId": "c", "output": "seen"}),
        ("llm.turn.end", {"text": "Done", "inputTokens": 9, "outputTokens": 2}),
        ("run.completed", {}),
    ]
    documents = [{"runId": "outside", "type": type_, "payload": payload} for type_, payload in sent]
    results = record(Sender(make_project("outside"), "key:test"), documents)
    assert [result.error for result in results if result.error] == []
    return AgentRun.objects.get(external_id="outside")


def remote_run() -> AgentRun:
    """Create a completed remote run with a value, an error, a value in pieces, and a model call."""
    program = Program(make_project("elsewhere"))
    program.start_run()
    program.claim()
    remote_samples.complete(program)
    return program.run


def open_flow_run() -> FlowRun:
    """Create a flow run with an open question."""
    flow_run = make_flow_run({"nodes": [{"id": "ask", "type": "human", "question": "Go on?"}]})
    runner.advance(flow_run.pk)
    return flow_run


def make_world() -> World:
    run = drive(make_run())
    old = drive(make_run(make_agent(max_steps=2)))
    out_of_steps = drive(make_run(make_agent(max_steps=1)))
    new = drive(resume(old.pk, by="test").run)
    running = make_run()
    transitions.claim(running.pk, "test")
    inbox.pause(running.pk, by="test")
    elsewhere, paused = make_run(), make_run()
    inbox.pause(paused.pk, by="test")
    call = AgentRunToolCall.objects.filter(run=run).order_by("id")[2]
    remote = remote_run()
    messages = AgentRunMessage.objects.filter(run=run).order_by("position")
    outside = reported_run()
    uuids = {
        "remote": remote.pk,
        "outside": outside.pk,
        "outside_call": AgentRunToolCall.objects.get(run=outside).pk,
        "run": run.pk,
        "old": old.pk,
        "new": new.pk,
        "running": running.pk,
        "recovered": recovered(make_run()).pk,
        "elsewhere": elsewhere.pk,
        "child": make_run(elsewhere.agent, parent_id=elsewhere.pk).pk,
        "paused": paused.pk,
        "asking": make_awaiting_approval().pk,
        "out_of_steps": out_of_steps.pk,
        "forked": fork(run.pk, by="test", step=1).pk,
        "flow": make_ended_flow_run(make_project()).pk,
        "open_flow": open_flow_run().pk,
        "other_project": elsewhere.project_id,
        "call": call.pk,
        "asked_by": call.message_id,
        "result": call.result_message_id,
        "user": messages.filter(role="user")[0].pk,
        "last_message": messages.reverse()[0].pk,
        "fresh": uuid7(),
    }
    field_ = AgentRunMessage._meta.pk
    ids: dict[str, Any] = {name: field_.get_db_prep_value(value, connection) for name, value in uuids.items()}
    ids["last"] = Event.objects.filter(log=run.pk).count()
    ids["last_recovered"] = Event.objects.filter(log=uuids["recovered"], source="worker").latest("seq").seq
    # Some invariants have a grace period of 30 seconds, too short for a slow machine to corrupt all rows.
    later = timezone.now() + timedelta(hours=1)
    AgentRun.objects.filter(pk=running.pk).update(lease_expires_at=later)
    RunCommand.objects.filter(run=running).update(received_at=later)
    ids["long_ago"] = connection.ops.adapt_datetimefield_value(timezone.now() - timedelta(hours=1))
    assert check() == []
    return World(ids)


#: Statements for flow runs: a completed one, and a waiting one with an open question.
FLOW_EVENT = "UPDATE agent_run_events SET type = '{}' WHERE log_id = %(flow)s AND type = '{}'"
VISIT = "UPDATE flow_visits SET {} WHERE flow_run_id = {}"
EVENT = "UPDATE agent_run_events SET {} WHERE log_id = %(run)s AND seq = %(last)s"
STARTED = "UPDATE agent_run_events SET {} WHERE log_id = %(run)s AND type = 'run.started'"
OF_CALL = "UPDATE agent_run_events SET type = 'error' WHERE log_id = %(run)s AND ref_id = %(call)s AND type = '{}'"
CALL = "UPDATE agent_run_tool_calls SET {} WHERE id = %(call)s"
#: Replaces another event, whose turn then has no end.
CHOSEN = (
    "UPDATE agent_run_events SET type = 'approval.resolved', ref_id = %(call)s, payload = '{{\"decision\": \"{}\"}}'"
    " WHERE log_id = %(run)s AND type = 'llm.turn.end' AND step = 2"
)
#: Statements for a step of a remote run: its second one reads, the fourth calls, and the last two have other outcomes.
STEP = "UPDATE agent_run_remote_steps SET {} WHERE run_id = %(remote)s AND position = {}"
#: Statements for an external run.
OUTSIDE = "UPDATE agent_runs SET {} WHERE id = %(outside)s"
OF_OUTSIDE_CALL = OF_CALL.replace("%(run)s", "%(outside)s").replace("%(call)s", "%(outside_call)s")
OUTSIDE_CALL = CALL.replace("%(call)s", "%(outside_call)s")
OUTSIDE_USAGE = "UPDATE agent_run_turn_usages SET {} WHERE run_id = %(outside)s AND step_number = 2"
RUN = "UPDATE agent_runs SET {} WHERE id = %(run)s"
NEW = "UPDATE agent_runs SET {} WHERE id = %(new)s"
FORKED = "UPDATE agent_runs SET {} WHERE id = %(forked)s"
RUNNING = "UPDATE agent_runs SET {} WHERE id = %(running)s"
MESSAGE = "UPDATE agent_run_messages SET {} WHERE id = {}"
LAST_CHECKPOINT = (
    "FROM agent_run_checkpoints WHERE run_id = %(run)s AND step_number = "
    "(SELECT MAX(step_number) FROM agent_run_checkpoints WHERE run_id = %(run)s)"
)
ONE_MORE_EVENT = (
    "INSERT INTO agent_run_events (log_id, seq, event_id, run_kind, phase, type, ts, node_id, payload, source, late,"
    " sanitized, created_at) SELECT log_id, seq + 1, 'more', run_kind, phase, 'error', ts, node_id, payload, 'web',"
    " late, sanitized, created_at FROM agent_run_events WHERE log_id = %(run)s AND seq = %(last)s",
    "UPDATE timeline_log SET last_seq = last_seq + 1 WHERE id = %(run)s",
)


def agentops(*words: str) -> str:
    """Run a command on this process's database, and return its output. The exit code must be 0."""
    out = io.StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()


def back_up(stage: Stage) -> Path:
    """Back up as docs/guides/backup.md says, while other processes write."""
    path = stage.home / "backup"
    if stage.databases.engine == "sqlite":
        agentops("backup", str(path))
    else:
        _run("pg_dump", "--format=custom", f"--file={path}", _url(stage))
    return path


def put_back(stage: Stage, path: Path) -> None:
    """Restore a backup over the current database. Open connections see the restored database from then on."""
    connection.close()
    if stage.databases.engine == "sqlite":
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(stage.name, timeout=20)) as target:
            source.backup(target)
        return
    connection.close_pool()  # type: ignore[attr-defined]
    with psycopg.connect(stage.databases.server_url(), autocommit=True) as server:
        server.execute(f'DROP DATABASE "{stage.name}" WITH (FORCE)')  # type: ignore[arg-type]
        server.execute(f'CREATE DATABASE "{stage.name}"')  # type: ignore[arg-type]
    _run("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={_url(stage)}", str(path))


def _run(program: str, *words: str) -> None:
    if shutil.which(program) is None:
        missing(f"there is no {program}")
    subprocess.run([program, *words], check=True, capture_output=True, timeout=120)


def _url(stage: Stage) -> str:
    return urlunsplit(urlsplit(stage.databases.server_url())._replace(path=f"/{stage.name}"))
