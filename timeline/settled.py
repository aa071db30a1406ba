"""The newest event below which no event can appear any more, for readers of all logs.

Within one log events are committed in the order of their numbers. Over all logs they are not: on PostgreSQL, IDs are
assigned before the commit, and transactions commit in any order.
"""

from __future__ import annotations

import time

from django.db import connection
from django.db.models import Max

from timeline.models import Event

#: Seconds to wait for transactions that are appending events.
PATIENCE_S, LOOK_S = 1.0, 0.02
# A transaction takes this lock before the sequence gives its events their IDs.
_APPENDING = """
SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock'
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND relation = 'agent_run_events'::regclass AND pid <> pg_backend_pid()"""


def newest_event() -> int:
    """Return the ID of the newest visible event; 0 without events."""
    return Event.objects.aggregate(newest=Max("pk"))["newest"] or 0


def settled_event(after: int, newest: int | None = None) -> int | None:
    """Return the ID of the newest event below which no event can appear. None if transactions stay open for a second.

    Waits for transactions that are appending while the newest event is read, unless there are no events after `after`.
    `newest`: the newest event, if the caller has read it.
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
