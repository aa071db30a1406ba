"""For readers of stored events: how far all events are committed, masking of secrets, and times.

Within one log, events are committed in the order of their sequence numbers. Over all logs, they are not committed in
the order of their IDs: PostgreSQL assigns IDs before the commit, and transactions commit in any order. Events are
redacted before they are stored, but possibly by an earlier version with fewer detectors, so readers mask them again.
Runners set the times of events by their own clocks, so an event may have any time from year 1 to 9999.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import cast

from django.db import connection
from django.db.models import Max
from django.utils.dateparse import parse_datetime

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import JSON
from timeline.models import Event

#: Maximum seconds to wait for transactions that are appending events.
PATIENCE_S = 1.0
#: Seconds between two checks for such transactions.
LOOK_S = 0.02
# The other transactions that append events: a transaction takes this lock before its events get their IDs.
_APPENDING = """
SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock'
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND relation = 'agent_run_events'::regclass AND pid <> pg_backend_pid()"""


def newest_event() -> int:
    """Return the ID of the newest visible event; 0 without events."""
    return Event.objects.aggregate(newest=Max("pk"))["newest"] or 0


def settled_event(after: int, newest: int | None = None) -> int | None:
    """Return the ID of the newest event, when no event with a lower ID can appear any more.

    Waits for the transactions that are appending events, unless no event follows `after`. Returns None if one of them
    stays open for `PATIENCE_S`. `newest`: the ID of the newest event, if the caller has read it.
    """
    newest = newest_event() if newest is None else newest
    if newest <= after or connection.vendor != "postgresql":
        return newest
    until = time.monotonic() + PATIENCE_S
    appending = _appending()
    while appending:
        if time.monotonic() > until:
            return None
        time.sleep(LOOK_S)
        appending &= _appending()
    return newest


def _appending() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(_APPENDING)
        return {transaction_id for (transaction_id,) in cursor}


def indexes_with_secrets(texts: Sequence[str]) -> list[int]:
    """Return the sorted indexes of the texts that contain secrets. One search over all texts is faster than many."""
    spans = REDACTOR.spans("\n".join(texts))
    if not spans:
        return []
    starts = [0, *accumulate(len(text) + 1 for text in texts)]
    indexes = {
        index
        for span in spans
        for index in range(bisect_right(starts, span.begin) - 1, bisect_right(starts, span.end - 1))
    }
    return sorted(indexes)


def mask_events(events: Sequence[Event]) -> Sequence[Event]:
    """Mask the secrets in the payloads of events, in place, and return the events. Nothing is saved."""
    for index in indexes_with_secrets([json.dumps(event.payload, ensure_ascii=False) for event in events]):
        events[index].payload = REDACTOR.clean(cast("JSON", events[index].payload))[0]
    return events


FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def shift(at: datetime, by: timedelta) -> datetime:
    """Return a time shifted by a duration, limited to the range of `datetime`."""
    try:
        return at + by
    except OverflowError:
        return LAST if by > timedelta(0) else FIRST


def parse_moment(text: object) -> datetime | None:
    """Parse an ISO 8601 time, and return it in UTC. A time without an offset counts as UTC.

    Returns None if the text is invalid or the time is out of the range of `datetime`.
    """
    try:
        at = parse_datetime(str(text or ""))
        if at is None or at.tzinfo is None:
            return at and at.replace(tzinfo=UTC)
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
