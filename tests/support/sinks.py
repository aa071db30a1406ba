"""Sinks, and events for them."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from agentops.projects.models import Project
from runs.models import AgentRun, Sink, SinkCursor
from runs.telemetry import sink_changes
from runs.telemetry.exporter import Exporter
from runs.telemetry.sink_changes import SinkChange
from timeline import log
from timeline.log import Entry
from timeline.models import Source


def make_sink(project: Project, kind: str, config: dict[str, Any], **fields: Any) -> Sink:
    options = {name: fields.pop(name) for name in ("from_start",) if name in fields}
    change = SinkChange(name=fields.pop("name", kind), config=config, **fields)
    return sink_changes.create(project, kind, change, by="test", **options)[0]


def append(run: AgentRun, *texts: str, type_: str = "x.note") -> None:
    with transaction.atomic():
        log.append(run.pk, [Entry({"text": text}, type=type_) for text in texts], source=Source.WORKER)


def export(rounds: int = 1) -> None:
    """Do what is due, as a worker does, without its threads."""
    for _ in range(rounds):
        Exporter().run_due()


def wake(sink: Sink) -> SinkCursor:
    """Let the pause after a failure be over, and return the cursor."""
    SinkCursor.objects.filter(pk=sink.pk).update(due_at=None)
    return SinkCursor.objects.get(pk=sink.pk)
