"""Webhooks: signed according to Standard Webhooks, with separate attempts for each message."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import time_machine
from django.db import connection, transaction
from django.utils import timezone
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from agentops.base.http.receivers import new_secret, signed_headers
from runs.models import AgentRun, Delivery, Sink, SinkCursor
from runs.telemetry import deliveries, sink_changes
from runs.telemetry.exporter import Exporter
from runs.telemetry.sink_changes import SinkChange
from runs.telemetry.sink_kind import InvalidSink
from tests.support.factories import drive, make_run
from tests.support.loopback_servers import Received, Receiver
from tests.support.machine import ROOT
from tests.support.project_rows import append, export, make_sink, wake
from tests.support.timing import eventually

pytestmark = pytest.mark.django_db(transaction=True)
#: From the specification: the secret, the message and its signature.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def make_webhook(run: AgentRun, receiver: Receiver, *types: str, **fields: object) -> Sink:
    return make_sink(run.project, "webhook", {"url": receiver.url}, event_types=types or ("x.note",), **fields)


def is_signed_with(secret: str, message: Received) -> bool:
    try:
        Webhook(secret).verify(message.body, message.headers)
    except WebhookVerificationError:
        return False
    return True


def due_again() -> None:
    Delivery.objects.filter(state="waiting").update(due_at=timezone.now() - timedelta(seconds=1))
    SinkCursor.objects.update(due_at=None)


def test_the_end_of_a_run_arrives_once_and_signed(receiver: Receiver) -> None:
    run = make_run()
    make_webhook(run, receiver, "run.*", secrets={"secrets": [SECRET]})
    drive(run)
    export(2)

    types = [message.json["type"] for message in receiver.received]
    assert types == ["run.started", "run.completed"]
    last = receiver.received[-1]
    assert is_signed_with(SECRET, last)
    assert not is_signed_with(new_secret(), last)
    assert last.json["data"]["run_id"] == str(run.pk)
    assert last.json["data"]["event"]["id"] == last.headers["webhook-id"]
    delivery = Delivery.objects.get(event_type="run.completed")
    assert (delivery.state, delivery.status_code, delivery.attempts) == ("sent", 200, 1)
    assert delivery.message_id == last.headers["webhook-id"]


@time_machine.travel("2021-02-25T15:02:10+00:00", tick=False)
def test_a_signature_matches_the_documented_example() -> None:
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    headers = signed_headers([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", body)
    example = (ROOT / "docs/guides/webhooks.md").read_text()
    assert headers["webhook-timestamp"] == "1614265330"
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    for part in (secret, body.decode(), *headers.values()):
        assert part == "application/json" or f"`{part}`" in example


def test_both_secrets_sign_after_a_rotation(receiver: Receiver) -> None:
    run = make_run()
    sink = make_webhook(run, receiver, secrets={"secrets": [SECRET]})
    second = sink_changes.rotate_secret(sink, by="test")
    append(run, "both")
    export(2)
    third = sink_changes.rotate_secret(sink, by="test")
    append(run, "the newer two")
    export(2)

    signed = [[is_signed_with(secret, each) for secret in (SECRET, second, third)] for each in receiver.received]
    assert signed == [[True, True, False], [False, True, True]]


def test_a_failed_message_is_retried_with_growing_pauses_and_then_dead(receiver: Receiver) -> None:
    run = make_run()
    sink = make_webhook(run, receiver)
    append(run, "unwanted")
    pauses = []
    for number in range(deliveries.MAX_ATTEMPTS):
        receiver.answer(500, **({"Retry_After": "40"} if number == 0 else {}))
        export(2)
        due_at, attempted_at = Delivery.objects.values_list("due_at", "attempted_at").get()
        pauses.append(round((due_at - attempted_at).total_seconds()) if due_at else None)
        due_again()

    assert pauses[0] == pytest.approx(40, abs=2)
    assert pauses[-1] is None
    for pause, planned in zip(pauses[1:-1], deliveries.SCHEDULE_S[1:], strict=True):
        assert pause == pytest.approx(planned, rel=0.21)
    dead = Delivery.objects.get()
    assert (dead.state, dead.attempts, dead.error) == ("dead", 12, "the receiver answered 500")
    assert wake(sink).dead_events == 1

    sink_changes.resend(dead, by="test")
    export()
    assert Delivery.objects.get().state == "sent"
    assert len({message.headers["webhook-id"] for message in receiver.received}) == 1
    assert len({message.body for message in receiver.received}) == 1


def test_one_bad_message_does_not_hold_up_the_others(receiver: Receiver) -> None:
    run = make_run()
    make_webhook(run, receiver)
    receiver.answer(400)
    append(run, "bad", "good")
    export(3)

    assert list(Delivery.objects.order_by("first_event").values_list("state", flat=True)) == ["dead", "sent"]


def test_a_receiver_that_answers_410_is_disabled(receiver: Receiver) -> None:
    run = make_run()
    sink = make_webhook(run, receiver)
    receiver.answer(410)
    append(run, "first", "second")
    export(3)

    sink.refresh_from_db()
    assert (sink.is_enabled, sink.disabled_reason) == (False, "the receiver answered 410")
    assert len(receiver.received) == 1
    sink_changes.change(sink, SinkChange(is_enabled=True), by="test")
    export(2)
    texts = [message.json["data"]["event"]["payload"]["text"] for message in receiver.received]
    assert (texts[0], sorted(texts[1:])) == ("first", ["first", "second"])


def test_a_signature_has_the_time_of_the_attempt(receiver: Receiver) -> None:
    run = make_run()
    make_webhook(run, receiver, secrets={"secrets": [SECRET]})
    append(run, "late")
    export(1)
    tomorrow = timezone.now() + timedelta(days=1)
    with time_machine.travel(tomorrow, tick=True):
        export()
        assert is_signed_with(SECRET, receiver.received[0])
    assert not is_signed_with(SECRET, receiver.received[0])


@pytest.mark.parametrize(
    "secrets", [["short"], ["whsec_" + "A" * 10], ["whsec_" + "!" * 40], [], [SECRET] * 3, SECRET], ids=str
)
def test_invalid_secrets_are_refused(receiver: Receiver, secrets: object) -> None:
    with pytest.raises(InvalidSink, match="secret"):
        make_webhook(make_run(), receiver, secrets={"secrets": secrets})


@pytest.mark.parametrize("types", [["run.finished"], ["*"], ["nothing.*"]])
def test_unknown_event_types_are_refused(receiver: Receiver, types: list[str]) -> None:
    with pytest.raises(InvalidSink, match="event_types"):
        make_webhook(make_run(), receiver, *types)


# --- Concurrency --------------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_a_sink_can_be_changed_while_results_of_deliveries_are_stored(receiver: Receiver) -> None:
    """A change makes its deliveries due. It must not deadlock with a worker."""
    run = make_run()
    sink = make_webhook(run, receiver)
    append(run, "one", "two", "three")
    Exporter().run_due()
    Delivery.objects.update(state="waiting", due_at=timezone.now() + timedelta(minutes=1))
    first, second, third = Delivery.objects.select_related("sink__cursor").order_by("pk")
    with transaction.atomic():
        Delivery.objects.select_for_update().get(pk=second.pk)
        change = beside(lambda: sink_changes.change(sink, SinkChange(name="other"), by="test"))
        eventually(somebody_waits, why="the change waits for the second delivery, and has one of the others")
        results = [beside(partial(deliveries.attempt, each)) for each in (first, third)]
        eventually(lambda: somebody_waits(3), why="both results wait")

    assert change().name == "other"
    assert [result() for result in results] == [True, True]
    assert set(Delivery.objects.values_list("state", flat=True)) == {"sent", "waiting"}


def beside(act: Callable[[], Any]) -> Callable[[], Any]:
    """Run a function in another thread, and return a function that waits for its result."""
    pool = ThreadPoolExecutor(1)

    def acting() -> Any:
        try:
            return act()
        finally:
            connection.close()

    result = pool.submit(acting)
    pool.shutdown(wait=False)
    return lambda: result.result(60)


def somebody_waits(count: int = 1) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0] >= count)
