"""The upkeep tasks on real rows: the work of one call, and of two at once."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as site_settings
from django.utils import timezone

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import archive_project
from agentops.accounts.models import Project
from agentops.base.backing_services import TelemetrySettings
from runs.actions import project_changes
from runs.alerts.alert_rule_changes import add_rule, send_test
from runs.models import AlertDelivery, AlertFinding, Chore, FlowRun, OtlpGroup, SearchEntry, SinkCursor
from runs.telemetry.exporter import Exporter
from runs.upkeep import search_index
from runs.worker import upkeep, upkeep_call, worker
from runs.worker.upkeep import exporting
from tests.support.engine import queued_messages, task_names
from tests.support.factories import drive, make_agent, make_project, make_run
from tests.support.flows import CONSTANT, make_flow_run
from tests.support.otlp import Exporter as OtlpSender
from tests.support.otlp import Span
from tests.support.project_rows import failed, make_sink
from tests.support.run_checks import found, note
from tests.support.timing import at_once, eventually
from tests.support.upkeep import aged, there

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def project() -> Project:
    return make_project("alpha")


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    settings.AGENTOPS_TELEMETRY = TelemetrySettings(roots=(str(tmp_path),))
    return tmp_path


def sent_names(*names: str) -> None:
    """Wait until all these tasks are in the queue."""
    seen: set[str] = set()

    def has_all() -> bool:
        seen.update(task_names("upkeep"))
        return seen.issuperset(names)

    eventually(has_all, why=lambda: f"only {seen} were sent")


def test_traces_are_settled(project: Project) -> None:
    OtlpSender(project).send(Span(1, name="invoke_agent coder", attributes={"gen_ai.operation.name": "invoke_agent"}))
    OtlpGroup.objects.update(due_at=timezone.now() - timedelta(seconds=1), received_at=timezone.now() - timedelta(1))

    at_once(lambda _: upkeep.settle_traces(), 2)

    group = OtlpGroup.objects.first()
    assert group is None or group.due_at is None or group.due_at > timezone.now()


@pytest.mark.redis
def test_the_next_trace_is_processed_when_it_is_due(project: Project, redis_url: str) -> None:
    queued_messages("upkeep")
    OtlpGroup.objects.create(
        project=project, key="t", received_at=timezone.now(), due_at=timezone.now() + timedelta(seconds=0.5)
    )

    upkeep.settle_traces()

    sent_names("runs.settle_traces")


def test_flow_runs_are_advanced(project: Project) -> None:
    flow_run = make_flow_run(CONSTANT, project)
    at_once(lambda _: upkeep.advance_flows(), 2)

    assert FlowRun.objects.get(pk=flow_run.pk).status == "completed"


def test_alert_rules_are_evaluated_once_a_period(project: Project) -> None:
    add_rule(project, {"name": "failed", "kind": "run_failed"}, by=SYSTEM)
    failed(project, "one")
    at_once(lambda _: upkeep.evaluate_alerts(), 2)
    assert AlertFinding.objects.count() == 1

    failed(project, "two")
    upkeep.evaluate_alerts()
    assert AlertFinding.objects.count() == 1

    Chore.objects.update(taken_at=timezone.now() - timedelta(seconds=site_settings.AGENTOPS_ALERTS_S))
    upkeep.evaluate_alerts()
    assert AlertFinding.objects.count() == 2


@pytest.mark.redis
def test_an_alert_message_is_requested_and_attempted(project: Project, redis_url: str, settings: Any) -> None:
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    queued_messages("upkeep")
    rule, _ = add_rule(project, {"name": "a", "kind": "run_failed", "webhook_url": "http://127.0.0.1:9/x"}, by=SYSTEM)
    send_test(project, rule.pk, by=SYSTEM)
    sent_names("runs.send_alerts")

    at_once(lambda _: upkeep.send_alerts(), 2)

    assert AlertDelivery.objects.get().attempts == 1


def test_a_sink_gets_its_events_and_requests_another_call(project: Project, folder: Path) -> None:
    """The call before does not see events that arrive during it, so the next call must not wait for the schedule."""
    run = make_run(make_agent(project))
    sink = make_sink(project, "jsonl", {"directory": str(folder)})
    note(run, "one")
    has_ended = threading.Event()
    exporter = Exporter(after_job=has_ended.set)
    try:
        assert exporter.look()
        assert has_ended.wait(60)
    finally:
        exporter.close()
    assert exporter.has_settled
    assert SinkCursor.objects.get(pk=sink.pk).sent_events >= 1


def test_the_exporter_of_the_process_serves_the_task(project: Project, folder: Path) -> None:
    run = make_run(make_agent(project))
    sink = make_sink(project, "jsonl", {"directory": str(folder)})
    note(run, "one")
    try:
        at_once(lambda _: upkeep.export_events(), 2)
        eventually(lambda: SinkCursor.objects.get(pk=sink.pk).sent_events >= 1, why="the event is sent")
    finally:
        exporting.close()


@pytest.mark.redis
def test_one_call_indexes_texts_and_the_other_requests_another(project: Project, redis_url: str) -> None:
    run = make_run(make_agent(project))
    note(run, "a needle")
    queued_messages("upkeep")
    assert Chore.objects.take(upkeep.INDEX, every=upkeep.INDEX_HELD)

    upkeep.index_texts()
    assert not SearchEntry.objects.exists()
    sent_names("runs.index_texts")

    Chore.objects.release(upkeep.INDEX, every=upkeep.INDEX_HELD)
    upkeep.index_texts()
    assert found(project, "needle")
    assert not search_index.is_behind()
    assert Chore.objects.take(upkeep.INDEX, every=upkeep.INDEX_HELD)


@pytest.mark.redis
def test_a_deleted_project_is_requested_and_removed_in_several_calls(
    project: Project, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive(make_run(make_agent(project)))
    archive_project(project, actor=SYSTEM)
    queued_messages("upkeep")
    project_changes.delete_project(project, confirmation=project.slug, by=SYSTEM)
    sent_names("runs.delete_projects")

    monkeypatch.setattr(upkeep_call, "CALL_S", 0.0)
    calls = 0
    while Project._base_manager.filter(pk=project.pk).exists():
        upkeep.delete_projects()
        calls += 1
        assert calls < 1000
    assert calls > 1


def test_the_retention_continues_in_the_next_call(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent(project)
    runs = [aged(make_run(agent), 100) for _ in range(3)]
    monkeypatch.setattr(upkeep_call, "CALL_S", 0.0)
    upkeep.apply_retention()
    assert any(there(*runs))

    monkeypatch.undo()
    upkeep.apply_retention()
    assert there(*runs) == [False] * 3


def test_tasks_do_nothing_while_the_worker_shuts_down(project: Project) -> None:
    shutdown = worker.current().shutdown.requested
    note(make_run(make_agent(project)), "needle")
    shutdown.set()
    try:
        upkeep.index_texts()
        assert not SearchEntry.objects.exists()
    finally:
        shutdown.clear()
    upkeep.index_texts()
    assert SearchEntry.objects.exists()
