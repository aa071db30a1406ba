"""Disabled telemetry of a project: none of its data leaves the site, and its own sinks catch up later."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from pytest_django import Settings

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import change_project
from agentops.accounts.models import AuditEntry, Project, Role
from agentops.base.backing_services import EnvironmentSink, TelemetrySettings
from agentops.sinks import subscribe
from runs.models import Delivery, Sink, SinkCursor
from runs.telemetry import sink_changes
from runs.telemetry.exporter import Exporter
from tests.support.factories import make_agent, make_person, make_project, make_run
from tests.support.loopback_servers import Receiver
from tests.support.project_rows import append, export, make_sink

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def site_sink(receiver: Receiver, settings: Settings) -> Sink:
    """A sink configured by the environment, which gets the events of all projects from now on."""
    sink = EnvironmentSink("http", "http", {"url": receiver.url, "dialect": "log"}, {})
    settings.AGENTOPS_TELEMETRY = TelemetrySettings(sinks=(sink,))
    sink_changes.store_environment_sinks()
    return Sink.objects.get(project=None)


def texts(receiver: Receiver) -> list[str]:
    envelopes = [each for request in receiver.received for each in request.json]
    return [each["payload"]["payload"]["text"] for each in envelopes if each["event_type"] == "x.note"]


def switch(project: Project, *, on: bool) -> None:
    change_project(project, exports_telemetry=on, actor=SYSTEM)


def test_sinks_of_the_site_skip_the_project(receiver: Receiver, site_sink: Sink) -> None:
    """Also events not yet sent when it was disabled, and later events of runs that started before."""
    confidential, other = make_run(), make_run()
    switch(confidential.project, on=False)
    append(confidential, "secret")
    append(other, "open")
    export()
    assert texts(receiver) == ["open"]

    switch(confidential.project, on=True)
    append(confidential, "of a run that began before")
    append(make_run(confidential.agent), "of a later run")
    export()
    assert texts(receiver) == ["open", "of a later run"]
    assert SinkCursor.objects.get(pk=site_sink.pk).failures == 0


def test_own_sinks_and_webhooks_pause_and_lose_nothing(receiver: Receiver) -> None:
    run = make_run()
    sink = make_sink(run.project, "http", {"url": receiver.url}, event_types=("x.note",))
    webhook = make_sink(run.project, "webhook", {"url": receiver.url}, event_types=("x.note",))
    append(run, "before")
    export(2)
    receiver.received.clear()
    switch(run.project, on=False)
    append(run, "meanwhile")
    export(2)
    assert receiver.received == []
    assert not Exporter().look()
    sink.refresh_from_db()
    assert (sink.is_enabled, sink.is_paused, sink.is_sending) == (True, True, False)

    switch(run.project, on=True)
    append(run, "after")
    export(3)
    by_sink = [message for message in receiver.received if "webhook-id" not in message.headers]
    assert [each["payload"]["payload"]["text"] for request in by_sink for each in request.json] == [
        "meanwhile",
        "after",
    ]
    sent = Delivery.objects.filter(sink=webhook, state="sent").count()
    assert sent == 3


def test_a_waiting_delivery_pauses_too(receiver: Receiver) -> None:
    run = make_run()
    make_sink(run.project, "webhook", {"url": receiver.url}, event_types=("x.note",))
    receiver.answer(500)
    append(run, "late")
    export(2)
    Delivery.objects.update(due_at="2026-01-01T00:00:00Z")
    SinkCursor.objects.update(due_at=None)
    switch(run.project, on=False)
    export()
    assert (len(receiver.received), Delivery.objects.get().state) == (1, "waiting")
    switch(run.project, on=True)
    export()
    assert Delivery.objects.get().state == "sent"


def test_subscribers_in_the_process_receive_nothing() -> None:
    confidential, other = make_run(), make_run()
    switch(confidential.project, on=False)
    with subscribe(event_types=["x.note"], dialect="log") as events:
        append(confidential, "secret")
        append(other, "open")
        heard = events.get(timeout_s=10)
        assert heard is not None
        assert heard["payload"]["payload"]["text"] == "open"
        assert events.get(timeout_s=0.5) is None


def test_an_admin_switches_telemetry_on_the_sinks_page(client: Client, site_sink: Sink) -> None:
    project = make_project("alpha")
    make_sink(project, "jsonl", {}, name="files")
    client.force_login(make_person(project, Role.ADMIN))
    page = client.get("/p/alpha/settings/sinks").content.decode()
    assert "Switch telemetry off" in page
    assert "and to the sinks of the whole site" in page

    answer = client.post("/p/alpha/settings/telemetry", {"telemetry": "off"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/p/alpha/settings/sinks")
    page = client.get("/p/alpha/settings/sinks").content.decode()
    assert "Telemetry of this project is off: nothing is sent." in page
    assert "paused: telemetry is off" in page
    assert "this project is left out" in page
    assert client.get("/api/projects/alpha/sinks").json()["results"][0]["is_paused"] is True
    entry = AuditEntry.objects.filter(project=project, action="project.changed").get()
    assert (entry.before, entry.after) == ({"exports_telemetry": True}, {"exports_telemetry": False})
    assert client.post("/p/alpha/settings/telemetry", {"telemetry": "maybe"}).status_code == 400

    client.post("/p/alpha/settings/telemetry", {"telemetry": "on"})
    assert "Switch telemetry off" in client.get("/p/alpha/settings/sinks").content.decode()


def test_the_command_line_switches_telemetry_too(capsys: pytest.CaptureFixture[str]) -> None:
    project = make_project("alpha")
    make_agent(project)
    make_sink(project, "jsonl", {}, name="files")
    call_command("project", "change", "alpha", "--telemetry", "off")
    project.refresh_from_db()
    assert not project.exports_telemetry
    capsys.readouterr()
    call_command("sink", "ls", "alpha")
    said: Any = capsys.readouterr().out
    assert "paused: the telemetry of the project is off" in said
    call_command("project", "change", "alpha", "--telemetry", "on", "--json")
    assert '"exports_telemetry": true' in capsys.readouterr().out
