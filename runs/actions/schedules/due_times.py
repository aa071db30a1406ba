"""The due times of a cron expression or an interval. They depend only on it, not on the time of the computation."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TypeAlias
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

#: A typing error must not start a run every second.
MIN_INTERVAL_S, MAX_INTERVAL_S = 60, 366 * 24 * 3600
FIELDS = 5


@dataclass(frozen=True)
class Cron:
    """A cron expression of five fields, in a time zone."""

    expression: str
    zone: str

    def __str__(self) -> str:
        return f"{self.expression} {self.zone}"

    @property
    def names_times(self) -> bool:
        """Whether it names times of the day: neither minute nor hour begins with `*`.

        Such a time is due once a day, even when clocks change. Other expressions count elapsed minutes.
        """
        minute, hour = self.expression.split()[:2]
        return not minute.startswith("*") and not hour.startswith("*")


@dataclass(frozen=True)
class Interval:
    """A number of seconds between due times, counted from an anchor. Clock changes do not matter."""

    seconds: int
    anchor: datetime

    def __str__(self) -> str:
        return f"every {self.seconds} s from {self.anchor.isoformat()}"


Timing: TypeAlias = Cron | Interval


def check(timing: Timing) -> None:
    """Raise ValueError, with a message for users, if the timing has no due times."""
    if isinstance(timing, Interval):
        if not MIN_INTERVAL_S <= timing.seconds <= MAX_INTERVAL_S:
            raise ValueError(f"an interval must be {MIN_INTERVAL_S} to {MAX_INTERVAL_S} seconds, not {timing.seconds}")
        return
    count = len(timing.expression.split())
    if count != FIELDS:
        fields = "minute, hour, day of month, month, day of week"
        raise ValueError(f"a cron expression has {FIELDS} fields ({fields}), not {count}")
    try:
        ZoneInfo(timing.zone)
    except (ValueError, OSError, KeyError):
        text = f"{timing.zone[:64]!r} is not a time zone: use a name such as Europe/Berlin or UTC"
        raise ValueError(text) from None
    try:
        if next(_walls(timing.expression, datetime(2024, 1, 1)), None) is None:  # noqa: DTZ001 - a time on a wall
            raise ValueError(f"{timing.expression!r} is never due")
    except CronSimError as error:
        raise ValueError(f"{timing.expression!r} is not a cron expression: {str(error).lower()}") from None


def after(timing: Timing, moment: datetime) -> Iterator[datetime]:
    """Yield the due times after a moment, in order and in UTC. Ends if the next 50 years have none."""
    return _interval_after(timing, moment) if isinstance(timing, Interval) else _cron_after(timing, moment)


# Cached, because each check of a schedule calls it, and the result never changes.
@functools.lru_cache(maxsize=10_000)
def next_after(timing: Timing, moment: datetime) -> datetime | None:
    """Return the first due time after a moment."""
    return next(after(timing, moment), None)


def upcoming(timing: Timing, moment: datetime, count: int) -> list[datetime]:
    """Return the next due times after a moment."""
    return list(islice(after(timing, moment), count))


def _interval_after(timing: Interval, moment: datetime) -> Iterator[datetime]:
    step = timedelta(seconds=timing.seconds)
    due = timing.anchor + step * max((moment - timing.anchor) // step + 1, 1)
    while True:
        yield due
        due += step


def _cron_after(timing: Cron, moment: datetime) -> Iterator[datetime]:
    zone = ZoneInfo(timing.zone)
    last = moment.astimezone(UTC)
    for due in _instants(timing, zone, _first_wall(last, zone)):
        # Two times in a skipped hour are due at its end, as one due time.
        if due > last:
            yield due
            last = due


def _first_wall(moment: datetime, zone: ZoneInfo) -> datetime:
    """Return the first local time from which to search for due times after a moment.

    In the first pass of a repeated hour, earlier local times come again.
    """
    local = moment.astimezone(zone)
    earlier, later = local.replace(fold=0).utcoffset(), local.replace(fold=1).utcoffset()
    assert earlier is not None
    assert later is not None
    return local.replace(tzinfo=None, fold=0) - max(earlier - later, timedelta())


def _instants(timing: Cron, zone: ZoneInfo, start: datetime) -> Iterator[datetime]:
    """Yield the moments at which local time in the zone matches the expression, in order."""
    #: Moments in the second pass of a repeated hour. They come after all moments of the first pass.
    again: deque[datetime] = deque()
    for wall in _walls(timing.expression, start):
        first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if first > second:
            # This local time is skipped. A named time is due when the clocks have moved forward.
            if timing.names_times:
                yield _end_of_gap(wall, zone)
            continue
        while again and again[0] < first:
            yield again.popleft()
        yield first
        if second > first and not timing.names_times:
            again.append(second)
    yield from again


def _end_of_gap(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the first moment after a skipped local time. Zones change at full minutes."""
    wall = wall.replace(second=0)
    while wall.replace(tzinfo=zone).astimezone(UTC) > wall.replace(tzinfo=zone, fold=1).astimezone(UTC):
        wall += timedelta(minutes=1)
    return wall.replace(tzinfo=zone).astimezone(UTC)


def _walls(expression: str, start: datetime) -> Iterator[datetime]:
    """Yield the local times of an expression after `start`, without a zone."""
    return CronSim(expression, start)
