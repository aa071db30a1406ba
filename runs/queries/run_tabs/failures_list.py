"""The events of a run that report a failure. They are found by a scan of its log, so only on request."""

from __future__ import annotations

from uuid import UUID

from timeline import log
from timeline.events.failures import FAILURES
from timeline.models import Event


def failures(run_id: UUID, after: int, limit: int) -> list[Event]:
    """Return at most `limit` failures after event `after`, in order."""
    return list(log.events_of(run_id).filter(FAILURES, seq__gt=after)[:limit])


def next_failure(run_id: UUID, after: int) -> int | None:
    """Return the seq of the next failure after event `after`, or else of the first one; None if there is none."""
    seqs = log.events_of(run_id).filter(FAILURES).values_list("seq", flat=True)
    return (seqs.filter(seq__gt=after).first() if after else None) or seqs.first()
