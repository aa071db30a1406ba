"""Deliveries: created when a sink's cursor moves, attempted one by one, and dead after the last failed attempt.

A sent or dead delivery can be sent again on request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, QuerySet
from uuid_utils.compat import uuid7

from agentops.accounts.names import one_line
from agentops.base.database_clock import Now
from agentops.base.http.receivers import pause_s
from runs import chaos
from runs.lifecycle import wake
from runs.models import Delivery, Sink, SinkCursor
from runs.models.telemetry import TEST
from runs.telemetry import sink_claims
from runs.telemetry.envelope import id_of, outgoing, test_event
from runs.telemetry.sink_claims import EventBatch, events_of
from runs.telemetry.sink_kind import MAX_RESPONSE, OutgoingEvent, Receipt, SendFailed, SinkKind, SinkTarget
from runs.telemetry.sink_targets import SinkUnusable, target_of
from timeline.display import clean
from timeline.models import Event

log = logging.getLogger(__name__)
#: Seconds after each failed attempt until the next one. After the last attempt, the delivery is dead. The values are
#: those recommended by Standard Webhooks, plus 30 s and 2 min: for a receiver that refuses one in five requests, they
#: reduce the number of waiting messages to a tenth.
SCHEDULE_S = (5, 30, 120, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
MAX_ATTEMPTS = len(SCHEDULE_S) + 1
#: How long a worker's claim of a delivery lasts.
LEASE = timedelta(seconds=60)
#: Maximum number of waiting deliveries of a sink. Beyond it, no more are created and the cursor waits.
MAX_WAITING = 10_000
#: Maximum number of deliveries of one sink that are attempted in a row.
IN_A_ROW = 50
#: How often to try another delivery, if other threads or workers claim it first.
CLAIMS = 10
State = Delivery.State


@dataclass(slots=True)
class Turn:
    """The consecutive delivery attempts of a sink in one thread."""

    attempts: int = 0
    failures: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the maximum was reached, so that more deliveries may be due."""
        return self.attempts >= IN_A_ROW

    @property
    def is_mostly_accepted(self) -> bool:
        """Whether more attempts succeeded than failed."""
        return self.failures * 2 < self.attempts


def plan(cursor: SinkCursor, batch: EventBatch) -> bool:
    """Create a delivery for each event, and move the cursor, in one transaction. Raises `ClaimExpired`.

    Returns False, with nothing changed, if too many deliveries of the sink are waiting.
    """
    waiting = Delivery.objects.filter(sink=cursor.pk, due_at__isnull=False).values("pk")
    if batch.events and waiting[:MAX_WAITING].count() >= MAX_WAITING:
        return False
    with transaction.atomic():
        Delivery.objects.bulk_create(
            Delivery(**_range(cursor.sink, [event]), event_type=event.type, run_id=event.log_id, due_at=Now())
            for event in batch.events
        )
        sink_claims.move(cursor, batch.position)
    return True


def record_dead(cursor: SinkCursor, batch: EventBatch, failure: SendFailed, *, sent: int = 0) -> None:
    """Store a refused batch as a dead delivery, and move the cursor. Raises `ClaimExpired`.

    `sent` is the number of its events that count as accepted: a receiver may refuse parts of a batch.
    """
    with transaction.atomic():
        Delivery.objects.create(
            **_range(cursor.sink, batch.events),
            state=State.DEAD,
            attempts=1,
            attempted_at=Now(),
            status_code=failure.status,
            response=_stored_response(failure.response),
            error=one_line(clean(str(failure)), 500),
        )
        sink_claims.record_success(cursor, batch.position, sent=sent, dead=len(batch.events) - sent)


def queue_test(sink: Sink) -> Delivery:
    """Store a delivery of a test event, which a worker sends within seconds."""
    delivery = Delivery.objects.create(
        sink=sink, project_id=sink.project_id, message_id=f"msg_{uuid7().hex}", event_type=TEST, due_at=Now()
    )
    delivery.refresh_from_db(fields=["due_at"])
    wake.ask_for(wake.EXPORT)
    return delivery


def send_again(ended: QuerySet[Delivery]) -> int:
    """Queue sent or dead deliveries again, with the same IDs. Returns their number."""
    wake.ask_for(wake.EXPORT)
    return ended.update(state=State.WAITING, due_at=Now(), attempts=0, error="", status_code=None, response="")


def make_due(sink: Sink) -> None:
    """Make all waiting deliveries of a sink due now, because the sink was changed."""
    Delivery.objects.filter(sink=sink.pk, state=State.WAITING, due_at__gt=Now()).update(due_at=Now())
    wake.ask_for(wake.EXPORT)


def send_waiting(sink_id: UUID, is_stopping: Callable[[], bool] = lambda: False, *, lane: int = 0) -> Turn:
    """Attempt due deliveries of a sink until none is due, `IN_A_ROW` were attempted, or `is_stopping` returns True.

    A failed delivery does not stop the others. `lane`: how many threads send for the sink besides this one. The first
    `lane` due deliveries are left to them.
    """
    turn = Turn()
    while not turn.is_full and not is_stopping():
        delivery = _claim_due(sink_id, lane)
        if delivery is None:
            break
        turn.attempts += 1
        turn.failures += not attempt(delivery)
    return turn


def _claim_due(sink_id: UUID, skip: int) -> Delivery | None:
    """Claim the first due delivery after `skip` others, which parallel threads claim.

    Returns None if no other delivery is due, or if other threads were faster `CLAIMS` times.
    """
    for _ in range(CLAIMS):
        candidate = next(iter(Delivery.objects.due().filter(sink=sink_id)[skip : skip + 1]), None)
        if candidate is None:
            return None
        if (delivery := claim(candidate)) is not None:
            return delivery
    return None


def claim(candidate: Delivery) -> Delivery | None:
    """Claim a waiting delivery for one attempt. Returns None if another worker has claimed it."""
    unclaimed = Delivery.objects.filter(
        pk=candidate.pk, attempts=candidate.attempts, state=State.WAITING, due_at=candidate.due_at
    )
    if not unclaimed.update(attempts=F("attempts") + 1, due_at=Now() + LEASE, attempted_at=Now()):
        return None
    return Delivery.objects.select_related("sink__cursor").get(pk=candidate.pk)


def attempt(delivery: Delivery) -> bool:
    """Send a claimed delivery and store the result. Returns whether the receiver accepted it."""
    began = time.monotonic()
    try:
        kind, target = target_of(delivery.sink)
        events = _events_of(delivery, kind, target)
        receipt = send(kind, target, events, delivery.message_id)
    except SinkUnusable as error:
        return _record_failure(delivery, SendFailed(str(error)), began)
    except SendFailed as failure:
        return _record_failure(delivery, failure, began)
    chaos.point("export.delivered")
    _record_success(delivery, receipt, began)
    return True


def send(kind: SinkKind, target: SinkTarget, events: Sequence[OutgoingEvent], message_id: str) -> Receipt:
    """Send events to a sink, with the database connection closed. Raises `SendFailed` for every error."""
    try:
        requests = kind.render(target, events, message_id)
        if not requests:
            return Receipt()
        if not connection.in_atomic_block:
            connection.close()
        return kind.send(target, requests)
    except SendFailed:
        raise
    except Exception as error:
        # An error in a built-in or added kind must not end the thread.
        log.exception("a sink failed unexpectedly", extra={"sink": target.name})
        raise SendFailed(f"unexpected error: {type(error).__name__}") from error


def _events_of(delivery: Delivery, kind: SinkKind, target: SinkTarget) -> Sequence[OutgoingEvent]:
    if delivery.event_type == TEST:
        return kind.test_events(target, test_event(delivery.message_id))
    events = outgoing(events_of(delivery, kind))
    if not events:
        reason = "the events were deleted by retention, or the telemetry of their project is off"
        raise SendFailed(reason, is_final=True)
    return events


def _record_success(delivery: Delivery, receipt: Receipt, began: float) -> None:
    refused = "; ".join(receipt.refused)
    with transaction.atomic():
        sink_claims.lock_cursor(delivery.sink_id)
        is_claimed = _claimed(delivery).update(
            state=State.DEAD if refused else State.SENT,
            due_at=None,
            status_code=receipt.status,
            response=_stored_response(receipt.response),
            error=one_line(refused, 500),
            duration_ms=_elapsed_ms(began),
        )
        if is_claimed:
            cursors = SinkCursor.objects.filter(pk=delivery.sink_id)
            sent = F("sent_events") + (0 if delivery.event_type == TEST else delivery.event_count)
            cursors.update(failures=0, due_at=None, last_success_at=Now(), sent_events=sent)


def _record_failure(delivery: Delivery, failure: SendFailed, began: float) -> bool:
    """Schedule the next attempt, or mark the delivery as dead. Returns False."""
    is_test = delivery.event_type == TEST
    is_dead = is_test or failure.is_final or delivery.attempts >= MAX_ATTEMPTS
    error = one_line(clean(str(failure)), 500)
    pause = timedelta(seconds=pause_s(SCHEDULE_S, delivery.attempts, failure.retry_after_s))
    with transaction.atomic():
        sink_claims.lock_cursor(delivery.sink_id)
        is_claimed = _claimed(delivery).update(
            state=State.DEAD if is_dead else State.WAITING,
            due_at=None if is_dead else Now() + pause,
            status_code=failure.status,
            response=_stored_response(failure.response),
            error=error,
            duration_ms=_elapsed_ms(began),
        )
        if is_claimed and not is_test:
            _record_on_sink(delivery, failure, error, is_dead=is_dead)
    log.warning("a delivery was not accepted", extra={"sink": delivery.sink.name, "delivery": str(delivery.pk)})
    return False


def _record_on_sink(delivery: Delivery, failure: SendFailed, error: str, *, is_dead: bool) -> None:
    """Record a failed attempt on the sink's cursor. The sink may then rest, or be disabled."""
    values: dict[str, Any] = {"last_error": error, "last_error_at": Now()}
    if is_dead:
        values["dead_events"] = F("dead_events") + delivery.event_count
    if not failure.is_final:
        values["failures"] = F("failures") + 1
        if rest := sink_claims.rest_of(delivery.sink.cursor.failures, failure):
            values["due_at"] = Now() + rest
    SinkCursor.objects.filter(pk=delivery.sink_id).update(**values)
    if failure.disables:
        sink_claims.disable(delivery.sink, str(failure))


def _claimed(delivery: Delivery) -> QuerySet[Delivery]:
    """Return the row of a delivery, if this process still holds the claim on it."""
    return Delivery.objects.filter(pk=delivery.pk, attempts=delivery.attempts, state=State.WAITING)


def _range(sink: Sink, events: Sequence[Event]) -> dict[str, Any]:
    """Return the columns of a delivery that name its sink and its events."""
    first, last = events[0], events[-1]
    return {
        "sink": sink,
        "project_id": sink.project_id,
        "message_id": id_of(first) if len(events) == 1 else f"msg_{uuid7().hex}",
        "first_event": first.pk,
        "last_event": last.pk,
        "event_count": len(events),
    }


def _stored_response(response: str) -> str:
    """Return the start of a receiver's answer in stored form: redacted, in one line."""
    return one_line(clean(response[:MAX_RESPONSE]), MAX_RESPONSE)


def _elapsed_ms(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
