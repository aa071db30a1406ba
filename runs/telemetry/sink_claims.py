"""Claim sinks for workers, and record the results of batches. A claim is a lease by the database's clock.

Lock order: the cursor of a sink, then its deliveries and the sink itself. This prevents a deadlock between a change of
the sink and the result of a delivery.
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from agentops.accounts.names import one_line
from agentops.base.database_clock import Now
from agentops.base.http.receivers import LONGEST_RETRY_AFTER_S
from runs.models import Sink, SinkCursor
from runs.telemetry.sink_kind import SendFailed
from timeline.display import clean

#: Longer than any batch takes, even in several requests of ten seconds each.
LEASE = timedelta(seconds=120)
#: Number of consecutive failures after which a sink rests. A receiver that refuses occasionally is not slowed down.
PATIENCE = 3
#: Seconds of the first rest, doubled for each further failure, and the maximum.
BACKOFF_S, LONGEST_S = 1.0, 300.0


class ClaimExpired(Exception):
    """Another worker has claimed the sink, or it was deleted. Sent events are sent again, with the same IDs."""


def take(sink_id: Any, newest: int) -> SinkCursor | None:
    """Claim a sink that has unsent events up to `newest`. Returns None if another worker has claimed it."""
    claims = SinkCursor.objects.due(newest).filter(pk=sink_id).values_list("claims", flat=True).first()
    if claims is None:
        return None
    # The number of claims makes the claim exclusive. Conditions on other tables would see the rows from before the
    # lock.
    unclaimed = SinkCursor.objects.filter(pk=sink_id, claims=claims)
    if not unclaimed.update(leased_until=Now() + LEASE, claims=F("claims") + 1):
        return None
    return SinkCursor.objects.select_related("sink__project").get(pk=sink_id)


def hold(sink_id: Any) -> None:
    """Lock the cursor of a sink until the commit, before its deliveries or the sink itself."""
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
    """Leave the cursor in place. Returns whether the sink rests; otherwise the claim is kept for another attempt.

    Raises `ClaimExpired`.
    """
    rest = rest_of(cursor.failures, failure)
    wait: dict[str, Any] = {"leased_until": Now() + LEASE}
    if rests := failure.disables or bool(rest):
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
    """Release a claimed sink."""
    _mine(cursor).update(leased_until=None)


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
    if not _mine(cursor).update(**values):
        raise ClaimExpired(f"sink {cursor.pk} was taken by another worker")


def _mine(cursor: SinkCursor) -> Any:
    return SinkCursor.objects.filter(pk=cursor.pk, claims=cursor.claims)
