"""Sinks, and events for them."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction

from agentops.accounts.models import Project
from runs.external.ingest import Sender, record
from runs.models import AgentRun, Sink, SinkCursor
from runs.telemetry import sink_changes
from runs.telemetry.exporter import Exporter
from runs.telemetry.sink_changes import SinkChange
from timeline import log
from timeline.log import Entry
from timeline.models import Event, Source

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
