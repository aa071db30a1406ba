"""Sinks: each event arrives, in the order of its log, even if the receiver or the worker fails."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from runs import chaos
from runs.models import AgentRun, Delivery, SinkCursor
from runs.telemetry import deliveries, sink_changes, sink_claims
from runs.telemetry.exporter import Exporter
from runs.telemetry.sink_changes import SinkChange
from runs.telemetry.sink_kind import InvalidSink
from runs.upkeep import old_records
from runs.worker import upkeep
from runs.worker.upkeep import exporting
from tests.support.factories import drive, make_agent, make_log, make_project, make_run
from tests.support.loopback_servers import Receiver
from tests.support.machine import ROOT
from tests.support.project_rows import append, export, make_sink, wake
from tests.support.run_checks import rows_with
from tests.support.timelines import appended_late
from tests.support.timing import at_once, eventually
from timeline import log, reading
from timeline.log import Entry
from timeline.models import Source

pytestmark = pytest.mark.django_db(transaction=True)
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
KEYS = {"event_type", "timestamp_ms", "session_id", "agent_id", "payload"}


def test_a_failed_thread_start_does_not_block_a_sink(receiver: Receiver) -> None:
    """For example, if the machine or the container is briefly at its thread limit."""
    run = make_run()
    make_sink(run.project, "http", {"url": receiver.url}, from_start=True)
    drive(run)
    exporter, usual = Exporter(), threading.stack_size(1 << 46)
    try:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            exporter.look()
    finally:
        threading.stack_size(usual)

    exporter.look()
    eventually(lambda: receiver.received, why="the sink is not sent to any more", within_s=20)
    exporter.close()


def test_a_run_arrives_in_order_with_the_keys_of_an_envelope(receiver: Receiver) -> None:
    run = make_run()
    other = make_run()
    sink = make_sink(run.project, "http", {"url": receiver.url, "batch_size": 7}, from_start=True)
    drive(run)
    drive(other)

    export()

    envelopes = [envelope for request in receiver.received for envelope in request.json]
    wanted = [event for event in log.events_of(run.pk) if ".delta" not in event.type and event.type != "tool.output"]
    assert {frozenset(envelope) for envelope in envelopes} == {frozenset(KEYS)}
    assert [envelope["payload"]["seq"] for envelope in envelopes] == [event.seq for event in wanted]
    assert {envelope["session_id"] for envelope in envelopes} == {str(run.pk)}
    assert {envelope["agent_id"] for envelope in envelopes} == {run.agent.slug}
    assert len({envelope["payload"]["id"] for envelope in envelopes}) == len(wanted)
    cursor = SinkCursor.objects.get(pk=sink.pk)
    assert (cursor.sent_events, cursor.leased_until, cursor.failures) == (len(wanted), None, 0)

    export()
    assert sum(len(request.json) for request in receiver.received) == len(wanted)


def test_a_batch_is_divided_into_requests_of_a_megabyte(receiver: Receiver) -> None:
    run = make_run()
    make_sink(run.project, "http", {"url": receiver.url, "dialect": "log"}, event_types=("x.note",), from_start=True)
    texts = [letter * 120_000 for letter in "abcdefghijklmnopqrs"]
    for at in range(0, len(texts), 5):
        append(run, *texts[at : at + 5])

    export()

    sizes = [len(request.body) for request in receiver.received]
    assert len(sizes) >= 3
    assert max(sizes) <= 2**20
    sent = [each["payload"]["payload"]["text"] for request in receiver.received for each in request.json]
    assert sent == texts


def test_a_receiver_that_is_down_loses_no_event(receiver: Receiver) -> None:
    run = make_run()
    sink = make_sink(run.project, "http", {"url": receiver.url})
    receiver.answer(503, Retry_After="120")
    receiver.answer(500)
    append(run, "first")

    export()
    cursor = SinkCursor.objects.get(pk=sink.pk)
    assert cursor.due_at is not None
    assert cursor.last_error_at is not None
    assert 100 < (cursor.due_at - cursor.last_error_at).total_seconds() < 140
    assert (cursor.failures, cursor.last_error) == (1, "the receiver answered 503")
    export()
    assert len(receiver.received) == 1  # the sink pauses

    wake(sink)
    export()
    append(run, "second")
    wake(sink)
    export()

    texts = [[each["payload"]["payload"]["text"] for each in request.json] for request in receiver.received]
    assert texts == [["first"], ["first"], ["first"], ["second"]]
    assert wake(sink).failures == 0
    assert not Delivery.objects.exists()


def test_finally_refused_events_are_kept_and_resent_with_the_same_ids(receiver: Receiver) -> None:
    run = make_run()
    sink = make_sink(run.project, "http", {"url": receiver.url})
    receiver.answer(422, body=b"token sk-ant-api03-" + b"a1B2" * 24)
    append(run, "bad")
    export()
    append(run, "good")
    export()

    dead = Delivery.objects.get()
    assert (dead.state, dead.status_code, dead.event_count) == ("dead", 422, 1)
    assert "sk-ant" not in dead.response
    cursor = wake(sink)
    assert (cursor.sent_events, cursor.dead_events) == (1, 1)

    sink_changes.resend(dead, by="test")
    export()
    dead.refresh_from_db()
    assert (dead.state, dead.status_code, dead.attempts) == ("sent", 200, 1)
    first, _, again = receiver.received
    assert first.json == again.json


def test_refused_credentials_disable_the_sink_until_it_is_changed(receiver: Receiver) -> None:
    run = make_run()
    sink = make_sink(run.project, "http", {"url": receiver.url}, secrets={"headers": {"X-Key": "wrong"}})
    receiver.answer(401)
    append(run, "kept")
    export(2)

    sink.refresh_from_db()
    assert (sink.is_enabled, sink.disabled_reason) == (False, "the receiver answered 401")
    sink_changes.change(sink, SinkChange(secrets={"headers": {"X-Key": "right"}}, is_enabled=True), by="test")
    export()
    assert [request.headers["x-key"] for request in receiver.received] == ["wrong", "right"]
    assert receiver.received[1].json[0]["payload"]["payload"]["text"] == "kept"


@pytest.mark.postgres
def test_events_that_are_committed_late_are_not_missed(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PATIENCE_S", 0.1)
    agent = make_agent()
    slow, quick = make_run(agent), make_run(agent)
    make_sink(agent.project, "http", {"url": receiver.url})
    exporter = Exporter()

    with appended_late(slow, "late"):
        append(quick, "early")
        exporter.run_due()
        assert receiver.received == []
    exporter.run_due()

    texts = [each["payload"]["payload"]["text"] for request in receiver.received for each in request.json]
    assert texts == ["late", "early"]


@pytest.mark.every_database
@pytest.mark.parametrize("point", chaos.EXPORT_POINTS)
def test_a_worker_killed_after_sending_sends_again_with_the_same_ids(
    receiver: Receiver, process_env: dict[str, str], point: str
) -> None:
    run = make_run()
    make_sink(run.project, "http" if point == "export.sent" else "webhook", {"url": receiver.url}, event_types=["x.*"])
    append(run, "once")
    look = "from runs.telemetry.exporter import Exporter; Exporter().run_due(); Exporter().run_due()"
    env = process_env | {"DJANGO_SETTINGS_MODULE": "agentops.settings", "AGENTOPS_ALLOW_PRIVATE_SINKS": "1"}
    killed = subprocess.run(
        [sys.executable, "-c", f"import django; django.setup(); {look}"],
        check=False,
        env=env | {"AGENTOPS_CHAOS": point},
        cwd=ROOT,
    )
    assert killed.returncode == -signal.SIGKILL

    export()
    assert len(receiver.received) == 1  # its claim has not expired
    SinkCursor.objects.update(leased_until=LONG_AGO)
    Delivery.objects.update(due_at=LONG_AGO)
    export()

    first, again = receiver.received
    assert first.json == again.json
    assert first.headers.get("webhook-id") == again.headers.get("webhook-id")


def test_old_deliveries_are_deleted(receiver: Receiver) -> None:
    sink = make_sink(make_project(), "http", {"url": receiver.url})
    for state in ("sent", "dead", "waiting"):
        due_at = timezone.now() if state == "waiting" else None
        Delivery.objects.create(sink=sink, message_id=state, state=state, due_at=due_at)
    Delivery.objects.update(created_at=timezone.now() - old_records.DELIVERIES_KEPT - timedelta(days=1))

    assert old_records.delete_batch() == 2
    assert Delivery.objects.get().state == "waiting"


@pytest.mark.slow
def test_no_run_waits_for_a_hanging_sink(receiver: Receiver) -> None:
    run = make_run()
    sink = make_sink(run.project, "http", {"url": receiver.url})
    append(run, "soon")
    receiver.gate.clear()
    upkeep.export_events()
    try:
        eventually(lambda: len(receiver.received) == 1, why="the thread has sent nothing")
        assert drive(run).status == "completed"
        assert SinkCursor.objects.get(pk=sink.pk).sent_events == 0  # the receiver still hangs
        receiver.gate.set()
        eventually(lambda: SinkCursor.objects.get(pk=sink.pk).sent_events == 1, why="the first event is not sent")
        upkeep.export_events()
        eventually(lambda: SinkCursor.objects.get(pk=sink.pk).sent_events > 1, why="the rest is not sent")
    finally:
        receiver.gate.set()
        exporting.close()


def test_a_worker_that_lost_its_claim_moves_no_cursor(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    sink = make_sink(run.project, "http", {"url": receiver.url})
    append(run, "contested")
    before = SinkCursor.objects.get(pk=sink.pk).event_id

    def steal(point: str) -> None:
        SinkCursor.objects.filter(pk=sink.pk).update(claims=99)

    monkeypatch.setattr(chaos, "point", steal)
    export()
    assert SinkCursor.objects.get(pk=sink.pk).event_id == before


@pytest.mark.every_database
def test_a_sink_is_taken_by_a_single_worker() -> None:
    run = make_run()
    sink = make_sink(run.project, "jsonl", {})
    append(run, "for one of them")
    newest = reading.newest_event()

    assert [cursor is not None for cursor in at_once(lambda _: sink_claims.claim(sink.pk, newest), 6)].count(True) == 1


def test_events_of_deleted_runs_are_not_sent_and_events_of_logs_without_a_run_are(receiver: Receiver) -> None:
    run = make_run()
    make_sink(run.project, "http", {"url": receiver.url}, event_types=["x.*"])
    make_sink(run.project, "otlp", {"url": receiver.url}, from_start=True)
    append(run, "of a removed run")
    AgentRun.objects.filter(pk=run.pk).update(removed_at=timezone.now())
    bare = make_log(run.project)
    with transaction.atomic():
        log.append(bare.pk, [Entry({"text": "of a bare log"}, type="x.note")], source=Source.WORKER)
    export()

    assert [each["payload"]["payload"]["text"] for request in receiver.received for each in request.json] == [
        "of a bare log"
    ]
    assert receiver.received[0].json[0]["session_id"] == str(bare.pk)
    AgentRun.with_removed.filter(pk=run.pk).update(removed_at=None)


def test_a_sink_of_another_project_gets_nothing(receiver: Receiver) -> None:
    sink = make_sink(make_project(), "http", {"url": receiver.url})
    run = make_run()
    append(run, "private")
    export()

    assert receiver.received == []
    assert wake(sink).event_id == log.events_of(run.pk).last().pk  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "url",
    ["http://example.org/", "https://127.0.0.1/", "https://user:pass@example.org/", "https://10.0.0.8/", "ftp://x.org"],
)
def test_urls_that_are_not_allowed_are_refused_when_they_are_saved(url: str) -> None:
    with pytest.raises(InvalidSink, match="url"):
        make_sink(make_project(), "http", {"url": url})


def test_names_are_checked_again_when_events_are_sent(settings: Any) -> None:
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = False
    run = make_run()
    sink = make_sink(run.project, "http", {"url": "https://localhost/"})
    append(run, "stays")
    export()

    assert "is not public" in wake(sink).last_error


def test_no_secret_is_stored_or_shown_in_plain_text(receiver: Receiver) -> None:
    secret = "correct-horse-battery-staple"
    sink = make_sink(make_project(), "http", {"url": receiver.url}, secrets={"headers": {"Authorization": secret}})

    assert rows_with(secret) == []
    assert sink.secret_hints == {"headers": {"Authorization": "••••aple"}}


def test_one_test_event_is_sent_and_recorded(receiver: Receiver) -> None:
    sink = make_sink(make_project(), "http", {"url": receiver.url})
    receiver.answer(500, body=b"no")
    delivery = sink_changes.send_test(sink, by="test")
    assert deliveries.send_waiting(sink.pk).attempts == 1

    delivery.refresh_from_db()
    assert (delivery.state, delivery.status_code, delivery.response) == ("dead", 500, "no")
    assert receiver.received[0].json[0]["event_type"] == "test"
    assert wake(sink).failures == 0
