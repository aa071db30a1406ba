"""A project with a backlog does not block others: each queue serves a new waiting project at its next turn.

Measured in turns: how much of the backlog is served before the single task of the other project, which came last.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from agentops.accounts import mailing
from agentops.accounts.access import SYSTEM
from agentops.accounts.models import Notification, Project
from runs.alerts import sending
from runs.alerts.alert_rule_changes import add_rule, send_test
from runs.external import import_execution, uploads
from runs.external.otlp import settling
from runs.external.uploads import Upload
from runs.flows import runner
from runs.models import AlertDelivery, Delivery, FileImport, FlowRun, ImportState, OtlpGroup
from runs.telemetry import exporter
from runs.telemetry.exporter import Exporter
from tests.support.factories import make_agent, make_project, make_run
from tests.support.flows import CONSTANT, make_flow_run
from tests.support.loopback_servers import receiving
from tests.support.project_rows import append, make_sink
from tests.support.timing import eventually

CHAT = json.dumps([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]).encode()


@pytest.fixture
def busy(db: None) -> Project:
    return make_project("busy")


@pytest.fixture
def other(busy: Project) -> Project:
    return make_project("other")


def turns_until(is_served: Callable[[], bool], serve: Callable[[Callable[[], bool]], Any]) -> int:
    """Serve a queue until the other project's task is done, and return the number of turns before it."""
    turns = 0

    def is_stopping() -> bool:
        nonlocal turns
        turns += 1
        return is_served()

    serve(is_stopping)
    assert is_served()
    return turns - 1


@pytest.mark.django_db
def test_imports(busy: Project, other: Project) -> None:
    for project in (busy, busy, busy, other):
        uploads.store(SYSTEM, project, [Upload("chat.json", io.BytesIO(CHAT), len(CHAT))])
    assert import_execution.import_next()
    assert import_execution.import_next()
    done = FileImport.objects.filter(state=ImportState.DONE).order_by("started_at")
    assert [one.project for one in done] == [busy, other]


@pytest.mark.django_db
def test_flow_runs(busy: Project, other: Project) -> None:
    for _ in range(3 * runner.TURN):
        make_flow_run(CONSTANT, busy)
    waiting = FlowRun.objects.filter(pk=make_flow_run(CONSTANT, other).pk, status="queued")
    assert turns_until(lambda: not waiting.exists(), runner.advance_due) <= runner.TURN + 1


@pytest.mark.django_db
def test_notifications_by_mail(busy: Project, other: Project) -> None:
    due_at = timezone.now()
    for number, project in enumerate([*[busy] * 9, other]):
        Notification.objects.create(project=project, title=str(number), created_at=due_at, email_due_at=due_at)
    waiting = Notification.objects.filter(project=other, emailed_at=None)
    assert turns_until(lambda: not waiting.exists(), mailing.send_due) <= 2


@pytest.mark.django_db
def test_alerts(busy: Project, other: Project, settings: Settings) -> None:
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    with receiving() as receiver:
        for project, count in ((busy, 9), (other, 1)):
            rule, _ = add_rule(
                project, {"kind": "run_failed", "name": "Failures", "webhook_url": receiver.url}, by="test"
            )
            for _ in range(count):
                send_test(project, rule.pk, by="test")
        waiting = AlertDelivery.objects.filter(project=other, state=AlertDelivery.State.WAITING)
        assert turns_until(lambda: not waiting.exists(), sending.send_due) <= 2


@pytest.mark.django_db
def test_traces(busy: Project, other: Project) -> None:
    long_ago = timezone.now() - timedelta(hours=1)
    keys = [(busy, str(number)) for number in range(60)] + [(other, "last")]
    for seconds, (project, key) in enumerate(keys):
        due_at = long_ago + timedelta(seconds=seconds)
        OtlpGroup.objects.create(project=project, key=key, received_at=long_ago, due_at=due_at)
    assert settling.settle_due() == settling.TURN + 1
    assert not OtlpGroup.objects.filter(project=other, due_at__lte=timezone.now()).exists()


@pytest.mark.django_db(transaction=True)
def test_sinks(busy: Project, other: Project, settings: Settings) -> None:
    """All threads are sending the backlog of one project when the other's event arrives: it is the next one sent."""
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    with receiving() as slow, receiving() as first, receiving() as single:
        requests = single.received = first.received = slow.received
        for number in range(exporter.THREADS + 2):
            url = slow.url if number else first.url
            make_sink(busy, "webhook", {"url": url}, name=f"hook-{number}", event_types=["x.*"])
        make_sink(other, "webhook", {"url": f"{single.url}/single"}, event_types=["x.*"])
        append(make_run(make_agent(busy)), *map(str, range(6)))
        append(make_run(make_agent(other)), "single")
        Exporter().run_due()  # plans the deliveries
        waiting = Delivery.objects.filter(project=other)
        waiting.update(due_at=timezone.now() + timedelta(hours=1))

        first.gate.clear()
        slow.gate.clear()
        threaded = Exporter()
        threaded.look()
        eventually(lambda: len(requests) == exporter.THREADS, why="all threads wait for a response")
        waiting.update(due_at=timezone.now())
        threaded.look()
        first.gate.set()  # one thread becomes free
        eventually(lambda: len(requests) > exporter.THREADS, why="the free thread sends the next event")
        slow.gate.set()
        threaded.close()

    assert requests[exporter.THREADS].path.endswith("single")
