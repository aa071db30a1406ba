"""Claim sinks for workers, read the events that they have not received, and record the results of batches.

A claim is a lease by the database's clock. Lock order: the cursor of a sink, then its deliveries and the sink itself.
This prevents a deadlock between a change of the sink and the result of a delivery.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q, QuerySet

from agentops.accounts.names import one_line
from agentops.base.database_clock import Now
from agentops.base.http.receivers import LONGEST_RETRY_AFTER_S
from runs.models import Delivery, Sink, SinkCursor
from runs.telemetry.sink_kind import SendFailed, SinkKind
from timeline.display import clean
from timeline.events import CHUNK_TYPES
from timeline.models import Event

#: Number of event IDs that one query covers. It limits the scan for a project with few events among many.
SPAN = 5000
#: The suffix of a name for a family of types.
FAMILY = ".*"


@dataclass(frozen=True)
class EventBatch:
    """The next events of a sink, and the position after them."""

    events: Sequence[Event]
    position: int


def next_batch(sink: Sink, kind: SinkKind, after: int, upto: int, *, size: int) -> EventBatch:
    """Return at most `size` next events of the sink, and the position up to which it then has all of its events."""
    bound = min(upto, after + SPAN)
    rows = wanted(sink, kind).filter(pk__gt=after, pk__lte=bound)
    events = list(rows.order_by("pk")[:size])
    return EventBatch(events, events[-1].pk if len(events) == size else bound)


def events_of(delivery: Delivery, kind: SinkKind) -> list[Event]:
    """Return the events of a delivery that still exist."""
    rows = wanted(delivery.sink, kind).filter(pk__gte=delivery.first_event, pk__lte=delivery.last_event)
    return list(rows.order_by("pk"))


def wanted(sink: Sink, kind: SinkKind) -> QuerySet[Event]:
    """Return the events that a sink gets, with their logs."""
    rows = Event.objects.select_related("log")
    rows = exported(rows) if sink.project_id is None else rows.filter(log__project=sink.project_id)
    types = kind.types_of(sink.config, sink.event_types)
    return rows.filter(selected(types)) if types else rows.exclude(type__in=CHUNK_TYPES)


def exported(rows: QuerySet[Event]) -> QuerySet[Event]:
    """Return the events of projects whose telemetry is on. Runs that began before it was switched on are left out.

    They are left out as a whole, because the trace of a run would contain its earlier messages.
    """
    since = Q(log__project__telemetry_since=None) | Q(log__created_at__gte=F("log__project__telemetry_since"))
    return rows.filter(since, log__project__exports_telemetry=True)


def selected(types: Collection[str]) -> Q:
    """Return the condition for events of these types; `run.*` selects all types that begin with `run.`."""
    condition = Q(type__in=[each for each in types if not each.endswith(FAMILY)])
    for each in types:
        if each.endswith(FAMILY):
            condition |= Q(type__startswith=each.removesuffix("*"))
    return condition


#: How long a claim lasts: longer than any batch takes, even in several requests of ten seconds each.
LEASE = timedelta(seconds=120)
#: Number of consecutive failures after which a sink rests. Occasional failures do not slow a sink down.
PATIENCE = 3
#: Seconds of the first rest, which doubles with each further failure, and of the longest rest.
BACKOFF_S, LONGEST_S = 1.0, 300.0


class ClaimExpired(Exception):
    """Another worker has claimed the sink, or it was deleted. Sent events are sent again, with the same IDs."""


def claim(sink_id: Any, newest: int) -> SinkCursor | None:
    """Claim a sink that has unsent events up to `newest`. Returns None if it has none, or another worker claimed it."""
    claims = SinkCursor.objects.due(newest).filter(pk=sink_id).values_list("claims", flat=True).first()
    if claims is None:
        return None
    # Compare only the number of claims: a condition on another table would see its rows from before the lock.
    unclaimed = SinkCursor.objects.filter(pk=sink_id, claims=claims)
    if not unclaimed.update(leased_until=Now() + LEASE, claims=F("claims") + 1):
        return None
    return SinkCursor.objects.select_related("sink__project").get(pk=sink_id)


def lock_cursor(sink_id: Any) -> None:
    """Lock the cursor of a sink until the commit. Call this before locking its deliveries or the sink itself."""
    SinkCursor.objects.select_for_update().filter(pk=sink_id).values_list("pk").first()


def move(cursor: SinkCursor, position: int, **values: Any) -> None:
    """Move a claimed cursor to a position, and renew the claim. Raises `ClaimExpired`."""
    _update(cursor, event_id=position, leased_until=Now() + LEASE, **values)
    cursor.event_id = position


def record_success(cursor: SinkCursor, position: int, *, sent: int, dead: int = 0) -> None:
    """Move the cursor past events that the receiver has accepted, or permanently refused. Raises `ClaimExpired`."""
    counts = {"sent_events": F("sent_events") + sent, "dead_events": F("dead_events") + dead}
    move(cursor, position, failures=0, due_at=None, last_success_at=Now(), **counts)
    cursor.failures = 0


def record_failure(cursor: SinkCursor, failure: SendFailed) -> bool:
    """Record a failed attempt, without moving the cursor. Raises `ClaimExpired`.

    Returns True if the sink now rests or is disabled. The claim is then released; otherwise it is renewed.
    """
    rest = rest_of(cursor.failures, failure)
    wait: dict[str, Any] = {"leased_until": Now() + LEASE}
    rests = failure.disables or bool(rest)
    if rests:
        wait = {"leased_until": None, "due_at": Now() + rest}
    with transaction.atomic():
        error = one_line(clean(str(failure)), 500)
        _update(cursor, failures=F("failures") + 1, last_error=error, last_error_at=Now(), **wait)
        if failure.disables:
            disable(cursor.sink, str(failure))
    cursor.failures += 1
    return rests


def disable(sink: Sink, reason: str) -> None:
    """Disable a sink whose receiver accepts nothing until the sink is changed. Its position is kept."""
    Sink.objects.filter(pk=sink.pk).update(is_enabled=False, disabled_reason=one_line(reason, 500))


def release(cursor: SinkCursor) -> None:
    """End the claim on a sink, unless another worker has claimed it."""
    _claimed(cursor).update(leased_until=None)


def rest_of(failures: int, failure: SendFailed) -> timedelta:
    """Return how long a sink rests after `failures` consecutive failures and this one, with jitter. Zero: no rest."""
    if failure.retry_after_s is not None:
        return timedelta(seconds=min(max(failure.retry_after_s, BACKOFF_S), LONGEST_RETRY_AFTER_S))
    beyond = failures + 1 - PATIENCE
    if beyond < 0:
        return timedelta(0)
    longest: float = min(BACKOFF_S * 2 ** min(beyond, 30), LONGEST_S)
    return timedelta(seconds=longest * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load only


def _update(cursor: SinkCursor, **values: Any) -> None:
    if not _claimed(cursor).update(**values):
        raise ClaimExpired(f"sink {cursor.pk} was taken by another worker")


def _claimed(cursor: SinkCursor) -> QuerySet[SinkCursor]:
    """Return the row of a cursor, if this process still holds the claim on it."""
    return SinkCursor.objects.filter(pk=cursor.pk, claims=cursor.claims)
