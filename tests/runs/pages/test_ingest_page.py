"""Test ingest counts: the counts of each request, their storage, and their page."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.db import DatabaseError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from agentops.accounts import keys
from agentops.accounts.access import SYSTEM
from agentops.accounts.models import ApiKey, Project, Role
from runs.external import ingest_counts
from runs.models import IngestCount
from runs.pages import ingest_page
from runs.pages.ingest_page import IngestHealth, health_of
from runs.upkeep import old_records
from tests.support.factories import key_prefix, make_person, make_project, with_key

pytestmark = pytest.mark.django_db
URL = "/api/internal/agent-events"
SECRET = "first-secret-of-the-runner"
STARTED = {"runId": "r1", "type": "run.started", "payload": {"agent": "coder"}, "event_id": "start"}
NOTE = {"runId": "r1", "type": "x.note", "payload": {}, "event_id": "note"}
Send = Callable[..., int]


@pytest.fixture(autouse=True)
def _nothing_pending(db: None) -> None:
    """Discard counts that other tests left in this process."""
    ingest_counts.flush()
    IngestCount.objects.all().delete()


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


def send(headers: dict[str, str], document: Any) -> int:
    body = document if isinstance(document, bytes) else json.dumps(document)
    return Client().post(URL, body, content_type="application/json", headers=headers).status_code


def counted() -> Counter[tuple[str, str]]:
    ingest_counts.flush()
    counts: Counter[tuple[str, str]] = Counter()
    for row in IngestCount.objects.all():
        counts[row.sender, row.outcome] += row.count
    return counts


@pytest.mark.every_database
def test_each_event_and_each_refused_request_is_counted_once(project: Project, settings: Settings) -> None:
    settings.AGENT_RUNNER_SECRET, settings.AGENT_RUNNER_PROJECT = [SECRET], project.slug
    headers, reader = with_key(project, "ingest"), with_key(project, "read")
    sender, other = f"key:{key_prefix(headers)}", f"key:{key_prefix(reader)}"
    refused = {**NOTE, "type": "no.such"}
    sent = [
        (send(headers, {"events": [STARTED, NOTE, NOTE, {**NOTE, "payload": {"a": 1}}, refused, None]}), 207),
        (send(headers, NOTE), 200),
        (send(headers, refused), 422),
        (send(headers, b"{"), 400),
        (send(headers, {"events": []}), 422),
        (send(headers, b" " * (5 * 2**20 + 1)), 413),
        (send({"x-agent-runner-secret": SECRET}, {**NOTE, "event_id": "second"}), 200),
        (send({"x-agent-runner-secret": SECRET}, b"["), 400),
        (send(reader, NOTE), 403),
        (send({"x-agent-runner-secret": "wrong"}, NOTE), 401),
        (send({}, NOTE), 401),
    ]
    keys.revoke(ApiKey.objects.get(prefix=key_prefix(headers)), actor=SYSTEM)
    sent.append((send(headers, NOTE), 401))
    settings.AGENTOPS_RATE_INGEST = 1
    limited = {"x-agent-runner-secret": SECRET}
    assert [status for status, _ in sent] == [expected for _, expected in sent]
    assert {send(limited, NOTE) for _ in range(3)} >= {429}

    counts = counted()
    limits = counts.pop(("runner", "rate_limited"))
    duplicates = counts.pop(("runner", "duplicate"), 0)
    assert limits + duplicates == 3
    assert counts == {
        (sender, "accepted"): 2,
        (sender, "duplicate"): 2,
        (sender, "event_id_conflict"): 1,
        (sender, "unknown_event_type"): 2,
        (sender, "event_object_expected"): 1,
        (sender, "invalid_json"): 1,
        (sender, "events_empty"): 1,
        (sender, "body_too_large"): 1,
        (sender, "auth_revoked"): 1,
        ("runner", "accepted"): 1,
        ("runner", "invalid_json"): 1,
        (other, "scope_required"): 1,
    }


def test_a_request_stores_no_count_and_a_flush_adds_to_stored_counts(project: Project) -> None:
    headers = with_key(project, "ingest")
    with CaptureQueriesContext(connection) as queries:
        assert send(headers, STARTED) == 200
    assert not [query for query in queries if "ingest_counts" in query["sql"]]

    with time_machine.travel(datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC), tick=False):
        for _ in range(3):
            ingest_counts.count(project.pk, "runner", {"accepted": 2, "x": 1})
            with CaptureQueriesContext(connection) as queries:
                ingest_counts.flush()
            assert len([query for query in queries if "INSERT" in query["sql"]]) == 1
    rows = IngestCount.objects.filter(sender="runner").order_by("outcome")
    assert [(row.outcome, row.count, row.minute.second, row.last_at.second) for row in rows] == [
        ("accepted", 6, 0, 30),
        ("x", 3, 0, 30),
    ]


def test_counts_are_kept_while_the_database_is_unavailable(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise DatabaseError

    ingest_counts.count(project.pk, "runner", {"accepted": 1})
    monkeypatch.setattr(connection, "cursor", fail)
    ingest_counts.flush()
    monkeypatch.setattr(ingest_counts, "MAX_PENDING", 1)
    ingest_counts.count(project.pk, "runner", {"accepted": 1, "dropped": 1})
    monkeypatch.undo()

    assert counted() == {("runner", "accepted"): 2}


@pytest.mark.django_db(transaction=True)
@pytest.mark.every_database
def test_counts_of_many_threads_are_stored(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def count() -> None:
        for _ in range(200):
            ingest_counts.count(project.pk, "runner", {"accepted": 1, "duplicate": 2})

    threads = [threading.Thread(target=count) for _ in range(10)]
    flusher = threading.Thread(target=lambda: [ingest_counts.flush() for _ in range(5)] + [connection.close()])
    for thread in [*threads, flusher]:
        thread.start()
    for thread in [*threads, flusher]:
        thread.join()

    assert counted() == {("runner", "accepted"): 2000, ("runner", "duplicate"): 4000}


# --- The page ---------------------------------------------------------------------------------------------------


def store(project: Project, sender: str, outcome: str, events: int, at: datetime) -> None:
    minute = at.replace(second=0, microsecond=0)
    IngestCount.objects.create(project=project, sender=sender, minute=minute, outcome=outcome, count=events, last_at=at)


@pytest.mark.every_database
def test_each_sender_has_its_rates_last_event_and_rejections(project: Project, settings: Settings) -> None:
    settings.AGENT_RUNNER_SECRET, settings.AGENT_RUNNER_PROJECT = [SECRET], project.slug
    key, silent, reader = (key_prefix(with_key(project, *scopes)) for scopes in (["ingest"], ["ingest"], ["read"]))
    now = datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC)
    sender = f"key:{key}"
    for minutes, events in ((0, 5), (4, 40), (5, 100), (59, 50), (60, 1000), (1441, 7)):
        store(project, sender, "accepted", events, now - timedelta(minutes=minutes))
    store(project, sender, "duplicate", 3, now - timedelta(hours=2))
    for outcome, events in (("invalid_json", 2), ("rate_limited", 9)):
        store(project, sender, outcome, events, now - timedelta(hours=3))
    store(project, "key:gone", "accepted", 1, now)
    store(make_project("beta"), sender, "accepted", 1000, now)

    by_sender = {health.sender: health for health in health_of(project, now)}
    health = by_sender[sender]
    assert set(by_sender) == {sender, f"key:{silent}", "runner", "key:gone"}
    assert (round(health.short_rate, 3), round(health.long_rate, 3)) == (round(45 / 4.5, 3), round(195 / 59.5, 3))
    assert (health.last_at, health.duplicates) == (now, 3)
    assert list(health.rejected.items()) == [("rate_limited", 9), ("invalid_json", 2)]
    assert by_sender[f"key:{silent}"].last_at is None
    assert (by_sender["key:gone"].name, by_sender["runner"].name) == ("Deleted key", "Runner secrets")
    assert isinstance(health, IngestHealth)

    store(project, f"key:{reader}", "scope_required", 1, now)
    assert f"key:{reader}" in {one.sender for one in health_of(project, now)}


def test_the_page_shows_counts_with_a_fixed_number_of_queries(project: Project) -> None:
    client = Client()
    client.force_login(make_person(project, Role.VIEWER))

    def queries() -> tuple[int, str]:
        with CaptureQueriesContext(connection) as captured:
            answer = client.get(f"/p/{project.slug}/ingest")
        assert answer.status_code == 200
        return len(captured), answer.content.decode()

    empty, page = queries()
    assert "agentops key create --project alpha --scopes ingest" in page
    for number in range(20):
        sender = f"key:{key_prefix(with_key(project, 'ingest'))}"
        store(project, sender, "accepted", number, timezone.now())
        store(project, sender, "<b>invalid</b>", 1200, timezone.now())
    full, page = queries()
    assert full == empty
    assert "1,200 × <code>&lt;b&gt;invalid&lt;/b&gt;</code>" in page


def test_an_old_key_that_sends_is_named(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_page, "MAX_KEYS", 1)
    old = with_key(project, "ingest")
    with_key(project, "ingest")
    send(old, STARTED)
    ingest_counts.flush()

    [named] = [health for health in health_of(project, timezone.now()) if health.prefix == key_prefix(old)]
    assert (named.name, bool(named.state)) == ("a program", True)


def test_old_counts_are_deleted(project: Project) -> None:
    now = timezone.now()
    for days in (8, 6):
        store(project, "runner", "accepted", 1, now - timedelta(days=days))

    assert (old_records.delete_batch(), old_records.delete_batch()) == (1, 0)
    assert IngestCount.objects.get().minute > now - timedelta(days=7)
