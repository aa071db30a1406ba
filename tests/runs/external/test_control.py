"""An external run is recorded, not controlled: only a stop changes it, and its page shows the runner's reports."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from pytest_django import Settings

from agentops.accounts.access import SYSTEM
from agentops.accounts.models import Project, Role
from runs.actions import run_actions
from runs.actions.fork import fork
from runs.external.ingest import Sender, record
from runs.external.recorded_ends import notice_silence
from runs.models import AgentRun
from runs.upkeep import invariants, replay_check
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.factories import make_agent, make_person, make_project, make_run, with_key
from tests.support.run_checks import refuses
from tests.support.timing import at_once
from timeline.events import describe
from timeline.models import Event, Log

pytestmark = pytest.mark.django_db


def reported(*events: tuple[str, dict[str, str]]) -> AgentRun:
    started = ("run.started", {"agent": "coder", "prompt": "Fix it"})
    documents = [{"runId": "r1", "type": type_, "payload": payload} for type_, payload in (started, *events)]
    results = record(Sender(make_project("outside"), "key:test"), documents)
    assert [result.error for result in results if result.error] == []
    return AgentRun.objects.get(external_id="r1")


def reported_more(project: Project, type_: str) -> AgentRun:
    """Return another run with this last event."""
    payload = {"reason": "input"} if type_ == "run.waiting" else {}
    events = [{"type": "run.started"}, {"type": type_, "payload": payload}]
    [first, _] = record(Sender(project, "key:test"), [{**event, "runId": type_} for event in events])
    return AgentRun.objects.get(pk=first.run_id)


@pytest.mark.parametrize("status", ["running", "paused", "waiting"])
def test_every_action_except_stop_is_refused_and_writes_nothing(status: str) -> None:
    reason = {"running": {"status": "running"}, "paused": {"reason": "operator"}, "waiting": {"reason": "input"}}
    run = reported(("run.phase" if status == "running" else f"run.{status}", reason[status]))
    before = Event.objects.count()

    for act in (
        lambda: run_actions.pause(SYSTEM, run),
        lambda: run_actions.send(SYSTEM, run, "hello"),
        lambda: run_actions.reply(SYSTEM, run, "hello"),
        lambda: run_actions.resume(SYSTEM, run),
        lambda: run_actions.resume(SYSTEM, run, kill=True),
    ):
        with refuses("run_is_external"):
            act()
    with refuses("no_checkpoint"):
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
def test_the_page_shows_the_runners_reports(event: tuple[str, dict[str, str]], text: str) -> None:
    run = reported(event)
    client = Client()
    client.force_login(make_person(run.project, Role.ADMIN))

    page = client.get(f"/runs/{run.pk}").content.decode()

    assert text in page
    assert "This run is executed by an external runner and cannot be controlled here." in page
    assert "An external run has no checkpoints to fork from." in page
    assert " of 50" not in page


def test_the_page_shows_that_the_runner_is_silent() -> None:
    run = reported()
    client = Client()
    client.force_login(make_person(run.project))
    assert "Runner silent" not in client.get(f"/runs/{run.pk}").content.decode()

    Log.objects.filter(pk=run.pk).update(last_event_at=timezone.now() - timedelta(minutes=3))

    assert "Runner silent" in client.get(f"/runs/{run.pk}").content.decode()


@pytest.mark.every_database
def test_silence_is_reported_once_and_ends_nothing_soon(settings: Settings) -> None:
    """Any worker's sweep reports it, until the runner sends again. Other statuses and native runs may be silent."""
    settings.AGENTOPS_SILENCE_S = 60
    run = reported()
    waiting, ended = (reported_more(run.project, name) for name in ("run.waiting", "run.completed"))
    native = make_run(make_agent(run.project))
    since = timezone.now() - timedelta(seconds=61)
    Log.objects.exclude(pk=native.pk).update(last_event_at=since)
    worker = Worker()
    client = Client()
    client.force_login(make_person(run.project))
    detail = f"/api/projects/outside/agent-runs/{run.pk}"
    assert client.get(detail).json()["silent_since"] is None

    assert [notice_silence(), notice_silence()] == [1, 0]
    advance_ready(worker)

    run.refresh_from_db()
    assert (run.status, run.completed_at) == ("running", None)
    [event] = Event.objects.filter(type="policy.applied")
    assert (event.log_id, event.source, event.payload["trigger"]) == (run.pk, "policy", "on_idle")
    assert describe(event.type, event.payload).startswith("The runner has sent no event since ")
    answer = client.get(detail).json()
    assert (answer["status"], parse_datetime(answer["silent_since"])) == ("running", since)
    page = client.get(f"/runs/{run.pk}").content.decode()
    assert "Runner silent" in page
    assert "The runner has sent no event since" in page
    for one in (run, waiting, ended):
        assert [fault for fault in invariants.check(one.pk) if not fault.warning_only] == []
        assert replay_check.differences(one.pk) == []

    record(Sender(run.project, "key:test"), [{"runId": "r1", "type": "x.alive"}])

    assert client.get(detail).json()["silent_since"] is None
    assert "Runner silent" not in client.get(f"/runs/{run.pk}").content.decode()
    Log.objects.filter(pk=run.pk).update(last_event_at=since)
    assert [notice_silence(), notice_silence()] == [1, 0]


@pytest.mark.django_db(transaction=True)
@pytest.mark.every_database
def test_concurrent_workers_report_silence_once() -> None:
    run = reported()
    Log.objects.update(last_event_at=timezone.now() - timedelta(hours=1))

    noticed = at_once(lambda _: notice_silence(), 4)

    assert sum(noticed) == 1
    assert Event.objects.filter(log=run.pk, type="policy.applied").count() == 1


# --- Runs created before their events -------------------------------------------------------------------------------


def opened(client: Client, **body: object) -> dict[str, Any]:
    url = "/api/projects/outside/agent-runs"
    answer = client.post(url, {"agent_id": "coder", "source": "external", **body}, content_type="application/json")
    return {"status_code": answer.status_code, **answer.json()}


@pytest.fixture
def program(db: None) -> Client:
    return Client(headers=with_key(make_project("outside"), "write", "ingest"))


def test_a_program_creates_a_run_and_then_sends_its_events(program: Client) -> None:
    answer = opened(program, external_id="r1", prompt="Fix it\nnow", run_kind="job", labels=["a"])

    assert (answer["status_code"], answer["source"], answer["status"], answer["external_id"]) == (
        201,
        "external",
        "queued",
        "r1",
    )
    run = AgentRun.objects.get(pk=answer["id"])
    record(
        Sender(run.project, "key:test"), [{"runId": "r1", "type": "run.started", "payload": {"prompt": "Fix it\nnow"}}]
    )
    run.refresh_from_db()
    assert (run.status, run.title, run.prompt, run.messages.count()) == ("running", "Fix it", "Fix it\nnow", 1)
    assert set(Event.objects.filter(log=run.pk).values_list("run_kind", flat=True)) == {"job"}
    assert invariants.check(run.pk) == []
    assert replay_check.differences(run.pk) == []


def test_an_external_id_is_unique(program: Client) -> None:
    first = opened(program, external_id="r1")
    again = opened(program, external_id="r1")

    assert (again["status_code"], again["code"], again["run_id"]) == (409, "external_id_conflict", first["id"])


def test_an_external_id_must_be_printable(program: Client) -> None:
    for odd in ("a\x00b", "a\ud800", "a\nb", ""):
        answer = opened(program, external_id=odd)
        assert (answer["status_code"], AgentRun.objects.count()) == (422, 0)


def test_a_native_run_has_no_external_id(program: Client) -> None:
    make_agent(Project.objects.get(slug="outside"), slug="coder")

    answer = opened(program, source="native", external_id="r1")

    assert (answer["status_code"], answer["code"], AgentRun.objects.count()) == (422, "invalid_value", 0)


def test_the_log_of_the_parent_has_an_event_for_its_child(program: Client) -> None:
    parent = opened(program)
    child = opened(program, parent_run_id=parent["id"])

    [event] = Event.objects.filter(log=parent["id"], type="child_run.started")
    assert (event.payload["run_id"], str(event.ref_id), child["parent_run_id"]) == (
        child["id"],
        child["id"],
        parent["id"],
    )
