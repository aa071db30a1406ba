"""The pace of sinks: a failed message is retried alone, and a receiver that is down gets fewer attempts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from runs.models import AgentRun, Delivery, Sink, SinkCursor
from runs.telemetry.exporter import Exporter
from tests.support.factories import make_run
from tests.support.loopback_servers import Receiver
from tests.support.project_rows import append, export, make_sink, wake
from tests.support.timing import eventually

pytestmark = pytest.mark.django_db(transaction=True)


def make_webhook(run: AgentRun, receiver: Receiver) -> Sink:
    return make_sink(run.project, "webhook", {"url": receiver.url}, event_types=("x.note",))


def texts(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def rest_of(sink: Sink) -> float:
    """Return the seconds that a sink pauses after its last failure. 0: no pause."""
    cursor = SinkCursor.objects.get(pk=sink.pk)
    return (cursor.due_at - cursor.last_error_at).total_seconds() if cursor.due_at and cursor.last_error_at else 0.0


@pytest.mark.slow
def test_a_receiver_that_refuses_one_in_five_gets_the_others_without_a_pause(receiver: Receiver) -> None:
    run = make_run()
    sink = make_webhook(run, receiver)
    receiver.refuses_every = 5
    append(run, *texts(120))
    export(2)  # first planned, then sent

    assert len({message.headers["webhook-id"] for message in receiver.received}) == 120
    assert not Delivery.objects.filter(attempts=0).exists()
    assert Delivery.objects.filter(state="waiting").count() <= 24
    assert rest_of(sink) == 0


@pytest.mark.slow
def test_the_backlog_of_a_receiver_that_refuses_one_in_five_is_bounded(receiver: Receiver) -> None:
    """40 messages in each period, plus retries of earlier ones."""
    run = make_run()
    make_webhook(run, receiver)
    receiver.refuses_every = 5
    backlogs = []
    for _ in range(8):
        append(run, *texts(40))
        export(2)
        backlogs.append(Delivery.objects.filter(state="waiting").count())
        Delivery.objects.filter(state="waiting").update(due_at=timezone.now() - timedelta(seconds=1))

    assert max(backlogs) <= 12, backlogs


def test_a_receiver_that_is_down_is_retried_at_growing_intervals(receiver: Receiver) -> None:
    run = make_run()
    sink = make_webhook(run, receiver)
    for _ in range(6):
        receiver.answer(503)
    append(run, *texts(20))
    export(2)
    assert len(receiver.received) == 3
    rests = [rest_of(sink)]
    for _ in range(3):
        wake(sink)
        export()
        rests.append(rest_of(sink))

    assert len(receiver.received) == 6
    for number, rest in enumerate(rests):
        assert 0.45 * 2**number < rest < 1.1 * 2**number, rests

    wake(sink)
    export()
    assert len(receiver.received) == 6 + 14  # the deliveries that have not failed
    assert SinkCursor.objects.get(pk=sink.pk).failures == 0


def test_a_receiver_sets_the_time_of_the_next_attempt(receiver: Receiver) -> None:
    run = make_run()
    sink = make_webhook(run, receiver)
    receiver.answer(429, Retry_After="90")
    append(run, *texts(5))
    export(2)

    assert len(receiver.received) == 1
    assert rest_of(sink) == pytest.approx(90, abs=2)


def test_an_occasionally_refused_batch_is_resent_at_once(receiver: Receiver) -> None:
    """The order is kept: the batches behind it wait."""
    run = make_run()
    sink = make_sink(run.project, "http", {"url": receiver.url, "batch_size": 10}, event_types=("x.note",))
    receiver.refuses_every = 3
    append(run, *texts(100))
    export(1)

    assert SinkCursor.objects.get(pk=sink.pk).sent_events == 100
    assert len(receiver.received) == 14
    assert rest_of(sink) == 0


@pytest.mark.slow
def test_a_slow_receiver_gets_several_at_once(receiver: Receiver) -> None:
    run = make_run()
    make_webhook(run, receiver)
    receiver.latency_s = 0.01
    append(run, *texts(300))
    exporter = Exporter()
    try:
        eventually(
            lambda: exporter.look() and Delivery.objects.filter(state="sent").count() == 300,
            why="everything is sent",
        )
    finally:
        exporter.close()

    assert receiver.most_at_once > 1
    assert len(receiver.received) == 300
