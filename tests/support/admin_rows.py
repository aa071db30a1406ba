"""A project with rows in every table, the URLs of all admin pages, and rows that a test module writes once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Model
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from uuid_utils.compat import uuid7

from agentops.accounts.audit import record
from agentops.accounts.keys import create_key
from agentops.accounts.models import (
    IdempotencyKey,
    Incarnation,
    Invitation,
    Membership,
    NotificationReceipt,
    Project,
    RedactionRule,
)
from agentops.accounts.notifications import notify
from runs.models import (
    Agent,
    AgentRun,
    AgentRunMessage,
    AgentRunToolCall,
    AgentVersion,
    Approval,
    Attempt,
    Checkpoint,
    Chore,
    ClaudeTranscript,
    CliSession,
    Delivery,
    ExternalRun,
    FileImport,
    Flow,
    FlowRun,
    FlowVisit,
    GraphThread,
    IngestCount,
    RemoteStep,
    RemoteStepPiece,
    RunCommand,
    RunError,
    ScheduleStart,
    Sink,
    SinkCursor,
    TurnUsage,
)
from tests.support.factories import make_agent, make_person, make_project, make_run
from tests.support.flows import CONSTANT
from tests.support.project_rows import annotate, fill_alerts, fill_schedule
from timeline import log
from timeline.log import Entry
from timeline.models import Event, Log, Source, Tombstone

#: Tables that belong to the installation, not to a project.
GLOBAL: tuple[type[Model], ...] = (Incarnation, Chore)
OURS = ("projects", "timeline", "runs")
_numbers = itertools.count(1)


def registered() -> list[type[Model]]:
    """Return the product's registered models, ordered by label."""
    admin.autodiscover()
    found = [model for model in admin.site._registry if model._meta.app_label in OURS]
    return sorted(found, key=lambda model: model._meta.label)


def fill(project: Project, *, rows: int = 3, text: str = "something") -> AgentRun:
    """Add `rows` rows to each table of the project. Return the run to which most of them belong."""
    agent = make_agent(project)
    runs = [make_run(agent, f"{text} {number}", title=text[:200]) for number in range(rows)]
    for number in range(rows):
        make_agent(project)
        person = make_person(project)
        told = notify(project.pk, kind="escalated", title=text, text=text, run_id=runs[number].pk)
        NotificationReceipt.objects.create(project=project, notification=told, user=person, read_at=told.created_at)
        create_key(project, name=f"key {number}", scopes=["read"], actor="test")
        record("test", f"test.{number}", project=project, obj=agent, before={"a": text}, after={"b": text})
    fill_run(runs[0], rows, text)
    now = timezone.now()
    for run in runs:
        ExternalRun.objects.create(run=run, sender=text[:200], answer_from_seq=1, silent_since=now)
    for _ in range(rows):
        number = next(_numbers)
        FileImport.objects.create(
            project=project, file_name=text[:255], size=1, sha256=b"", error=text, created_by="test", run_ids=[text]
        )
        IngestCount.objects.create(
            project=project, sender=f"key:{number}", minute=now, outcome=text[:64], count=1, last_at=now
        )
        ClaudeTranscript.objects.create(
            project=project, project_key=text[:300], session_id=f"session-{number}", modified_at=now
        )
        GraphThread.objects.create(project=project, name=f"{number} {text}"[:200], modified_at=now)
        IdempotencyKey.objects.create(
            project=project, caller="user:1", key=f"key-{number}", asked=b"", status=201, body="{}", created_at=now
        )
        sink = Sink.objects.create(project=project, name=f"sink-{number}", kind="jsonl", created_by=text[:200])
        SinkCursor.objects.create(sink=sink, last_error=text[:500])
        Delivery.objects.create(
            sink=sink, project=project, message_id=f"msg_{number}", state="dead", error=text[:500], response=text[:1000]
        )
        Invitation.objects.create(
            project=project, email=f"invited-{number}@example.org", role="viewer", created_by=text[:200], expires_at=now
        )
        RedactionRule.objects.create(project=project, kind="format", name=f"rule_{number}", created_by=text[:200])
        fill_flows(project, text)
        fill_alerts(project, runs[0], number, text)
        fill_schedule(project, number, text)
        annotate(runs[0], text)
        gone = Log(project=project).pk
        Tombstone.objects.create(
            id=gone, project=project, family=gone, created_at=now, reason="too old", removed_by="test", removed_at=now
        )
    return runs[0]


def fill_flows(project: Project, text: str) -> None:
    """Create a flow, and a completed flow run with one visit."""
    now, number = timezone.now(), next(_numbers)
    definition = {**CONSTANT, "flow_id": f"flow-{number}", "title": text[:200]}
    flow = Flow.objects.create(project=project, slug=f"flow-{number}", title=text[:200], definition=definition)
    flow_run = FlowRun.objects.create(
        log=Log.objects.create(project=project),
        project=project,
        flow=flow,
        definition=definition,
        flow_version=1,
        snapshot={"outputs": {"a": text}},
        inputs={"text": text},
        error_message=text,
        created_by=text[:200],
        created_at=now,
        status="failed",
        completed_at=now,
    )
    FlowVisit.objects.create(
        flow_run=flow_run, key="a", node="a", kind="constant", output=text, started_at=now, ended_at=now
    )


def fill_run(run: AgentRun, rows: int, text: str) -> None:
    now = timezone.now()
    first = run.messages.count() + 1
    content = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": text}]}
    messages = AgentRunMessage.objects.bulk_create(
        AgentRunMessage(
            run=run, position=first + n, role="user", content=content, step_number=n, sha256=b"", created_at=now
        )
        for n in range(rows)
    )
    AgentRunToolCall.objects.bulk_create(
        AgentRunToolCall(
            run=run,
            message=message,
            call_id=f"call {n} {text}"[:256],
            tool_name=text[:256],
            step_number=n,
            input={"text": text},
            output=text,
            created_at=now,
            result_message=message,
            child_run=run,
        )
        for n, message in enumerate(messages)
    )
    Approval.objects.bulk_create(
        Approval(
            project=run.project,
            run=run,
            call=call,
            tool_name=text[:256],
            arguments={"text": text},
            reason=text,
            requested_by=text[:200],
            state="denied",
            message=text,
            decided_by=text[:200],
            changes={"text": text},
            created_at=now,
            expires_at=now,
            decided_at=now,
        )
        for call in AgentRunToolCall.objects.filter(run=run, message__in=messages)
    )
    step = Checkpoint.objects.filter(run=run).count()
    for n in range(step, step + rows):
        Checkpoint.objects.create(run=run, step_number=n, last_message_position=n, created_at=now)
        CliSession.objects.create(id=uuid7(), run=run, epoch=n, created_at=now)
        Attempt.objects.create(run=run, epoch=n, owner=text[:128], step_number=n, claimed_at=now, end_reason="died")
        TurnUsage.objects.create(run=run, step_number=n, model=text[:200], created_at=now)
        RunError.objects.create(
            run=run, step_number=n, context=f"tool:{text}"[:300], error_type="boom", message=text, created_at=now
        )
        RunCommand.objects.create(
            run=run,
            type="send",
            payload={"message": text},
            created_by=text[:200],
            received_at=now,
            applied_at=now,
            outcome="applied",
        )
    taken = RemoteStep.objects.filter(run=run).count()
    for n in range(taken, taken + rows):
        step = RemoteStep.objects.create(
            run=run,
            position=n + 1,
            key=f"{n} {text}"[:200],
            kind="step",
            name=text[:200],
            state="failed",
            epoch=1,
            error={"type": "boom", "message": text},
            created_at=now,
            finished_at=now,
            value=text,
        )
        RemoteStepPiece.objects.create(step=step, run=run, index=0, text=text)
    with transaction.atomic():
        log.append(run.pk, [Entry({"text": text}, type="x.test") for _ in range(rows)], source=Source.INGEST)


def fill_global() -> None:
    Chore.objects.create(name="sweep", taken_at=timezone.now())
    Incarnation.objects.create(number=7, made_by="test")


def list_url(model: type[Model]) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def page_url(row: Model, page: str = "change") -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_{page}", args=[row.pk])


def add_url(model: type[Model]) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_add")


def rows_of(model: type[Model], project: Project) -> list[Any]:
    """Return the first and the last row of the project."""
    paths: dict[type[Model], str] = {Project: "pk", Event: "log__project", AgentVersion: "agent__project"}
    paths |= {SinkCursor: "sink__project", ScheduleStart: "schedule__project", FlowVisit: "flow_run__project"}
    paths |= dict.fromkeys(OF_RUNS, "run__project")
    found: Any = model._default_manager.order_by("pk")
    if model not in GLOBAL:
        found = found.filter(**{paths.get(model, "project"): project.pk})
    rows = list(found)
    return [rows[0], rows[-1]] if rows else []


OF_RUNS: tuple[type[Model], ...] = (
    *(AgentRunMessage, AgentRunToolCall, Approval, Attempt, Checkpoint, CliSession, ExternalRun),
    *(RemoteStep, RemoteStepPiece, RunCommand, RunError, TurnUsage),
)
assert {Agent, Membership} <= set(registered())


@dataclass(frozen=True)
class Filled:
    """A project, the run to which most of its rows belong, and the client of a superuser."""

    project: Project
    run: AgentRun
    client: Client


@contextmanager
def rolled_back(django_db_blocker: Any) -> Iterator[None]:
    """Give a module-scoped fixture access to the database, and roll back its writes at the end. Its tests use `db`."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)


def make_filled(rows: int = 3) -> Filled:
    """Create a project with `rows` rows in each table."""
    fill_global()
    project = make_project("alpha")
    run = fill(project, rows=rows)
    return Filled(project, run, superuser_client())


def superuser_client() -> Client:
    """Return the client of a new superuser."""
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client
