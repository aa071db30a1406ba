"""Data migrations, on rows that an earlier version has written."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.apps import apps
from django.utils import timezone

from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunError, Sink
from tests.support.factories import make_agent, make_project, make_run
from tests.support.project_rows import make_sink

pytestmark = [pytest.mark.django_db, pytest.mark.breaks_invariants("rows that are made as an earlier version has them")]


def test_children_of_a_waiting_parent_keep_it_waiting() -> None:
    agent = make_agent()
    waiting, over = make_run(agent), make_run(agent)
    AgentRun.objects.filter(pk=waiting.pk).update(status="waiting", status_reason="children")
    awaited, ended, other = (make_run(agent) for _ in range(3))
    AgentRun.objects.filter(pk__in=[awaited.pk, ended.pk]).update(parent_run=waiting)
    AgentRun.objects.filter(pk=other.pk).update(parent_run=over)
    AgentRun.objects.filter(pk=ended.pk).update(status="completed", completed_at=timezone.now())

    import_module("runs.migrations.0050_fill_child_pauses_and_error_calls").fill(apps, None)

    assert [AgentRun.objects.get(pk=run.pk).on_pause for run in (awaited, ended, other)] == ["wait", "", ""]


def test_errors_name_their_tools() -> None:
    run = make_run()
    now = timezone.now()
    message = AgentRunMessage.objects.filter(run=run).first()
    AgentRunToolCall.objects.create(
        run=run,
        message=message,
        call_id="c1",
        tool_name="Read",
        input={},
        step_number=1,
        status="error",
        created_at=now,
    )
    for context in ("llm", "tool:c1", "tool:gone", "step"):
        RunError.objects.create(run=run, step_number=1, context=context, error_type="e", message="m", created_at=now)

    import_module("runs.migrations.0050_fill_child_pauses_and_error_calls").fill(apps, None)

    rows = RunError.objects.filter(run=run).order_by("pk")
    assert [(row.context, row.call_id) for row in rows] == [
        ("llm_stream", ""),
        ("Read", "c1"),
        ("tool:gone", "gone"),
        ("step", ""),
    ]


def test_project_sinks_keep_their_event_names() -> None:
    project = make_project("kept")
    for kind in ("http", "jsonl", "webhook"):
        url = {} if kind == "jsonl" else {"url": "https://93.184.216.34/in"}
        make_sink(project, kind, url, is_enabled=False)
    Sink.objects.filter(kind="http").update(config={"url": "https://93.184.216.34/in"})
    Sink.objects.filter(kind="jsonl").update(config={"dialect": "hooks"})

    import_module("runs.migrations.0051_keep_names_of_sinks").keep(apps, None)

    kept = {sink.kind: sink.config.get("dialect") for sink in Sink.objects.all()}
    assert kept == {"http": "log", "jsonl": "hooks", "webhook": None}
