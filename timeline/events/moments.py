"""Times of events. Runners set them by their own clocks, so they may be any time that a calendar has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.utils.dateparse import parse_datetime

FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def moved(at: datetime, by: timedelta) -> datetime:
    """Return a time moved by a duration, limited to the first and last time of the calendar."""
    try:
        return at + by
    except OverflowError:
        return LAST if by > timedelta(0) else FIRST


def parse_moment(text: object) -> datetime | None:
    """Return the ISO 8601 time in a payload in UTC; None if it is invalid or beyond the calendar."""
    try:
        at = parse_datetime(str(text or ""))
        if at is None or at.tzinfo is None:
            return at and at.replace(tzinfo=UTC)
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
