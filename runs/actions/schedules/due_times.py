"""The due times of a cron expression or an interval, and the decision which of them start a run.

Pure functions: due times depend only on the expression, not on the time of the computation.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TypeAlias
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

#: The minimum prevents that a typing error starts a run every second.
MIN_INTERVAL_S, MAX_INTERVAL_S = 60, 366 * 24 * 3600
#: The number of fields of a cron expression.
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
        """Whether the expression names times of the day: neither its minute nor its hour begins with `*`.

        Such a time is due exactly once a day, even when clocks change. The due times of other expressions follow the
        elapsed time.
        """
        minute, hour = self.expression.split()[:2]
        return not minute.startswith("*") and not hour.startswith("*")


@dataclass(frozen=True)
class Interval:
    """A number of seconds between due times, counted from an anchor. Changes of local time do not matter."""

    seconds: int
    anchor: datetime

    def __str__(self) -> str:
        return f"every {self.seconds} s from {self.anchor.isoformat()}"


Timing: TypeAlias = Cron | Interval


def check(timing: Timing) -> None:
    """Raise `ValueError`, with a message for users, if the timing is invalid or has no due times."""
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
        if next(_local_times(timing.expression, datetime(2024, 1, 1)), None) is None:  # noqa: DTZ001 - a local time
            raise ValueError(f"{timing.expression!r} is never due")
    except CronSimError as error:
        raise ValueError(f"{timing.expression!r} is not a cron expression: {str(error).lower()}") from None


def after(timing: Timing, moment: datetime) -> Iterator[datetime]:
    """Yield the due times after a moment, in order and in UTC. Ends if the next 50 years have none."""
    return _interval_after(timing, moment) if isinstance(timing, Interval) else _cron_after(timing, moment)


# Cached, because each check of a schedule calls this, and the result never changes.
@functools.lru_cache(maxsize=10_000)
def next_after(timing: Timing, moment: datetime) -> datetime | None:
    """Return the first due time after a moment; None without one."""
    return next(after(timing, moment), None)


def upcoming(timing: Timing, moment: datetime, count: int) -> list[datetime]:
    """Return the first `count` due times after a moment."""
    return list(islice(after(timing, moment), count))


def _interval_after(timing: Interval, moment: datetime) -> Iterator[datetime]:
    """Yield the due times of an interval after a moment, without end."""
    step = timedelta(seconds=timing.seconds)
    due = timing.anchor + step * max((moment - timing.anchor) // step + 1, 1)
    while True:
        yield due
        due += step


def _cron_after(timing: Cron, moment: datetime) -> Iterator[datetime]:
    """Yield the due times of a cron expression after a moment."""
    zone = ZoneInfo(timing.zone)
    last = moment.astimezone(UTC)
    for due in _moments(timing, zone, _search_start(last, zone)):
        # Several local times in a skipped hour are due at its end, as one due time.
        if due > last:
            yield due
            last = due


def _search_start(moment: datetime, zone: ZoneInfo) -> datetime:
    """Return the local time after which to search for due times after a moment.

    In the first pass of a repeated hour this is an hour earlier, because earlier local times come again.
    """
    local = moment.astimezone(zone)
    earlier, later = local.replace(fold=0).utcoffset(), local.replace(fold=1).utcoffset()
    assert earlier is not None
    assert later is not None
    return local.replace(tzinfo=None, fold=0) - max(earlier - later, timedelta())


def _moments(timing: Cron, zone: ZoneInfo, start: datetime) -> Iterator[datetime]:
    """Yield the moments at which the local time in the zone matches the expression, in order."""
    #: Moments in the second pass of a repeated hour. They come after all moments of the first pass.
    repeated: deque[datetime] = deque()
    for local in _local_times(timing.expression, start):
        first, second = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if first > second:
            # This local time is skipped. A named time is due when the clocks have moved forward.
            if timing.names_times:
                yield _end_of_gap(local, zone)
            continue
        while repeated and repeated[0] < first:
            yield repeated.popleft()
        yield first
        if second > first and not timing.names_times:
            repeated.append(second)
    yield from repeated


def _end_of_gap(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the first moment after a skipped local time. Zones change at full minutes."""
    local = local.replace(second=0)
    while local.replace(tzinfo=zone).astimezone(UTC) > local.replace(tzinfo=zone, fold=1).astimezone(UTC):
        local += timedelta(minutes=1)
    return local.replace(tzinfo=zone).astimezone(UTC)


def _local_times(expression: str, start: datetime) -> Iterator[datetime]:
    """Yield the local times of an expression after `start`, without a zone."""
    return CronSim(expression, start)


#: A due time that is processed later than this was missed, because no worker was running. A restart takes less time.
ON_TIME = timedelta(minutes=5)
#: Maximum due times processed in one transaction.
MAX_DUE = 2000


@dataclass(frozen=True)
class Plan:
    """The decision about due times: record the missed ones, and then start a run."""

    missed: tuple[datetime, ...] = ()
    #: The due time for which a run is to be started.
    start: datetime | None = None
    #: Whether there are more due times, for the next transaction.
    has_more: bool = False

    @property
    def handled_until(self) -> datetime | None:
        """The last due time that the plan decides about; None if it decides about none."""
        return self.start or (self.missed[-1] if self.missed else None)


def decide(due: Sequence[datetime], now: datetime, *, catches_up: bool) -> Plan:
    """Return the plan for due times, which are in order and not later than `now`.

    Starts the first due time that is not late. If all are late, `catches_up` starts the last one. Due times beyond
    `MAX_DUE` are left to the next plan.
    """
    has_more, due = len(due) > MAX_DUE, due[:MAX_DUE]
    late = [each for each in due if each < now - ON_TIME]
    if len(late) < len(due):
        return Plan(tuple(late), due[len(late)], has_more or len(due) > len(late) + 1)
    if late and catches_up and not has_more:
        return Plan(tuple(late[:-1]), late[-1])
    return Plan(tuple(late), has_more=has_more)
