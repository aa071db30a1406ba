"""An external run is watched, not controlled: no action changes it, and its page says what its runner reports."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from agentops.projects.access import SYSTEM
from agentops.projects.models import Role
from runs.actions import run_actions
from runs.actions.fork import fork
from runs.errors import NoCheckpoint, RunIsExternal
from runs.external.ingest import Sender, record
from runs.models import AgentRun
from tests.support.accounts import make_person
from tests.support.factories import make_project
from timeline.models import Event, Log

pytestmark = pytest.mark.django_db


def reported(*events: tuple[str, dict[str, str]]) -> AgentRun:
    started = ("run.started", {"agent": "coder", "prompt": "Fix it"})
    documents = [{"runId": "r1", "type": type_, "payload": payload} for type_, payload in (started, *events)]
    results = record(Sender(make_project("outside"), "key:test"), documents)
    assert [result.error for result in results if result.error] == []
    return AgentRun.objects.get(external_id="r1")


@pytest.mark.parametrize("status", ["running", "paused", "waiting"])
def test_every_action_is_refused_and_writes_nothing(status: str) -> None:
    reason = {"running": {"status": "running"}, "paused": {"reason": "operator"}, "waiting": {"reason": "input"}}
    run = reported(("run.phase" if status == "running" else f"run.{status}", reason[status]))
    before = Event.objects.count()

    for act in (
        lambda: run_actions.pause(SYSTEM, run),
        lambda: run_actions.stop(SYSTEM, run),
        lambda: run_actions.send(SYSTEM, run, "hello"),
        lambda: run_actions.reply(SYSTEM, run, "hello"),
        lambda: run_actions.resume(SYSTEM, run),
        lambda: run_actions.resume(SYSTEM, run, kill=True),
    ):
        with pytest.raises(RunIsExternal):
            act()
    with pytest.raises(NoCheckpoint):
        fork(run.pk, by="test", step=1)

    run.refresh_from_db()
    assert (run.status, Event.objects.count(), AgentRun.objects.count()) == (status, before, 1)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (("run.waiting", {"reason": "input"}), "Waits for its user"),
        (("run.waiting", {"reason": "approval"}), "Waits for a permission"),
        (("run.waiting", {"reason": "the_moon"}), "Waits: the moon"),
        (("run.paused", {"reason": "operator"}), "Its runner reports this."),
        (("run.failed", {"errorType": "rate_limit", "error": "too many requests"}), "too many requests"),
    ],
)
def test_its_page_says_what_the_runner_reports(event: tuple[str, dict[str, str]], text: str) -> None:
    run = reported(event)
    client = Client()
    client.force_login(make_person(run.project, Role.ADMIN))

    page = client.get(f"/runs/{run.pk}").content.decode()

    assert text in page
    assert "This run is executed by an external runner and cannot be controlled here." in page
    assert "An external run has no checkpoints to fork from." in page
    assert " of 50" not in page


def test_its_page_says_that_the_runner_is_silent() -> None:
    run = reported()
    client = Client()
    client.force_login(make_person(run.project))
    assert "Runner silent" not in client.get(f"/runs/{run.pk}").content.decode()

    Log.objects.filter(pk=run.pk).update(last_event_at=timezone.now() - timedelta(minutes=3))

    assert "Runner silent" in client.get(f"/runs/{run.pk}").content.decode()
