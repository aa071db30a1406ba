"""Times of events, which runners set by clocks of their own: any time that a calendar has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def moved(at: datetime, by: timedelta) -> datetime:
    """Return a time moved by a duration; the first or the last time of the calendar if it would leave it."""
    try:
        return at + by
    except OverflowError:
        return LAST if by > timedelta(0) else FIRST
