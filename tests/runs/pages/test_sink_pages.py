"""Test the pages of sinks and webhooks: errors at their fields, write-only secrets, and repeated deliveries."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentops.accounts.models import AuditEntry, Project, Role
from runs.models import Delivery, Sink, SinkCursor
from runs.pages.settings import sink_page
from runs.pages.settings.sink_fields import SinkForm
from runs.telemetry.sink_targets import KINDS, kind_of, unsealed
from tests.support.factories import make_agent, make_person, make_project, make_run
from tests.support.loopback_servers import Receiver
from tests.support.pages import form_values, parse
from tests.support.project_rows import append, export, make_sink, wake

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "a-header-that-nobody-may-read-again"
SINKS, NEW = "/p/alpha/settings/sinks", "/p/alpha/settings/new-sink"


@pytest.fixture
def project() -> Project:
    return make_project("alpha")


@pytest.fixture
def admin(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.ADMIN))
    return client


def text_of(answer: Any) -> str:
    return html.unescape(re.sub("</?bdi>", "", answer.content.decode()))


def errors_of(answer: Any) -> dict[str, list[str]]:
    """Return the errors by field name."""
    errors = {}
    for field in parse(answer.content.decode()).all("field"):
        texts = [each.text.strip() for each in field.walk() if "error" in each.attributes.get("class", "").split()]
        controls = [each for each in field.walk() if each.tag in ("input", "textarea")]
        if texts:
            assert controls[0].attributes["aria-invalid"] == "true" or "not sent back" in texts[-1]
            errors[controls[0].attributes["name"]] = texts
    return errors


def test_a_sink_is_created_changed_tested_disabled_and_deleted(
    admin: Client, project: Project, receiver: Receiver
) -> None:
    assert "No sinks yet" in text_of(admin.get(SINKS))
    assert "traces to an OpenTelemetry collector" in text_of(admin.get(NEW))
    values = form_values(admin.get(f"{NEW}?kind=http").content.decode(), "form")
    typed = {
        "name": "lake",
        "url": receiver.url,
        "batch_size": "2",
        "headers": f"X-Key: {SECRET}\r\nX-Team: shop\r\n",
        "event_types": "run.*\r\nx.note",
        "from_start": "yes",
    }
    created = admin.post(NEW, {**values, **typed})
    sink = Sink.objects.select_related("cursor").get()
    page = f"{SINKS}/{sink.pk}"
    assert (created.status_code, created["Location"]) == (303, page)
    assert (sink.config, sink.event_types) == ({"url": receiver.url, "batch_size": 2}, ["run.*", "x.note"])
    assert (unsealed(sink), sink.cursor.event_id) == ({"headers": {"X-Key": SECRET, "X-Team": "shop"}}, 0)

    # The unchanged form changes nothing; headers are deleted only on request.
    values = form_values(admin.get(f"{page}/edit").content.decode(), "form")
    assert (values["batch_size"], values["headers"]) == ("2", "")
    admin.post(f"{page}/edit", values)
    assert AuditEntry.objects.filter(action="sink.changed").count() == 0
    admin.post(f"{page}/edit", {**values, "name": "sea", "batch_size": "", "headers-forget": "yes"})
    sink.refresh_from_db()
    assert (sink.name, sink.config, unsealed(sink)) == ("sea", {"url": receiver.url}, {"headers": {}})

    receiver.answer(500, body=b"closed today")
    address = admin.post(f"{page}/test")["Location"]
    assert "Waiting for a worker" in text_of(admin.get(address))
    export()
    assert "Not accepted: the receiver answered 500." in text_of(admin.get(address))
    assert "closed today" in text_of(admin.get(address))
    address = admin.post(f"{page}/test")["Location"]
    export()
    assert "Accepted with status 200" in text_of(admin.get(address))

    admin.post(f"{page}/switch", {"enabled": "no"})
    assert "disabled" in text_of(admin.get(SINKS))
    admin.post(f"{page}/switch", {"enabled": "yes"})
    assert Sink.objects.get().is_enabled
    assert "cannot be undone" in text_of(admin.get(f"{page}/delete"))
    assert admin.post(f"{page}/delete", {"name": "lake"}).status_code == 400
    assert admin.post(f"{page}/delete", {"name": "sea"})["Location"] == SINKS
    assert admin.get(page).status_code == 404


def test_all_errors_are_at_their_fields_and_nothing_is_stored(admin: Client, project: Project) -> None:
    make_sink(project, "jsonl", {}, name="taken")
    typed = {
        "kind": "http",
        "name": "taken",
        "url": "http://127.0.0.1/in",
        "batch_size": "many",
        "headers": f"{SECRET}",
        "event_types": "run.nonsense",
    }
    answer = admin.post(NEW, typed)
    errors = errors_of(answer)
    assert answer.status_code == 422
    assert sorted(errors) == ["batch_size", "event_types", "headers", "name", "url"]
    assert errors["batch_size"][0].startswith("Input should be a valid integer")
    assert errors["headers"][0] == "Line 1 is not of the form NAME: VALUE."
    assert "'taken' already" in errors["name"][0]
    assert SECRET not in text_of(answer)
    values = form_values(answer.content.decode(), "form")
    assert {name: values[name] for name in typed} == {**typed, "headers": ""}

    empty = errors_of(admin.post(NEW, {"kind": "langfuse_otlp", "base_url": "ftp://x"}))
    assert {name: each[0] for name, each in empty.items()}.items() >= {
        *(("name", "Enter a value."), ("public_key", "Enter a value."), ("secret_key", "Enter a value."))
    }
    assert "base_url" in empty
    assert admin.post(NEW, {"kind": "pigeon"}).status_code == 400
    assert Sink.objects.count() == 1

    # A stored sink keeps its secrets if they are not changed.
    sink = make_sink(project, "langfuse_otlp", {"public_key": "pk-lf-1"}, secrets={"secret_key": SECRET})
    assert "cloud.langfuse.com" in text_of(admin.get(SINKS))
    edited = admin.post(f"{SINKS}/{sink.pk}/edit", {"name": "A!", "public_key": ""})
    assert sorted(errors_of(edited)) == ["name", "public_key"]
    assert admin.post(f"{SINKS}/{sink.pk}/edit", {"name": "fuse", "public_key": "pk-lf-2"}).status_code == 303
    sink.refresh_from_db()
    assert (sink.config, unsealed(sink)) == ({"public_key": "pk-lf-2"}, {"secret_key": SECRET})


def test_the_secret_of_a_webhook_is_displayed_once(admin: Client, project: Project, receiver: Receiver) -> None:
    created = admin.post(NEW, {"kind": "webhook", "name": "chat", "url": receiver.url, "event_types": "x.note"})
    sink = Sink.objects.get()
    [first] = unsealed(sink)["secrets"]
    page = f"{SINKS}/{sink.pk}"
    assert first in text_of(created)
    assert created["Cache-Control"] == "no-store"

    values = form_values(admin.get(page).content.decode(), "rotation")
    rotated = admin.post(f"{page}/rotate", values)
    sink.refresh_from_db()
    second, kept = unsealed(sink)["secrets"]
    assert kept == first
    assert second in text_of(rotated)
    assert first not in text_of(rotated)
    # Reloading the response submits the form again, and must not revoke the first secret.
    assert admin.post(f"{page}/rotate", values).status_code == 303
    sink.refresh_from_db()
    assert unsealed(sink)["secrets"] == [second, first]
    for url in (SINKS, page, f"{page}/edit", f"{page}/delete"):
        shown = text_of(admin.get(url))
        assert first not in shown
        assert second not in shown
        assert first.removeprefix("whsec_") not in shown
    assert f"••••{first[-4:]}" in text_of(admin.get(page))


def test_deliveries_are_paginated_and_can_be_sent_again(
    admin: Client, project: Project, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_page, "PAGE_SIZE", 2)
    run = make_run(make_agent(project))
    sink = make_sink(project, "webhook", {"url": receiver.url}, event_types=["x.note"])
    for body in (b"no 1", b"no 2", b"no 3"):
        receiver.answer(400, body=body)
    append(run, "a", "b", "c", "d")
    for _ in range(5):
        wake(sink)
        export()
    states = dict(Delivery.objects.order_by("pk").values_list("pk", "state"))
    assert list(states.values()) == ["dead", "dead", "dead", "sent"]
    page = f"{SINKS}/{sink.pk}"
    newest = text_of(admin.get(f"{page}?state=dead"))
    assert [each in newest for each in ("no 3", "no 2", "no 1")] == [True, True, False]
    [older] = [each.attributes["href"] for each in parse(newest).walk() if each.attributes.get("rel") == "next"]
    oldest = text_of(admin.get(f"{page}{older.partition('#')[0]}"))
    assert [each in oldest for each in ("no 3", "no 2", "no 1")] == [False, False, True]
    assert admin.get(f"{page}?state=lost").status_code == 400
    assert admin.get(f"{page}?before=1").status_code == 400

    first = next(iter(states))
    other = make_sink(project, "jsonl", {})
    assert admin.post(f"{SINKS}/{other.pk}/resend", {"delivery": first}).status_code == 404
    assert admin.post(f"{page}/resend", {"delivery": "all"}).status_code == 400
    admin.post(f"{page}/resend", {"delivery": first})
    wake(sink)
    export()
    assert Delivery.objects.get(pk=first).state == "sent"
    admin.post(f"{page}/resend", {"delivery": "dead"})
    assert "2 deliveries will be sent again" in text_of(admin.get(page))
    wake(sink)
    export()
    assert set(Delivery.objects.values_list("state", flat=True)) == {"sent"}
    assert AuditEntry.objects.filter(action="sink.delivery_resent").count() == 2
    assert len({each.headers["webhook-id"] for each in receiver.received}) == 4


def test_the_list_shows_errors_and_the_backlog(admin: Client, project: Project, receiver: Receiver) -> None:
    run, foreign = make_run(make_agent(project)), make_run(make_agent(make_project("beta")))
    for number in range(2):
        make_sink(project, "http", {"url": receiver.url}, name=f"lake-{number}")
    with CaptureQueriesContext(connection) as few:
        admin.get(SINKS)
    for number in range(2, 9):
        make_sink(project, "http", {"url": receiver.url}, name=f"lake-{number}")
    receiver.answer(401, body=b"who are you")
    append(run, "a", "b")
    append(foreign, *"abcdef")
    Sink.objects.exclude(name="lake-0").update(is_enabled=False)
    export()
    with CaptureQueriesContext(connection) as many:
        listed = text_of(admin.get(SINKS))
    assert len(many) == len(few)
    assert "the receiver answered 401" in listed
    assert "disabled after an error" in listed

    # The backlog does not count events of other projects.
    SinkCursor.objects.update(failures=4)
    Sink.objects.update(is_enabled=True, disabled_reason="")
    with time_machine.travel(timezone.now() + timedelta(minutes=2)):
        listed = text_of(admin.get(SINKS))
    assert "2 min" in listed
    assert " s, 2 events" in listed


@pytest.mark.parametrize("kind", KINDS.names())
def test_browsers_do_not_store_secrets_or_urls(admin: Client, kind: str) -> None:
    page = parse(admin.get(NEW, {"kind": kind}).content.decode())
    form = SinkForm(kind_of(kind), None)
    marked = {
        each.attributes["name"]
        for each in page.walk()
        if each.tag in ("input", "textarea") and "data-secret" in each.attributes
    }

    assert set(form.secret_names) <= marked
    assert {name for name in form.option_names if "url" in name} <= marked
    assert not marked & {"name", "event_types"}
