"""Rows of a project beside its runs: alerts, schedules, sinks, notes, share links, keys, members, prices and rules.

Also external runs that trigger alerts, and clocks that a test moves.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.utils import timezone
from uuid_utils.compat import uuid7

from agentops.accounts import redaction_changes
from agentops.accounts.access import SYSTEM
from agentops.accounts.invitations import invite, url_path
from agentops.accounts.keys import create_key
from agentops.accounts.memberships import add_member
from agentops.accounts.models import Project, Role
from agentops.accounts.notifications import notify
from agentops.base import database_clock
from runs.actions import agent_definitions, approvals, project_changes
from runs.actions.schedules.schedule_changes import add_schedule
from runs.alerts import evaluation
from runs.external import import_execution, import_states, ingest_counts, uploads
from runs.external.ingest import Sender, record
from runs.external.uploads import Upload
from runs.models import (
    Agent,
    AgentRun,
    Alert,
    AlertDelivery,
    AlertFinding,
    AlertMessage,
    AlertMute,
    AlertRule,
    FileImport,
    RunNote,
    SavedView,
    Schedule,
    ScheduleStart,
    ShareLink,
    Sink,
    SinkCursor,
)
from runs.telemetry import sink_changes
from runs.telemetry.exporter import Exporter
from runs.telemetry.sink_changes import SinkChange
from tests.support.factories import drive, make_agent, make_person, make_run, verify_address
from timeline import log
from timeline.log import Entry
from timeline.models import Event, Source


def started(project: Project, name: str) -> AgentRun:
    """Create a running external run with this ID of its runner."""
    [result] = record(
        Sender(project, "key:test"), [{"runId": name, "type": "run.started", "payload": {"agent": "coder"}}]
    )
    assert result.error is None
    return AgentRun.objects.select_related("log").get(pk=result.run_id)


AddRule = Callable[..., AlertRule]


class Clock:
    """The product's clock with an offset that the test sets."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.offset = timedelta()
        self._real = database_clock.now
        patch.setattr(database_clock, "now", self.now)

    def now(self) -> Any:
        return self._real() + self.offset

    def evaluate(self, **later: float) -> int:
        """Move the clock forward, then evaluate all rules."""
        self.offset += timedelta(**later)
        return evaluation.evaluate()


def external(project: Project, name: str, *events: dict[str, Any], agent: str = "coder") -> AgentRun:
    """Record these events of an external run. Open the run if it does not exist."""
    sent = list(events)
    if not AgentRun.objects.filter(project=project, external_id=name).exists():
        sent.insert(0, {"type": "run.started", "payload": {"agent": agent}})
    results = record(Sender(project, "key:test"), [{"runId": name, **event} for event in sent])
    assert [result.error for result in results] == [None] * len(sent)
    return AgentRun.objects.get(project=project, external_id=name)


def failed(project: Project, name: str, *, agent: str = "coder") -> AgentRun:
    """Create a run that its runner reports as failed."""
    error = {"type": "error", "payload": {"error_type": "tool_error", "error": "The disk is full."}}
    end = {"type": "run.failed", "payload": {"error_type": "tool_error", "error": "The disk is full."}}
    return external(project, name, error, end, agent=agent)


def fill_alerts(project: Project, run: AgentRun, number: int, text: str) -> None:
    """Create a rule with an alert, a finding, a message, a delivery and a mute. It is disabled, so it sends nothing."""
    now = timezone.now()
    rule = AlertRule.objects.create(
        project=project,
        name=f"{text[:40]} {number}",
        kind="run_failed",
        agent=text[:128],
        label=text[:200],
        is_enabled=False,
        checked_at=now,
        created_by=text[:200],
    )
    alert = Alert.objects.create(
        project=project, rule=rule, agent=text[:128], opened_at=now, last_seen_at=now, closed_at=now, count=1
    )
    message = AlertMessage.objects.create(
        project=project, rule=rule, alert=alert, event="opened", count=1, created_at=now
    )
    AlertFinding.objects.create(
        project=project, rule=rule, alert=alert, run=run, detail=text[:200], found_at=now, ended_at=now, message=message
    )
    AlertDelivery.objects.create(
        project=project, message=message, channel="slack", state="dead", attempts=9, error=text[:500], created_at=now
    )
    AlertMute.objects.create(project=project, rule=rule, until=now + timedelta(hours=1), created_by=text[:200])


class SetClock:
    """The product's database clock, set by a test. Each thread may have an offset."""

    def __init__(self, patch: pytest.MonkeyPatch, at: datetime) -> None:
        self.at = at
        self._of_thread = threading.local()
        patch.setattr(database_clock, "now", self.now)

    def now(self) -> datetime:
        return self.at + getattr(self._of_thread, "error", timedelta())

    def set(self, text: str) -> None:
        """Set the time in UTC, in the form "2026-03-29 01:00"."""
        self.at = datetime.fromisoformat(text).replace(tzinfo=UTC)

    def move(self, **later: float) -> None:
        self.at += timedelta(**later)

    def be_wrong_in_this_thread(self, error: timedelta) -> None:
        self._of_thread.error = error


def make_schedule(project: Project, agent: Agent | None = None, **values: Any) -> Schedule:
    """Create a schedule that runs each minute, by default of an agent that plays a recording."""
    if "flow" not in values:
        agent = agent or Agent.objects.filter(project=project, slug="player").first()
        values["agent"] = (agent or make_agent(project, slug="player")).slug
    timing = {} if "every_s" in values else {"cron": "* * * * *"}
    return add_schedule(project, {"name": "nightly", **timing, **values}, by=SYSTEM)


def fill_schedule(project: Project, number: int, text: str) -> Schedule:
    """Create a paused schedule, with one start of each outcome."""
    schedule = make_schedule(project, name=f"Schedule {number}", prompt="Look.", is_enabled=False)
    Schedule.objects.filter(pk=schedule.pk).update(prompt=text, created_by=text[:200])
    for minute, outcome in enumerate(ScheduleStart.Outcome.values):
        at = datetime(2026, 6, 1, 9, minute, tzinfo=UTC)
        run_id = AgentRun.objects.filter(project=project).values_list("pk", flat=True).first() or uuid7()
        started = {"run_id": run_id}
        refused = {"reason": "code", "detail": text[:300]}
        ScheduleStart.objects.create(
            schedule=schedule, due_at=at, outcome=outcome, decided_at=at, **(started if minute == 0 else refused)
        )
    return schedule


def outcomes(schedule: Schedule) -> list[tuple[str, str]]:
    """Return the due times and outcomes of a schedule, in chronological order: ("09:00", "started")."""
    starts = ScheduleStart.objects.filter(schedule=schedule).order_by("pk")
    return [(f"{start.due_at:%H:%M}" if start.due_at else "now", start.outcome) for start in starts]


def runs_of(schedule: Schedule) -> list[AgentRun]:
    return list(AgentRun.objects.filter(schedule=schedule).order_by("pk"))


#: The tools of a troubled run, and the usage that each of its answers reports.
TOOLS = ("read", "grep", "write")
ANSWER: dict[str, Any] = {"model": "m-1", "usage": {"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 90}}


def make_sink(project: Project, kind: str, config: dict[str, Any], **fields: Any) -> Sink:
    number_from_one()
    options = {name: fields.pop(name) for name in ("from_start",) if name in fields}
    # Most tests check the events of the log.
    dialect = {"dialect": "log"} if kind in ("http", "jsonl") else {}
    change = SinkChange(name=fields.pop("name", kind), config=dialect | config, **fields)
    return sink_changes.create(project, kind, change, by="test", **options)[0]


def number_from_one() -> None:
    """Give the first events low IDs. A sink's batch ends at each 5,000th ID, which could split the events of a test."""
    if connection.vendor == "postgresql" and not Event.objects.exists():
        with connection.cursor() as cursor:
            cursor.execute("SELECT setval(pg_get_serial_sequence(%s, 'id'), 1, false)", [Event._meta.db_table])


def append(run: AgentRun, *texts: str, type_: str = "x.note") -> None:
    with transaction.atomic():
        log.append(run.pk, [Entry({"text": text}, type=type_) for text in texts], source=Source.WORKER)


def export(rounds: int = 1) -> None:
    """Export the due events as a worker does, without its threads."""
    for _ in range(rounds):
        Exporter().run_due()


def wake(sink: Sink) -> SinkCursor:
    """End the pause after a failure, and return the cursor."""
    SinkCursor.objects.filter(pk=sink.pk).update(due_at=None)
    return SinkCursor.objects.get(pk=sink.pk)


def make_troubled_run(project: Project, ending: str) -> AgentRun:
    """Create an external run with 2 turns, 3 tool calls and 1 failed call. `ending` is its status, such as `failed`."""
    ends = {
        "completed": {"result": "Done."},
        "failed": {"errorType": "network_error", "error": "no route"},
        "stopped": {"reason": "operator"},
    }
    calls = [{"id": f"c{number}", "name": name, "arguments": {"n": number}} for number, name in enumerate(TOOLS)]
    documents = [
        {"type": "run.started", "payload": {"agent": "coder", "model": "m-1", "prompt": "Mend it"}},
        {"type": "message.added", "payload": {"role": "user", "content": "Mend it"}},
        {"type": "llm.turn.start", "payload": {"model": "m-1"}},
        {"type": "llm.turn.end", "payload": {**ANSWER, "text": "I look", "toolCalls": calls[:2]}},
        {"type": "tool.start", "payload": {"callId": "c0"}},
        {"type": "tool.end", "payload": {"callId": "c0", "output": "a file"}},
        {"type": "tool.start", "payload": {"callId": "c1"}},
        {"type": "tool.end", "payload": {"callId": "c1", "error": "no such file"}},
        {"type": "llm.turn.start", "payload": {"model": "m-1"}},
        {"type": "llm.turn.end", "payload": {**ANSWER, "text": "I write", "toolCalls": calls[2:]}},
        {"type": "tool.start", "payload": {"callId": "c2"}},
    ]
    if ending == "completed":
        documents.append({"type": "tool.end", "payload": {"callId": "c2", "output": "ok"}})
    documents.append({"type": f"run.{ending}", "payload": ends[ending]})
    results = record(Sender(project, "key:test"), [{"runId": ending, **each} for each in documents])
    assert [result.error for result in results] == [None] * len(documents)
    return AgentRun.objects.get(project=project, external_id=ending)


def annotate(run: AgentRun, text: str) -> tuple[RunNote, SavedView, ShareLink]:
    """Create a note, a shared view and a share link that belong to another user."""
    now, person = timezone.now(), make_person(run.project)
    note = RunNote.objects.create(
        project=run.project, run=run, text=text, author=text[:200], holder=f"user:{person.pk}", created_at=now
    )
    view = SavedView.objects.create(
        project=run.project, owner=person, name=text[:60], query="status=failed", is_shared=True
    )
    link = ShareLink.objects.create(
        project=run.project, run=run, created_by=text[:200], created_at=now, expires_at=now + timedelta(days=1)
    )
    return note, view, link


def annotation_ids(run: AgentRun) -> dict[str, object]:
    """Create annotations, and return their IDs by the name of the URL parameter."""
    note, view, link = annotate(run, "annotation")
    return {"uuid:note_id": note.pk, "uuid:view_id": view.pk, "uuid:link_id": link.pk}


REVIEWER: dict[str, Any] = {
    "agent_id": "reviewer",
    "provider": "fixture",
    "model": "claude-code-5c",
    "instructions": "Review.\nBe brief.",
    "tools": ["recorded"],
    "settings": {"budgets": {"tokens": 100_000}, "tool_output_limit": 9000},
    "policies": {
        "on_error": [{"match": "rate_limited", "action": "resume"}, "escalate"],
        "on_prompt": "escalate",
        "hooks": [{"hook": "command_guard", "tools": "shell", "options": {"allow": ["git"]}}],
        "approvals": [{"tools": "deploy", "arguments": {"environment": "^prod"}, "action": "ask"}],
    },
}
#: A secret that the project redacts.
SECRET = "correct horse battery"


def make_reviewer(project: Project) -> AgentRun:
    """Create a run that exceeded its budget, of an agent with two versions and every kind of policy."""
    agent, _ = agent_definitions.apply(project, REVIEWER, by="user:alice")
    run = drive(make_run(agent))
    agent_definitions.apply(project, {**REVIEWER, "instructions": "Review.\nBe precise."}, by="user:bob")
    return run


def make_rules(project: Project) -> None:
    """Create an approval rule, a price and a secret."""
    rule = {"tools": "deploy", "arguments": {"environment": "^prod"}, "action": "ask"}
    approvals.set_rules("test", project, [rule])
    project_changes.set_price(project, {"model": "openai-chat:gpt-5", "input": "1.1", "output": "9"}, by="test")
    redaction_changes.add_secret(project, "billing_password", SECRET, actor="test")


def make_uploads(project: Project) -> list[FileImport]:
    """Create uploads with long file names: one imported, one refused, one in progress, one pending."""
    contents = (b'[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]', b"{}", b"[]", b"[]")
    files = [Upload(f"{'long-name-' * 20}.json", io.BytesIO(content), len(content)) for content in contents]
    stored = uploads.store(SYSTEM, project, files)
    assert import_execution.import_next()
    assert import_execution.import_next()
    taken = import_states.claim_next()
    assert taken is not None
    import_states.update(taken, events=100)
    return stored


def make_keys(project: Project) -> None:
    """Create a key with all scopes and a long name, and a runner's key with request counts."""
    create_key(project, name="a long name " * 10, scopes=["read", "write", "ingest"], actor="user:alice")
    key, _ = create_key(project, name="A runner with a long name", scopes=["ingest"], actor=SYSTEM)
    outcomes = {"accepted": 412, "duplicate": 9, "invalid_event": 3, "invalid_json": 1200}
    ingest_counts.count(project.pk, f"key:{key.prefix}", outcomes)
    ingest_counts.flush()


def make_members(project: Project) -> str:
    """Create the member bob and an invited person. Return the path of the invitation."""
    bob = verify_address(User.objects.create_user("bob", email="bob@example.org"))
    add_member(project, bob, Role.VIEWER, actor=SYSTEM)
    return url_path(invite(project, "cleo@example.org", "viewer", actor="user:alice"))


def make_notice(run: AgentRun) -> None:
    """Create an unread notification with long words."""
    text = "Wort" * 400
    notify(run.project_id, kind="escalated", title="Superkalifragilistisch" * 9, text=text, run_id=run.pk)


def make_old(run: AgentRun) -> None:
    """Move the run's end 40 days into the past, so that a retention period of 30 days would delete it."""
    ended = timezone.now() - timedelta(days=40)
    AgentRun.objects.filter(pk=run.pk).update(created_at=ended, queued_at=ended, completed_at=ended)
